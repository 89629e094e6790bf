"""One instruction of Solana programs as a table; events that programs send to themselves too.

Made by `solana.instructions` and `solana.events`. Defined on the driver, pickled to executors,
never changed; the same batch gives the same rows. A row is known by slot, transaction and the
address of its instruction: `[2]` is the third of the transaction, `[2, 0]` the first that it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange, RangeSpec
from headwater.decode.columns.base58 import decode_base58
from headwater.decode.columns.field_columns import name_columns
from headwater.decode.columns.integers import DECIMAL
from headwater.decode.columns.malformed import MalformedRowsError, OnError, refuse
from headwater.decode.columns.row_filter import (
    has_prefix,
    list_item,
    refuse_missing_filter_fields,
    select_rows,
)
from headwater.decode.columns.transaction_names import look_up_transactions
from headwater.decode.columns.wire_columns import as_decimals, required
from headwater.decode.lines.block_lines import HEADER_FIELDS
from headwater.decode.lines.entities import Entities
from headwater.decode.output import DecodedRows, decode_rows
from headwater.decode.solana.borsh import BorshReader, arrow_field
from headwater.decode.solana.data_layout import Account, DataLayout
from headwater.errors import UndecodableInstructionError
from headwater.query import SOLANA, Filter, Query

ADDRESS = pa.list_(pa.int32())
INSTRUCTION_FIELDS = (
    *HEADER_FIELDS,
    pa.field("signature", pa.string()),
    pa.field("transaction_index", pa.int64()),
    pa.field("instruction_address", ADDRESS),
    pa.field("program_id", pa.string()),
    pa.field("is_committed", pa.bool_()),
)
LOG_FIELDS = (*INSTRUCTION_FIELDS[:5], pa.field("log_index", pa.int64()), *INSTRUCTION_FIELDS[5:])


_FIELDS = {
    field.name: field
    for entity in ("instruction", "log")
    for field in SOLANA.entity(entity).fields
    if field.name in {"transaction_index", "log_index", "instruction_address"}
}
_OTHERS = {"is_committed": "isCommitted", "program_id": "programId"}


def with_transactions(batch: pa.RecordBatch, entities: Entities) -> pa.RecordBatch:
    """Add `signature`, and `isCommitted` where it follows from the transactions' errors."""
    transactions = entities["transaction"]
    batch = batch.append_column(
        "signature", look_up_transactions(batch, transactions, "signatures")
    )
    if "isCommitted" in batch.schema.names:
        return batch
    failed = pc.is_valid(look_up_transactions(batch, transactions, "err"))
    unknown = pc.is_null(batch.column("signature"))
    committed = pc.if_else(unknown, pa.scalar(None, pa.bool_()), pc.invert(failed))
    return batch.append_column("isCommitted", committed)


def item_columns(batch: pa.RecordBatch, fields: tuple[pa.Field, ...]) -> list[pa.Array]:
    """Return the columns that all items share; their programs are those of the checked filter."""
    return [
        required(batch, _FIELDS[one.name])
        if one.name in _FIELDS
        else batch.column(_OTHERS.get(one.name, one.name))
        for one in fields
    ]


def explain_item(
    batch: pa.RecordBatch, error: MalformedRowsError, what: str
) -> UndecodableInstructionError:
    """Return the error for the first malformed row, which names its place."""
    row = batch.slice(int(error.rows.min()), 1).to_pylist()[0]
    facts = {"log_index": row["logIndex"]} if "logIndex" in row else {}
    return UndecodableInstructionError(
        f"{what} cannot be decoded: {error.reason}",
        slot=row["block_number"],
        transaction_index=row["transactionIndex"],
        instruction_address=row["instructionAddress"],
        **facts,
        signature=row["signature"],
        program=row["programId"],
    )


@dataclass(frozen=True, slots=True)
class InstructionsOutput:
    """The table of one instruction. Made by `solana.instructions`.

    Columns: block_number (the slot), block_hash, timestamp, signature, transaction_index,
    instruction_address, program_id, is_committed, then one per argument and one per account, by
    their names. Names that are taken are prefixed with `arg_` or `account_`.
    """

    layout: DataLayout
    query: Query
    ranges: tuple[RangeSpec, ...]
    on_error: OnError = "raise"
    decimals: frozenset[str] = frozenset()
    what: str = "an instruction"

    @property
    def entities(self) -> tuple[str, ...]:
        """What it decodes from."""
        return ("instruction", "transaction")

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table; `borsh` says which type becomes which."""
        names = layout_columns(self.layout, INSTRUCTION_FIELDS)
        members = self.layout.args.members
        columns = [
            pa.field(name, DECIMAL) if one.name in self.decimals else arrow_field(name, one.type)
            for name, one in zip(names, members, strict=False)
        ]
        accounts = [pa.field(name, pa.string()) for name in names[len(members) :]]
        return pa.schema([*INSTRUCTION_FIELDS, *columns, *accounts])

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return this instruction's rows among all of a batch, in their order.

        Raises:
            UndecodableInstructionError: an instruction has the discriminator but not the content,
                and `on_error` is "raise". With "skip" such instructions are left out and counted.
        """
        chosen = (
            select_rows(batch, SOLANA, self._own_filter, ranges)
            for batch in entities["instruction"].to_batches()
        )
        own = (with_transactions(batch, entities) for batch in chosen if batch.num_rows)
        return decode_rows(own, self.schema, self._columns, self.on_error, self._explain)

    @property
    def _own_filter(self) -> Filter:
        """What instructions must match; their data is looked at once it is decoded."""
        own = self.query.filters[0]
        return replace(own, conditions=tuple(
            (wire, value) for wire, value in own.conditions
            if not (wire[0] == "d" and wire[1:].isdigit())
        ))  # fmt: skip

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        texts = batch.column("data")
        refuse(pc.is_null(texts), "data is absent")
        data = decode_base58(texts, np.arange(batch.num_rows, dtype=np.int64))
        return decode_own(batch, data, self.layout.discriminator, self._own_columns)

    def _own_columns(self, batch: pa.RecordBatch, data: pa.BinaryArray) -> list[pa.Array]:
        refuse_missing_filter_fields(batch, SOLANA, self._own_filter)
        args = decode_args(self.layout, data, self.decimals)
        accounts = [_account(batch, at, one) for at, one in enumerate(self.layout.accounts)]
        return [*item_columns(batch, INSTRUCTION_FIELDS), *args, *accounts]

    def _explain(
        self, batch: pa.RecordBatch, error: MalformedRowsError
    ) -> UndecodableInstructionError:
        return explain_item(batch, error, f"{self.what} {self.layout.name!r}")


def layout_columns(layout: DataLayout, base: Sequence[pa.Field]) -> list[str]:
    """Return the names of the columns that hold arguments and accounts.

    Raises:
        SignatureError: a name is taken, and its replacement too.
    """
    groups = {
        "arg": [one.name for one in layout.args.members],
        "account": [one.name for one in layout.accounts],
    }
    return name_columns([one.name for one in base], groups)


def decode_args(
    layout: DataLayout, data: pa.BinaryArray, decimals: frozenset[str]
) -> list[pa.Array]:
    """Return the columns of the arguments, of data that begins with the discriminator.

    Raises:
        MalformedRowsError: some rows do not hold such values.
    """
    columns = BorshReader(data).decode(layout.args, len(layout.discriminator))
    return [
        as_decimals(column, f"'{one.name}'") if one.name in decimals else column
        for one, column in zip(layout.args.members, columns, strict=True)
    ]


def decode_own(
    batch: pa.RecordBatch,
    data: pa.BinaryArray,
    discriminator: bytes,
    decode: Callable[[pa.RecordBatch, pa.BinaryArray], list[pa.Array]],
) -> list[pa.Array]:
    """Decode the rows whose data begins with the discriminator.

    Raises:
        MalformedRowsError: some cannot be decoded; it holds their rows of the whole batch.
    """
    own = has_prefix(data, [discriminator])
    rows = np.flatnonzero(own.to_numpy(zero_copy_only=False))
    if len(rows) < batch.num_rows:
        batch, data = batch.filter(own), data.filter(own)
    try:
        return decode(batch, data)
    except MalformedRowsError as error:
        raise MalformedRowsError(rows[error.rows], error.reason) from None


def _account(batch: pa.RecordBatch, at: int, account: Account) -> pa.Array:
    """Return an account by its place; null where there are fewer, or where it was left out."""
    column = list_item(batch.column("accounts"), at)
    if not account.is_optional:
        return column
    absent = pc.fill_null(pc.equal(column, batch.column("programId")), True)
    return pc.if_else(absent, pa.scalar(None, pa.string()), column)
