"""One transaction with the state, tried again where that can help, applied once in any case.

A conflict or a lost connection is tried again; errors of the user's code are not. Before anything
is written, the stored state is compared with what this writer has stored. So another writer is
noticed, and a COMMIT whose answer was lost is neither lost nor repeated: the stream's lock is taken
again first, hence nothing of the old connection can still be under way when the state is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headwater.errors import (
    PostgresLockError,
    PostgresStatementError,
    PostgresTransactionError,
)
from headwater.targets.contract import Scope
from headwater.targets.patience import Patience
from headwater.targets.postgres.session import Session
from headwater.targets.sql.state import Newest, SyncTable, read_newest

_RESTARTS = 3
_LOCK = "SELECT pg_try_advisory_xact_lock(hashtext($1)::bigint)"
logger = logging.getLogger("headwater.targets.postgres")

Work = Callable[[], Newest | None]


class TryAgain(Exception):  # noqa: N818 - not an error: the batch is written once more
    """The transaction must begin again, because it cannot see what was prepared for it."""


class Transactions:
    """Changes data and state together. Runs on the driver.

    `forget` is called when a transaction has failed, `prepare` before one that asked to begin
    again. `stored` is the newest row that this writer knows of.
    """

    def __init__(
        self,
        session: Session,
        sync: SyncTable,
        stream_id: str,
        patience: Callable[[], Patience],
        *,
        forget: Callable[[], None],
        prepare: Callable[[], None],
    ) -> None:
        self.stored: Newest | None = None
        self._session = session
        self._sync = sync
        self._id = stream_id
        self._patience = patience
        self._forget = forget
        self._prepare = prepare
        self._written: list[Newest | None] = []
        self._first: Scope | None = None
        self._scope: Scope | None = None

    def captures(self, scope: Scope) -> bool:
        """Tell whether capture is set for this batch, or will be when the transaction begins."""
        return scope == (self._scope if self._session.begun else self._first)

    def capture(self, scope: Scope) -> None:
        """Have triggers keep what a batch changes, if a fork may undo it."""
        self._session.rows(
            "SELECT set_config('sqd.snapshot_enabled', $1, true), "
            "set_config('sqd.snapshot_block_number', $2, true)",
            _capture(scope),
            prepare=True,
        )
        self._scope = scope

    def apply(self, work: Work, first: Scope | None = None) -> None:
        """Do the work in one transaction; it returns the row that is the newest afterwards.

        `first` is the batch that it writes first, if any: the transaction begins with its capture.
        """
        self._written, self._first = [], first
        restarts, patience, session = 0, self._patience(), self._session
        while True:
            try:
                if self._reconnected_to_committed():
                    break
                with session.turn(session.conflicted), session.transaction(self._prologue):
                    self._written.append(work())
                break
            except TryAgain as reason:
                self._forget()
                restarts += 1
                if restarts > _RESTARTS:
                    raise PostgresStatementError(
                        "a callback undoes what was prepared for it", what=reason
                    ) from reason
                logger.info("batch.restarted id=%s reason=%s", self._id, reason)
                self._prepare()
            except Exception as error:  # noqa: BLE001 - judged, and raised unless a retry can help
                self._forget()
                self._raise_unless_worth_another(error, patience)
                failures = patience.failures
                logger.warning("batch.retried id=%s attempt=%d error=%s", self._id, failures, error)
                patience.wait("the database is away or busy, trying again")
            except BaseException:
                self._forget()
                raise
        self.stored = self._written[-1]

    def _reconnected_to_committed(self) -> bool:
        """Connect again if need be; tell whether the lost connection's commit had succeeded."""
        if not self._session.lost:
            return False
        self._session.connect()
        if not self._written:
            return False
        newest = self._sync.newest()
        return newest == self._written[-1] and newest != self.stored

    def _prologue(self) -> None:
        """Take the lock that the Pipes SDK takes too, set capture, compare the state."""
        self._scope = self._first
        ((mine, identity, *row),) = self._session.rows(
            "SELECT turn.mine, turn.identity, newest.* FROM (SELECT pg_try_advisory_xact_lock("
            "hashtext($1)::bigint) AS mine, pg_current_xact_id()::text AS identity, "
            "set_config('sqd.snapshot_enabled', $2, true), "
            "set_config('sqd.snapshot_block_number', $3, true), "
            "set_config('sqd.snapshot_id', $1, true)) AS turn "
            "LEFT JOIN ({newest}) AS newest ON true",
            [self._id, *_capture(self._first)],
            prepare=True,
            newest=self._sync.newest_query(),
        )
        self._session.remember(identity)
        if not mine and not self._session.wait_for(_LOCK, [self._id]):
            raise PostgresLockError("another writer is writing the stream", stream=self._id)
        stored = read_newest(*row)
        if stored != self.stored:
            raise PostgresLockError(
                "the stored state is not what this writer has stored",
                stream=self._id,
                stored=stored and stored.cursor,
                expected=self.stored and self.stored.cursor,
            )

    def _raise_unless_worth_another(self, error: Exception, patience: Patience) -> None:
        session = self._session
        final = isinstance(error, PostgresLockError | PostgresTransactionError)
        if final or not (session.lost or session.conflicted or session.full):
            raise error
        if not patience.ends():
            return
        coded = session.coded(error, attempts=patience.failures)
        raise coded from (None if coded is error else error)


def _capture(scope: Scope | None) -> list[str]:
    """Return what the triggers read: whether they keep anything, and for which block."""
    hot = scope is not None and scope.hot
    return ["true" if hot else "false", str(scope.block) if scope is not None else ""]
