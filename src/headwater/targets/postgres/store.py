"""Settings of a stream in PostgreSQL, and what the target keeps of the stream there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import InvalidOptionError, PostgresRetentionError
from headwater.targets.postgres.catalog import PostgresCatalog
from headwater.targets.postgres.dialect import DEFAULT_SCHEMA, TableName
from headwater.targets.postgres.merge import PostgresMerger
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.triggers import Triggers
from headwater.targets.postgres.undo import PostgresUndoLog
from headwater.targets.sql.flow import Store
from headwater.targets.sql.settings import StateSettings, Table
from headwater.targets.values import Altered

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
    retention_error = PostgresRetentionError

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


@dataclass(frozen=True, slots=True)
class PostgresStore(Store):
    """All that is kept of one stream in a database."""

    catalog: PostgresCatalog
    undo: PostgresUndoLog
    merger: PostgresMerger


def open_store(
    session: Session,
    settings: PostgresSettings,
    stream_id: str,
    tables: Sequence[Table] = (),
    *,
    automatic: bool = True,
    altered: Altered | None = None,
) -> PostgresStore:
    """Return what is kept of a stream in a database. Nothing is read or created yet."""
    catalog = PostgresCatalog(
        session,
        stream_id,
        settings.sync,
        tables,
        Triggers(session, stream_id, settings.schema),
        automatic=automatic,
        defer_indexes=settings.defer_indexes,
    )
    undo = PostgresUndoLog(session, stream_id)
    merger = PostgresMerger(session, undo)
    return PostgresStore.of(session, settings, stream_id, catalog, merger, undo, altered)
