"""Rows of batches that are not published yet: in memory up to a limit, then in temporary files.

Nothing held survives the process, and nothing needs to: the stored cursor is below it, so a restart
reads these blocks again. Runs on the driver.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from headwater.core import Batch, BlockCursor
from headwater.targets.contract import Delivery


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a table: in memory, or in a file that waits to be published or is published.

    `name` is the file's in the target's place; that of rows in memory is the name of no file.
    `first` and `last` are the blocks that it covers.
    """

    name: str
    rows: int
    size: int
    first: int
    last: int
    memory: pa.Table | None = None


@dataclass(slots=True)
class HeldBatch:
    """The rows of one batch, by table.

    `start` is the first block of the range that the batch belongs to, `first` that of a table which
    begins with it, `blocks` how many it covers, `since` the second it came in.
    """

    cursor: BlockCursor
    start: int
    first: int
    blocks: int
    since: float
    parts: dict[str, list[Part]] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Batch[Delivery], cursor: BlockCursor, since: float) -> HeldBatch:
        """Return a batch without its rows. The ranges of its stream say where a range begins."""
        first, last = batch.headers[0].number, batch.headers[-1].number
        stream = getattr(batch.data.ctx, "stream", None)
        if stream is None:
            return cls(cursor, 0, first, len(batch.headers), since)
        start, end = stream.state.initial, -1
        for one in sorted(stream.state.ranges, key=lambda one: one.from_block):
            if one.from_block > last:
                break
            if one.from_block > end + 1:
                start = one.from_block
            end = last if one.to_block is None else max(end, one.to_block)
        blocks = int(batch.data.ctx.batch.blocks_count)
        return cls(cursor, start, start, blocks, since)

    def count(self, table: str) -> int:
        """Return how many rows it has for a table."""
        return sum(one.rows for one in self.parts.get(table, ()))

    def size(self, table: str) -> int:
        """Return how many bytes a table's rows take, as Arrow holds them."""
        return sum(one.size for one in self.parts.get(table, ()) if one.memory is not None)


class Held:
    """All batches that are not published yet, oldest first."""

    def __init__(self, memory_bytes: int) -> None:
        self._limit = memory_bytes
        self._batches: list[HeldBatch] = []
        self._spilled: set[int] = set()

    def __iter__(self) -> Iterator[HeldBatch]:
        return iter(self._batches)

    def add(self, batch: HeldBatch) -> None:
        """Hold a batch, whose rows come later."""
        self._batches.append(batch)

    def put(self, table: str, block: int, parts: Sequence[Part]) -> None:
        """Add rows to the batch that ends in a block."""
        (batch,) = (one for one in self._batches if one.cursor.number == block)
        batch.parts.setdefault(table, []).extend(parts)

    def spill(self) -> None:
        """Move the rows of older batches to disk, if memory is full."""
        waiting = [one for one in self._batches if id(one) not in self._spilled]
        held = sum(batch.size(table) for batch in waiting for table in batch.parts)
        for batch in waiting:
            if held <= self._limit:
                return
            for table, parts in batch.parts.items():
                held -= batch.size(table)
                batch.parts[table] = [replace(one, memory=_on_disk(one.memory)) for one in parts]
            self._spilled.add(id(batch))

    def drop_above(self, number: int) -> None:
        """Forget batches that a fork has taken, or that did not come to be."""
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


def by_range(batches: Sequence[HeldBatch]) -> Iterator[tuple[int, list[HeldBatch]]]:
    """Yield the batches of each range of the stream, with its first block."""
    for start, several in groupby(batches, lambda one: one.start):
        yield start, list(several)


def _on_disk(rows: pa.Table | None) -> pa.Table | None:
    """Return the same rows, mapped from a file that is gone with them."""
    if rows is None or not rows.num_rows:
        return rows
    with tempfile.NamedTemporaryFile(prefix="headwater-held-", suffix=".arrow") as file:
        path = Path(file.name)
        with pa.ipc.new_file(str(path), rows.schema) as writer:
            writer.write_table(rows)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
