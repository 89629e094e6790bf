"""What a task does with its rows: encode them, send them to the driver, return a receipt.

Runs on executors, which reach the driver as they do for Spark itself, and never the database. An
attempt that is repeated has another number, so its rows do not mix with earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from headwater.spark.relay import new_attempt, send
from headwater.targets.frames import block_range
from headwater.targets.postgres.transfer import Transfer

_NAMES = ("attempt", "rows", "lowest", "highest", "nulls")
RECEIPT = pa.schema([(name, pa.int64()) for name in _NAMES])


@dataclass(frozen=True, slots=True)
class RowSender:
    """Sends the rows of a part over one connection. It pickles."""

    address: tuple[str, int]
    token: bytes = field(repr=False)
    transfer: Transfer
    block_column: str = ""

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        """Send, and yield the receipt."""
        attempt, seen = new_attempt(), _Seen(self.block_column)
        remaining = (batch for batch in batches if batch.num_rows)
        first = next(remaining, None)
        if first is not None:
            rows = self.transfer.encode(first.schema, seen.through(chain([first], remaining)))
            send(self.address, self.token, attempt, rows)
        yield seen.receipt(attempt)


class _Seen:
    """Counts the rows that pass, and notes between which blocks they lie."""

    def __init__(self, block_column: str) -> None:
        self._column = block_column
        self._rows = self._nulls = 0
        self._blocks: list[int] = []

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass batches on."""
        for batch in batches:
            self._rows += batch.num_rows
            if self._column not in batch.schema.names:
                self._nulls += batch.num_rows
            else:
                ends, nulls = block_range(batch.column(self._column))
                self._nulls += nulls
                known = [*self._blocks, *ends]
                self._blocks = [min(known), max(known)] if known else []
            yield batch

    def receipt(self, attempt: int) -> pa.RecordBatch:
        """Return what the driver is told."""
        lowest, highest = self._blocks or (None, None)
        facts = (attempt, self._rows, lowest, highest, self._nulls)
        return pa.RecordBatch.from_pylist([dict(zip(_NAMES, facts, strict=True))], schema=RECEIPT)
