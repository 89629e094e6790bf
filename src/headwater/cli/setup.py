"""`headwater setup` and `headwater maintain`: prepare a database ahead, keep lake tables small."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.target_options import Place, say, takes
from headwater.effects.dead_letters import DEAD_LETTERS, outbox_table
from headwater.errors import InvalidOptionError, LakePathError
from headwater.stream.factory_index import CHILDREN
from headwater.targets.admin import kind_of
from headwater.targets.extras import import_extra
from headwater.targets.lake.admin import kind_of_lake
from headwater.targets.lake.paths import Place as LakePlace
from headwater.targets.lake.settings import DeltaSettings, IcebergSettings, ParquetSettings
from headwater.targets.schema_file import SchemaFile, read_schema_file

PROPERTIES = "HEADWATER_CATALOG"
_HOUR = 3600.0
PASSWORD = "HEADWATER_READER_PASSWORD"
SIDE_TABLES = (CHILDREN, DEAD_LETTERS)


@takes(Place)
def setup(
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
    *,
    place: Place,
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
        _check_has_readers(place.target)
    asked = SchemaFile() if schema is None else read_schema_file(schema)
    side_tables = (*SIDE_TABLES, *map(outbox_table, outbox or ()))
    created = place.open().setup(asked, side_tables, change_log=change_log)
    say(f"Created: {', '.join(created)}." if created else "Everything was there already.")
    if reader is not None:
        _add_user(place, reader, asked)


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


def _add_user(place: Place, name: str, asked: SchemaFile) -> None:
    from headwater.targets.postgres.dialect import DEFAULT_SCHEMA, TableName
    from headwater.targets.postgres.read_only_user import add_read_only_user

    schemas = {DEFAULT_SCHEMA, place.state_schema or DEFAULT_SCHEMA}
    schemas |= {TableName.parse(table.name).schema for table in asked.tables}
    password = os.environ.get(PASSWORD) or None
    user = add_read_only_user(place.target, name, password=password, schemas=sorted(schemas))
    say(f"{name} {'may now read' if user.created else 'was there, and may read'} all tables.")
    if user.password is not None:
        say(f"Its password, shown only here: {user.password.reveal()}")


# --- lakes ----------------------------------------------------------------------------------------


def maintain(
    catalog: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="The directory of an Iceberg catalog, a name that pyiceberg knows, or the folder "
            "of Delta tables or Parquet files.",
        ),
    ] = "",
    stream_id: Annotated[
        str | None, typer.Option("--id", help="Only the tables of this stream.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            envvar=PROPERTIES,
            help="name=value of the catalog, instead of a directory, or of the object store that "
            f"holds Delta tables; may be repeated. In the variable {PROPERTIES} they are separated "
            "by spaces.",
        ),
    ] = None,
    grace_hours: Annotated[
        float, typer.Option(help="Files that nothing names are deleted once they are so old.")
    ] = 24.0,
    final_snapshots: Annotated[
        int | None, typer.Option(help="Snapshots of final blocks that stay for time travel.")
    ] = None,
) -> None:
    """Expire snapshots, compact small files and delete files that nothing names.

    Nothing that a fork may go back to is touched. Streams may run meanwhile; they do most of it by
    themselves, a little between batches.

    Example:

        headwater maintain ./lake

        headwater maintain --property type=rest --property uri=http://catalog:8181

        headwater maintain s3://chain/delta --property s3.region=eu-central-1
    """
    options = dict(_pair(text) for text in properties or ())
    kind = _kind(catalog, options)
    settings: Any
    where: Any
    if kind == "delta":
        settings, where = DeltaSettings(retention_hours=grace_hours), LakePlace.of(catalog, options)
    elif kind == "parquet":
        settings, where = ParquetSettings(), LakePlace.of(catalog, options)
    else:
        settings, where = IcebergSettings(grace_s=grace_hours * _HOUR), options or catalog
        if final_snapshots is not None:
            settings = replace(settings, final_snapshots=final_snapshots)
    done = import_extra(kind, "ADMIN", ".target")(where).maintain(stream_id, settings)
    for name, counts in done.items():
        say(f"{name}: " + ", ".join(f"{counts.get(step, 0)} {_DONE[step]}" for step in counts))
    if not done:
        say("No tables of a stream are here.")


_DONE = {"expired": "snapshots expired", "compacted": "files compacted", "swept": "files deleted"}


def _kind(path: str, properties: dict[str, str]) -> str:
    """Return what lies at a path: a folder of Delta tables or of Parquet files, else Iceberg."""
    if not path:
        if not properties:
            raise InvalidOptionError("name a directory, a catalog, or its properties")
        return "iceberg"
    try:
        return kind_of_lake(LakePlace.of(path, properties))
    except LakePathError:
        return "iceberg"  # a name that pyiceberg knows, or an error of its own


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise InvalidOptionError("--property takes name=value")
    return name, value
