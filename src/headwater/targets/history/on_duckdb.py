"""A history target on DuckDB: `duckdb_target` with the history as its callbacks."""

from __future__ import annotations

from pathlib import Path

from headwater.errors import InvalidOptionError
from headwater.targets.duckdb import DuckDBSettings, DuckDBTarget, duckdb_target, table
from headwater.targets.duckdb.sql import TableName, compose
from headwater.targets.history.duckdb import DuckDBHistory
from headwater.targets.history.names import Names, table_name
from headwater.targets.history.store import Hooks


def connect(
    place: str | Path, names: Names, settings: object
) -> tuple[DuckDBTarget, DuckDBHistory]:
    """Return the parts of a history target. Nothing is opened yet."""
    settings = DuckDBSettings() if settings is None else settings
    if not isinstance(settings, DuckDBSettings):
        raise InvalidOptionError("DuckDB takes DuckDBSettings", got=type(settings).__name__)
    store = DuckDBHistory(names, settings.schema, settings.id)
    hooks = Hooks(store)
    own = [TableName(settings.schema, one) for one in (names.history, names.cursors)]
    declared = [*(compose("{name}", name=one) for one in own), *map(table_name, names.tables)]
    target = duckdb_target(
        place,
        tables=[table(one, untracked=True) for one in declared],
        on_data=hooks.on_data,
        on_start=hooks.on_start,
        on_before_rollback=hooks.on_before_rollback,
        settings=settings,
    )
    target.on_state = hooks.on_state
    return target, store
