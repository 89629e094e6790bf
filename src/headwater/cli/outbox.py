"""`headwater outbox`: what waits to be delivered, what was given up, and putting it back."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.target_options import Place, StreamId, say, show_rows, takes
from headwater.effects.dead_letters import (
    DEAD_LETTERS,
    DeadLetter,
    outbox_table,
    read_dead_letters,
    replay_dead_letters,
)
from headwater.targets.side_rows import PREFIX

app = typer.Typer(
    no_args_is_help=True,
    help="Show messages that wait to be delivered or were given up, and replay them.",
)
SHOWN = 100
OUTBOXES = outbox_table("").name


@app.command()
@takes(Place)
def show(
    stream_id: StreamId,
    *,
    place: Place,
) -> None:
    """Show how many messages wait, and the dead letters.

    On PostgreSQL and ClickHouse the stream may run meanwhile; a DuckDB file is open in one process
    only.

        headwater outbox show postgresql://localhost/chain --id usdc-transfers
    """
    admin = place.open()
    held = admin.side_tables(stream_id)
    for name, (count, oldest) in held.items():
        if name.startswith(OUTBOXES):
            since = f", the oldest of block {oldest}" if count else ""
            say(f"{name.removeprefix(OUTBOXES)}: {count} waiting{since}")
    dead: list[DeadLetter] = []
    if DEAD_LETTERS.name in held:
        dead = read_dead_letters(stream_id, admin.read_side_table(stream_id, DEAD_LETTERS))
    say(f"{len(dead)} dead letters")
    if dead:
        _print_dead(sorted(dead, key=lambda one: (one.message.block_number, one.message.ordinal)))


@app.command()
@takes(Place)
def replay(
    stream_id: StreamId,
    name: Annotated[str | None, typer.Option(help="Only those of this outbox.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    *,
    place: Place,
) -> None:
    """Put dead letters back into their outbox; the stream delivers them when it next starts.

    They keep their idempotency keys. The stream must not be running: its lock is taken. (ClickHouse
    has no locks; there a stream that runs stops with E2016.)

        headwater outbox replay chain.duckdb --id usdc-transfers --name alerts
    """
    target = place.open().target(stream_id)
    count = replay_dead_letters(target, stream_id, name=name, keys=key or None)
    say(f"{count} messages will be delivered again")


def _print_dead(rows: list[DeadLetter]) -> None:
    cells = []
    for row in rows[:SHOWN]:
        since = row.died_at.isoformat(sep=" ", timespec="seconds")
        reason = "".join(one if one.isprintable() else "?" for one in row.reason)
        message = row.message
        cells.append((row.name, message.block_number, message.key, row.attempts, since, reason))
    show_rows(("outbox", "block", "key", "attempts", "since", "reason"), cells)
    if len(rows) > SHOWN:
        say(f"and {len(rows) - SHOWN} more, in {PREFIX}{DEAD_LETTERS.name}")
