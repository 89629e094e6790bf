"""The tables of one stream in a folder of Parquet files: folders of files, and their state.

    <dir>/<table>/000000000150-000000000180.parquet    rows of blocks 150 to 180; in an object store
                                                       the epoch of the writer follows: -e000003
    <dir>/_headwater/<stream>/…json                    the state: cursor, and what files cover

Files that executors write wait in `_staging` of their table until their window is published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core import Batch, PipeState
from headwater.errors import (
    EvolveError,
    LakeForeignWriteError,
    StateMissingError,
    UnexplainedFilesError,
)
from headwater.targets.contract import Delivery
from headwater.targets.lake.authors import blocks_of
from headwater.targets.lake.columns import check_columns, conformed, lake_schema
from headwater.targets.lake.files import FilePlan, WrittenFile
from headwater.targets.lake.paths import Place
from headwater.targets.lake.settings import (
    LakeSettings,
    ParquetSettings,
    Table,
    check_folder_name,
)
from headwater.targets.lake.state import StoredStream
from headwater.targets.lake.table import (
    BLOCK_NUMBER,
    Announce,
    Change,
    LakeTable,
    LakeTables,
    Lead,
)
from headwater.targets.parquet.held import HeldBatch, Part
from headwater.targets.parquet.publish import STAGING, Publication
from headwater.targets.parquet.state import Folder, Stored, check_owners
from headwater.targets.parquet.windows import published

_WIDER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


class ParquetTable(LakeTable[Part]):
    """One table: a folder of files that never change, and the rows that wait to join them."""

    def __init__(self, declared: Table, tables: ParquetTables) -> None:
        super().__init__()
        self.declared, self.name, self.key = declared, declared.name, ()
        self._tables, self._publication = tables, tables.publication
        self.place = self._publication.folder.place
        self._count = 0
        self.columns = self._publication.stored.schemas[self.name]

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
            stored = self._publication.stored
            schemas = {**stored.schemas, self.name: wider}
            self._publication.save(replace(stored, schemas=schemas))
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
        for one in several:
            if one.begins_anew:
                self._tables.begin_anew(self.name)
            else:
                assert self.name in self._publication.stored.coverage, "it was written down"
                self._publication.held.put(self.name, one.state.number, list(one.added.values()))
        self.forget()

    def _committed_files(self) -> dict[str, Part]:
        covered = self._publication.stored.coverage[self.name]
        found = {one.name.removeprefix(f"{self.name}/"): one for one in self.place.files(self.name)}
        return {
            found[name].name: Part(
                found[name].name, -1, found[name].size, window.first, window.last
            )
            for name, window in published(found, covered).items()
        }

    def read(self, files: Sequence[Part]) -> pa.Table:
        """Return the rows of some files, in the columns of today."""
        found = [self.columns.empty_table()]
        for one in files:
            with self.place.open(one.name) as file:
                found.append(conformed(pq.ParquetFile(file).read(), self.columns))
        return pa.concat_tables(found)

    def size_of(self, file: Part) -> int:
        """Return how many bytes a file has."""
        return file.size

    def ends(self, file: Part, column: str) -> tuple[Any, Any]:
        """Return the blocks that a file covers; of other columns nothing is known."""
        return (file.first, file.last) if column == BLOCK_NUMBER else (None, None)

    @property
    def epoch(self) -> int:
        """The newest epoch that has begun: all earlier writers publish nothing more."""
        return self._publication.files.newest_epoch()

    def aged(self, settings: LakeSettings) -> dict[str, bool]:
        """Return files that wait, or were to wait, for their window."""
        return {one.name: False for one in self.place.files(f"{self.name}/{STAGING}")}

    def named(self, stored: StoredStream, *, outside: bool) -> list[str]:
        """Return the files of batches that are held."""
        held = (batch.parts.get(self.name, ()) for batch in self._publication.held)
        return [one.name for parts in held for one in parts]


class ParquetTables(LakeTables[Part]):
    """The folders of one stream in a place. `automatic` ones need no declaration."""

    changes = False

    def __init__(
        self,
        place: Place,
        stream_id: str,
        declared: Mapping[str, Table],
        settings: ParquetSettings,
        announce: Announce = lambda step: None,
        *,
        automatic: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream_id = stream_id
        self.open = {}
        self.publication = Publication(Folder(place, announce), stream_id, settings, clock)
        self.declared = declared
        self.settings = settings
        self.automatic = automatic
        self._first = 0  # the block that a new table begins with

    def load(self) -> StoredStream | None:
        """Read what is stored of the stream; nothing is taken over."""
        found = self.publication.files.read()
        self._learn(found or Stored())
        return None if found is None else self._stream(found)

    def take_over(self, before: StoredStream | None) -> StoredStream:
        """Begin an epoch. After a failure, rows that had been taken in before are still held."""
        if before is not None:
            self.check()
        if not self.publication.claim():
            self._refuse_lost_state()
        stored = self._stream(self.publication.stored)
        held = self.publication.held
        held.drop_above(-1 if before is None else before.state.number)
        held.drop_up_to(stored.state.number)
        self._learn(self.publication.stored)
        is_ahead = before is not None and before.state.number > stored.state.number
        return replace(stored, state=before.state) if before and is_ahead else stored

    def _learn(self, stored: Stored) -> None:
        self.publication.stored = stored
        self.open = {name: self._table(name) for name in stored.coverage}

    def _table(self, name: str) -> ParquetTable:
        declared = self.declared.get(name, Table(name))
        return ParquetTable(declared, self)

    def _stream(self, found: Stored) -> StoredStream:
        epoch = self.publication.files.epoch
        return StoredStream(self.stream_id, found.state, epoch, found.config, pending=found.pending)

    def _refuse_lost_state(self) -> None:
        """Refuse to begin where files of the declared tables are, but no state."""
        for name in self.declared:
            if self._holds_files(name):
                self.check()  # they may be a later writer's
                raise StateMissingError(
                    "no state is stored, but files of the stream are",
                    stream=self.stream_id,
                    table=name,
                )

    def _holds_files(self, name: str) -> bool:
        names = self.publication.files_of(name)
        return any(not one.startswith(("_", ".")) for one in names)

    def check(self) -> None:
        """Refuse to go on if another writer of the stream has begun."""
        self.publication.files.check()

    @property
    def side(self) -> Place:
        """Where files of the stream itself are kept."""
        return self.publication.folder.place.under(self.publication.files.path)

    def begin(self, batch: Batch[Delivery], after: PipeState) -> bool:
        """Hold a batch; executors write the rows of spans, which are published at once."""
        assert after.cursor is not None, "a batch ends in a block"
        held = HeldBatch.of(batch, after.cursor, self.publication.clock())
        self.publication.held.add(held)
        self._first = held.first
        counts = getattr(batch.data.ctx, "batch", None)
        is_span = counts is not None and counts.blocks_count > len(batch.headers)
        return is_span and not after.is_hot

    def lead(self, stored: StoredStream) -> Publication:
        """Return what publishes, and stores the state."""
        return self.publication

    def in_order(self) -> list[Lead[Part]]:
        """Return what publishes: it takes back for all tables."""
        return [self.publication]

    def move(self, stored: StoredStream) -> None:
        """Take the folder to a block, as far as files end there."""
        self.publication.move(stored)

    def _create(self, name: str, columns: pa.Schema, stored: StoredStream) -> ParquetTable:
        """Make a table: it is written down before anything of it is published."""
        check_folder_name(name)
        if self._holds_files(name):
            raise UnexplainedFilesError(
                "the folder of a new table holds files that are not the stream's", table=name
            )
        before = self.publication.stored
        coverage = {**before.coverage, name: self._first}
        schemas = {**before.schemas, name: columns}
        self.publication.save(replace(before, coverage=coverage, schemas=schemas))
        try:
            check_owners(self.publication.folder.place, self.stream_id, [name])
        except LakeForeignWriteError:
            self.publication.save(before)
            raise
        return self._table(name)

    def begin_anew(self, name: str) -> None:
        """Forget what a table holds; a table that is emptied is the stream's no more."""
        self.publication.begin_anew(name)
        if name not in self.publication.stored.coverage:
            del self.open[name]

    def check_rename(self, old: str, new: str) -> None:
        """Refuse: readers would find rows under both names, or under none."""
        raise EvolveError("folders of Parquet files keep their names", old=old, new=new)

    def rename(self, old: str, new: str) -> None:
        """Refuse."""
        self.check_rename(old, new)

    def close(self) -> None:
        """Let go of the stream; what is not published is read again by the next start."""
        self.publication.files.release()


def _evolved(known: pa.Schema, frame: pa.Schema) -> pa.Schema:
    """Return the columns of a table that later rows widen: new ones, and larger numbers."""
    fields = {one.name: one for one in known}
    for one in lake_schema(frame):
        held = fields.get(one.name)
        if held is None or (held.type, one.type) in _WIDER:
            fields[one.name] = one
    return pa.schema(list(fields.values()))
