"""The sink's table `cursors`, for operators: `headwater cursor read`, `write` and `delete`.

One row per module, under its hash. A row that is written here is where a stream of `headwater sink
run` goes on, as after the SQL sink itself. PostgreSQL and DuckDB alone: ClickHouse has no such
table. The stream must not be running.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import InvalidOptionError, SinkCursorError, TakeoverError
from headwater.substreams.cursor_text import CursorText, read_cursor
from headwater.substreams.sink import HISTORY
from headwater.substreams.sink_database import SinkDsn, open_sink


@dataclass(frozen=True, slots=True)
class SinkCursor:
    """A row of the table."""

    module_hash: str
    cursor: str
    block: int
    block_hash: str


def read_cursors(dsn: SinkDsn, table: str) -> list[SinkCursor]:
    """Return all rows, the highest block first."""
    with open_sink(dsn) as held:
        name = held.existing(table)
        if name is None:
            return []
        query = "SELECT id, cursor, block_num, block_id FROM {table} ORDER BY block_num DESC"
        return [SinkCursor(*row) for row in held.session.rows(query, table=name)]


def put_cursor(dsn: SinkDsn, table: str, module_hash: str, cursor: str) -> CursorText:
    """Store where a module is to go on; return what the cursor says.

    Raises:
        SinkCursorError: the cursor is none, the hash is none, or there is no such table.
    """
    if len(module_hash) != 40:
        raise SinkCursorError("a module's hash has 40 characters", got=len(module_hash))
    said = read_cursor(cursor)
    with open_sink(dsn) as held:
        name = held.existing(table)
        if name is None:
            raise SinkCursorError("the database has no such table", table=table)
        held.session.run(
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
    with open_sink(dsn) as held:
        name = held.existing(table)
        if name is None:
            return []
        query = "DELETE FROM {table} WHERE $1::text IS NULL OR id = $1::text RETURNING id"
        found = [row[0] for row in held.session.rows(query, [module_hash], table=name)]
        for other, column in (
            ("sync", "id"),
            ("headwater_substreams_cursors", "stream_id"),
            (history_table, "stream_id"),
        ):
            place = held.existing(other, column)
            if place is None:
                continue
            for one in found:
                sql = "DELETE FROM {table} WHERE {column} = $1"
                held.session.run(sql, [one], table=place, column=column)
    return found


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
    with open_sink(dsn) as held:
        name = held.existing(table)
        if name is None:
            return ""
        query = "SELECT id, block_num FROM {table} WHERE cursor <> '' ORDER BY block_num DESC"
        rows = held.session.rows(query, table=name)
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
        held.session.run(change, [module_hash, other], table=name)
    said = f"Going on from block {block}, which the module {other} has reached."
    return said if policy == "warn" else ""
