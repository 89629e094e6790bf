"""What is kept of one stream in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.targets.postgres.catalog import PostgresCatalog
from headwater.targets.postgres.dialect import POSTGRES
from headwater.targets.postgres.merge import PostgresMerger
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.settings import PostgresSettings
from headwater.targets.postgres.triggers import Triggers
from headwater.targets.postgres.undo import PostgresUndoLog
from headwater.targets.side_rows import stored_id
from headwater.targets.sql.flow import Store
from headwater.targets.sql.settings import Table
from headwater.targets.sql.state import ConfigTable, SideTables, SyncTable


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
    """Return what is kept of a stream. Nothing is read or created yet."""
    sync, schema = settings.sync, settings.schema
    undo = PostgresUndoLog(session, stream_id)
    return PostgresStore(
        SyncTable(session, POSTGRES, sync, stream_id),
        PostgresCatalog(
            session,
            stream_id,
            sync,
            tables,
            Triggers(session, stream_id, schema),
            automatic=automatic,
            defer_indexes=settings.defer_indexes,
        ),
        undo,
        PostgresMerger(session, undo),
        SideTables(session, POSTGRES, schema, stored_id(settings.table, stream_id)),
        ConfigTable(session, POSTGRES, schema, stream_id),
    )
