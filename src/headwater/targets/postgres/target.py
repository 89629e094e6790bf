"""A PostgreSQL database as a target: rows, cursor, rollback chain and undo in one transaction.

A crash leaves nothing behind, because what is not committed does not exist. A conflict or a lost
connection is tried again; errors of the user's code are not. Before anything is written, the stored
state is compared with what this writer has stored. So another writer is noticed, and a COMMIT whose
answer was lost is neither lost nor repeated: the stream's lock is taken again first, hence nothing
of the old connection can still be under way when the state is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg

from headwater.address import Address
from headwater.core.several import Several
from headwater.errors import (
    CursorMoveError,
    InvalidOptionError,
    PostgresConnectionError,
    PostgresLockError,
    PostgresStatementError,
    PostgresTransactionError,
    SchemaFileError,
)
from headwater.targets.admin import check_address
from headwater.targets.contract import Scope
from headwater.targets.database import Callbacks, OnData, OnRollback, OnStart, Patience
from headwater.targets.postgres.catalog import PostgresCatalog
from headwater.targets.postgres.dialect import DEFAULT_SCHEMA, POSTGRES, TableName
from headwater.targets.postgres.guard import Guard
from headwater.targets.postgres.merge import PostgresMerger
from headwater.targets.postgres.session import Interrupted, Session, TryAgain
from headwater.targets.postgres.staging import Staging
from headwater.targets.postgres.tx import Tx, refuse_transaction_control
from headwater.targets.postgres.undo import PostgresUndoLog
from headwater.targets.sql.aggregates import Aggregate
from headwater.targets.sql.database import Database, OpenedStream
from headwater.targets.sql.flow import SqlTarget
from headwater.targets.sql.layout import Table
from headwater.targets.sql.state import Newest, StateSettings, read_newest
from headwater.targets.tables import TableOptions
from headwater.targets.text import Fragment, QualifiedName, compose
from headwater.targets.values import check_policy

_RESTARTS = 3
_LOCK = "SELECT pg_try_advisory_xact_lock(hashtext($1)::bigint)"
# The lock that the Pipes SDK takes too, what the triggers read, and the newest row of state.
_PROLOGUE = (
    "SELECT turn.mine, turn.identity, newest.* FROM (SELECT pg_try_advisory_xact_lock("
    "hashtext($1)::bigint) AS mine, pg_current_xact_id()::text AS identity, "
    "set_config('sqd.snapshot_enabled', $2, true), "
    "set_config('sqd.snapshot_block_number', $3, true), "
    "set_config('sqd.snapshot_id', $1, true)) AS turn "
    "LEFT JOIN ({newest}) AS newest ON true"
)
logger = logging.getLogger("headwater.targets.postgres")

ISOLATION_LEVELS = ("serializable", "repeatable read", "read committed")


@dataclass(frozen=True, slots=True)
class PostgresSettings(StateSettings):
    """Where and under which id the state is kept, and how transactions run.

    `id` overrides the stream's own. Undo data is kept for `unfinalized_blocks_retention` blocks
    below the finalized one. A server that goes away, or whose disk is full, is waited for up to
    `wait_s` seconds, and as long is a transaction tried again that meets conflicts with others;
    `attempts`, if it is given, is how often. `lock_wait_s` is how long a writer waits for the one
    before it to be gone. With `defer_indexes`, tables that the target creates get their keys and
    indexes when the stream first comes near the head, or when a write needs them. Executors send
    their rows to the driver, to `relay_port`, or to any free port if it is 0.
    """

    schema: str = DEFAULT_SCHEMA
    isolation_level: str = "serializable"
    attempts: int | None = None
    wait_s: float = 600.0
    lock_wait_s: float = 5.0
    defer_indexes: bool = False
    relay_port: int = 0
    name_type = TableName

    def __post_init__(self) -> None:
        StateSettings.__post_init__(self)
        for part in (self.schema, self.table):
            TableName.check(part)
        if self.isolation_level not in ISOLATION_LEVELS:
            raise InvalidOptionError(
                "no such isolation level", got=self.isolation_level, known=ISOLATION_LEVELS
            )
        wrong = self.attempts is not None and self.attempts < 1
        if wrong or min(self.lock_wait_s, self.wait_s) < 0:
            raise InvalidOptionError(
                "attempts must be 1 or more, lock_wait_s and wait_s not negative",
                attempts=self.attempts,
                lock_wait_s=self.lock_wait_s,
                wait_s=self.wait_s,
            )


class PostgresDatabase(Database[Session]):
    """A PostgreSQL database. A connection that is lost is made again."""

    dialect = POSTGRES
    settings_type = PostgresSettings
    ended = PostgresTransactionError
    catalog_type = PostgresCatalog
    undo_type = PostgresUndoLog
    merger_type = PostgresMerger

    def __init__(
        self, place: str | Path | Address, settings: PostgresSettings | None = None
    ) -> None:
        super().__init__(place, settings)
        self._staging = Staging(self.settings.relay_port)
        self._built = False  # keys and indexes that were put off
        self._known: Newest | None = None  # the newest row of state that this writer knows of
        self._first: Scope | None = None
        self._scope: Scope | None = None  # for which capture is set

    # --- opening ----------------------------------------------------------------------------------

    def connect(self, stream: OpenedStream, look: Callable[[], None] | None = None) -> None:
        """Open the database; again if the connection is lost meanwhile, or the disk is full.

        A server that cannot be reached at all is an error at once: the address may be wrong.
        """
        self._stream = stream
        reached, patience = False, self._patience()
        while True:
            try:
                if self._session is None or self._session.lost:
                    self._open(stream)
                if look is not None:
                    self._look(look)
            except (Interrupted, PostgresConnectionError) as error:
                reached = reached or isinstance(error, Interrupted)
                if patience.ends() or not reached:
                    if isinstance(error, Interrupted):
                        raise error.coded from error.__cause__
                    raise
                failures = patience.failures
                logger.warning("open.retried id=%s attempt=%d error=%s", stream.id, failures, error)
                patience.wait("the database is away, trying again")
            else:
                return

    def close(self) -> None:
        """Close the connection. What was not committed is gone."""
        super().close()
        self._staging.clear()

    def _look(self, look: Callable[[], None]) -> None:
        session = self.store.session
        with session.interruptible(), session.transaction(isolation_level="repeatable read"):
            self._known = self.store.sync.newest()
            look()

    def _open(self, stream: OpenedStream) -> None:
        """Connect, create what is missing, let the user prepare it, and install undo capture."""
        self.close()
        settings = self.settings
        session = Session(
            self.place,
            _lock_name(settings, stream.id),
            settings.lock_wait_s,
            settings.isolation_level,
            stream.announce,
        )
        self.store = store = self.stored(
            session, stream.id, stream.tables, automatic=stream.automatic, altered=stream.altered
        )
        self._guard = Guard(session, store, settings.sync, stream.id)
        self._prologue_sql = compose(_PROLOGUE, newest=store.sync.newest_query())
        try:
            with session.interruptible():
                session.connect()
                with session.transaction(isolation_level="read committed"):
                    self._prepare(session, stream)
        except BaseException:
            session.close()
            raise
        self._session = session
        self._built = not settings.defer_indexes

    def _prepare(self, session: Session, stream: OpenedStream) -> None:
        """Do what every start does, in one transaction. Doing it again changes nothing."""
        store = self.store
        store.catalog.take_turn()
        store.sync.create()
        store.catalog.create()
        store.config.create()
        store.side.create(stream.side_tables)
        stream.adopt(store.sync.adopt_legacy)
        if stream.on_start is not None:
            session.remember()
            tx = Tx(store, session.check)
            stream.on_start(tx)
            tx.finish()
        store.catalog.forget()
        state = store.sync.load()
        store.catalog.cursor = None if state.cursor is None else state.number
        store.catalog.install()

    def _patience(self) -> Patience:
        return Patience(self.settings.attempts, self.settings.wait_s, self._stream.pause)

    def reader(self) -> Session:
        """Open a connection of its own, which takes no lock."""
        session = Session(self.place, None, 0, "repeatable read")
        session.connect()
        return session

    # --- changing ---------------------------------------------------------------------------------

    def tx(self, scope: Scope | None = None) -> Tx:
        """Build what was put off and switch capture on, as far as the batch needs it."""
        store = self.store
        session = store.session
        if scope is None:
            return Tx(store, session.check)
        if scope.hot and not self._built:
            store.catalog.build_all()
            self._built = True
        if scope.hot:
            session.begin()
        is_set = scope == (self._scope if session.begun else self._first)
        if not is_set and (scope.hot or session.begun):  # triggers keep what it changes
            session.rows(
                "SELECT set_config('sqd.snapshot_enabled', $1, true), "
                "set_config('sqd.snapshot_block_number', $2, true)",
                _captured(scope),
                prepare=True,
            )
            self._scope = scope
        staging = None if scope.hot else self._staging
        return Tx(store, partial(self._guard.check, scope), scope, staging)

    def transaction(self, work: Callable[[], None], first: Scope | None = None) -> None:
        """Do the work in one transaction; again after a conflict or a lost connection.

        `first` is the batch that it writes first, if any: the transaction begins with its capture.
        """
        written: list[Newest | None] = []  # the newest rows that the tries have led to
        restarts, patience, session = 0, None, self.store.session
        self._first = first
        try:
            while True:
                try:
                    if session.lost and self._has_committed(written):
                        break
                    self._staging.begin()
                    self.store.sync.known = self._known
                    with session.turn(session.conflicted), session.transaction(self._prologue):
                        work()
                        written.append(self.store.sync.known)
                    break
                except TryAgain as reason:
                    self._forget()
                    restarts += 1
                    if restarts > _RESTARTS:
                        raise PostgresStatementError(
                            "a callback undoes what was prepared for it", what=reason
                        ) from reason
                    logger.info("batch.restarted id=%s reason=%s", self._stream.id, reason)
                    with session.transaction(isolation_level="read committed"):
                        self.store.catalog.install()  # on partitions that came since
                except Exception as error:  # noqa: BLE001 - judged, and raised unless it can help
                    self._forget()
                    patience = patience or self._patience()
                    self._raise_unless_worth_another(error, patience)
                    logger.warning(
                        "batch.retried id=%s attempt=%d error=%s",
                        self._stream.id,
                        patience.failures,
                        error,
                    )
                    patience.wait("the database is away or busy, trying again")
                except BaseException:
                    self._forget()
                    raise
        finally:
            self._staging.clear()
        self._known = written[-1]

    def _has_committed(self, written: Sequence[Newest | None]) -> bool:
        """Connect again; tell whether the lost connection's commit had succeeded."""
        self.store.session.connect()
        if not written:
            return False
        newest = self.store.sync.newest()
        return newest == written[-1] and newest != self._known

    def _prologue(self) -> None:
        """Take the lock that the Pipes SDK takes too, set capture, compare the state."""
        stream_id, self._scope = self._stream.id, self._first
        ((mine, identity, *row),) = self.store.session.rows(
            self._prologue_sql, [stream_id, *_captured(self._first)], prepare=True
        )
        self.store.session.remember(identity)
        if not mine and not self.store.session.wait_for(_LOCK, [stream_id]):
            raise PostgresLockError("another writer is writing the stream", stream=stream_id)
        stored = read_newest(*row)
        if stored != self._known:
            raise PostgresLockError(
                "the stored state is not what this writer has stored",
                stream=stream_id,
                stored=stored and stored.cursor,
                expected=self._known and self._known.cursor,
            )

    def _raise_unless_worth_another(self, error: Exception, patience: Patience) -> None:
        session = self.store.session
        final = isinstance(error, PostgresLockError | PostgresTransactionError)
        if final or not (session.lost or session.conflicted or session.full):
            raise error
        if not patience.ends():
            return
        coded = session.coded(error, attempts=patience.failures)
        raise coded from (None if coded is error else error)

    def _forget(self) -> None:
        """Trust nothing that was remembered of a transaction that failed."""
        self.store.catalog.forget()
        self._guard.forget()
        self._built = not self.settings.defer_indexes

    # --- outside a run ----------------------------------------------------------------------------

    @contextmanager
    def administer(self, stream_id: str | None) -> Iterator[Session]:
        """Open a transaction; with an id under the locks of stream and Pipes SDK."""
        lock = None if stream_id is None else _lock_name(self.settings, stream_id)
        session = Session(self.place, lock, 0, "serializable")
        try:
            session.connect()
            with session.transaction():
                if stream_id is not None:
                    ((mine, *_),) = session.rows(
                        "SELECT pg_try_advisory_xact_lock(hashtext($1)::bigint), "
                        "set_config('sqd.snapshot_enabled', 'false', true)",
                        [stream_id],
                    )
                    if not mine:
                        raise PostgresLockError("another writer is writing", stream=stream_id)
                yield session
        finally:
            session.close()

    def empty(self, session: Session, names: Sequence[QualifiedName]) -> None:
        """Remove all rows at once: the tables may refer to each other."""
        listed = ", ".join(name.quoted for name in names)
        try:
            session.run("TRUNCATE {tables}", tables=Fragment(listed))
        except psycopg.Error as error:
            raise CursorMoveError(
                "the stream's tables cannot be emptied; do it yourself, and keep the data here",
                tables=", ".join(map(str, names)),
                reason=" ".join(str(error).split()),
            ) from error

    def run_script(self, session: Session, sql: str) -> None:
        """Run the statements of a schema file."""
        refuse_transaction_control(sql, "in a schema file")
        try:
            session.run(sql)
        except psycopg.Error as error:
            reason = str(error).splitlines()[0]
            raise SchemaFileError("a statement failed", reason=reason) from error


class PostgresTarget(SqlTarget):
    """Made by `postgres_target`. All calls come from one thread; it may be opened again."""


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
    return PostgresTarget(PostgresDatabase(dsn, settings), tables, aggregates, callbacks, policy)


def _lock_name(settings: PostgresSettings, stream_id: str) -> str:
    return f"{settings.schema}.{settings.table}/{stream_id}"


def _captured(scope: Scope | None) -> list[str]:
    """Return what the triggers read: whether they keep anything, and for which block."""
    hot = scope is not None and scope.hot
    return ["true" if hot else "false", str(scope.block) if scope is not None else ""]


DATABASE = PostgresDatabase
