"""The tables of one stream in a folder of Parquet files: what is published, held back and stored.

    <dir>/<table>/000000000150-000000000180.parquet    rows of blocks 150 to 180; in an object store
                                                       the epoch of the writer follows: -e000003
    <dir>/_headwater/<stream>/…json                    the state: cursor, and what files cover

Files come first, then the state that makes them count: a crash leaves, at worst, files above the
stored cursor; every start removes these before anything is read. Rows of blocks that a fork may
still take are held back and never reach a file. They are not stored either: the stored cursor is
that of the last published block. Files that executors write wait in `_staging` of their table until
their window is published. Runs on the driver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core import Batch, PipeState
from headwater.errors import (
    CursorMoveError,
    EvolveError,
    LakeForeignWriteError,
    ParquetWriterError,
    StateMissingError,
    UnexplainedFilesError,
)
from headwater.targets.contract import Delivery
from headwater.targets.lake.columns import conform
from headwater.targets.lake.files import GROUP_ROWS
from headwater.targets.lake.paths import Place
from headwater.targets.lake.settings import ParquetSettings, Table, check_folder_name
from headwater.targets.lake.state import EMPTIED, StoredStream
from headwater.targets.lake.table import Announce, Change, LakeTables, Lead
from headwater.targets.parquet.state import Folder, StateFiles, Stored, check_owners
from headwater.targets.parquet.table import (
    STAGING,
    Held,
    HeldBatch,
    ParquetTable,
    Part,
    by_range,
)
from headwater.targets.parquet.windows import (
    Window,
    epoch_of,
    leftovers,
    staged_epoch,
    window_of,
)

logger = logging.getLogger("headwater.targets.parquet")


class ParquetTables(LakeTables[Part], Lead[Part]):
    """The folders of one stream in a place, what is published of it, and what is held back.

    `automatic` tables need no declaration; `stored` is what the next state says; `clock` says the
    seconds by which a roll-over is due.
    """

    changes = False
    name, step, is_lead = "windows", "publish", True

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
        super().__init__(stream_id, declared, announce, automatic=automatic)
        self.settings = settings
        self.clock = clock
        self.folder = Folder(place, announce)
        self.files = StateFiles(self.folder, stream_id)
        self.held = Held(settings.memory_bytes)
        self.stored = self._saved = Stored()
        self._first = 0  # the block that a new table begins with
        self._published: list[str] = []  # with the state that is being stored
        self._newest: dict[str, int] = {}  # the last block of each table's newest file

    def load(self) -> StoredStream | None:
        """Read what is stored of the stream; nothing is taken over."""
        stored = self.files.read()
        self._learn(stored or Stored())
        return None if stored is None else self._stream(stored)

    def take_over(self, before: StoredStream | None) -> StoredStream:
        """Begin an epoch. After a failure, rows that had been taken in before are still held."""
        if before is not None:
            self.check()
        self._saved, is_known = self.files.claim()
        check_owners(self.folder.place, self.stream_id, self._saved.coverage)
        self._learn(self._saved)
        if not is_known:
            self._refuse_lost_state()
        stored = self._stream(self._saved)
        self.held.drop_above(-1 if before is None else before.state.number)
        self.held.drop_up_to(stored.state.number)
        is_ahead = before is not None and before.state.number > stored.state.number
        return replace(stored, state=before.state) if before and is_ahead else stored

    def _learn(self, stored: Stored) -> None:
        self.stored = stored
        self.open = {name: self._table(name) for name in stored.coverage}

    def _table(self, name: str) -> ParquetTable:
        return ParquetTable(self.declared.get(name, Table(name)), self)

    def _stream(self, stored: Stored) -> StoredStream:
        epoch = self.files.epoch
        return StoredStream(
            self.stream_id, stored.state, epoch, stored.config, pending=stored.pending
        )

    def save(self, stored: Stored) -> None:
        """Store what counts from now on: the commit point."""
        self.files.save(stored)
        self.stored = self._saved = stored

    @property
    def _mark(self) -> int:
        """The epoch in names of files; 0 where a lock keeps others out."""
        return 0 if self.folder.place.is_local else self.files.epoch

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
        names = self.folder.names(name)
        return any(not name.startswith(("_", ".")) for name in names)

    def check(self) -> None:
        """Refuse to go on if another writer of the stream has begun."""
        self.files.check()

    @property
    def side(self) -> Place:
        """Where files of the stream itself are kept."""
        return self.folder.place.under(self.files.path)

    def lead(self, stored: StoredStream) -> ParquetTables:
        """Return itself: it publishes, and stores the state."""
        return self

    def in_order(self) -> list[Lead[Part]]:
        """Return itself: it takes back for all tables."""
        return [self]

    def begin(self, batch: Batch[Delivery], after: PipeState) -> bool:
        """Hold a batch; executors write the rows of spans, which are published at once."""
        assert after.cursor is not None, "a batch ends in a block"
        held_batch = HeldBatch.of(batch, after.cursor, self.clock())
        self.held.add(held_batch)
        self._first = held_batch.first
        counts = getattr(batch.data.ctx, "batch", None)
        is_span = counts is not None and counts.blocks_count > len(batch.headers)
        return is_span and not after.is_hot

    def _create(self, name: str, columns: pa.Schema, stored: StoredStream) -> ParquetTable:
        """Make a table: it is written down before anything of it is published."""
        check_folder_name(name)
        if self._holds_files(name):
            raise UnexplainedFilesError(
                "the folder of a new table holds files that are not the stream's", table=name
            )
        before = self.stored
        coverage = {**before.coverage, name: self._first}
        schemas = {**before.schemas, name: columns}
        self.save(replace(before, coverage=coverage, schemas=schemas))
        try:
            check_owners(self.folder.place, self.stream_id, [name])
        except LakeForeignWriteError:
            self.save(before)
            raise
        return self._table(name)

    def check_rename(self, old: str, new: str) -> None:
        """Refuse: readers would find rows under both names, or under none."""
        raise EvolveError("folders of Parquet files keep their names", old=old, new=new)

    def rename(self, old: str, new: str) -> None:
        """Refuse."""
        self.check_rename(old, new)

    def close(self) -> None:
        """Let go of the stream; what is not published is read again by the next start."""
        self.files.release()

    # --- commits ----------------------------------------------------------------------------------

    def commit(self, several: Sequence[Change[Part]], stored: StoredStream) -> None:
        """Publish what has become final if that is due; store what else has changed."""
        self.held.spill()
        self.stored = replace(self.stored, config=stored.config, pending=stored.pending)
        if stored.state.cursor is None:
            self.stored = replace(self.stored, state=PipeState())
        going = self.held.up_to(stored.state.undo_floor)
        if going and self._is_due(going):
            self._publish(going, stored.state)
        elif self.stored != self._saved:
            self.save(self.stored)

    def finish(self, state: PipeState) -> None:
        """Publish all that is final: the range is read. Every table says how far it goes."""
        going = self.held.up_to(state.undo_floor)
        owing = any(first <= self.stored.state.number for first in self.stored.coverage.values())
        if going or owing:
            self._publish(going, state, all_tables=True)

    def _is_due(self, going: Sequence[HeldBatch]) -> bool:
        names = {name for batch in going for name in batch.parts}
        if any(
            part.memory is None
            for batch in going
            for parts in batch.parts.values()
            for part in parts
        ):
            return True
        return self.settings.rollover.is_due(
            size=max((sum(batch.size(name) for batch in going) for name in names), default=0),
            rows=max((sum(batch.count(name) for batch in going) for name in names), default=0),
            blocks=sum(batch.blocks for batch in going),
            seconds=self.clock() - going[0].since,
        )

    def _publish(
        self, going: Sequence[HeldBatch], now: PipeState, *, all_tables: bool = False
    ) -> None:
        """Publish batches of final blocks, then the state: the commit point.

        A table without rows waits, unless its range has ended: then an empty file says so.
        """
        self.files.check()
        self._published, self._newest = [], dict(self.stored.newest)
        coverage, previous = dict(self.stored.coverage), self.stored.state.number
        for start, several in by_range(going):
            last = several[-1].cursor.number
            for name in coverage:
                if coverage[name] < start:
                    self._publish_table(name, (), coverage[name], previous)
                    coverage[name] = start
                if any(batch.count(name) for batch in several):
                    self._publish_table(name, several, coverage[name], last)
                    coverage[name] = last + 1
            previous = last
        if all_tables:
            for name in coverage:
                self._publish_table(name, (), coverage[name], previous)
                coverage[name] = max(coverage[name], previous + 1)
        state = self.stored.state
        if going:
            cursor = going[-1].cursor
            state = PipeState(cursor, None if now.finalized is None else cursor, (cursor,))
        if self._mark:
            self._look_again()
        self.save(replace(self.stored, state=state, coverage=coverage, newest=self._newest))
        self.held.drop_up_to(state.number)

    def _publish_table(
        self, name: str, batches: Sequence[HeldBatch], first: int, last: int
    ) -> None:
        """Publish the rows of one window: those in memory as one file, then staged files."""
        if first > last:
            return
        window = Window(first, last)
        parts = [part for batch in batches for part in batch.parts.get(name, ())]
        rows = [part.memory for part in parts if part.memory is not None and part.rows]
        staged = [part.name for part in parts if part.memory is None]
        count = len(staged) + (1 if rows or not staged else 0)
        names = [f"{name}/{window.file_name(at, count, self._mark)}" for at in range(count)]
        self._published += names
        self._newest[name] = last
        if staged:
            self.folder.publish(dict(zip(staged, names[count - len(staged) :], strict=True)))
        if count > len(staged):
            self.folder.put(names[0], self._parquet(rows, self.stored.schemas[name]))
        logger.info(
            "window.published id=%s table=%s blocks=%d..%d", self.stream_id, name, first, last
        )

    def _parquet(self, rows: Sequence[pa.Table], schema: pa.Schema) -> bytes:
        """Return rows as the bytes of a Parquet file."""
        sink = BytesIO()
        with pq.ParquetWriter(sink, schema, compression=self.settings.compression) as writer:
            for table in rows:
                for batch in table.to_batches():
                    writer.write_batch(conform(batch, schema), row_group_size=GROUP_ROWS)
        return sink.getvalue()

    def _look_again(self) -> None:
        """Delete what was published if another writer has taken over: its state is not stored yet.

        Its files have names of another epoch. A state that was stored may be what the other one
        goes on from: then nothing is deleted, and a later start removes what does not count.
        """
        try:
            self.files.check()
        except ParquetWriterError:
            for name in self._published:
                self.folder.delete(name)
            raise

    # --- going back -------------------------------------------------------------------------------

    def way_back(self, stored: StoredStream, *, claim: bool = False) -> list[str]:
        """Return the files that a crash has left; a rollback takes back what is held alone.

        Raises:
            UnexplainedFilesError: a file is there that nothing explains.
            LakeForeignWriteError: the newest file of a table is not there.
        """
        if not claim:
            return []
        names = {name: self.folder.names(name) for name in self.stored.coverage}
        for name, last in self.stored.newest.items():
            if not any(
                window and window.last == last for window in map(window_of, names.get(name, ()))
            ):
                raise LakeForeignWriteError(
                    "the table is an older copy than the state of the stream: bring back the "
                    "newest one, or the state and all tables of one moment",
                    table=name, lacks=f"the file that ends at block {last}",
                )  # fmt: skip
        files = {
            name: [file for file in several if "/" not in file] for name, several in names.items()
        }
        gone = leftovers(files, self.stored.state.number, self.stored.coverage, self._mark)
        for table, file in gone:
            logger.warning("file.removed id=%s table=%s file=%s", self.stream_id, table, file)
        return [f"{table}/{file}" for table, file in gone] + [
            f"{name}/{file}"
            for name, several in names.items()
            for file in several
            if file.startswith((f"{STAGING}/", "."))
            and (staged_epoch(file.removeprefix(f"{STAGING}/")) < self.files.epoch)
        ]

    def go_back(self, way: Any, stored: StoredStream, *, claim: bool = False) -> bool:
        """Forget rows above a block; remove what a crash has left of earlier epochs."""
        self.held.drop_above(stored.state.number)
        for name in way:
            self.folder.delete(name)
        if claim:
            self.files.check()
        return False

    def move(self, stored: StoredStream) -> None:
        """Take the folder to a block, back or ahead; files above it go.

        Raises:
            CursorMoveError: a file covers blocks on both sides.
        """
        number, forward = stored.state.number, stored.state.number > self.stored.state.number
        coverage, newest = dict(self.stored.coverage), dict(self.stored.newest)
        for name, first in coverage.items():
            windows = [
                window for window in map(window_of, self.folder.names(name)) if window is not None
            ]
            across = [window for window in windows if window.first <= number < window.last]
            if across and not forward:
                raise CursorMoveError(
                    "a file covers blocks on both sides, and files never change",
                    table=name, wanted=number, lower=min(across).first - 1, higher=max(across).last,
                )  # fmt: skip
            coverage[name] = number + 1 if forward else min(first, number + 1)
            if newest.get(name, 0) > number:
                newest[name] = max(
                    (window.last for window in windows if window.last <= number), default=-1
                )
        newest = {name: last for name, last in newest.items() if last >= 0}
        self.held.drop_up_to(number)
        self.save(replace(self.stored, state=stored.state, coverage=coverage, newest=newest))
        self.go_back(self.way_back(stored, claim=True), stored, claim=True)

    def begin_anew(self, table: str) -> None:
        """Forget what a table's files cover; delete them too, if the stream is to be emptied.

        Then the table is the stream's no more; files that stay are removed when it begins anew.
        """
        coverage, schemas = dict(self.stored.coverage), dict(self.stored.schemas)
        newest = {name: last for name, last in self.stored.newest.items() if name != table}
        if self._saved.pending == EMPTIED:
            for name in self.folder.names(table):
                if window_of(name) is not None and epoch_of(name) <= self._mark:
                    self.folder.delete(f"{table}/{name}")
            del coverage[table], schemas[table], self.open[table]
        else:
            coverage[table] = 0
        self.stored = replace(self.stored, coverage=coverage, schemas=schemas, newest=newest)
