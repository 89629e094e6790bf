"""The publication of a stream's final rows: files first, then the state that makes them count.

A crash leaves, at worst, files above the stored cursor; every start removes these before anything
is read. Rows of blocks that a fork may still take are held back and never reach a file. They are
not stored either: the stored cursor is that of the last published block, and a restart reads what
follows it again. Runs on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core import PipeState
from headwater.errors import CursorMoveError, LakeForeignWriteError, ParquetWriterError
from headwater.targets.lake.columns import conform
from headwater.targets.lake.files import GROUP_ROWS
from headwater.targets.lake.settings import ParquetSettings
from headwater.targets.lake.state import EMPTIED, StoredStream
from headwater.targets.lake.table import Change, Lead
from headwater.targets.parquet.held import Held, HeldBatch, Part, by_range
from headwater.targets.parquet.state import Folder, StateFiles, Stored, check_owners
from headwater.targets.parquet.windows import (
    Window,
    epoch_of,
    leftovers,
    staged_epoch,
    window_of,
)

STAGING = "_staging"
logger = logging.getLogger("headwater.targets.parquet")


class Publication(Lead[Part]):
    """What is published of a stream, and what is held back. `stored` is what the next state says.

    `clock` says the seconds by which a roll-over is due.
    """

    name, step, is_lead = "windows", "publish", True

    def __init__(
        self, folder: Folder, stream_id: str, settings: ParquetSettings, clock: Callable[[], float]
    ) -> None:
        self.folder = folder
        self.files = StateFiles(folder, stream_id)
        self.held = Held(settings.memory_bytes)
        self.stored = Stored()
        self.clock = clock
        self._id = stream_id
        self._settings = settings
        self._saved = Stored()
        self._published: list[str] = []  # with the state that is being stored
        self._newest: dict[str, int] = {}  # the last block of each table's newest file

    @property
    def _mark(self) -> int:
        """The epoch in names of files; 0 where a lock keeps others out."""
        return 0 if self.folder.place.is_local else self.files.epoch

    def claim(self) -> bool:
        """Begin an epoch; return whether anything was stored before."""
        self._saved, known = self.files.claim()
        self.stored = self._saved
        check_owners(self.folder.place, self._id, self.stored.coverage)
        return known

    def save(self, stored: Stored) -> None:
        """Store what counts from now on: the commit point."""
        self.files.save(stored)
        self.stored = self._saved = stored

    def files_of(self, table: str) -> list[str]:
        """Return the names of a table's files, those that readers leave out among them."""
        return self.folder.names(table)

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
        names = {name for one in going for name in one.parts}
        if any(
            part.memory is None for one in going for parts in one.parts.values() for part in parts
        ):
            return True
        return self._settings.rollover.is_due(
            size=max((sum(one.size(name) for one in going) for name in names), default=0),
            rows=max((sum(one.count(name) for one in going) for name in names), default=0),
            blocks=sum(one.blocks for one in going),
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
                if any(one.count(name) for one in several):
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
        parts = [one for batch in batches for one in batch.parts.get(name, ())]
        rows = [one.memory for one in parts if one.memory is not None and one.rows]
        staged = [one.name for one in parts if one.memory is None]
        count = len(staged) + (1 if rows or not staged else 0)
        names = [f"{name}/{window.file_name(at, count, self._mark)}" for at in range(count)]
        self._published += names
        self._newest[name] = last
        if staged:
            self.folder.publish(dict(zip(staged, names[count - len(staged) :], strict=True)))
        if count > len(staged):
            self.folder.put(names[0], self._parquet(rows, self.stored.schemas[name]))
        logger.info("window.published id=%s table=%s blocks=%d..%d", self._id, name, first, last)

    def _parquet(self, rows: Sequence[pa.Table], schema: pa.Schema) -> bytes:
        """Return rows as the bytes of a Parquet file."""
        sink = BytesIO()
        with pq.ParquetWriter(sink, schema, compression=self._settings.compression) as writer:
            for one in rows:
                for batch in one.to_batches():
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
        names = {name: self.files_of(name) for name in self.stored.coverage}
        for name, last in self.stored.newest.items():
            if not any(one and one.last == last for one in map(window_of, names.get(name, ()))):
                raise LakeForeignWriteError(
                    "the table is an older copy than the state of the stream: bring back the "
                    "newest one, or the state and all tables of one moment",
                    table=name, lacks=f"the file that ends at block {last}",
                )  # fmt: skip
        found = {
            name: [one for one in several if "/" not in one] for name, several in names.items()
        }
        gone = leftovers(found, self.stored.state.number, self.stored.coverage, self._mark)
        for table, file in gone:
            logger.warning("file.removed id=%s table=%s file=%s", self._id, table, file)
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
            windows = [one for one in map(window_of, self.files_of(name)) if one is not None]
            across = [one for one in windows if one.first <= number < one.last]
            if across and not forward:
                raise CursorMoveError(
                    "a file covers blocks on both sides, and files never change",
                    table=name, wanted=number, lower=min(across).first - 1, higher=max(across).last,
                )  # fmt: skip
            coverage[name] = number + 1 if forward else min(first, number + 1)
            if newest.get(name, 0) > number:
                newest[name] = max((one.last for one in windows if one.last <= number), default=-1)
        newest = {name: last for name, last in newest.items() if last >= 0}
        self.held.drop_up_to(number)
        self.save(replace(self.stored, state=stored.state, coverage=coverage, newest=newest))
        self.go_back(self.way_back(stored, claim=True), stored, claim=True)

    def begin_anew(self, table: str) -> None:
        """Forget what a table's files cover; delete them too, if the stream is to be emptied.

        Files that stay are removed when the stream begins anew.
        """
        coverage, schemas = dict(self.stored.coverage), dict(self.stored.schemas)
        newest = {name: last for name, last in self.stored.newest.items() if name != table}
        if self._saved.pending == EMPTIED:
            for name in self.files_of(table):
                if window_of(name) is not None and epoch_of(name) <= self._mark:
                    self.folder.delete(f"{table}/{name}")
            del coverage[table], schemas[table]
        else:
            coverage[table] = 0
        self.stored = replace(self.stored, coverage=coverage, schemas=schemas, newest=newest)
