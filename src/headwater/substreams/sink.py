"""What `headwater sink` is made of: addresses as the SQL sink takes them, and a module's target.

A module of DatabaseChanges goes into tables that exist, under the change log (PostgreSQL, DuckDB),
or as plain inserts (ClickHouse); any other module into the tables of its relational mapping.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes import TableSchema
from headwater.changes.declaration import ColumnType
from headwater.changes.grouping import codes_of
from headwater.changes.model import ANONYMOUS
from headwater.errors import (
    InsertOnlyError,
    SinkDsnError,
    UnknownTableError,
)
from headwater.substreams.columns import BytesEncoding
from headwater.substreams.cursor_text import final_block
from headwater.substreams.mapping import BLOCK_NUMBER, RelationalMapping
from headwater.substreams.messages import OutputDecoder
from headwater.substreams.outputs import CHANGES, decoder_of
from headwater.substreams.package import Package
from headwater.substreams.relational import Constraint, relational_target
from headwater.targets.contract import Delivery, Target
from headwater.targets.frames import to_arrow
from headwater.targets.sql.tokens import CLICKHOUSE, STANDARD

HISTORY, CURSORS = "substreams_history", "cursors"
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_NATIVE = {9000: ("http", 8123), 9440: ("https", 8443)}


@dataclass(frozen=True, slots=True)
class SinkDsn:
    """A database: its kind, the address that targets take, and the schema of its tables."""

    kind: str
    address: str
    schema: str | None = None

    def __repr__(self) -> str:
        return f"SinkDsn({self.kind!r}, schema={self.schema!r})"  # the address holds a password

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] = os.environ) -> SinkDsn:
        """Understand `psql://…`, `postgres://…`, `clickhouse://…`, or the path of a DuckDB file.

        Raises:
            SinkDsnError: it is none of these, or a variable is not set. The text is not in the
                error, because it may hold a password.
        """
        whole = _VARIABLE.sub(lambda found: _value(found, environment), text.strip())
        scheme, found, rest = whole.partition("://")
        if not found:
            if not whole:
                raise SinkDsnError("the address is empty")
            return cls("duckdb", whole)
        if scheme == "duckdb":
            return cls("duckdb", rest)
        try:
            parts = urlsplit(f"x://{_escaped(rest)}")
            port = parts.port
        except ValueError:
            raise SinkDsnError("the address cannot be read") from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        schema = options.pop("schemaName", None) or options.pop("schema", None)
        name = parts.path.strip("/")
        if not parts.hostname or (not name and scheme != "clickhouse"):
            raise SinkDsnError("the address names no host or no database")
        user = parts.netloc.rpartition("@")[0]
        if scheme in ("psql", "postgres", "postgresql"):
            query = f"?{urlencode(options)}" if options else ""
            address = f"postgresql://{parts.netloc}/{name}{query}"
            return cls("postgres", address, None if schema == "public" else schema)
        if scheme != "clickhouse":
            raise SinkDsnError("no such kind of database", got=f"{scheme}://")
        kind, number = _NATIVE.get(port or 9000, ("http", port))
        if options.get("secure") == "true" or number == 8443:
            kind = "https"
        held = f"{user}@" if user else ""
        return cls("clickhouse", f"{kind}://{held}{parts.hostname}:{number}/{schema or name}")


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    name = found[1] or found[2]
    if name not in environment:
        raise SinkDsnError("a variable of the environment is not set", variable=name)
    return environment[name]


def _escaped(rest: str) -> str:
    """Return an address whose user and password are percent-encoded: both may hold anything."""
    credentials, at, place = rest.rpartition("@")
    if not at:
        return rest
    parts = [quote(unquote(one), safe="") for one in credentials.split(":", 1)]
    return f"{':'.join(parts)}@{place}"


def sink_target(
    dsn: SinkDsn,
    package: Package,
    module: str,
    *,
    history_table: str = HISTORY,
    cursors_table: str = CURSORS,
    bytes_encoding: BytesEncoding = "raw",
    without: Collection[Constraint] = (),
) -> tuple[Target[Delivery], OutputDecoder]:
    """Return where the outputs of a module go, and what decodes them.

    `package` is resolved, and the stream's id is the module's hash: so a database of the SQL sink
    is taken over, and can be handed back.
    """
    message = package.output_type(module)
    if not package.puts_out_changes(module):
        mapping = RelationalMapping(package.types, message, bytes_encoding)
        schema = dsn.schema if dsn.kind == "postgres" else None
        return relational_target(dsn.address, mapping, schema=schema, without=without), mapping
    if dsn.kind == "clickhouse":
        return insert_target(dsn.address), decoder_of(package.types, message)
    from headwater.targets import history_target

    tables = user_tables(dsn, (history_table, cursors_table))
    names = [f"{dsn.schema}.{one.name}" if dsn.schema else one.name for one in tables]
    decoder: Any = decoder_of(package.types, message, tables)
    if dsn.schema:
        decoder = replace(decoder, schema=dsn.schema)
    settings: Any = None
    if dsn.schema:
        from headwater.targets.postgres import PostgresSettings

        settings = PostgresSettings(schema=dsn.schema)
    target = history_target(
        dsn.address if dsn.kind == "postgres" else Path(dsn.address),
        tables=names,
        history_table=history_table,
        cursors_table=cursors_table,
        settings=settings,
        shared_with_sink=final_block,
    )
    return target, decoder


def user_tables(dsn: SinkDsn, own: Collection[str]) -> list[TableSchema]:
    """Return the tables that changes may name: those of the schema that have a primary key.

    Their columns are only told apart into texts and others, whose empty values are null.

    Raises:
        UnknownTableError: there is none.
    """
    schema = (dsn.schema or _SCHEMAS[dsn.kind]).replace("'", "''")
    keys: dict[str, list[str]] = {}
    for name, column in _rows(dsn, _KEYS.format(schema=schema)):
        if name not in (*own, "sync") and not name.startswith(("headwater_", "sync__")):
            keys.setdefault(name, []).append(column)
    columns: dict[str, dict[str, ColumnType]] = {name: {} for name in keys}
    for name, column, kind in _rows(dsn, _COLUMNS.format(schema=schema)):
        if name in columns:
            columns[name][column] = "text" if _TEXT.match(kind) else "json"
    if not keys:
        raise UnknownTableError(
            "the database has no tables with a primary key: run headwater sink setup first",
            schema=schema,
        )
    return [TableSchema(name, key, columns[name]) for name, key in keys.items()]


_TEXT = re.compile(r"character|text|varchar", re.IGNORECASE)
_KEYS = (
    "SELECT c.table_name, k.column_name FROM information_schema.table_constraints c "
    "JOIN information_schema.key_column_usage k USING (constraint_name, table_schema, table_name) "
    "WHERE c.table_schema = '{schema}' AND c.constraint_type = 'PRIMARY KEY' "
    "ORDER BY c.table_name, k.ordinal_position"
)
_COLUMNS = (
    "SELECT table_name, column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = '{schema}'"
)
_SCHEMAS = {"postgres": "public", "duckdb": "main"}


def _rows(dsn: SinkDsn, sql: str) -> list[tuple[Any, ...]]:
    if dsn.kind == "postgres":
        import psycopg

        with psycopg.connect(dsn.address) as connection:
            return connection.execute(sql.encode()).fetchall()
    import duckdb

    if not Path(dsn.address).exists():
        return []
    with duckdb.connect(dsn.address, read_only=True) as held:
        return list(held.execute(sql).fetchall())


def run_schema(dsn: SinkDsn, sql: str) -> int:
    """Run the statements that create a package's tables; return how many there were.

    They are run as they are: a schema that may be run again says IF NOT EXISTS itself.
    """
    statements = (CLICKHOUSE if dsn.kind == "clickhouse" else STANDARD).split(sql)
    if dsn.kind == "postgres":
        import psycopg

        with psycopg.connect(dsn.address) as connection:
            if dsn.schema:
                name = psycopg.sql.Identifier(dsn.schema)
                connection.execute(psycopg.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
                connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(name))
            connection.execute(sql.encode())
    elif dsn.kind == "duckdb":
        import duckdb

        with duckdb.connect(dsn.address) as held:
            held.execute(sql)
    else:
        from headwater.targets.clickhouse import ClickHouseClient

        client = ClickHouseClient(dsn.address)
        try:
            for one in statements:
                client.run(one)
        finally:
            client.close()
    return len(statements)


# --- ClickHouse: inserts alone --------------------------------------------------------------------


def insert_target(address: str) -> Target[Delivery]:
    """Write the inserts of DatabaseChanges to tables of ClickHouse that exist.

    Each table gets a column `_block_number_`, by which a fork takes rows back. Two inserts of one
    key are two rows: nothing depends on what happens to be committed together.
    """
    from headwater.targets import clickhouse_target

    writer = _Inserts()
    return clickhouse_target(address, tables=[], on_start=writer.prepare, on_data=writer.insert)


class _Inserts:
    """The callbacks of a target that takes inserts."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[str, ...]] = {}

    def prepare(self, store: Any) -> None:
        """Look at the tables, and give them the column of the block."""
        from headwater.targets.clickhouse import table as clickhouse_table

        found = store.query(
            "SELECT table, groupArrayIf(name, is_in_primary_key) AS key, "  # noqa: S608 - ours
            f"has(groupArray(name), '{BLOCK_NUMBER}') AS marked FROM system.columns "
            "WHERE database = currentDatabase() AND table NOT LIKE 'sync%' "
            "AND table NOT LIKE 'headwater_%' AND table NOT LIKE '%_live' "
            f"AND table <> '{CURSORS}' AND table IN (SELECT name FROM system.tables WHERE "
            "database = currentDatabase() AND engine LIKE '%MergeTree') GROUP BY table"
        ).to_pylist()
        for row in found:
            name = _text(row["table"])
            self._keys[name] = tuple(map(_text, row["key"]))
            if not row["marked"]:
                store.command(
                    f"ALTER TABLE `{name}` ADD COLUMN IF NOT EXISTS `{BLOCK_NUMBER}` UInt64"
                )
            store.declare(clickhouse_table(name, block_column=BLOCK_NUMBER))

    def insert(self, store: Any, data: Mapping[str, Any]) -> None:
        """Insert the rows of a batch.

        Raises:
            InsertOnlyError: a change is something else than an insert.
            UnknownTableError: the database has no such table.
        """
        for name, rows in wide_inserts(to_arrow(data[CHANGES]), self._keys).items():
            store.insert(name, rows)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def wide_inserts(changes: pa.Table, keys: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
    """Return inserts as rows of their tables: a column per key and field, and the block's number.

    Raises:
        InsertOnlyError: a change is something else than an insert.
        UnknownTableError: a change names a table that is not there.
    """
    _refuse_others(changes)
    found: dict[str, pa.Table] = {}
    codes, names = codes_of(changes["table"].combine_chunks())
    for code, name in enumerate(names.to_pylist()):
        if name not in keys:
            raise UnknownTableError(
                "the database has no such table", table=name, known=", ".join(keys) or "none"
            )
        mine = changes.take(pa.array(np.flatnonzero(codes == code))).combine_chunks()
        columns = _pivot(mine["pk"].combine_chunks(), mine.num_rows, keys[name])
        columns |= _pivot(mine["fields"].combine_chunks(), mine.num_rows, ())
        columns[BLOCK_NUMBER] = mine["block_number"].combine_chunks()
        found[name] = pa.table(columns)
    return found


def _refuse_others(changes: pa.Table) -> None:
    other = pc.not_equal(changes["operation"], "insert")
    if pc.any(other, min_count=0).as_py():
        row = changes.filter(other).slice(0, 1).to_pylist()[0]
        raise InsertOnlyError(
            "a change is no insert",
            table=row["table"],
            operation=row["operation"],
            block=row["block_number"],
        )


def _pivot(lists: pa.Array, rows: int, key: Sequence[str]) -> dict[str, pa.Array]:
    """Return a column per name; a key that has no name is that of the table's one key column."""
    entries = lists.flatten()
    owners = np.repeat(
        np.arange(rows), np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    )
    codes, names = codes_of(entries.field(0))
    made: dict[str, pa.Array] = {}
    for code, name in enumerate(names.to_pylist()):
        if name == ANONYMOUS:
            if len(key) != 1:
                raise InsertOnlyError(
                    "a key without a name is for a table with one key column", key=", ".join(key)
                )
            name = key[0]
        places = np.flatnonzero(codes == code)
        source = np.full(rows, -1, np.int64)
        source[owners[places]] = places
        made[name] = entries.field(1).take(pa.array(source, mask=source < 0))
    return made
