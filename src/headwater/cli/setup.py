"""`headwater setup`: prepare a database before any stream runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.target_options import StateSchema, StateTable, Target, say
from headwater.effects.dead_letters import DEAD_LETTERS, outbox_table
from headwater.errors import InvalidOptionError
from headwater.stream.factory_index import CHILDREN
from headwater.targets.admin import kind_of, open_admin
from headwater.targets.schema_file import SchemaFile, read_schema_file

PASSWORD = "HEADWATER_READER_PASSWORD"
SIDE_TABLES = (CHILDREN, DEAD_LETTERS)


def setup(
    target: Target,
    schema: Annotated[
        Path | None, typer.Option("--schema", help="Tables to create: a .sql, .json or .toml file.")
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option("--read-only-user", help="A user who may read everything (PostgreSQL)."),
    ] = None,
    outbox: Annotated[
        list[str] | None,
        typer.Option("--outbox", help="An outbox of on_finalized; may be repeated."),
    ] = None,
    change_log: Annotated[
        bool, typer.Option("--change-log", help="Also the tables of a history_target.")
    ] = False,
    state_schema: StateSchema = None,
    state_table: StateTable = "sync",
) -> None:
    """Create what streams need, and your tables, ahead of the first run.

    Streams create all of it themselves if they may. Run this as a user who may create tables, if
    they may not; or to see your tables before there are rows. It can be repeated: what exists stays
    as it is.

    A TOML schema (JSON is the same; types are Arrow's):

        [tables.transfers]
        key = ["block_number", "log_index"]
        [tables.transfers.columns]
        block_number = "int64"
        log_index = "int64"
        value = "string"

    Example:

        headwater setup postgresql://localhost/chain --schema tables.toml --read-only-user grafana

        headwater setup http://localhost:8123/chain --schema tables.sql

    The password of a new read-only user is taken from HEADWATER_READER_PASSWORD; without it one is
    made up and printed once. The server sees only its hash.
    """
    if reader is not None:
        _check_has_readers(target)
    asked = SchemaFile() if schema is None else read_schema_file(schema)
    place = open_admin(target, schema=state_schema, table=state_table)
    side_tables = (*SIDE_TABLES, *map(outbox_table, outbox or ()))
    created = place.setup(asked, side_tables, change_log=change_log)
    say(f"Created: {', '.join(created)}." if created else "Everything was there already.")
    if reader is not None:
        _add_user(target, reader, state_schema, asked)


def _check_has_readers(target: str) -> None:
    kind = kind_of(target)
    if kind == "duckdb":
        raise InvalidOptionError("DuckDB has no users: --read-only-user is for PostgreSQL")
    if kind == "clickhouse":
        raise InvalidOptionError(
            "--read-only-user is for PostgreSQL, and nothing was created. Many ClickHouse servers "
            "keep users in a file; on others run CREATE USER <name> IDENTIFIED BY '<password>' "
            "SETTINGS readonly = 1, then GRANT SELECT ON <database>.* TO <name>"
        )


def _add_user(target: str, name: str, state_schema: str | None, asked: SchemaFile) -> None:
    from headwater.targets.postgres.dialect import DEFAULT_SCHEMA, TableName
    from headwater.targets.postgres.read_only_user import add_read_only_user

    schemas = {DEFAULT_SCHEMA, state_schema or DEFAULT_SCHEMA}
    schemas |= {TableName.parse(one.name).schema for one in asked.tables}
    given = os.environ.get(PASSWORD) or None
    made = add_read_only_user(target, name, password=given, schemas=sorted(schemas))
    say(f"{name} {'may now read' if made.created else 'was there, and may read'} all tables.")
    if made.password is not None:
        say(f"Its password, shown only here: {made.password.reveal()}")
