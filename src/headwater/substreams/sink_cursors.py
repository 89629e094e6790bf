"""The sink's table `cursors`, for operators: `headwater cursor read`, `write` and `delete`.

One row per module, under its hash. A row that is written here is where a stream of `headwater sink
run` goes on, as after the SQL sink itself. PostgreSQL alone: elsewhere the sink has no such table.
The stream must not be running.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from headwater.errors import InvalidOptionError, SinkCursorError, TakeoverError
from headwater.substreams.cursor_text import CursorText, read_cursor
from headwater.substreams.sink import HISTORY, SinkDsn


@dataclass(frozen=True, slots=True)
class SinkCursor:
    """A row of the table."""

    module_hash: str
    cursor: str
    block: int
    block_hash: str


@contextmanager
def _opened(dsn: SinkDsn, table: str) -> Iterator[tuple[Any, sql.Identifier | None]]:
    """Yield a transaction, and the table; None if it is not there."""
    if dsn.kind != "postgres":
        raise InvalidOptionError("the sink keeps cursors in PostgreSQL", got=dsn.kind)
    with psycopg.connect(dsn.address) as connection:
        yield connection, _existing(connection, dsn, table)


def _existing(connection: Any, dsn: SinkDsn, table: str) -> sql.Identifier | None:
    name = sql.Identifier(*filter(None, (dsn.schema, table)))
    found = connection.execute("SELECT to_regclass(%s)", [name.as_string()]).fetchone()
    return name if found and found[0] is not None else None


def read_cursors(dsn: SinkDsn, table: str) -> list[SinkCursor]:
    """Return all rows, the highest block first."""
    with _opened(dsn, table) as (connection, name):
        if name is None:
            return []
        query = sql.SQL("SELECT id, cursor, block_num, block_id FROM {} ORDER BY block_num DESC")
        return [SinkCursor(*row) for row in connection.execute(query.format(name))]


def put_cursor(dsn: SinkDsn, table: str, module_hash: str, cursor: str) -> CursorText:
    """Store where a module is to go on; return what the cursor says.

    Raises:
        SinkCursorError: the cursor is none, the hash is none, or there is no such table.
    """
    if len(module_hash) != 40:
        raise SinkCursorError("a module's hash has 40 characters", got=len(module_hash))
    said = read_cursor(cursor)
    with _opened(dsn, table) as (connection, name):
        if name is None:
            raise SinkCursorError("the database has no such table", table=table)
        query = sql.SQL(
            "INSERT INTO {} (id, cursor, block_num, block_id) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (id) DO UPDATE SET cursor = excluded.cursor, "
            "block_num = excluded.block_num, block_id = excluded.block_id"
        )
        row = [module_hash, cursor, said.block.number, said.block.hash or ""]
        connection.execute(query.format(name), row)
    return said


def drop_cursors(
    dsn: SinkDsn, table: str, module_hash: str | None, *, history_table: str = HISTORY
) -> list[str]:
    """Forget where a module stands, or all of them (None); return their hashes.

    What Headwater keeps of the stream goes with it. Rows of the user's tables stay. A hash that is
    not there is no error.
    """
    with _opened(dsn, table) as (connection, name):
        if name is None:
            return []
        query = sql.SQL("DELETE FROM {} WHERE %s::text IS NULL OR id = %s RETURNING id")
        gone = connection.execute(query.format(name), [module_hash, module_hash]).fetchall()
        found = [row[0] for row in gone]
        for held, column in (
            ("sync", "id"),
            ("headwater_substreams_cursors", "stream_id"),
            (history_table, "stream_id"),
        ):
            other = _existing(connection, dsn, held)
            if other is not None and _has_column(connection, other, column):
                query = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)")
                connection.execute(query.format(other, sql.Identifier(column)), [found])
    return found


def _has_column(connection: Any, table: sql.Identifier, column: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s",
        [table.as_string(), column],
    )
    return found.fetchone() is not None


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
    with _opened(dsn, table) as (connection, name):
        if name is None:
            return ""
        query = sql.SQL("SELECT id, block_num FROM {} WHERE cursor <> '' ORDER BY block_num DESC")
        rows = connection.execute(query.format(name)).fetchall()
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
        change = sql.SQL("UPDATE {} SET id = %s WHERE id = %s")
        connection.execute(change.format(name), [module_hash, other])
    said = f"Going on from block {block}, which the module {other} has reached."
    return said if policy == "warn" else ""
