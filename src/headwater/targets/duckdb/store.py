"""Settings of a stream in a DuckDB file, and what the target keeps of the stream there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.errors import RetentionError
from headwater.targets.duckdb.dialect import DEFAULT_SCHEMA, DUCKDB, TableName
from headwater.targets.duckdb.merge import DuckDBMerger
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.undo import DuckDBUndoLog
from headwater.targets.sql.catalog import CLAIMS, Catalog, Layout
from headwater.targets.sql.flow import Store
from headwater.targets.sql.settings import StateSettings, Table
from headwater.targets.values import Altered


@dataclass(frozen=True, slots=True)
class DuckDBSettings(StateSettings):
    """Where and under which id the state is kept.

    `id` overrides the stream's own. Undo data is kept for `unfinalized_blocks_retention` blocks
    below the finalized one. `config` is passed to DuckDB (`{"memory_limit": "2GB"}`); it
    may hold keys, so no text shows it. Without a `memory_limit`, a backfill keeps 64 MB of the file
    in memory.
    """

    schema: str = DEFAULT_SCHEMA
    config: Mapping[str, str | bool | int | float | list[str]] = field(
        default_factory=dict, repr=False
    )
    name_type = TableName
    retention_error = RetentionError


class DuckDBCatalog(Catalog[Session, Layout]):
    """Knows a stream's tables.

    Beside append-only and keyed ones, DuckDB undoes keyless ones: their inserted rows are kept a
    second time and taken out again, as often as they were put in.
    """

    dialect = DUCKDB


@dataclass(frozen=True, slots=True)
class DuckDBStore(Store):
    """All that is kept of one stream in a file."""

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
    altered: Altered | None = None,
) -> DuckDBStore:
    """Return what is kept of a stream in a file. Nothing is read or created yet."""
    claims = settings.sync.suffixed(CLAIMS)
    catalog = DuckDBCatalog(session, stream_id, claims, tables, automatic=automatic)
    undo = DuckDBUndoLog(session, stream_id)
    merger = DuckDBMerger(session, undo)
    return DuckDBStore.of(session, settings, stream_id, catalog, merger, undo, altered)
