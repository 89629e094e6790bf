"""A sink's database outside a stream: its address, the package's statements, what tables there are.

Used by `headwater sink` and `headwater cursor`, in the process of the command. Each use is a
connection of its own; what it changes is one transaction, except on ClickHouse.

The sink's table `cursors` has one row per module, under its hash. A row that is written here is
where a stream of `headwater sink run` goes on, as after the SQL sink itself. PostgreSQL and DuckDB
alone: ClickHouse has no such table. The stream must not be running.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from headwater.changes import TableSchema
from headwater.changes.declaration import ColumnType
from headwater.errors import (
    ClickHouseServerError,
    DuckDBPathError,
    InvalidOptionError,
    SchemaFileError,
    SinkCursorError,
    SinkDsnError,
    TakeoverError,
    UnknownTableError,
)
from headwater.substreams.cursor_text import CursorText, read_cursor
from headwater.targets.sql.dialect import Dialect, Session
from headwater.targets.sql.tokens import CLICKHOUSE, STANDARD
from headwater.targets.text import QualifiedName

HISTORY, CURSORS = "substreams_history", "cursors"  # what the sink calls its own tables
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_OVER_HTTP = {9000: 8123, 9440: 8443}  # ports of ClickHouse's own protocol
_TLS_PORTS = {8123: 8443}
_TRUE = frozenset({"1", "t", "true"})


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
        whole = _VARIABLE.sub(lambda match: _value(match, environment), text.strip())
        scheme, separator, rest = whole.partition("://")
        if not separator:
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
        secure = options.get("secure", "").lower() in _TRUE
        number = 8123 if port is None else _OVER_HTTP.get(port, port)
        if secure and port in (None, 9000):
            number = _TLS_PORTS[number]
        kind = "https" if secure or number in _TLS_PORTS.values() else "http"
        place = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        login = f"{user}@" if user else ""
        return cls("clickhouse", f"{kind}://{login}{place}:{number}/{schema or name}")


def _value(match: re.Match[str], environment: Mapping[str, str]) -> str:
    name = match[1] or match[2]
    if name not in environment:
        raise SinkDsnError("a variable of the environment is not set", variable=name)
    return environment[name]


def _escaped(rest: str) -> str:
    """Return an address whose user and password are percent-encoded: both may hold anything."""
    credentials, at, place = rest.rpartition("@")
    if not at:
        return rest
    parts = [quote(unquote(part), safe="") for part in credentials.split(":", 1)]
    return f"{':'.join(parts)}@{place}"


# --- PostgreSQL and DuckDB: a transaction -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkSession:
    """A transaction on PostgreSQL or DuckDB; statements are the same on both."""

    session: Session
    dialect: Dialect
    schema: str

    def name(self, table: str) -> QualifiedName:
        """Return a table of the sink's schema."""
        return self.dialect.name_type(self.schema, table)

    def existing(self, table: str, column: str | None = None) -> QualifiedName | None:
        """Return a table of the sink's schema; None if it, or its column, is not there."""
        layout = self.dialect.read_table(self.session, self.name(table))
        if layout is None or (column is not None and column not in layout.columns):
            return None
        return self.name(table)


@contextmanager
def open_sink(dsn: SinkDsn) -> Iterator[SinkSession]:
    """Connect; commit everything inside, or nothing.

    Raises:
        InvalidOptionError: it is ClickHouse, which has no transactions.
        PostgresConnectionError, DuckDBFileError, DuckDBPathError: the database cannot be opened.
    """
    if dsn.kind == "postgres":
        from headwater.targets.postgres import session as postgres
        from headwater.targets.postgres.dialect import POSTGRES

        dialect: Dialect = POSTGRES
        session: Any = postgres.Session(POSTGRES.locate(dsn.address), None, 0, "serializable")
        session.connect()
    elif dsn.kind == "duckdb":
        from headwater.targets.duckdb.dialect import DUCKDB
        from headwater.targets.duckdb.session import open_session

        if not Path(dsn.address).exists():
            raise DuckDBPathError("there is no such file", path=dsn.address)
        dialect, session = DUCKDB, open_session(dsn.address, {}, None, "sink")
    else:
        raise InvalidOptionError("the sink keeps cursors in PostgreSQL and DuckDB", got=dsn.kind)
    with closing(session), session.transaction():
        yield SinkSession(session, dialect, dsn.schema or dialect.name_type.default_schema)


def user_tables(dsn: SinkDsn, own: Collection[str]) -> list[TableSchema]:
    """Return the tables that changes may name: those of the schema that have a primary key.

    Their columns are only told apart into texts and others, whose empty values are null.

    Raises:
        UnknownTableError: there is none.
    """
    keys: dict[str, list[str]] = {}
    columns: dict[str, dict[str, ColumnType]] = {}
    schema = dsn.schema
    if dsn.kind != "duckdb" or Path(dsn.address).exists():  # a look creates no file
        with open_sink(dsn) as sink:
            schema = sink.schema
            for name, column in sink.session.rows(_KEYS, [schema]):
                if name not in (*own, "sync") and not name.startswith(("headwater_", "sync__")):
                    keys.setdefault(name, []).append(column)
            columns = {name: {} for name in keys}
            for name, column, kind in sink.session.rows(_COLUMNS, [schema]):
                if name in columns:
                    columns[name][column] = "text" if _TEXT.match(kind) else "json"
    if not keys:
        raise UnknownTableError(
            "the database has no tables with a primary key: run headwater sink setup first",
            schema=schema or "main",
        )
    return [TableSchema(name, key, columns[name]) for name, key in keys.items()]


_TEXT = re.compile(r"character|text|varchar", re.IGNORECASE)
_KEYS = (
    "SELECT c.table_name, k.column_name FROM information_schema.table_constraints c "
    "JOIN information_schema.key_column_usage k USING (constraint_name, table_schema, table_name) "
    "WHERE c.table_schema = $1 AND c.constraint_type = 'PRIMARY KEY' "
    "ORDER BY c.table_name, k.ordinal_position"
)
_COLUMNS = (
    "SELECT table_name, column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = $1"
)


# --- the statements of a package ----------------------------------------------------------------

Runner = Callable[[str], bool]
"""Runs a statement; False if it creates what is there already and that is to be passed over."""


def run_schema(dsn: SinkDsn, sql: str, *, forgiving: bool = False) -> int:
    """Run the statements that create a package's tables; return how many were run.

    They are run as they are: a schema that may be run again says IF NOT EXISTS itself. `forgiving`:
    one that creates what is there already is passed over, and the others are run. PostgreSQL runs
    all of them or none, and so does DuckDB, if it is not forgiving: it has no savepoints.

    Raises:
        SchemaFileError: a statement failed.
    """
    statements = (CLICKHOUSE if dsn.kind == "clickhouse" else STANDARD).split(sql)
    with _RUNNERS[dsn.kind](dsn, forgiving) as run:
        return sum(map(run, statements))


@contextmanager
def _on_postgres(dsn: SinkDsn, forgiving: bool) -> Iterator[Runner]:
    import psycopg
    from psycopg import errors

    there = (errors.DuplicateTable, errors.DuplicateObject, errors.DuplicateSchema)

    def run(statement: str) -> bool:
        sink.session.run("SAVEPOINT one")
        try:
            sink.session.run(statement)
        except psycopg.Error as error:
            if not forgiving or not isinstance(error, there):
                raise _failed(statement, error) from error
            sink.session.run("ROLLBACK TO SAVEPOINT one")
            return False
        return True

    with open_sink(dsn) as sink:
        if dsn.schema:
            sink.dialect.make_schema(sink.session, dsn.schema)
            sink.session.rows(
                "SELECT set_config('search_path', quote_ident($1), true)", [dsn.schema]
            )
        yield run


@contextmanager
def _on_duckdb(dsn: SinkDsn, forgiving: bool) -> Iterator[Runner]:
    import duckdb

    from headwater.targets.duckdb.session import open_session

    def run(statement: str) -> bool:
        try:
            session.run(_long_numbers(statement))
        except duckdb.Error as error:  # without numbers: "is there" and "is not" are one class
            there = isinstance(error, duckdb.CatalogException) and "already exists" in str(error)
            if not forgiving or not there:
                raise _failed(statement, error) from error
            return False
        return True

    session = open_session(dsn.address, {}, None, "sink")
    with closing(session), nullcontext() if forgiving else session.transaction():
        yield run


def _long_numbers(statement: str) -> str:
    """Return a statement made for PostgreSQL in which numbers of any length are BIGNUM.

    To DuckDB `numeric` alone is DECIMAL(18,3), and no decimal has more than 38 digits.
    """
    tokens = STANDARD.tokens(statement)
    if tokens[0].text not in ("CREATE", "ALTER"):
        return statement
    for at in range(len(tokens) - 1, 0, -1):
        if tokens[at].text in ("NUMERIC", "DECIMAL") and tokens[at - 1].is_name:
            said = "".join(token.text for token in tokens[at + 1 : at + 6]).partition(")")[0]
            size = re.fullmatch(r"\((\d+)(,0)?", said)
            if said[:1] != "(" or (size and int(size[1]) > 38):
                end = tokens[at].start + len(tokens[at].text)
                if size:
                    end = statement.index(")", end) + 1
                statement = f"{statement[: tokens[at].start]}BIGNUM{statement[end:]}"
    return statement


@contextmanager
def _on_clickhouse(dsn: SinkDsn, forgiving: bool) -> Iterator[Runner]:
    from headwater.targets.clickhouse import ClickHouseClient
    from headwater.targets.clickhouse.client import refused_as

    table_exists, database_exists = 57, 82  # numbers of the server's errors

    def run(statement: str) -> bool:
        try:
            client.run(statement)
        except ClickHouseServerError as error:
            if not forgiving or not refused_as(error, table_exists, database_exists):
                raise
            return False
        return True

    with closing(ClickHouseClient(dsn.address)) as client:
        yield run


_RUNNERS = {"postgres": _on_postgres, "duckdb": _on_duckdb, "clickhouse": _on_clickhouse}


def _failed(statement: str, error: Exception) -> SchemaFileError:
    return SchemaFileError(
        "a statement of the package failed; --ignore-duplicate-table-errors passes over tables "
        "that are there",
        statement=" ".join(statement.split())[:80],
        reason=str(error).splitlines()[0],
    )


@dataclass(frozen=True, slots=True)
class SinkCursor:
    """A row of the table."""

    module_hash: str
    cursor: str
    block: int
    block_hash: str


def read_cursors(dsn: SinkDsn, table: str) -> list[SinkCursor]:
    """Return all rows, the highest block first."""
    with open_sink(dsn) as sink:
        name = sink.existing(table)
        if name is None:
            return []
        query = "SELECT id, cursor, block_num, block_id FROM {table} ORDER BY block_num DESC"
        return [SinkCursor(*row) for row in sink.session.rows(query, table=name)]


def put_cursor(dsn: SinkDsn, table: str, module_hash: str, cursor: str) -> CursorText:
    """Store where a module is to go on; return what the cursor says.

    Raises:
        SinkCursorError: the cursor is none, the hash is none, or there is no such table.
    """
    if len(module_hash) != 40:
        raise SinkCursorError("a module's hash has 40 characters", got=len(module_hash))
    said = read_cursor(cursor)
    with open_sink(dsn) as sink:
        name = sink.existing(table)
        if name is None:
            raise SinkCursorError("the database has no such table", table=table)
        sink.session.run(
            "INSERT INTO {table} (id, cursor, block_num, block_id) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (id) DO UPDATE SET cursor = excluded.cursor, "
            "block_num = excluded.block_num, block_id = excluded.block_id",
            [module_hash, cursor, said.block.number, said.block.hash or ""],
            table=name,
        )
    return said


def drop_cursors(
    dsn: SinkDsn, table: str, module_hash: str | None, *, history_table: str = HISTORY
) -> list[str]:
    """Forget where a module stands, or all of them (None); return their hashes.

    What Headwater keeps of the stream goes with it. Rows of the user's tables stay. A hash that is
    not there is no error.
    """
    with open_sink(dsn) as sink:
        name = sink.existing(table)
        if name is None:
            return []
        query = "DELETE FROM {table} WHERE $1::text IS NULL OR id = $1::text RETURNING id"
        stream_ids = [row[0] for row in sink.session.rows(query, [module_hash], table=name)]
        for other, column in (
            ("sync", "id"),
            ("headwater_substreams_cursors", "stream_id"),
            (history_table, "stream_id"),
        ):
            place = sink.existing(other, column)
            if place is None:
                continue
            for stream_id in stream_ids:
                sql = "DELETE FROM {table} WHERE {column} = $1"
                sink.session.run(sql, [stream_id], table=place, column=column)
    return stream_ids


def check_cursors(dsn: SinkDsn, table: str, module_hash: str, policy: str) -> str:
    """Compare the sink's cursors with a module's hash; return what is to be said about it.

    Where there are only those of other modules, `policy` says what to do: "error", or "warn" and
    "ignore" to go on from the one of the highest block, which gets this module's hash.

    Raises:
        TakeoverError: the policy is "error".
        InvalidOptionError: there is no such policy.
    """
    if policy not in ("error", "warn", "ignore"):
        raise InvalidOptionError("a mismatch is an error, warn or ignore", got=policy)
    with open_sink(dsn) as sink:
        name = sink.existing(table)
        if name is None:
            return ""
        query = "SELECT id, block_num FROM {table} WHERE cursor <> '' ORDER BY block_num DESC"
        rows = sink.session.rows(query, table=name)
        if not rows or module_hash in (row[0] for row in rows):
            return ""
        other, block = rows[0]
        if policy == "error":
            raise TakeoverError(
                "the database holds the cursor of another module",
                module=module_hash,
                found=other,
                block=block,
            )
        change = "UPDATE {table} SET id = $1 WHERE id = $2"
        sink.session.run(change, [module_hash, other], table=name)
    said = f"Going on from block {block}, which the module {other} has reached."
    return said if policy == "warn" else ""
