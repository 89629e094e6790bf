"""`headwater outbox`: what waits to be delivered, what was given up, and putting it back."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwater.effects.dead_letters import DEAD_LETTERS, replay_dead_letters
from headwater.errors import InvalidOptionError
from headwater.targets.side_rows import PREFIX

app = typer.Typer(
    name="outbox", no_args_is_help=True, help="See messages that wait or were given up."
)

SHOWN = 100
_POSTGRES = re.compile(r"postgres(ql)?://|.*\b(host|hostaddr|dbname|service)\s*=")
Place = Annotated[str, typer.Argument(help="postgresql://… or the path of a DuckDB file.")]
Stream = Annotated[str, typer.Option("--stream", help="The id of the stream.")]
Schema = Annotated[
    str | None, typer.Option(help="Where the state is kept, if not in the default schema.")
]


@app.command()
def show(place: Place, stream: Stream, schema: Schema = None) -> None:
    """Show how many messages wait, and every dead letter.

    On PostgreSQL the stream may run meanwhile; a DuckDB file is open in one process only.

        headwater outbox show postgresql://localhost/chain --stream usdc-transfers
    """
    target, where = _target(place, stream, schema)
    console = Console(soft_wrap=True)
    tables = target.query(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = $1 "
        "AND table_name LIKE 'headwater_%' ORDER BY table_name",
        [where],
    ).column(0)
    names = [name for name in tables.to_pylist() if name.startswith(f"{PREFIX}outbox_")]
    for name in names:
        rows = _rows(target, where, name, stream, "count(*) AS n, min(block_number) AS b")
        since = "" if rows[0]["b"] is None else f", the oldest of block {rows[0]['b']}"
        outbox = name.removeprefix(f"{PREFIX}outbox_")
        console.print(Text(f"{outbox}: {rows[0]['n']} waiting{since}"))
    dead = []
    if PREFIX + DEAD_LETTERS.name in tables.to_pylist():
        dead = _rows(target, where, PREFIX + DEAD_LETTERS.name, stream, "*")
    console.print(Text(f"{len(dead)} dead letters"))
    if dead:
        table = Table()
        for heading in ("outbox", "block", "key", "attempts", "since", "reason"):
            table.add_column(heading, overflow="fold")
        for row in sorted(dead, key=lambda row: (row["block_number"], row["position"]))[:SHOWN]:
            since = row["died_at"].isoformat(sep=" ", timespec="seconds")
            reason = "".join(one if one.isprintable() else "?" for one in row["reason"])
            cells = (row["name"], row["block_number"], row["key"], row["attempts"], since, reason)
            table.add_row(*(Text(str(one)) for one in cells))
        console.print(table)
        if len(dead) > SHOWN:
            console.print(Text(f"and {len(dead) - SHOWN} more, in headwater_dead_letters"))


@app.command()
def replay(
    place: Place,
    stream: Stream,
    schema: Schema = None,
    name: Annotated[str | None, typer.Option(help="Only those of this outbox.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
) -> None:
    """Put dead letters back into their outbox; the stream delivers them when it next starts.

    They keep their idempotency keys. Stop the stream first.

        headwater outbox replay chain.duckdb --stream usdc-transfers --name alerts
    """
    target, _ = _target(place, stream, schema)
    count = replay_dead_letters(target, stream, name=name, keys=key or None)
    Console(soft_wrap=True).print(Text(f"{count} messages will be delivered again"))


def _target(place: str, stream: str, schema: str | None) -> tuple[Any, str]:
    """Return the target at an address, and the schema of its state."""
    if _POSTGRES.match(place):
        from headwater.targets import PostgresSettings, postgres_target

        settings = PostgresSettings(id=stream)
        settings = settings if schema is None else replace(settings, schema=schema)
        return postgres_target(place, settings=settings), settings.schema
    if not Path(place).is_file():
        raise InvalidOptionError("neither postgresql://… nor the path of a DuckDB file")
    from headwater.targets import DuckDBSettings, duckdb_target

    own = DuckDBSettings(id=stream)
    own = own if schema is None else replace(own, schema=schema)
    return duckdb_target(place, settings=own), own.schema


def _rows(target: Any, schema: str, table: str, stream: str, what: str) -> list[dict[str, Any]]:
    name = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, table))
    found: list[dict[str, Any]] = target.query(
        f"SELECT {what} FROM {name} WHERE stream_id = $1",  # noqa: S608 - quoted names
        [stream],
    ).to_pylist()
    return found
