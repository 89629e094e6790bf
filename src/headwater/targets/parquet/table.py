"""One table of a stream: a folder of files that never change, and the rows that wait to join them.

Rows of batches that are not published yet are in memory up to a limit, then in temporary files.
They do not survive the process, and need not: the stored cursor is below them, so a restart reads
their blocks again. Runs on the driver.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core import Batch, BlockCursor
from headwater.targets.contract import Delivery
from headwater.targets.lake.columns import check_columns, conformed, lake_schema
from headwater.targets.lake.files import FilePlan, WrittenFile
from headwater.targets.lake.settings import LakeSettings, Table
from headwater.targets.lake.state import StoredStream, blocks_of
from headwater.targets.lake.table import BLOCK_NUMBER, Change, LakeTable
from headwater.targets.parquet.windows import published

if TYPE_CHECKING:
    from headwater.targets.parquet.tables import ParquetTables

STAGING = "_staging"
_WIDER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


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
        for interval in sorted(stream.state.ranges, key=lambda interval: interval.from_block):
            if interval.from_block > last:
                break
            if interval.from_block > end + 1:
                start = interval.from_block
            end = last if interval.to_block is None else max(end, interval.to_block)
        blocks = int(batch.data.ctx.batch.blocks_count)
        return cls(cursor, start, start, blocks, since)

    def count(self, table: str) -> int:
        """Return how many rows it has for a table."""
        return sum(part.rows for part in self.parts.get(table, ()))

    def size(self, table: str) -> int:
        """Return how many bytes a table's rows take, as Arrow holds them."""
        return sum(part.size for part in self.parts.get(table, ()) if part.memory is not None)


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
        (batch,) = (batch for batch in self._batches if batch.cursor.number == block)
        batch.parts.setdefault(table, []).extend(parts)

    def spill(self) -> None:
        """Move the rows of older batches to disk, if memory is full."""
        waiting = [batch for batch in self._batches if id(batch) not in self._spilled]
        size = sum(batch.size(table) for batch in waiting for table in batch.parts)
        for batch in waiting:
            if size <= self._limit:
                return
            for table, parts in batch.parts.items():
                size -= batch.size(table)
                batch.parts[table] = [replace(part, memory=_on_disk(part.memory)) for part in parts]
            self._spilled.add(id(batch))

    def drop_above(self, number: int) -> None:
        """Forget batches that a fork has taken, or that did not come to be."""
        self._keep([batch for batch in self._batches if batch.cursor.number <= number])

    def drop_up_to(self, number: int) -> None:
        """Forget batches that are published."""
        self._keep([batch for batch in self._batches if batch.cursor.number > number])

    def up_to(self, number: int) -> list[HeldBatch]:
        """Return the batches up to a block."""
        return [batch for batch in self._batches if batch.cursor.number <= number]

    def _keep(self, batches: list[HeldBatch]) -> None:
        self._batches = batches
        self._spilled &= {id(batch) for batch in batches}


def by_range(batches: Sequence[HeldBatch]) -> Iterator[tuple[int, list[HeldBatch]]]:
    """Yield the batches of each range of the stream, with its first block."""
    for start, several in groupby(batches, lambda batch: batch.start):
        yield start, list(several)


class ParquetTable(LakeTable[Part]):
    """One table: a folder of files that never change, and the rows that wait to join them."""

    def __init__(self, declared: Table, tables: ParquetTables) -> None:
        super().__init__()
        self.declared, self.name, self.key = declared, declared.name, ()
        self._tables, self.place = tables, tables.folder.place
        self._count = 0
        self.columns = self._tables.stored.schemas[self.name]

    def plan(self, frame: pa.Schema, stem: str) -> FilePlan:
        """Return how rows of a frame become files; widen the table if that was declared."""
        if self.declared.evolve:
            self.widen(frame)
        check_columns(self.name, frame, self.columns)
        return FilePlan(
            self.place, self.columns, stem, f"{self.name}/{STAGING}", block_column=BLOCK_NUMBER,
            window=blocks_of(f"{stem}-"), compression=self._tables.settings.compression,
        )  # fmt: skip

    def widen(self, frame: pa.Schema) -> None:
        """Write down the columns that are new, and those that are wider."""
        wider = _evolved(self.columns, frame)
        if wider != self.columns:
            check_columns(self.name, frame, wider)
            stored = self._tables.stored
            self._tables.save(replace(stored, schemas={**stored.schemas, self.name: wider}))
            self.columns = wider

    def written(self, plan: FilePlan, rows: pa.Table) -> Iterable[tuple[str, Part]]:
        """Keep rows in memory: they wait until their block is final, and for others."""
        assert plan.window is not None, "each plan has one"
        self._count += 1
        name, rows = f"{plan.stem}-{self._count}", conformed(rows, plan.schema)
        return [(name, Part(name, rows.num_rows, rows.nbytes, *plan.window, rows))]

    def data_file(self, file: WrittenFile) -> tuple[str, Part]:
        """Return a file that executors have written, and its path."""
        return file.name, Part(file.name, file.rows, file.size, file.first, file.last)

    def commit(self, several: Sequence[Change[Part]], stored: StoredStream) -> None:
        """Hold the rows of batches; they are published with the state."""
        for change in several:
            if change.begins_anew:
                self._tables.begin_anew(self.name)
            else:
                assert self.name in self._tables.stored.coverage, "it was written down"
                self._tables.held.put(self.name, change.state.number, list(change.added.values()))
        self.forget()

    def _committed_files(self) -> dict[str, Part]:
        covered = self._tables.stored.coverage[self.name]
        files = {
            file.name.removeprefix(f"{self.name}/"): file for file in self.place.files(self.name)
        }
        return {
            files[name].name: Part(
                files[name].name, -1, files[name].size, window.first, window.last
            )
            for name, window in published(files, covered).items()
        }

    def read(self, files: Sequence[Part]) -> pa.Table:
        """Return the rows of some files, in the columns of today."""
        tables = [self.columns.empty_table()]
        for file in files:
            with self.place.open(file.name) as source:
                tables.append(conformed(pq.ParquetFile(source).read(), self.columns))
        return pa.concat_tables(tables)

    def size_of(self, file: Part) -> int:
        """Return how many bytes a file has."""
        return file.size

    def ends(self, file: Part, column: str) -> tuple[Any, Any]:
        """Return the blocks that a file covers; of other columns nothing is known."""
        return (file.first, file.last) if column == BLOCK_NUMBER else (None, None)

    @property
    def epoch(self) -> int:
        """The newest epoch that has begun: all earlier writers publish nothing more."""
        return self._tables.files.newest_epoch()

    def aged(self, settings: LakeSettings) -> dict[str, bool]:
        """Return files that wait, or were to wait, for their window."""
        return {file.name: False for file in self.place.files(f"{self.name}/{STAGING}")}

    def named(self, stored: StoredStream, *, outside: bool) -> list[str]:
        """Return the files of batches that are held."""
        waiting = (batch.parts.get(self.name, ()) for batch in self._tables.held)
        return [part.name for parts in waiting for part in parts]


def _on_disk(rows: pa.Table | None) -> pa.Table | None:
    """Return the same rows, mapped from a file that is gone with them."""
    if rows is None or not rows.num_rows:
        return rows
    with tempfile.NamedTemporaryFile(prefix="headwater-held-", suffix=".arrow") as file:
        path = Path(file.name)
        with pa.ipc.new_file(str(path), rows.schema) as writer:
            writer.write_table(rows)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def _evolved(known: pa.Schema, frame: pa.Schema) -> pa.Schema:
    """Return the columns of a table that later rows widen: new ones, and larger numbers."""
    fields = {field.name: field for field in known}
    for column in lake_schema(frame):
        before = fields.get(column.name)
        if before is None or (before.type, column.type) in _WIDER:
            fields[column.name] = column
    return pa.schema(list(fields.values()))
