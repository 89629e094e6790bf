"""A history target on PostgreSQL: `postgres_target` with the history as its callbacks."""

from __future__ import annotations

from pathlib import Path

from headwater.errors import InvalidOptionError
from headwater.targets.history.names import Names, table_name
from headwater.targets.history.postgres import PostgresHistory
from headwater.targets.history.store import Hooks
from headwater.targets.postgres import PostgresSettings, PostgresTarget, postgres_target, table
from headwater.targets.postgres.sql import TableName, compose


def connect(
    place: str | Path, names: Names, settings: object
) -> tuple[PostgresTarget, PostgresHistory]:
    """Return the parts of a history target. Nothing is connected yet."""
    settings = PostgresSettings() if settings is None else settings
    if not isinstance(settings, PostgresSettings):
        raise InvalidOptionError("PostgreSQL takes PostgresSettings", got=type(settings).__name__)
    store = PostgresHistory(names, settings.schema, settings.id)
    hooks = Hooks(store)
    own = [TableName(settings.schema, one) for one in (names.history, names.cursors)]
    declared = [*(compose("{name}", name=one) for one in own), *map(table_name, names.tables)]
    target = postgres_target(
        str(place),
        tables=[table(one, untracked=True) for one in declared],
        on_data=hooks.on_data,
        on_start=hooks.on_start,
        on_before_rollback=hooks.on_before_rollback,
        settings=settings,
    )
    target.on_state = hooks.on_state
    return target, store
