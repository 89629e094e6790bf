"""A PostgreSQL database as a target: rows, cursor, rollback chain and undo in one transaction.

A crash leaves nothing behind, because what is not committed does not exist. A connection that is
lost while COMMIT is under way leaves a question, and the state in the database answers it: the
stream's lock is taken again first, so nothing of the old connection can still be under way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.core import Batch, BlockCursor, PipeState
from headwater.errors import (
    InvalidOptionError,
    UntrackedTableError,
)
from headwater.targets.aggregates import Aggregate
from headwater.targets.base import Delivery, Scope, SideTable
from headwater.targets.callbacks import takes_three
from headwater.targets.postgres.aggregates import PostgresAggregates
from headwater.targets.postgres.catalog import Catalog
from headwater.targets.postgres.changes import StateChanges
from headwater.targets.postgres.config_table import ConfigTable
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.settings import PostgresSettings, Table, table
from headwater.targets.postgres.side_tables import SideTables
from headwater.targets.postgres.staging import Staging
from headwater.targets.postgres.sync_table import LEGACY_ID, SyncTable
from headwater.targets.postgres.transfer import TemporaryTables
from headwater.targets.postgres.triggers import Triggers
from headwater.targets.postgres.tx import Tx
from headwater.targets.postgres.undo import UndoLog
from headwater.targets.relational.sync_table import Newest
from headwater.targets.side_rows import stored_id

OnData = Callable[..., object]
OnStart = Callable[[Tx], object]
OnRollback = Callable[[Tx, BlockCursor | None], object]

PRUNE_EVERY = 25
logger = logging.getLogger("headwater.targets.postgres")


def postgres_target(
    dsn: str,
    *,
    tables: Iterable[str | Table] | None = None,
    on_data: OnData | None = None,
    aggregates: Iterable[Aggregate] = (),
    on_start: OnStart | None = None,
    on_before_rollback: OnRollback | None = None,
    on_after_rollback: OnRollback | None = None,
    settings: PostgresSettings | None = None,
) -> PostgresTarget:
    """Write a stream to PostgreSQL.

    Args:
        dsn: the database, as `postgresql://user@host/name` or libpq's `key=value` form.
        tables: every table that `on_data` writes, as a name or `table(...)`, in any order. Without
            `on_data`, only those that need more than their name.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called inside the transaction of
            each batch; again if the transaction has to be tried again. Left out, each output is
            inserted into the table of its own name.
        aggregates: tables that sum up outputs, made by `aggregate(...)`, after `on_data`.
        on_start: `on_start(tx)`, called once before anything is read, in a transaction.
        on_before_rollback: `on_before_rollback(tx, cursor)`, called inside the transaction that
            undoes a fork, before any table is; for what the target does not track.
        on_after_rollback: the same, after all tables were restored.
        settings: the stream id, where the state is kept, how transactions run.
    """
    if on_data is not None and tables is None:
        raise UntrackedTableError("on_data is given, but not the tables that it writes")
    declared = [one if isinstance(one, Table) else table(one) for one in tables or ()]
    return PostgresTarget(
        dsn,
        declared,
        tuple(aggregates),
        on_data,
        on_start,
        (on_before_rollback, on_after_rollback),
        settings or PostgresSettings(),
    )


class PostgresTarget:
    """Made by `postgres_target`. All calls come from one thread; it may be opened again.

    `on_statement` is called with each statement before it runs, for those who watch; `on_state`
    with each state that a commit stores, inside its transaction, for targets built on this one.
    """

    def __init__(
        self,
        dsn: str,
        tables: Sequence[Table],
        aggregates: Sequence[Aggregate],
        on_data: OnData | None,
        on_start: OnStart | None,
        on_rollback: tuple[OnRollback | None, OnRollback | None],
        settings: PostgresSettings,
    ) -> None:
        self.on_statement: Callable[[str], None] | None = None
        self.on_state: Callable[[Session, PipeState], None] | None = None
        self._dsn = dsn
        self._aggregates = PostgresAggregates(aggregates, tables)
        self._tables = (*tables, *self._aggregates.tables())
        self._on_data = on_data
        self._on_start = on_start
        self._before_rollback, self._after_rollback = on_rollback
        self._settings = settings
        self._id = settings.id or LEGACY_ID
        self._commits = 0
        self._state = PipeState()
        self._session: Session | None = None
        self._side_tables: tuple[SideTable, ...] = ()
        self._built = False
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
        """Connect and return the committed state. Transactions leave nothing to repair, but
        somebody may have moved the cursor: side rows above it go.
        """
        session = self._session
        if session is None or session.lost:
            session = self._open()
        with session.transaction(isolation_level="repeatable read"):
            self._state, self._changes.stored = self._sync.load(), self._sync.newest()
            self._side.remove_above(self._state.number)
        return self._state

    def stage(self, batch: Batch[Delivery]) -> Batch[Delivery]:
        """Hold the batch until it is committed; its `tx` calls fetch what executors hold."""
        return batch

    def commit(self, receipts: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Write the batches and their state in one transaction."""
        session = self._opened()

        def write() -> Newest | None:
            newest, before = self._changes.stored, self._state
            self._begin()
            for index, batch in enumerate(receipts, 1):
                after = state if index == len(receipts) else batch.state
                self._write(batch.data, before, after)
                self._side.write(batch.data.side)
                newest = self._sync.append(after, before)
                before = after
            if not receipts:
                newest = self._sync.settle(state)
            if self.on_state is not None:
                self.on_state(session, state)
            if self._commits % PRUNE_EVERY == 0:
                self._prune(state)
            return newest

        self._change(write, state)
        self._commits += 1

    def roll_back(self, state: PipeState) -> None:
        """Restore every table and the state in one transaction."""
        session = self._opened()
        self._state.check_reach(state)

        def undo() -> Newest | None:
            self._begin()
            tx = Tx(session, self._catalog, self._temporary)
            if self._before_rollback is not None:
                self._before_rollback(tx, state.cursor)
            self._undo.restore(self._catalog.undoable(), state.number)
            self._side.remove_above(state.number)
            newest = self._sync.roll_back(state)
            if self._after_rollback is not None:
                self._after_rollback(tx, state.cursor)
            return newest

        self._change(undo, state)

    def close(self) -> None:
        """Let go of the connection. What was not committed is gone."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self._staging.clear()

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Connect, and create what is missing."""
        self._side_tables = tuple(tables)
        self._open()

    def read_side_table(
        self,
        name: str,
        *,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return committed rows of this stream in the order of their keys."""
        found: list[pa.Table] = []

        def read() -> Newest | None:
            found.append(self._side.read(name, after, up_to_block, limit))
            return self._changes.stored

        self._opened()
        self._change(read, self._state)
        return found[-1]

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Remove rows up to a key and add those that moved, in one transaction."""

        def settle() -> Newest | None:
            self._begin()
            self._side.settle(name, up_to, moved)
            return self._changes.stored

        self._opened()
        self._change(settle, self._state)

    def stored_config(self) -> ConfigTable:
        """Return where it is kept what the stream asked for."""
        return ConfigTable(self._opened(), self._settings.schema, self._id)

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Read what is committed, on a connection of its own."""
        session = Session(self._dsn, None, 0, "repeatable read")
        session.connect()
        try:
            return session.arrow(sql, params)
        finally:
            session.close()

    # --- opening ----------------------------------------------------------------------------------

    def _opened(self) -> Session:
        if self._session is None:
            self.recover()
        assert self._session is not None, "recover opens it"
        return self._session

    def _open(self) -> Session:
        """Connect, create what is missing, let the user prepare it, and install undo capture."""
        self.close()
        settings = self._settings
        stream = f"{settings.schema}.{settings.table}/{self._id}"
        session = Session(self._dsn, stream, settings.lock_wait_s, settings.isolation_level)
        session.on_statement = self._announce
        self._sync = SyncTable(session, settings.sync, self._id)
        triggers = Triggers(session, self._id, settings.schema)
        self._catalog = Catalog(
            session,
            self._id,
            settings.sync.suffixed("__tables"),
            self._tables,
            triggers,
            automatic=self._on_data is None,
            defer_indexes=settings.defer_indexes,
        )
        self._changes = StateChanges(
            session,
            self._sync,
            self._id,
            settings.attempts,
            forget=self._forget,
            prepare=self._install,
        )
        self._undo = UndoLog(session, self._id)
        self._temporary = TemporaryTables(session)
        kept_as = stored_id(settings.table, self._id)
        self._side = SideTables(session, self._temporary, settings.schema, kept_as)
        self._staging = Staging(settings.relay_port)
        try:
            session.connect()
            with session.transaction(isolation_level="read committed"):
                triggers.take_turn()
                self._sync.create()
                self._catalog.create()
                self._side.create(self._side_tables)
                if settings.id is None and self._id != LEGACY_ID and self._sync.adopt_legacy():
                    logger.warning("state.adopted id=%s from=%s", self._id, LEGACY_ID)
                if self._on_start is not None:
                    self._on_start(Tx(session, self._catalog, self._temporary))
                self._catalog.forget()
                self._catalog.install()
        except BaseException:
            session.close()
            raise
        self._session = session
        self._commits = 0
        self._built = not settings.defer_indexes
        return session

    # --- changing ---------------------------------------------------------------------------------

    def _change(self, work: Callable[[], Newest | None], state: PipeState) -> None:
        """Do something in one transaction with the state."""
        try:
            self._changes.apply(work)
        except Exception:
            self._staging.clear()
            raise
        self._state = state
        self._staging.clear()

    def _begin(self) -> None:
        self._temporary.begin()
        self._staging.begin()

    def _install(self) -> None:
        """Install capture on partitions that came since, in a transaction of its own."""
        with self._opened().transaction(isolation_level="read committed"):
            self._catalog.install()

    def _write(self, delivery: Delivery, before: PipeState, after: PipeState) -> None:
        session = self._opened()
        if after.is_hot and not self._built:
            self._catalog.build_all()
            self._built = True
        if after.is_hot or session.begun:
            session.rows(
                "SELECT set_config('sqd.snapshot_enabled', $1, true), "
                "set_config('sqd.snapshot_block_number', $2, true)",
                ["true" if after.is_hot else "false", str(after.number)],
                prepare=True,
            )
        sync = self._settings.sync
        tx = Tx(
            session,
            self._catalog,
            self._temporary,
            self._staging,
            Scope.between(before, after),
            (sync, sync.suffixed("__tables"), *self._side.names),
        )
        data: Mapping[str, Any] = delivery.data
        if self._on_data is None:
            for name, frame in data.items():
                tx.insert(f'"{name}"' if "." in name else name, frame)
        elif self._wants_ctx:
            self._on_data(tx, data, delivery.ctx)
        else:
            self._on_data(tx, data)
        self._aggregates.write(tx, data, after.number)
        tx.finish()

    def _prune(self, state: PipeState) -> None:
        """Remove undo data that no legal fork needs."""
        number = state.prunable(self._settings.unfinalized_blocks_retention)
        if number < 0:
            return
        self._sync.prune(number)
        for layout in self._catalog.undoable():
            self._undo.prune(layout, number)

    def _forget(self) -> None:
        """Trust nothing that was remembered of a transaction that failed."""
        self._catalog.forget()
        self._temporary.forget()
        self._built = not self._settings.defer_indexes

    def _announce(self, sql: str) -> None:
        if self.on_statement is not None:
            self.on_statement(sql)
