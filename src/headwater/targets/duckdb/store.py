"""What is kept of one stream in a DuckDB file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.targets.duckdb.dialect import DUCKDB
from headwater.targets.duckdb.merge import DuckDBMerger
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.settings import DuckDBSettings
from headwater.targets.duckdb.undo import DuckDBUndoLog
from headwater.targets.side_rows import stored_id
from headwater.targets.sql.catalog import Catalog, Layout
from headwater.targets.sql.flow import Store
from headwater.targets.sql.settings import Table
from headwater.targets.sql.state import ConfigTable, SideTables, SyncTable


class DuckDBCatalog(Catalog[Session, Layout]):
    """Knows a stream's tables.

    Beside append-only and keyed ones, DuckDB undoes keyless ones: their inserted rows are kept a
    second time and taken out again, as often as they were put in.
    """

    dialect = DUCKDB


@dataclass(frozen=True, slots=True)
class DuckDBStore(Store):
    """What is kept of one stream in a file."""

    catalog: DuckDBCatalog
    undo: DuckDBUndoLog
    merger: DuckDBMerger


def open_store(
    session: Session,
    settings: DuckDBSettings,
    stream_id: str,
    tables: Sequence[Table] = (),
    *,
    automatic: bool = True,
) -> DuckDBStore:
    """Return what is kept of a stream. Nothing is read or created yet."""
    sync, schema = settings.sync, settings.schema
    undo = DuckDBUndoLog(session, stream_id)
    return DuckDBStore(
        SyncTable(session, DUCKDB, sync, stream_id),
        DuckDBCatalog(session, stream_id, sync.suffixed("__tables"), tables, automatic=automatic),
        undo,
        DuckDBMerger(session, undo),
        SideTables(session, DUCKDB, schema, stored_id(settings.table, stream_id)),
        ConfigTable(session, DUCKDB, schema, stream_id),
    )
