"""What is kept of one stream in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.targets.postgres.catalog import PostgresCatalog
from headwater.targets.postgres.merge import PostgresMerger
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.settings import PostgresSettings
from headwater.targets.postgres.triggers import Triggers
from headwater.targets.postgres.undo import PostgresUndoLog
from headwater.targets.sql.flow import Store
from headwater.targets.sql.settings import Table


@dataclass(frozen=True, slots=True)
class PostgresStore(Store):
    """What is kept of one stream in a database."""

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
    return PostgresStore.of(session, settings, stream_id, catalog, merger, undo)
