"""A PostgreSQL database as a target: rows, cursor, rollback chain and undo in one transaction.

A crash leaves nothing behind, because what is not committed does not exist. After a connection is
lost while COMMIT is under way, the state in the database tells whether it was committed. The
stream's lock is taken again first, so nothing of the old connection can still be under way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from headwater.core import PipeState
from headwater.core.several import Several
from headwater.errors import PostgresConnectionError, PostgresTransactionError
from headwater.targets.admin import check_address
from headwater.targets.contract import Scope, SideTable
from headwater.targets.database import Callbacks, Found, OnData, OnRollback, OnStart
from headwater.targets.patience import Patience
from headwater.targets.postgres.dialect import POSTGRES
from headwater.targets.postgres.guard import Guard
from headwater.targets.postgres.session import Interrupted, Session
from headwater.targets.postgres.staging import Staging
from headwater.targets.postgres.store import PostgresSettings, PostgresStore, open_store
from headwater.targets.postgres.transactions import Transactions
from headwater.targets.postgres.tx import Tx
from headwater.targets.sql.aggregates import Aggregate
from headwater.targets.sql.flow import SqlTarget
from headwater.targets.sql.settings import Table
from headwater.targets.sql.state import Newest
from headwater.targets.tables import TableOptions
from headwater.targets.values import check_policy

logger = logging.getLogger("headwater.targets.postgres")


def postgres_target(
    dsn: str,
    *,
    tables: Several[str | TableOptions | Table] | None = None,
    on_data: OnData[Tx] | None = None,
    aggregates: Iterable[Aggregate] = (),
    on_start: OnStart[Tx] | None = None,
    on_before_rollback: OnRollback[Tx] | None = None,
    on_after_rollback: OnRollback[Tx] | None = None,
    unrepresentable: str = "replace",
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
        on_start: `on_start(tx)`, called before anything is read, in a transaction; again if that
            has to be tried again.
        on_before_rollback: `on_before_rollback(tx, cursor)`, called inside the transaction that
            undoes a fork, before any table is; for what the target does not track.
        on_after_rollback: the same, after all tables were restored.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, where the state is kept, how transactions run.
    """
    check_address(dsn, "postgres")
    callbacks = Callbacks.check(on_data, on_start, on_before_rollback, on_after_rollback)
    policy = check_policy(unrepresentable)
    return PostgresTarget(dsn, tables, aggregates, callbacks, settings, policy)


class PostgresTarget(SqlTarget[Session]):
    """Made by `postgres_target`. All calls come from one thread; it may be opened again.

    What a commit and a rollback do is said by `SqlTarget`; here is how the database is
    opened, what one transaction is, and what is prepared before a batch is written.
    """

    dialect = POSTGRES
    settings_type = PostgresSettings
    open_store = staticmethod(open_store)
    _store: PostgresStore
    _settings: PostgresSettings
    ended = PostgresTransactionError
    _built = False

    def recover(self) -> PipeState:
        """Connect and return the committed state. Transactions leave nothing to repair, but the
        cursor may have been moved, or a callback may have ended one: rows above the cursor go.

        A connection that is lost meanwhile is made again, and all of it is done once more.
        """
        return self._patiently(self._recover)

    def _recover(self) -> PipeState:
        session = self._session
        if session is None or session.lost:
            session = self._open()
        with session.interruptible(), session.transaction(isolation_level="repeatable read"):
            self._state, self._transactions.stored = (
                self._store.sync.load(),
                self._store.sync.newest(),
            )
            self._check_missing_state()
            self._store.side.remove_above(self._state.number)
            self._undo_leftovers()
        return self._state

    def close(self) -> None:
        """Close the connection. What was not committed is gone."""
        if self._session is not None:
            super().close()
            self._staging.clear()

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Connect, and create what is missing."""
        self._side_tables = tuple(tables)
        self._patiently(self._open)

    # --- opening ----------------------------------------------------------------------------------

    def _open(self) -> Session:
        """Connect, create what is missing, let the user prepare it, and install undo capture."""
        self.close()
        settings = self._settings
        stream = f"{settings.schema}.{settings.table}/{self._id}"
        session = Session(self._place, stream, settings.lock_wait_s, settings.isolation_level)
        session.on_statement = self._announce
        self._store = open_store(
            session,
            settings,
            self._id,
            self._tables,
            automatic=self._callbacks.on_data is None,
            altered=self.altered,
        )
        self._transactions = Transactions(
            session,
            self._store.sync,
            self._id,
            self._patience,
            forget=self._forget,
            prepare=self._install,
        )
        self._staging = Staging(settings.relay_port)
        self._guard = Guard(session, self._store, settings.sync, self._id)
        try:
            with session.interruptible():
                session.connect()
                with session.transaction(isolation_level="read committed"):
                    self._prepare(session)
        except BaseException:
            session.close()
            raise
        self._session = session
        self._commits = 0
        self._built = not settings.defer_indexes
        return session

    def _prepare(self, session: Session) -> None:
        """Do what every start does, in one transaction. Doing it again changes nothing."""
        self._store.catalog.take_turn()
        self._store.sync.create()
        self._store.catalog.create()
        self._store.config.create()
        self._store.side.create(self._side_tables)
        self._adopt(self._store.sync.adopt_legacy)
        if self._callbacks.on_start is not None:
            session.remember()
            tx = Tx(session, self._store)
            self._callbacks.on_start(tx)
            tx.finish()
        self._store.catalog.forget()
        state = self._store.sync.load()
        self._store.catalog.cursor = None if state.cursor is None else state.number
        self._store.catalog.install()

    def _patiently(self, work: Callable[[], Found]) -> Found:
        """Open the database; again if the connection is lost meanwhile, or the disk is full.

        A server that cannot be reached at all is an error at once: the address may be wrong.
        """
        reached, patience = False, self._patience()
        while True:
            try:
                return work()
            except (Interrupted, PostgresConnectionError) as error:
                reached = reached or isinstance(error, Interrupted)
                if patience.ends() or not reached:
                    if isinstance(error, Interrupted):
                        raise error.coded from error.__cause__
                    raise
                failures = patience.failures
                logger.warning("open.retried id=%s attempt=%d error=%s", self._id, failures, error)
                patience.wait("the database is away, trying again")

    def _patience(self) -> Patience:
        return Patience(self._settings.attempts, self._settings.wait_s, self.pause)

    def _install(self) -> None:
        """Install capture on partitions that came since, in a transaction of its own."""
        with self._opened().transaction(isolation_level="read committed"):
            self._store.catalog.install()

    def _reader(self) -> Session:
        session = Session(self._place, None, 0, "repeatable read")
        session.connect()
        return session

    # --- changing ---------------------------------------------------------------------------------

    def _change(
        self, work: Callable[[], Newest | None], state: PipeState, first: Scope | None = None
    ) -> None:
        """Do something in one transaction with the state; again where that can help."""

        def begin() -> Newest | None:
            self._staging.begin()
            return work()

        try:
            self._transactions.apply(begin, first)
        except Exception:
            self._staging.clear()
            raise
        self._state = state
        self._staging.clear()

    def _look(self, work: Callable[[], Found]) -> Found:
        found: list[Found] = []

        def look() -> Newest | None:
            found.append(work())
            return self._newest()

        self._opened()
        self._change(look, self._state)
        return found[-1]

    def _newest(self) -> Newest | None:
        return self._transactions.stored

    @contextmanager
    def _batch(self, scope: Scope) -> Iterator[Tx]:
        """Build what was put off and switch capture on, as far as the batch needs it."""
        session = self._opened()
        if scope.hot and not self._built:
            self._store.catalog.build_all()
            self._built = True
        if not self._transactions.captures(scope) and (scope.hot or session.begun):
            self._transactions.capture(scope)
        yield Tx(session, self._store, self._staging, scope)
        self._guard.check(scope)

    def _tx(self) -> Tx:
        return Tx(self._opened(), self._store)

    def _forget(self) -> None:
        """Trust nothing that was remembered of a transaction that failed."""
        self._store.catalog.forget()
        self._guard.forget()
        self._built = not self._settings.defer_indexes


TARGET = PostgresTarget
