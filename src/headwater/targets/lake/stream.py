"""What is stored of a stream in a lake, whatever the format: a start, a commit, a rollback.

Files are committed to their tables, and the state says that they count: it is stored last, and
first in a rollback. So a crash leaves, at worst, tables ahead of the state. That is put right by
`_open`, which comes before anything else, also after a failure: nothing that is remembered is used
then. Runs on the driver, in one thread.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic

import pyarrow as pa

from headwater.core import PipeState
from headwater.errors import InvalidOptionError, LakeForeignWriteError, LakeWriterError
from headwater.runtime import ALONE, Runtime
from headwater.targets.contract import SideTable, StoredConfig
from headwater.targets.database import LEGACY_ID
from headwater.targets.lake.paths import (
    coded_full_disk,
    coded_storage_errors,
    coded_storage_failures,
)
from headwater.targets.lake.settings import LakeSettings
from headwater.targets.lake.side import SideFiles
from headwater.targets.lake.state import EMPTIED, KEPT, StoredStream
from headwater.targets.lake.table import (
    ATTEMPTS,
    Change,
    File,
    LakeTables,
    Lead,
    TableRewritten,
)
from headwater.targets.side_rows import check_side_table

logger = logging.getLogger("headwater.targets")


class LakeStream(ABC, Generic[File]):
    """A stream's tables and state, as its writer holds them; the part of `LakeTarget` without rows.

    `on_step` is called before each step of I/O that has an effect, for tests.
    """

    _side: SideFiles

    def __init__(self, settings: LakeSettings) -> None:
        self.on_step: Callable[[str], None] | None = None
        self._settings = settings
        self._tables: LakeTables[File] | None = None
        self._id = settings.id or LEGACY_ID
        self._stored = StoredStream(self._id)
        self._side_tables: tuple[SideTable, ...] = ()
        self._dirty = True
        self._replaced: LakeWriterError | None = None

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Take the stream's id, unless the settings name another."""
        if self._tables is not None:
            raise InvalidOptionError("a target is bound before it is opened", stream=stream_id)
        self._id = self._settings.id or stream_id

    def recover(self) -> PipeState:
        """Return the stored state, after putting back the tables that are ahead of it.

        An earlier writer of the stream can change nothing from here on.

        Raises:
            StateMissingError: no state is left, but tables of the stream are.
            LakeWriterError: another writer has begun meanwhile.
            LakePathError: the storage cannot be reached.
        """
        if self._replaced is not None:
            raise self._replaced
        if self._dirty:
            with self._changing(), coded_storage_errors():
                self._open()
        return self._stored.state

    def roll_back(self, state: PipeState) -> None:
        """Store the state that the fork leads to, and put the tables back to it."""
        self.recover()
        self._stored.state.check_reach(state)
        with self._changing(), coded_storage_failures():
            self._announce("write side rows")
            side = self._side.remove_above(self._stored.side, state.number)
            stored = replace(self._stored, state=state, side=side)
            self._opened.lead(self._stored)
            several = self._opened.in_order()
            ways = [table.way_back(stored) for table in several]  # all of them, or nothing changes
            for table, way in zip(several, ways, strict=True):
                self._put_back(table, stored, way)
            self._now(stored)

    def move(self, state: PipeState) -> None:
        """Store a state that leaves blocks out. Called by an operator's command."""
        self.recover()
        with self._changing(), coded_storage_failures():
            stored = replace(self._stored, state=state)
            self._opened.move(stored)
            self._store(stored, {})

    def forget(self, *, keep_data: bool) -> None:
        """Forget the stream, and empty its tables unless their rows are to stay.

        What is to be done is stored first; the next start does what a crash has left of it.
        """
        self.recover()
        with self._changing(), coded_storage_failures():
            pending = KEPT if keep_data else EMPTIED
            if self._opened.has_lead:
                self._store(StoredStream(self._id, epoch=self._stored.epoch, pending=pending), {})
                self._begin_anew()

    def close(self) -> None:
        """Let go of what is open. What was not committed is gone."""
        self._dirty, self._replaced = True, None
        tables, self._tables = self._tables, None
        if tables is not None:
            tables.close()

    # --- what the stream keeps for itself ---------------------------------------------------------

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Take the side tables; they are files, which come with their first rows."""
        self._side_tables = tuple(map(check_side_table, tables))
        if self._tables is not None:
            self._side.open(self._side_tables)

    def read_side_table(
        self,
        name: str,
        *,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return committed rows in the order of their keys."""
        self.recover()
        with coded_storage_failures():
            return self._side.read(self._stored.side, name, after, up_to_block, limit)

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Remove rows up to a key and add those that moved, with the next state in one step."""
        self.recover()
        with self._changing(), coded_storage_failures():
            self._announce("write side rows")
            side = self._side.settle(self._stored.side, name, up_to, moved)
            if side != self._stored.side or not self._opened.has_lead:
                self._store(replace(self._stored, side=side), {})

    def stored_config(self) -> StoredConfig:
        """Return where the definition of this stream is kept."""
        return self

    def read(self) -> str | None:
        """Return the stored definition of the stream."""
        self.recover()
        return self._stored.config

    def write(self, text: str) -> None:
        """Replace the stored definition of the stream."""
        self.recover()
        stored = replace(self._stored, config=text)
        if not self._opened.has_lead:  # it comes with the first commit
            self._stored = stored
            return
        with self._changing(), coded_storage_failures():
            self._store(stored, {})

    # --- steps ------------------------------------------------------------------------------------

    @abstractmethod
    def _open_tables(self) -> LakeTables[File]:
        """Open the tables of the stream in the place; nothing is taken over yet."""

    def _open(self) -> None:
        """Take the stream over, or go on after a failure: unless another writer has begun.

        Then all tables end where the state does, and no earlier writer can change them.
        """
        before, known = self._stored, self._tables
        tables = self._open_tables() if known is None else known
        try:
            self._announce("take over")
            self._stored = tables.take_over(None if known is None else before)
            self._side = SideFiles(tables.side, self._stored.epoch)
            self._side.open(self._side_tables)
            self._tables = tables
            if self._stored.pending:
                self._begin_anew()
            tables.check_ages(self._stored)
            for find in (tables.in_order, tables.appeared):
                for table in find():
                    self._put_back(table, self._stored, claim=True)
            self._announce("sweep side files")
            self._side.sweep(self._stored.side)
            tables.check()
        except BaseException:
            if known is None:
                self._tables = None
                tables.close()
            raise

    def _begin_anew(self) -> None:
        """Do what is left of forgetting the stream: empty its tables, then say that it is done."""
        stored, tables = self._stored, self._opened
        changes: dict[str, list[Change[File]]] = {}
        for name, table in tables.open.items():
            gone = dict(table.live()) if stored.pending == EMPTIED else {}
            changes[name] = [Change(PipeState(), {}, gone, begins_anew=True)]
        self._store(replace(stored, pending=""), changes)
        for table in tables.open.values():
            table.forget()

    @property
    def _opened(self) -> LakeTables[File]:
        assert self._tables is not None, "a target recovers before anything else"
        return self._tables

    def _put_back(
        self, one: Lead[File], stored: StoredStream, way: Any = None, *, claim: bool = False
    ) -> None:
        """Take a table back to what is stored, by a way that was found before or is found now.

        One that others rewrite meanwhile is looked at again. To one that is claimed an earlier
        writer may commit: it is read again, and then whether this writer still holds the stream.
        """
        for left in reversed(range(ATTEMPTS)):
            try:
                if way is None:
                    way = one.way_back(stored, claim=claim)
                self._announce(f"put back {one.name}")
                if one.go_back(way, stored, claim=claim):
                    logger.info("table.back table=%s block=%d", one.name, stored.state.number)
            except TableRewritten:
                if not left:
                    raise
                one.look()
            except LakeWriterError:
                if not left or one.is_lead or not claim:
                    raise
                one.reload()
            else:
                return
            way = None
            self._opened.check()

    def _store(self, stored: StoredStream, changes: Mapping[str, Sequence[Change[File]]]) -> None:
        """Commit changes to their tables, then what is stored: the commit point."""
        tables = self._opened
        lead = tables.lead(self._stored)
        for name, several in changes.items():
            if name != lead.name:
                self._announce(tables.open[name].step)
                tables.open[name].commit(several, stored)
        stored = replace(stored, ages=tables.ages())
        self._announce(lead.step)
        lead.commit(changes.get(lead.name, ()), stored)
        for table in tables.in_order():
            table.forget_up_to(stored.state.undo_floor)
        self._now(stored)

    def _now(self, stored: StoredStream) -> None:
        """Note what is stored; files of side tables that it has ceased to name are deleted."""
        before, self._stored = self._stored, stored
        if stored.side != before.side:
            self._announce("delete side files")
            self._side.discard(before.side, stored.side)

    @contextmanager
    def _changing(self, *, again: bool = False) -> Iterator[None]:
        """Surround a change: after a failure nothing that is remembered is used any more.

        `again` says that a change is tried again if others have rewritten the table meanwhile.
        """
        self._dirty = True
        try:
            with coded_full_disk():
                yield
        except TableRewritten as error:
            if again:
                raise
            raise LakeForeignWriteError("others rewrite the tables all the time") from error
        except LakeWriterError as error:
            self._replaced = error
            raise
        self._dirty = False

    def _announce(self, step: str) -> None:
        if self.on_step is not None:
            self.on_step(step)
