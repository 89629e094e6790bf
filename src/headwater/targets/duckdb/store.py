"""What is kept of one stream in a DuckDB file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.targets.duckdb.dialect import DUCKDB
from headwater.targets.duckdb.merge import DuckDBMerger
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.settings import DuckDBSettings
from headwater.targets.duckdb.undo import DuckDBUndoLog
from headwater.targets.sql.catalog import Catalog, Layout
from headwater.targets.sql.flow import Store
from headwater.targets.sql.settings import Table


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
    """Return what is kept of a stream in a file. Nothing is read or created yet."""
    claims = settings.sync.suffixed("__tables")
    catalog = DuckDBCatalog(session, stream_id, claims, tables, automatic=automatic)
    undo = DuckDBUndoLog(session, stream_id)
    merger = DuckDBMerger(session, undo)
    return DuckDBStore.of(session, settings, stream_id, catalog, merger, undo)
