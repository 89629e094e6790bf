"""A DuckDB file as a target: rows, cursor and rollback chain in one transaction.

DuckDB is embedded: nothing to install, nothing to run. One process writes a file, on the driver. A
crash leaves nothing behind, because what is not committed does not exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from headwater.core import PipeState
from headwater.core.several import Several
from headwater.errors import DuckDBTransactionError
from headwater.targets.admin import check_address
from headwater.targets.contract import Capabilities, Delivery, Scope, SideTable
from headwater.targets.database import Callbacks, Found, OnData, OnRollback, OnStart
from headwater.targets.duckdb.dialect import DUCKDB
from headwater.targets.duckdb.session import MEMORY, Session, open_session
from headwater.targets.duckdb.store import DuckDBSettings, DuckDBStore, open_store
from headwater.targets.duckdb.tx import Tx
from headwater.targets.sql.aggregates import Aggregate
from headwater.targets.sql.flow import PRUNE_EVERY, SqlTarget
from headwater.targets.sql.settings import Table
from headwater.targets.tables import TableOptions
from headwater.targets.values import check_policy

_MEMORIES = itertools.count(1)


def duckdb_target(
    path: str | Path,
    *,
    tables: Several[str | TableOptions | Table] | None = None,
    on_data: OnData[Tx] | None = None,
    on_start: OnStart[Tx] | None = None,
    on_before_rollback: OnRollback[Tx] | None = None,
    on_after_rollback: OnRollback[Tx] | None = None,
    aggregates: Iterable[Aggregate] = (),
    unrepresentable: str = "replace",
    settings: DuckDBSettings | None = None,
) -> DuckDBTarget:
    """Write a stream to a DuckDB file.

    Args:
        path: the file, created if need be; `:memory:` for one that is gone with the target.
        tables: every table that `on_data` writes, as a name or `table(...)`; parents before
            children. Without `on_data`, only those that need more than their name.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called once per batch, inside its
            transaction. Left out, each output is inserted into the table of its own name.
        on_start: `on_start(tx)`, called once before anything is read, in a transaction.
        on_before_rollback: `on_before_rollback(tx, cursor)`, called inside the transaction that
            undoes a fork, before any table is; for what the target does not track.
        on_after_rollback: the same, after all tables were restored.
        aggregates: tables that sum up outputs, made by `aggregate(...)`, after `on_data`.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, where the state is kept, for how long undo data is.
    """
    check_address(path, "duckdb")
    callbacks = Callbacks.check(on_data, on_start, on_before_rollback, on_after_rollback)
    policy = check_policy(unrepresentable)
    return DuckDBTarget(path, tables, aggregates, callbacks, settings, policy)


class DuckDBTarget(SqlTarget[Session]):
    """Made by `duckdb_target`. All calls come from one thread; it may be opened again after close.

    What a commit and a rollback do is said by `SqlTarget`; here is how the file is opened,
    and what one transaction is.
    """

    dialect = DUCKDB
    settings_type = DuckDBSettings
    open_store = staticmethod(open_store)
    _store: DuckDBStore
    _settings: DuckDBSettings
    ended = DuckDBTransactionError

    @cached_property
    def _memory(self) -> str:
        """The key of a database in memory, which no other target has."""
        return f":memory:{next(_MEMORIES)}"

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """Those of every SQL target; the file is its process's alone."""
        file = None if str(self._place) == MEMORY else Path(self._place)
        return replace(super().capabilities, file=file)

    def recover(self) -> PipeState:
        """Open the file and return the committed state. Transactions leave nothing to repair, but
        the cursor may have been moved, or a callback may have ended one: rows above it go.
        """
        session = self._session or self._open()
        with self._changing(session):
            self._state = self._store.sync.load()
            self._check_missing_state()
            self._store.side.remove_above(self._state.number)
            self._undo_leftovers()
        return self._state

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Open the file, and create what is missing."""
        self._side_tables = tuple(tables)
        if self._session is None:
            self._open()
        else:
            with self._changing(self._session):
                self._store.side.create(self._side_tables)

    # --- inside -----------------------------------------------------------------------------------

    def _open(self) -> Session:
        """Open the file, create what is missing, and let the user prepare it."""
        settings, on_start = self._settings, self._callbacks.on_start
        stream = (*settings.sync.folded, self._id)
        session = open_session(self._place, settings.config, stream, self._memory)
        session.on_statement = self._announce
        self._store = open_store(
            session,
            settings,
            self._id,
            self._tables,
            automatic=self._callbacks.on_data is None,
            altered=self.altered,
        )
        try:
            with self._changing(session):
                self._store.sync.create()
                self._store.catalog.create()
                self._store.side.create(self._side_tables)
                if on_start is not None:
                    tx = Tx(session, self._store, None)
                    on_start(tx)
                    tx.finish()
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
            self._store.catalog.forget()
            self._store.undo.forget()
            raise

    def _change(
        self, work: Callable[[], object], state: PipeState, first: Scope | None = None
    ) -> None:
        session = self._opened()
        with self._changing(session):
            work()
        self._state = state
        if first is not None and (not first.hot or self._commits % PRUNE_EVERY == 0):
            session.trim()

    def _look(self, work: Callable[[], Found]) -> Found:
        self._opened()
        return work()

    @contextmanager
    def _batch(self, scope: Scope) -> Iterator[Tx]:
        tx = Tx(self._opened(), self._store, scope)
        yield tx
        tx.finish()

    def _tx(self) -> Tx:
        return Tx(self._opened(), self._store, None)

    def _reader(self) -> Session:
        """Share the connection of the file: no other process could read it meanwhile."""
        return open_session(self._place, self._settings.config, None, self._memory)


TARGET = DuckDBTarget
