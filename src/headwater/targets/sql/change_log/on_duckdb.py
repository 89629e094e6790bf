"""A history target on DuckDB: `duckdb_target` with the history as its callbacks."""

from __future__ import annotations

from pathlib import Path

from headwater.errors import InvalidOptionError
from headwater.targets.duckdb import DuckDBSettings, DuckDBTarget, duckdb_target, table
from headwater.targets.duckdb.dialect import TableName
from headwater.targets.sql.change_log.duckdb import DuckDBHistory
from headwater.targets.sql.change_log.names import Names
from headwater.targets.sql.change_log.store import Hooks


def connect(
    place: str | Path, names: Names, settings: object
) -> tuple[DuckDBTarget, DuckDBHistory]:
    """Return the parts of a history target. Nothing is opened yet."""
    settings = DuckDBSettings() if settings is None else settings
    if not isinstance(settings, DuckDBSettings):
        raise InvalidOptionError("DuckDB takes DuckDBSettings", got=type(settings).__name__)
    own = [TableName(settings.schema, one) for one in (names.history, names.cursors)]
    store = DuckDBHistory(names, own, settings.id)
    return Hooks(store).target(duckdb_target, table, place, names, own, settings), store
