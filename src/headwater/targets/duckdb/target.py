"""A DuckDB file as a target: rows, cursor and rollback chain in one transaction.

DuckDB is embedded: nothing to install, nothing to run. One process writes a file, on the driver. A
crash leaves nothing behind, because what is not committed does not exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.core import Batch, BlockCursor, PipeState
from headwater.errors import InvalidOptionError, UndeclaredTableError
from headwater.targets.aggregates import Aggregate
from headwater.targets.base import Delivery, Scope, SideTable
from headwater.targets.callbacks import takes_three
from headwater.targets.duckdb.aggregates import DuckDBAggregates
from headwater.targets.duckdb.catalog import Catalog
from headwater.targets.duckdb.config_table import ConfigTable
from headwater.targets.duckdb.session import Session, open_session
from headwater.targets.duckdb.settings import DuckDBSettings, Table, table
from headwater.targets.duckdb.side_tables import SideTables
from headwater.targets.duckdb.sync_table import SyncTable
from headwater.targets.duckdb.tx import Tx
from headwater.targets.duckdb.undo import UndoLog
from headwater.targets.side_rows import stored_id

OnData = Callable[..., None]
OnStart = Callable[[Tx], None]
OnRollback = Callable[[Tx, BlockCursor | None], None]

PRUNE_EVERY = 25
_MEMORIES = itertools.count(1)


def duckdb_target(
    path: str | Path,
    *,
    tables: Iterable[str | Table] | None = None,
    on_data: OnData | None = None,
    aggregates: Iterable[Aggregate] = (),
    on_start: OnStart | None = None,
    on_before_rollback: OnRollback | None = None,
    on_after_rollback: OnRollback | None = None,
    settings: DuckDBSettings | None = None,
) -> DuckDBTarget:
    """Write a stream to a DuckDB file.

    Args:
        path: the file, created if need be; `:memory:` for one that is gone with the target.
        tables: every table that `on_data` writes, as a name or `table(...)`; parents before
            children. Without `on_data`, only those that need more than their name.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called once per batch, inside its
            transaction. Left out, each output is inserted into the table of its own name.
        aggregates: tables that sum up outputs, made by `aggregate(...)`, after `on_data`.
        on_start: `on_start(tx)`, called once before anything is read, in a transaction.
        on_before_rollback: `on_before_rollback(tx, cursor)`, called inside the transaction that
            undoes a fork, before any table is; for what the target does not track.
        on_after_rollback: the same, after all tables were restored.
        settings: the stream id, where the state is kept, for how long undo data is.
    """
    if on_data is not None and tables is None:
        raise UndeclaredTableError("on_data is given, but not the tables that it writes")
    declared = [one if isinstance(one, Table) else table(one) for one in tables or ()]
    return DuckDBTarget(
        path,
        declared,
        tuple(aggregates),
        on_data,
        on_start,
        (on_before_rollback, on_after_rollback),
        settings or DuckDBSettings(),
    )


class DuckDBTarget:
    """Made by `duckdb_target`. All calls come from one thread; it may be opened again after close.

    `on_statement` is called with each statement before it runs, for those who watch; `on_state`
    with each state that a commit stores, inside its transaction, for targets built on this one.
    """

    def __init__(
        self,
        path: str | Path,
        tables: Sequence[Table],
        aggregates: Sequence[Aggregate],
        on_data: OnData | None,
        on_start: OnStart | None,
        on_rollback: tuple[OnRollback | None, OnRollback | None],
        settings: DuckDBSettings,
    ) -> None:
        self.on_statement: Callable[[str], None] | None = None
        self.on_state: Callable[[Session, PipeState], None] | None = None
        self._path = path
        self._aggregates = DuckDBAggregates(aggregates, tables)
        self._tables = (*tables, *self._aggregates.tables())
        self._on_data = on_data
        self._on_start = on_start
        self._before_rollback, self._after_rollback = on_rollback
        self._settings = settings
        self._id = settings.id or "stream"
        self._memory = f":memory:{next(_MEMORIES)}"
        self._commits = 0
        self._state = PipeState()
        self._session: Session | None = None
        self._side_tables: tuple[SideTable, ...] = ()
        self._wants_ctx = on_data is not None and takes_three(on_data)

    @property
    def rereads(self) -> bool:
        """Whether frames are read more than once; then the stream does not fetch them again."""
        return bool(self._aggregates)

    def bind(self, stream_id: str) -> None:
        """Take the stream's id, unless the settings name another."""
        if self._session is not None:
            raise InvalidOptionError("a target is bound before it is opened", stream=stream_id)
        self._id = self._settings.id or stream_id

    def recover(self) -> PipeState:
        """Open the file and return the committed state. A transaction leaves nothing to repair,
        but somebody may have moved the cursor: side rows above it go.
        """
        session = self._session or self._open()
        with self._changing(session):
            self._state = self._sync.load()
            self._side.remove_above(self._state.number)
        return self._state

    def stage(self, batch: Batch[Delivery]) -> Batch[Delivery]:
        """Hold the batch until it is committed: rows go from Arrow straight into their tables."""
        return batch

    def commit(self, receipts: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Write the batches and their state in one transaction."""
        session = self._opened()
        with self._changing(session):
            before = self._state
            for index, batch in enumerate(receipts, 1):
                after = state if index == len(receipts) else batch.state
                self._write(session, batch.data, before, after)
                self._side.write(batch.data.side)
                self._sync.append(after, before)
                before = after
            if not receipts:
                self._sync.settle(state)
            if self.on_state is not None:
                self.on_state(session, state)
            if self._commits % PRUNE_EVERY == 0:
                self._prune(state)
        self._commits += 1
        self._state = state

    def roll_back(self, state: PipeState) -> None:
        """Restore every table and the state in one transaction."""
        session = self._opened()
        self._state.check_reach(state)
        with self._changing(session):
            tx = Tx(session, self._catalog, self._undo, None)
            if self._before_rollback is not None:
                self._before_rollback(tx, state.cursor)
            layouts = self._catalog.undoable()
            for layout in reversed(layouts):
                self._undo.remove(layout, state.number)
            for layout in layouts:
                self._undo.restore(layout, state.number)
            self._side.remove_above(state.number)
            self._sync.roll_back(state)
            if self._after_rollback is not None:
                self._after_rollback(tx, state.cursor)
        self._state = state

    def close(self) -> None:
        """Let go of the file. What was not committed is gone."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Open the file, and create what is missing."""
        self._side_tables = tuple(tables)
        if self._session is None:
            self._open()
        else:
            with self._changing(self._session):
                self._side.create(self._side_tables)

    def read_side_table(
        self,
        name: str,
        *,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return committed rows of this stream in the order of their keys."""
        self._opened()
        return self._side.read(name, after, up_to_block, limit)

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Remove rows up to a key and add those that moved, in one transaction."""
        with self._changing(self._opened()):
            self._side.settle(name, up_to, moved)

    def stored_config(self) -> ConfigTable:
        """Return where it is kept what the stream asked for."""
        return ConfigTable(self._opened(), self._settings.schema, self._id)

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Read what is committed, also while the stream runs: no other process could."""
        session = open_session(self._path, self._settings.config, None, self._memory)
        try:
            return session.arrow(sql, params)
        finally:
            session.close()

    # --- inside -----------------------------------------------------------------------------------

    def _opened(self) -> Session:
        if self._session is None:
            self.recover()
        assert self._session is not None, "recover opens it"
        return self._session

    def _open(self) -> Session:
        """Open the file, create what is missing, and let the user prepare it."""
        settings = self._settings
        stream = (*settings.sync.folded, self._id)
        session = open_session(self._path, settings.config, stream, self._memory)
        session.on_statement = self._announce
        self._sync = SyncTable(session, settings.sync, self._id)
        self._catalog = Catalog(
            session,
            self._id,
            settings.sync.suffixed("__tables"),
            self._tables,
            automatic=self._on_data is None,
        )
        self._undo = UndoLog(session, self._id)
        self._side = SideTables(session, settings.schema, stored_id(settings.table, self._id))
        try:
            with self._changing(session):
                self._sync.create()
                self._catalog.create()
                self._side.create(self._side_tables)
                if self._on_start is not None:
                    self._on_start(Tx(session, self._catalog, self._undo, None))
        except BaseException:
            session.close()
            raise
        self._session = session
        self._commits = 0
        return session

    @contextmanager
    def _changing(self, session: Session) -> Iterator[None]:
        """Run in one transaction; after a failure trust nothing that was remembered of it."""
        try:
            with session.transaction():
                yield
        except BaseException:
            self._catalog.forget()
            self._undo.forget()
            raise

    def _write(
        self, session: Session, delivery: Delivery, before: PipeState, after: PipeState
    ) -> None:
        tx = Tx(session, self._catalog, self._undo, Scope.between(before, after))
        data: Mapping[str, Any] = delivery.data
        if self._on_data is None:
            for name, frame in data.items():
                tx.insert(f'"{name}"' if "." in name else name, frame)
        elif self._wants_ctx:
            self._on_data(tx, data, delivery.ctx)
        else:
            self._on_data(tx, data)
        self._aggregates.write(tx, data, after.number)

    def _prune(self, state: PipeState) -> None:
        """Remove undo data that no legal fork needs."""
        number = state.prunable(self._settings.unfinalized_blocks_retention)
        if number < 0:
            return
        self._sync.prune(number)
        for layout in self._catalog.undoable():
            self._undo.prune(layout, number)

    def _announce(self, sql: str) -> None:
        if self.on_statement is not None:
            self.on_statement(sql)
