"""The messages of a batch: one per row of an output, in an order that every replay repeats.

Spark gives rows in any order, so they are put in the order of the chain first (transaction, log,
place within it), and rows that share their place in the order of their text. A row's ordinal within
its block is therefore the same whenever and however the block is read again. Runs on the driver.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import Batch
from headwater.effects.message import COLUMNS, idempotency_key
from headwater.effects.payload import json_rows
from headwater.errors import MessageRowsError
from headwater.targets.contract import Delivery

PLACE = ("transaction_index", "log_index", "trace_address", "instruction_address")


def collect_messages(stream_id: str, output: str, batch: Batch[Delivery]) -> pa.Table:
    """Return the rows that a batch adds to the outbox of an output.

    Raises:
        MessageRowsError: there is no such output, or its rows do not belong to blocks of the batch.
    """
    frame = batch.data.data.get(output)
    if frame is None:
        raise MessageRowsError(
            "there is no such output to deliver", output=output, outputs=", ".join(batch.data.data)
        )
    rows = frame if isinstance(frame, pa.Table) else frame.toArrow()
    _check(output, rows, batch)
    numbers = [int(one) for one in rows.column("block_number").to_pylist()]
    hashes = rows.column("block_hash").to_pylist()
    texts = json_rows(rows)
    places = [rows.column(name).to_pylist() for name in PLACE if name in rows.schema.names]
    order = sorted(
        range(rows.num_rows),
        key=lambda at: (numbers[at], *(_sortable(one[at]) for one in places), texts[at]),
    )
    ordinals: list[int] = []
    for place, at in enumerate(order):
        same = place > 0 and numbers[at] == numbers[order[place - 1]]
        ordinals.append(ordinals[-1] + 1 if same else 0)
    keys = [
        idempotency_key(stream_id, output, numbers[at], hashes[at], ordinal)
        for at, ordinal in zip(order, ordinals, strict=True)
    ]
    columns = [_taken(numbers, order), ordinals, _taken(hashes, order), keys, _taken(texts, order)]
    arrays = [pa.array(*one) for one in zip(columns, COLUMNS.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


def _check(output: str, rows: pa.Table, batch: Batch[Delivery]) -> None:
    """Refuse rows of blocks that are not the batch's: they would be delivered, or undone, wrong."""
    lacking = [one for one in ("block_number", "block_hash") if one not in rows.schema.names]
    if lacking:
        raise MessageRowsError(
            "rows to deliver lack columns", output=output, columns=", ".join(lacking)
        )
    if not rows.num_rows:
        return
    numbers = rows.column("block_number")
    if numbers.null_count or rows.column("block_hash").null_count:
        raise MessageRowsError("rows to deliver name no block", output=output)
    lowest, highest = _blocks(batch)
    ends = pc.min_max(numbers).as_py()
    if not lowest <= ends["min"] <= ends["max"] <= highest:
        raise MessageRowsError(
            "rows to deliver are of other blocks than their batch",
            output=output,
            rows=f"{ends['min']}..{ends['max']}",
            batch=f"{lowest}..{highest}",
        )


def _blocks(batch: Batch[Delivery]) -> tuple[int, int]:
    """Return the first and the last block of a batch; of a span the last header alone is known."""
    first, last = batch.headers[0].number, batch.headers[-1].number
    ctx = batch.data.ctx
    count = len(batch.headers) if ctx is None else ctx.batch.blocks_count
    return min(first, last - count + 1), last


def _taken(values: list[Any], order: list[int]) -> list[Any]:
    return [values[at] for at in order]


def _sortable(value: Any) -> tuple[bool, Any]:
    return value is None, value
