"""A history target on PostgreSQL: `postgres_target` with the history as its callbacks."""

from __future__ import annotations

from pathlib import Path

from headwater.errors import InvalidOptionError
from headwater.targets.postgres import PostgresSettings, PostgresTarget, postgres_target, table
from headwater.targets.postgres.dialect import TableName
from headwater.targets.sql.change_log.names import Names
from headwater.targets.sql.change_log.postgres import PostgresHistory
from headwater.targets.sql.change_log.store import Hooks


def connect(
    place: str | Path, names: Names, settings: object
) -> tuple[PostgresTarget, PostgresHistory]:
    """Return the parts of a history target. Nothing is connected yet."""
    settings = PostgresSettings() if settings is None else settings
    if not isinstance(settings, PostgresSettings):
        raise InvalidOptionError("PostgreSQL takes PostgresSettings", got=type(settings).__name__)
    own = [TableName(settings.schema, one) for one in (names.history, names.cursors)]
    store = PostgresHistory(names, own, settings.id)
    return Hooks(store).target(postgres_target, table, str(place), names, own, settings), store
