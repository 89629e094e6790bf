"""One instruction of Solana programs as a table, or one Anchor event: logged, or sent to itself.

Made by `solana.instructions` and `solana.events`. Defined on the driver, pickled to executors,
never changed; the same batch gives the same rows. A row is known by slot, transaction and the
address of its instruction: `[2]` is the third of the transaction, `[2, 0]` the first that it calls.
"""

from __future__ import annotations

import binascii
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange, RangeSpec
from headwater.decode.columns.bytes_text import decode_base58
from headwater.decode.columns.field_columns import name_columns
from headwater.decode.columns.integers import DECIMAL
from headwater.decode.columns.malformed import MalformedRowsError, OnError, refuse
from headwater.decode.columns.row_filter import (
    has_prefix,
    keep_rows,
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
_PREFIX = "Program data: "


def _with_transactions(batch: pa.RecordBatch, entities: Entities) -> pa.RecordBatch:
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


def _item_columns(batch: pa.RecordBatch, fields: tuple[pa.Field, ...]) -> list[pa.Array]:
    """Return the columns that all items share; their programs are those of the checked filter."""
    return [
        required(batch, _FIELDS[field.name])
        if field.name in _FIELDS
        else batch.column(_OTHERS.get(field.name, field.name))
        for field in fields
    ]


@dataclass(frozen=True, slots=True)
class InstructionsOutput:
    """The table of one instruction. Made by `solana.instructions`.

    Columns: block_number (the slot), block_hash, timestamp, signature, transaction_index,
    instruction_address, program_id, is_committed, then one per argument and one per account, by
    their names. Names that are taken are prefixed with `arg_` or `account_`.
    """

    entity: ClassVar[str] = "instruction"
    base: ClassVar[tuple[pa.Field, ...]] = INSTRUCTION_FIELDS

    layout: DataLayout
    query: Query
    ranges: tuple[RangeSpec, ...]
    on_error: OnError = "raise"
    decimals: frozenset[str] = frozenset()
    what: str = "an instruction"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table; `borsh` says which type becomes which."""
        names = layout_columns(self.layout, self.base)
        members = self.layout.args.members
        columns = [
            pa.field(name, DECIMAL)
            if member.name in self.decimals
            else arrow_field(name, member.type)
            for name, member in zip(names, members, strict=False)
        ]
        accounts = [pa.field(name, pa.string()) for name in names[len(members) :]]
        return pa.schema([*self.base, *columns, *accounts])

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return this output's rows among all items of a batch, in their order.

        Raises:
            UndecodableInstructionError: an item has the discriminator but not the content, and
                `on_error` is "raise". With "skip" such items are left out and counted.
        """
        own = self._own_rows(entities, ranges)
        return decode_rows(own, self.schema, self._columns, self.on_error, self._explain)

    def _own_rows(
        self, entities: Entities, ranges: Sequence[BlockRange]
    ) -> Iterator[pa.RecordBatch]:
        for batch in entities[self.entity].to_batches():
            chosen = self._candidates(select_rows(batch, SOLANA, self._own_filter, ranges))
            if chosen.num_rows:
                yield _with_transactions(chosen, entities)

    def _candidates(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose data is looked at."""
        return batch

    @property
    def _own_filter(self) -> Filter:
        """What items must match; their data is looked at once it is decoded."""
        own = self.query.filters[0]
        return replace(own, conditions=tuple(
            (wire, value) for wire, value in own.conditions
            if not (wire[0] == "d" and wire[1:].isdigit())
        ))  # fmt: skip

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Decode the rows whose data begins with the discriminator.

        Raises:
            MalformedRowsError: some cannot be decoded; it holds their rows of the whole batch.
        """
        data = self._data(batch)
        own = has_prefix(data, [self.layout.discriminator])
        rows = np.flatnonzero(own.to_numpy(zero_copy_only=False))
        if len(rows) < batch.num_rows:
            batch, data = batch.filter(own), data.filter(own)
        try:
            return self._own_columns(batch, data)
        except MalformedRowsError as error:
            raise MalformedRowsError(rows[error.rows], error.reason) from None

    def _data(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """Return the bytes that begin with a discriminator."""
        texts = batch.column("data")
        refuse(pc.is_null(texts), "data is absent")
        return decode_base58(texts, np.arange(batch.num_rows, dtype=np.int64))

    def _own_columns(self, batch: pa.RecordBatch, data: pa.BinaryArray) -> list[pa.Array]:
        refuse_missing_filter_fields(batch, SOLANA, self._own_filter)
        members = self.layout.args.members
        columns = BorshReader(data).decode(self.layout.args, len(self.layout.discriminator))
        args = [
            as_decimals(column, f"'{member.name}'") if member.name in self.decimals else column
            for member, column in zip(members, columns, strict=True)
        ]
        accounts = [_account(batch, at, account) for at, account in enumerate(self.layout.accounts)]
        return [*_item_columns(batch, self.base), *args, *accounts]

    def _explain(
        self, batch: pa.RecordBatch, error: MalformedRowsError
    ) -> UndecodableInstructionError:
        """Return the error for the first malformed row, which names its place."""
        row = batch.slice(int(error.rows.min()), 1).to_pylist()[0]
        facts = {"log_index": row["logIndex"]} if "logIndex" in row else {}
        return UndecodableInstructionError(
            f"{self.what} {self.layout.name!r} cannot be decoded: {error.reason}",
            slot=row["block_number"],
            transaction_index=row["transactionIndex"],
            instruction_address=row["instructionAddress"],
            **facts,
            signature=row["signature"],
            program=row["programId"],
        )


@dataclass(frozen=True, slots=True)
class AnchorEventsOutput(InstructionsOutput):
    """The table of one event that a program logs (`Program data: …`). Made by `solana.events`.

    Columns: block_number (the slot), block_hash, timestamp, signature, transaction_index,
    log_index, instruction_address, program_id, is_committed, then one per field.
    """

    entity: ClassVar[str] = "log"
    base: ClassVar[tuple[pa.Field, ...]] = LOG_FIELDS

    what: str = "an event"
    committed_only: bool = True

    def _own_rows(
        self, entities: Entities, ranges: Sequence[BlockRange]
    ) -> Iterator[pa.RecordBatch]:
        for batch in InstructionsOutput._own_rows(self, entities, ranges):
            is_kept = [pc.fill_null(batch.column("isCommitted"), True)]
            yield keep_rows(batch, is_kept) if self.committed_only else batch

    def _candidates(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the messages whose first characters are the discriminator's, or are absent.

        Three bytes are four characters, so all but the last bits of it show.
        """
        if not batch.num_rows:
            return batch
        whole = len(self.layout.discriminator) * 8 // 6
        start = b64encode(self.layout.discriminator).decode()[:whole]
        message = batch.column("message")
        bare = pc.starts_with(message, start)
        mask = pc.or_(bare, pc.starts_with(message, _PREFIX + start))
        return keep_rows(batch, [pc.fill_null(mask, True)])

    def _data(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        message = batch.column("message")
        refuse(pc.is_null(message), "message is absent")
        decoded = [_decode_base64(text.removeprefix(_PREFIX)) for text in message.to_pylist()]
        refuse(np.array([data is None for data in decoded], bool), "the message is not base64")
        return pa.array(decoded, pa.binary())

    def _own_columns(self, batch: pa.RecordBatch, data: pa.BinaryArray) -> list[pa.Array]:
        if self.committed_only:
            refuse(pc.is_null(batch.column("isCommitted")), "its transaction is absent")
        return InstructionsOutput._own_columns(self, batch, data)


def layout_columns(layout: DataLayout, base: Sequence[pa.Field]) -> list[str]:
    """Return the names of the columns that hold arguments and accounts.

    Raises:
        SignatureError: a name is taken, and its replacement too.
    """
    groups = {
        "arg": [member.name for member in layout.args.members],
        "account": [account.name for account in layout.accounts],
    }
    return name_columns([field.name for field in base], groups)


def _account(batch: pa.RecordBatch, at: int, account: Account) -> pa.Array:
    """Return an account by its place; null where there are fewer, or where it was left out."""
    column = list_item(batch.column("accounts"), at)
    if not account.is_optional:
        return column
    absent = pc.fill_null(pc.equal(column, batch.column("programId")), True)
    return pc.if_else(absent, pa.scalar(None, pa.string()), column)


def _decode_base64(text: str) -> bytes | None:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        return None
