"""One connection of a target: its lock, its transactions, and what went wrong on it.

A transaction begins with its first statement, not before. The session-level lock outlives
transactions and dies with the server process behind the connection. So its holder knows that
no commit of an earlier connection is still under way.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from selectors import EVENT_WRITE, DefaultSelector
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import RawCursor
from psycopg.errors import (
    DeadlockDetected,
    DiskFull,
    ProgramLimitExceeded,
    SerializationFailure,
    TooManyColumns,
)
from psycopg.pq import ExecStatus, TransactionStatus

from headwater.address import Address
from headwater.errors import (
    PostgresConflictError,
    PostgresConnectionError,
    PostgresDiskFullError,
    PostgresLockError,
    PostgresSizeError,
    PostgresStatementError,
    PostgresTransactionError,
)
from headwater.targets.postgres.transfer import TemporaryTables
from headwater.targets.postgres.types import LOADERS, to_table
from headwater.targets.text import Fragment, Part, compose

POLL_S = 0.05
TURN = (0x6877, 1)  # the lock of transactions that are tried again, of all streams
ON_REQUEST = 2**31 - 1  # statements are prepared where the code says so, and only there
IDENTITY = Fragment("pg_current_xact_id_if_assigned()::text")
# whether this connection holds the lock whose key is the parameter $1
HOLDS = Fragment(
    "EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() "
    "AND granted AND objsubid = 1 AND classid::bigint << 32 | objid::bigint = $1)"
)
Row = tuple[Any, ...]
Chunk = bytes | memoryview


class Interrupted(Exception):  # noqa: N818 - what was interrupted may be tried again
    """A connection was lost, or a disk full, in the middle of something; `coded` says it."""

    def __init__(self, coded: Exception) -> None:
        super().__init__(str(coded))
        self.coded = coded


class TryAgain(Exception):  # noqa: N818 - not an error: the batch is written once more
    """The transaction must begin again, because it cannot see what was prepared for it."""


class Session:
    """A connection that can be lost and made again. Runs on the driver, in one thread.

    `on_statement` is called before each statement, for tests and logs. After a failure `lost`
    tells whether the connection is gone, `conflicted` whether PostgreSQL wants the transaction to
    be tried again, `full` whether its disk is; anything else is an error of its own.
    """

    def __init__(
        self,
        address: Address,
        lock_name: str | None,
        lock_wait_s: float,
        isolation_level: str,
        on_statement: Callable[[str], None] | None = None,
    ) -> None:
        self.on_statement = on_statement
        self.conflicted = self.full = False
        self.generation = 0  # of the connection: what is temporary belongs to one
        self.temporary = TemporaryTables(self)
        self._address = address
        self._lock_name = lock_name
        self._lock_wait_s = lock_wait_s
        self._isolation_level = isolation_level
        self._connection: psycopg.Connection[Row] | None = None
        self._begin: tuple[str, Callable[[], None] | None] | None = None  # level, prologue
        self._inside = False
        self._identity: str | None = None

    # --- life -------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether there is no usable connection."""
        return self._connection is None or bool(self._connection.closed)

    @property
    def begun(self) -> bool:
        """Whether a transaction has run its first statement, which fixes what it sees."""
        return self._begin is None

    def connect(self) -> None:
        """Connect, and take the stream's lock; wait for a writer that is just going away."""
        self.close()
        if self.on_statement is not None:
            self.on_statement("CONNECT")
        self.generation += 1
        self._connection = connect(self._address)
        if self._lock_name is None:
            return
        if not self.wait_for("SELECT pg_try_advisory_lock($1)", [self.lock_key]):
            self.close()
            raise PostgresLockError("another writer holds the stream", stream=self._lock_name)

    @property
    def lock_key(self) -> int:
        """The key of the stream's lock."""
        name = (self._lock_name or "").encode()
        digest = hashlib.blake2b(name, digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def wait_for(self, sql: str, params: Sequence[object]) -> bool:
        """Ask until the answer is true, or the time is up."""
        deadline = time.monotonic() + self._lock_wait_s
        while not self.rows(sql, params)[0][0]:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    @contextmanager
    def turn(self, wanted: bool) -> Iterator[None]:
        """Have transactions that met a conflict run one at a time, so that they do not meet again.

        A writer that was paused in its turn is not waited for longer than for any lock.
        """
        taken = wanted and self.wait_for("SELECT pg_try_advisory_lock($1, $2)", TURN)
        try:
            yield
        finally:
            if taken and not self.lost:
                self.run("SELECT pg_advisory_unlock($1, $2)", TURN)

    def close(self) -> None:
        """Close the connection, and release the lock with it."""
        connection, self._connection = self._connection, None
        self._begin = None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    # --- statements -------------------------------------------------------------------------------

    def run(
        self, sql: str, params: Sequence[object] = (), *, prepare: bool = False, **parts: Part
    ) -> int:
        """Run a statement for its effect; return how many rows it touched."""
        return int(self.execute(compose(sql, **parts) if parts else sql, params, prepare).rowcount)

    def rows(
        self, sql: str, params: Sequence[object] = (), *, prepare: bool = False, **parts: Part
    ) -> list[Row]:
        """Run a statement and return its rows; none if it returns no rows at all."""
        cursor = self.execute(compose(sql, **parts) if parts else sql, params, prepare)
        result = cursor.pgresult  # rows may have no columns at all
        is_query = result is not None and result.status == ExecStatus.TUPLES_OK
        return cursor.fetchall() if is_query else []

    def arrow(self, sql: str, params: Sequence[object] = (), **parts: Part) -> pa.Table:
        """Run a query and return a table; numbers too wide for Arrow come as decimal text."""
        return to_table(self.execute(compose(sql, **parts) if parts else sql, params))

    def copy(self, sql: str, chunks: Iterable[Chunk]) -> None:
        """Feed a COPY."""
        self._statement(sql)
        with self._watched(), self._cursor() as cursor, cursor.copy(sql.encode()) as copy:
            for chunk in chunks:
                copy.write(chunk)
                _drain(copy.connection)

    @contextmanager
    def transaction(
        self, prologue: Callable[[], None] | None = None, *, isolation_level: str | None = None
    ) -> Iterator[None]:
        """Commit everything inside, or nothing. `prologue` runs right after it has begun."""
        self.conflicted = self.full = False
        self.temporary.begin()
        self._begin = isolation_level or self._isolation_level, prologue
        try:
            yield
            if self.begun:
                self._commit()
        except BaseException:
            self.temporary.forget()
            self._roll_back()
            raise
        finally:
            self._begin, self._inside = None, False

    def begin(self) -> None:
        """Begin the transaction, unless it has begun."""
        begin, self._begin = self._begin, None
        if begin is not None:
            level, prologue = begin
            self.execute(f"BEGIN ISOLATION LEVEL {level}")
            self._inside = True
            if prologue is not None:
                prologue()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Tell what may be tried again from what is wrong.

        Raises:
            Interrupted: the connection was lost, or the disk is full.
        """
        try:
            yield
        except psycopg.Error as error:
            if self.lost or self.full:
                raise Interrupted(self.coded(error)) from error
            raise

    def coded(self, error: Exception, **facts: object) -> Exception:
        """Return the coded error of a lost connection, a full disk or conflicts."""
        reason = self._address.hide(str(error).strip().partition("\n")[0])
        if self.full:
            return PostgresDiskFullError("the server's disk is full", **facts, reason=reason)
        if self.conflicted:
            return PostgresConflictError("conflicts do not end", **facts, reason=reason)
        if self.lost and not isinstance(error, PostgresConnectionError):
            return PostgresConnectionError("the connection was lost", **facts, reason=reason)
        return error

    def remember(self, identity: str | None = None) -> None:
        """Note which transaction this is; callbacks may run in it from now on."""
        if identity is None:
            ((identity,),) = self.rows("SELECT pg_current_xact_id()::text")
        self._identity = identity

    def check(self) -> None:
        """Refuse to go on if a callback has ended the transaction, or released the lock."""
        sql = compose("SELECT {identity}, {holds}", identity=IDENTITY, holds=HOLDS)
        self.compare(*self.rows(sql, [self.lock_key], prepare=True)[0])

    def compare(self, identity: str | None, is_locked: bool) -> None:
        """The same, from what `IDENTITY` and `HOLDS` say."""
        if identity != self._identity:
            raise PostgresTransactionError("the transaction was ended by a callback")
        if not is_locked:
            self.close()  # the next transaction takes the lock again, or is refused
            raise PostgresTransactionError("the stream's lock was released by a callback")

    def _commit(self) -> None:
        if self.execute("COMMIT").statusmessage == "ROLLBACK":
            raise PostgresStatementError("an error of the transaction was swallowed by on_data")

    def _roll_back(self) -> None:
        connection, self._inside = self._connection, False
        if connection is None or connection.closed:
            return
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            connection.close()  # nothing of a half-done statement may stay open

    def execute(
        self, sql: str, params: Sequence[object] = (), prepare: bool = False
    ) -> RawCursor[Row]:
        """Run a statement and return the cursor, which has the description of the result."""
        self._statement(sql)
        with self._watched():
            return self._cursor().execute(
                sql.encode(), list(params) if params else None, prepare=prepare or None
            )

    def _cursor(self) -> RawCursor[Row]:
        if self._connection is None:
            raise PostgresConnectionError("the connection is closed")
        return RawCursor(self._connection)

    def _statement(self, sql: str) -> None:
        """Begin the transaction if this is its first statement, and announce it."""
        self.begin()
        if self._inside and self._connection is not None:
            status = self._connection.info.transaction_status
            if status is TransactionStatus.IDLE:  # nothing may be written on its own
                raise PostgresTransactionError("the transaction was ended by a callback")
        if self.on_statement is not None:
            self.on_statement(sql)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (SerializationFailure, DeadlockDetected):
            self.conflicted = True
            raise
        except DiskFull:
            self.full = True
            raise
        except (ProgramLimitExceeded, TooManyColumns) as error:
            reason = error.diag.message_primary
            raise PostgresSizeError(
                "larger than PostgreSQL takes", reason=reason, table=error.diag.table_name
            ) from error


def connect(address: Address, *, name: str = "headwater") -> psycopg.Connection[Row]:
    """Connect to a server; runs on the driver.

    Raises:
        PostgresConnectionError: it cannot be reached; the password is not shown.
    """
    try:
        connection = psycopg.connect(
            address.whole.reveal(),
            autocommit=True,
            prepare_threshold=ON_REQUEST,
            fallback_application_name=name,
        )
        connection.execute("SET TIME ZONE 'UTC'")
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
        reason = address.hide(str(error).strip().splitlines()[0])
        # without the cause: its frames hold the password, and some tools print what frames hold
        raise PostgresConnectionError("cannot connect", server=address, reason=reason) from None
    for kind, loader in LOADERS.items():
        connection.adapters.register_loader(kind, loader)
    return connection


def _drain(connection: psycopg.Connection[Any]) -> None:
    """Wait until the server has taken what was written: libpq would keep all of it in memory."""
    if connection.pgconn.flush():
        with DefaultSelector() as selector:
            selector.register(connection.pgconn.socket, EVENT_WRITE)
            while connection.pgconn.flush():
                selector.select()
