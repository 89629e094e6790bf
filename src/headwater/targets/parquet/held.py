"""Rows of batches that are not published yet: in memory up to a limit, then in temporary files.

Nothing held survives the process, and nothing needs to: the stored cursor is below it, so a restart
reads these blocks again. Runs on the driver.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from headwater.core import Batch, BlockCursor
from headwater.targets.contract import Delivery
from headwater.targets.lake.files import WrittenFile


@dataclass(slots=True)
class HeldBatch:
    """The rows of one batch, by table; those that executors have written lie in staged files.

    `start` is the first block of the range that the batch belongs to, `first` that of a table which
    begins with it, `blocks` how many it covers.
    """

    cursor: BlockCursor
    start: int
    first: int
    blocks: int
    since: float
    rows: dict[str, list[pa.Table]] = field(default_factory=dict)
    staged: dict[str, list[WrittenFile]] = field(default_factory=dict)

    def tables(self) -> set[str]:
        """Return the tables that the batch was written to, also without rows."""
        return {*self.rows, *self.staged}

    def count(self, table: str) -> int:
        """Return how many rows it has for a table."""
        rows = sum(int(one.num_rows) for one in self.rows.get(table, ()))
        return rows + sum(one.rows for one in self.staged.get(table, ()))

    def size(self, table: str) -> int:
        """Return how many bytes a table's rows take, as Arrow holds them."""
        return sum(int(one.nbytes) for one in self.rows.get(table, ()))


class Held:
    """All batches that are not published yet, oldest first."""

    def __init__(self, memory_bytes: int) -> None:
        self._limit = memory_bytes
        self._batches: list[HeldBatch] = []
        self._spilled: set[int] = set()

    def __iter__(self) -> Iterator[HeldBatch]:
        return iter(self._batches)

    def add(self, batch: HeldBatch) -> None:
        """Hold a batch; the rows of older ones move to disk if memory is full."""
        self._batches.append(batch)
        held = sum(batch.size(table) for batch in self._in_memory() for table in batch.rows)
        for one in self._in_memory() if held > self._limit else ():
            for table, several in one.rows.items():
                held -= one.size(table)
                one.rows[table] = [_on_disk(rows) for rows in several]
            self._spilled.add(id(one))
            if held <= self._limit:
                return

    def drop_above(self, number: int) -> None:
        """Forget batches that a fork has taken."""
        self._keep([one for one in self._batches if one.cursor.number <= number])

    def drop_up_to(self, number: int) -> None:
        """Forget batches that are published."""
        self._keep([one for one in self._batches if one.cursor.number > number])

    def up_to(self, number: int) -> list[HeldBatch]:
        """Return the batches up to a block."""
        return [one for one in self._batches if one.cursor.number <= number]

    def _keep(self, batches: list[HeldBatch]) -> None:
        self._batches = batches
        self._spilled &= {id(one) for one in batches}

    def _in_memory(self) -> list[HeldBatch]:
        return [one for one in self._batches if id(one) not in self._spilled]


def by_range(batches: Sequence[HeldBatch]) -> Iterator[tuple[int, list[HeldBatch]]]:
    """Yield the batches of each range of the stream, with its first block."""
    for start, several in groupby(batches, lambda one: one.start):
        yield start, list(several)


def covered(batch: Batch[Delivery]) -> tuple[int, int, int]:
    """Return where the range of a batch begins, where a new table does, how many blocks it has."""
    last = batch.headers[-1].number
    stream = getattr(batch.data.ctx, "stream", None)
    if stream is None:
        return 0, batch.headers[0].number, len(batch.headers)
    start, end = stream.state.initial, -1
    for one in sorted(stream.state.ranges, key=lambda one: one.from_block):
        if one.from_block > last:
            break
        if one.from_block > end + 1:
            start = one.from_block
        end = last if one.to_block is None else max(end, one.to_block)
    return start, start, int(batch.data.ctx.batch.blocks_count)


def _on_disk(rows: pa.Table) -> pa.Table:
    """Return the same rows, mapped from a file that is gone with them."""
    if not rows.num_rows:
        return rows
    with tempfile.NamedTemporaryFile(prefix="headwater-held-", suffix=".arrow") as file:
        path = Path(file.name)
        with pa.ipc.new_file(str(path), rows.schema) as writer:
            writer.write_table(rows)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
