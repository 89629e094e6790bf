"""`headwater outbox`: what waits to be delivered, what was given up, and putting it back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from headwater.cli.target_options import StateSchema, StateTable, StreamId, Target, console, say
from headwater.effects.dead_letters import DEAD_LETTERS, outbox_table, replay_dead_letters
from headwater.errors import InvalidOptionError
from headwater.targets.admin import find_stream, kind_of, open_admin
from headwater.targets.side_rows import PREFIX, stored_id

app = typer.Typer(
    no_args_is_help=True,
    help="Show messages that wait to be delivered or were given up, and replay them.",
)
SHOWN = 100
OUTBOXES = PREFIX + outbox_table("").name


@app.command()
def show(
    target: Target,
    stream_id: StreamId,
    state_schema: StateSchema = None,
    state_table: StateTable = "sync",
) -> None:
    """Show how many messages wait, and the dead letters.

    On PostgreSQL and ClickHouse the stream may run meanwhile; a DuckDB file is open in one process
    only.

        headwater outbox show postgresql://localhost/chain --id usdc-transfers
    """
    opened = _open(target, stream_id, state_schema, state_table)
    names = opened.side_tables()
    for name in [name for name in names if name.startswith(OUTBOXES)]:
        found = opened.rows(name, "count(*) AS n, min(block_number) AS b")[0]
        since = f", the oldest of block {found['b']}" if found["n"] else ""
        say(f"{name.removeprefix(OUTBOXES)}: {found['n']} waiting{since}")
    dead: list[dict[str, Any]] = []
    if PREFIX + DEAD_LETTERS.name in names:
        dead = opened.rows(PREFIX + DEAD_LETTERS.name, "*")
    say(f"{len(dead)} dead letters")
    if dead:
        _print_dead(sorted(dead, key=lambda row: (row["block_number"], row["position"])))


@app.command()
def replay(
    target: Target,
    stream_id: StreamId,
    name: Annotated[str | None, typer.Option(help="Only those of this outbox.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    state_schema: StateSchema = None,
    state_table: StateTable = "sync",
) -> None:
    """Put dead letters back into their outbox; the stream delivers them when it next starts.

    They keep their idempotency keys. The stream must not be running: its lock is taken. (ClickHouse
    has no locks; there a stream that runs stops with E2016.)

        headwater outbox replay chain.duckdb --id usdc-transfers --name alerts
    """
    opened = _open(target, stream_id, state_schema, state_table)
    count = replay_dead_letters(opened.target, stream_id, name=name, keys=key or None)
    say(f"{count} messages will be delivered again")


@dataclass(frozen=True, slots=True)
class _Place:
    """A target, the schema of its state, and under which id rows of the stream are kept there."""

    target: Any
    schema: str
    held: str

    def side_tables(self) -> list[str]:
        """Return the tables that streams keep for themselves."""
        names: list[str] = self.query(
            "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = $1 "
            "AND table_name LIKE 'headwater_%' ORDER BY table_name",
            self.schema,
        )["name"].to_pylist()
        return names

    def rows(self, table: str, what: str) -> list[dict[str, Any]]:
        """Return something of the stream's rows."""
        name = ".".join('"' + part.replace('"', '""') + '"' for part in (self.schema, table))
        found: list[dict[str, Any]] = self.query(
            f"SELECT {what} FROM {name} {self.final} WHERE stream_id = $1",  # noqa: S608 - quoted
            self.held,
        ).to_pylist()
        return found

    @property
    def final(self) -> str:
        """What follows the name of a table, so that only rows that count are read."""
        return ""

    def query(self, sql: str, value: str) -> Any:
        """Read rows; `$1` is the value."""
        return self.target.query(sql, [value])


class _ClickHousePlace(_Place):
    __slots__ = ()

    @property
    def final(self) -> str:
        return "FINAL"

    def query(self, sql: str, value: str) -> Any:
        return self.target.query(sql.replace("$1", "{value:String}"), {"value": value})


def _open(address: str, stream_id: str, schema: str | None, table: str) -> _Place:
    """Return the target at an address, not opened yet."""
    kind, held = kind_of(address), stored_id(table, stream_id)
    if kind == "postgres":
        from headwater.targets.postgres import PostgresSettings, postgres_target

        own = PostgresSettings(id=stream_id, schema=schema or "public", table=table)
        return _Place(postgres_target(address, settings=own), own.schema, held)
    if kind == "clickhouse":
        from headwater.targets.clickhouse import (
            ClickHouseClient,
            ClickHouseSettings,
            clickhouse_target,
        )

        find_stream(open_admin(address, schema=schema, table=table).streams(), stream_id)
        client = ClickHouseClient(address)
        there = ClickHouseSettings(id=stream_id, database=schema, table=table)
        database = schema or client.database
        target = clickhouse_target(  # which leaves the user's tables alone
            client, on_data=lambda store, data: None, on_rollback=lambda: None, settings=there
        )
        return _ClickHousePlace(target, database, stream_id)
    if not Path(address).is_file():
        raise InvalidOptionError(
            "neither postgresql://…, nor http://… of ClickHouse, nor the path of a DuckDB file"
        )
    from headwater.targets.duckdb import DuckDBSettings, duckdb_target

    settings = DuckDBSettings(id=stream_id, schema=schema or "main", table=table)
    return _Place(duckdb_target(address, settings=settings), settings.schema, held)


def _print_dead(rows: list[dict[str, Any]]) -> None:
    table = Table("outbox", "block", "key", "attempts", "since", "reason")
    for row in rows[:SHOWN]:
        since = row["died_at"].isoformat(sep=" ", timespec="seconds")
        reason = "".join(one if one.isprintable() else "?" for one in row["reason"])
        cells = (row["name"], row["block_number"], row["key"], row["attempts"], since, reason)
        table.add_row(*(Text(str(one), overflow="fold") for one in cells))
    console().print(table)
    if len(rows) > SHOWN:
        say(f"and {len(rows) - SHOWN} more, in {PREFIX}{DEAD_LETTERS.name}")
