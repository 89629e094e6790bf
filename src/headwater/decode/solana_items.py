"""What instructions and events of Solana have in common: the columns before their own, and errors.

A row is known by slot, transaction and the address of its instruction: `[2]` is the third of the
transaction, `[2, 0]` the first that it calls.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode.block_lines import HEADER_FIELDS
from headwater.decode.entities import Entities
from headwater.decode.malformed import MalformedRowsError
from headwater.decode.transaction_names import look_up
from headwater.decode.wire_columns import required
from headwater.errors import UndecodableInstructionError
from headwater.query import SOLANA

ADDRESS = pa.list_(pa.int32())
INSTRUCTION_FIELDS = (
    *HEADER_FIELDS,
    pa.field("signature", pa.string()),
    pa.field("transaction_index", pa.int32()),
    pa.field("instruction_address", ADDRESS),
    pa.field("program_id", pa.string()),
    pa.field("is_committed", pa.bool_()),
)
LOG_FIELDS = (
    *INSTRUCTION_FIELDS[:5],
    pa.field("log_index", pa.int32()),
    *INSTRUCTION_FIELDS[5:],
)


_FIELDS = {
    field.name: field
    for entity in ("instruction", "log")
    for field in SOLANA.entity(entity).fields
    if field.name in {"transaction_index", "log_index", "instruction_address"}
}
_OTHERS = {"is_committed": "isCommitted", "program_id": "programId"}


def with_transactions(batch: pa.RecordBatch, entities: Entities) -> pa.RecordBatch:
    """Add the columns `signature`, and `failed` if the transactions' errors were selected."""
    transactions = entities["transaction"]
    batch = batch.append_column("signature", look_up(batch, transactions, "signatures"))
    if "isCommitted" in batch.schema.names:
        return batch
    failed = pc.is_valid(look_up(batch, transactions, "err"))
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
