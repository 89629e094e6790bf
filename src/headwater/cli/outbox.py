"""`headwater outbox`: what waits to be delivered, what was given up, and putting it back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from headwater.cli.place import StateSchema, StateTable, StreamId, Target, console, say
from headwater.effects.dead_letters import DEAD_LETTERS, outbox_table, replay_dead_letters
from headwater.errors import InvalidOptionError
from headwater.targets.operate import is_postgres
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

    On PostgreSQL the stream may run meanwhile; a DuckDB file is open in one process only.

        headwater outbox show postgresql://localhost/chain --id usdc-transfers
    """
    opened, schema = _open(target, stream_id, state_schema, state_table)
    held = stored_id(state_table, stream_id)
    tables = opened.query(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = $1 "
        "AND table_name LIKE 'headwater_%' ORDER BY table_name",
        [schema],
    )
    names = tables.column(0).to_pylist()
    for name in [name for name in names if name.startswith(OUTBOXES)]:
        found = _rows(opened, schema, name, held, "count(*) AS n, min(block_number) AS b")[0]
        since = "" if found["b"] is None else f", the oldest of block {found['b']}"
        say(f"{name.removeprefix(OUTBOXES)}: {found['n']} waiting{since}")
    dead: list[dict[str, Any]] = []
    if PREFIX + DEAD_LETTERS.name in names:
        dead = _rows(opened, schema, PREFIX + DEAD_LETTERS.name, held, "*")
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

    They keep their idempotency keys. The stream must not be running: its lock is taken.

        headwater outbox replay chain.duckdb --id usdc-transfers --name alerts
    """
    opened, _ = _open(target, stream_id, state_schema, state_table)
    count = replay_dead_letters(opened, stream_id, name=name, keys=key or None)
    say(f"{count} messages will be delivered again")


def _open(address: str, stream_id: str, schema: str | None, table: str) -> tuple[Any, str]:
    """Return the target at an address, and the schema of its state."""
    if is_postgres(address):
        from headwater.targets.postgres import PostgresSettings, postgres_target

        own = PostgresSettings(id=stream_id, schema=schema or "public", table=table)
        return postgres_target(address, settings=own), own.schema
    if not Path(address).is_file():
        raise InvalidOptionError("neither postgresql://… nor the path of a DuckDB file")
    from headwater.targets.duckdb import DuckDBSettings, duckdb_target

    settings = DuckDBSettings(id=stream_id, schema=schema or "main", table=table)
    return duckdb_target(address, settings=settings), settings.schema


def _rows(target: Any, schema: str, table: str, held: str, what: str) -> list[dict[str, Any]]:
    name = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, table))
    found: list[dict[str, Any]] = target.query(
        f"SELECT {what} FROM {name} WHERE stream_id = $1",  # noqa: S608 - quoted names
        [held],
    ).to_pylist()
    return found


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
