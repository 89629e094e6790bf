"""`headwater cursor`, `rewind` and `outbox`: where streams stand, and what they still deliver."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from headwater.cli.target_options import (
    AsJson,
    Place,
    StreamId,
    Yes,
    confirm,
    say,
    say_json,
    show_rows,
    substreams_module,
    takes,
)
from headwater.core import BlockCursor
from headwater.effects.dead_letters import (
    DEAD_LETTERS,
    DeadLetter,
    outbox_table,
    read_dead_letters,
    replay_dead_letters,
)
from headwater.errors import CursorMoveError
from headwater.targets.admin import (
    Admin,
    StreamStatus,
    check_reset,
    explain_move,
    explain_reset,
    find_stream,
    plan_move,
)
from headwater.targets.side_rows import PREFIX

app = typer.Typer(
    no_args_is_help=True,
    help="Show where streams stand in a database or a lake, and move them.",
    rich_markup_mode="markdown",
)

Force = Annotated[
    bool, typer.Option("--force", help="Also where final data is given up or blocks are left out.")
]


@app.command()
@takes(Place)
def show(
    stream_id: Annotated[str | None, typer.Option("--id", help="Only this stream.")] = None,
    as_json: AsJson = False,
    *,
    place: Place,
) -> None:
    """Show the streams of a database: cursor, finality, how far each can go back, its tables.

    Nothing is changed or locked, so it may run beside a stream. (A DuckDB file can be opened by one
    process at a time: stop the stream first.)

        headwater cursor show postgresql://localhost/chain

        headwater cursor show http://localhost:8123/chain

        headwater cursor show chain.duckdb --json
    """
    streams = place.open().streams()
    if stream_id is not None:
        streams = [find_stream(streams, stream_id)]
    if as_json:
        say_json([_document(stream) for stream in streams])
        return
    if not streams:
        say("No stream has stored anything here.")
        return
    rows = []
    for stream in streams:
        state, oldest = stream.state, next(iter(stream.state.landing_points()), None)
        tables = ", ".join(f"{table.name} ({table.undo})" for table in stream.tables)
        cursors = (_shown(state.cursor), _shown(state.finalized), _shown(oldest))
        rows.append((stream.id, *cursors, tables))
    show_rows(("id", "cursor", "finalized", "can go back to", "tables"), rows)


@app.command("set")
@takes(Place)
def move(
    block: Annotated[int, typer.Option("--block", min=0, help="The last block to keep.")],
    stream_id: StreamId,
    block_hash: Annotated[str | None, typer.Option("--hash", help="Its hash, if known.")] = None,
    force: Force = False,
    yes: Yes = False,
    *,
    place: Place,
) -> None:
    """Move a stream's cursor: the next run goes on with the block after it.

    Back to any block that a fork could go back to, the data follows exactly: what later blocks did
    is undone, as in a fork. Further back (--force) tables lose the rows of later blocks; a stream
    with other tables than those whose rows say their block, such as sums, is refused there. Forward
    (--force) blocks are left out. What will happen is said before you are asked.

    The stream must not be running: its lock is taken. (ClickHouse and lakes have no locks; there a
    stream that runs stops with E2016 or E2603.)

        headwater cursor set chain.duckdb --id usdc-transfers --block 21000000

        headwater cursor set http://localhost:8123/chain --id usdc-transfers --block 21000000
    """
    admin, stream = place.find(stream_id)
    _move(admin, stream, block, block_hash, force=force, yes=yes)


@takes(Place)
def rewind(
    block: Annotated[int, typer.Option("--to", min=0, help="The last block to keep.")],
    stream_id: StreamId,
    force: Force = False,
    yes: Yes = False,
    *,
    place: Place,
) -> None:
    """Take a stream back to a block: what later blocks did is undone, and they are read again.

    The same as `cursor set`, but it never goes forward. What happens to each table is said before
    you are asked. Below the oldest block that a fork could go back to it needs --force, and tables
    whose rows say their block: what final blocks added to sums cannot be taken back.

    The stream must not be running: its lock is taken. (ClickHouse and lakes have no locks; there a
    stream that runs stops with E2016 or E2603.)

        headwater rewind chain.duckdb --id usdc-transfers --to 21000000

        headwater rewind postgresql://localhost/chain --id usdc-transfers --to 21000000 --yes
    """
    admin, stream = place.find(stream_id)
    cursor = stream.state.cursor
    if cursor is not None and block > cursor.number:
        raise CursorMoveError("a rewind only goes back", wanted=block, cursor=cursor)
    _move(admin, stream, block, None, force=force, yes=yes)


def _move(
    admin: Admin,
    stream: StreamStatus,
    block: int,
    block_hash: str | None,
    *,
    force: bool,
    yes: bool,
) -> None:
    """Say what a move does, ask, and do it."""
    plan = plan_move(stream, block, block_hash, force=force)
    confirm(explain_move(plan, stream), yes=yes)
    done = admin.move(stream.id, block, block_hash=block_hash, force=force)
    say(f"{stream.id} now stands at {done.state.cursor}.", "green")


@app.command()
@takes(Place)
def reset(
    stream_id: StreamId,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Leave the rows of the stream's tables.")
    ] = False,
    force: Force = False,
    yes: Yes = False,
    *,
    place: Place,
) -> None:
    """Forget a stream: cursor, undo data, stored outputs; and empty its tables.

    The next run begins at the start of the range. Tables that other streams write too keep their
    rows. With --keep-data all do, and the stream adds the same rows once more; on ClickHouse it
    does not start on them (E2015), so that no row is there twice.

    The stream must not be running: its lock is taken. (ClickHouse and lakes have no locks; there a
    stream that runs stops with E2016 or E2603.)

        headwater cursor reset postgresql://localhost/chain --id usdc-transfers --force

        headwater cursor reset http://localhost:8123/chain --id usdc-transfers --force
    """
    admin, stream = place.find(stream_id)
    check_reset(stream.state, force=force)
    confirm(explain_reset(stream, keep_data=keep_data), yes=yes)
    admin.reset(stream_id, force=force, keep_data=keep_data)
    say(f"{stream_id} begins anew.", "green")


SinkDsnArgument = Annotated[
    str,
    typer.Argument(envvar="SUBSTREAMS_SINK_DSN", help="psql://… or a DuckDB file."),
]
SinkTable = Annotated[str, typer.Option("--cursors-table", help="The sink's table of cursors.")]


@app.command("read")
def read_sink(dsn: SinkDsnArgument, cursors_table: SinkTable = "cursors") -> None:
    """Show the cursors of `headwater sink` and of substreams-sink-sql: module, block, cursor.

    headwater cursor read psql://localhost/chain
    """
    rows = _sink_cursors().read_cursors(_sink_dsn(dsn), cursors_table)
    for row in rows:
        short = row.cursor if len(row.cursor) <= 24 else f"{row.cursor[:12]}…{row.cursor[-8:]}"
        say(f"{row.module_hash} block {row.block} ({row.block_hash}) {short or 'not started'}")
    if not rows:
        say("There are no cursors here.")


@app.command("write")
def write_sink(
    dsn: SinkDsnArgument,
    module_hash: Annotated[str, typer.Argument(help="40 characters; `headwater sink info`.")],
    cursor: Annotated[str, typer.Argument(help="As an endpoint gave it.")],
    cursors_table: SinkTable = "cursors",
) -> None:
    """Store where `headwater sink run` goes on with a module. Rows of your tables stay.

    headwater cursor write psql://localhost/chain 6aca3069… SomeCursor
    """
    said = _sink_cursors().put_cursor(_sink_dsn(dsn), cursors_table, module_hash, cursor)
    say(f"Block {said.block}, head {said.head}, final {said.final}, step {said.step_name}.")


@app.command("delete")
def delete_sink(
    dsn: SinkDsnArgument,
    module_hash: Annotated[str | None, typer.Argument(help="Whose cursor.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Those of all modules.")] = False,
    cursors_table: SinkTable = "cursors",
    yes: Yes = False,
) -> None:
    """Forget the cursor of one module, or of all with --all. Rows of your tables stay.

    headwater cursor delete psql://localhost/chain 6aca3069…
    """
    if (module_hash is None) is not every:
        raise CursorMoveError("name one module's hash, or say --all")
    confirm(["The stream begins anew, over the rows that are there."], yes=yes)
    gone = _sink_cursors().drop_cursors(_sink_dsn(dsn), cursors_table, module_hash)
    say(f"Forgotten: {', '.join(gone) or 'none, there was no such cursor'}.")


def _sink_cursors() -> Any:
    return substreams_module("sink_database")


def _sink_dsn(text: str) -> Any:
    return substreams_module("sink_database").SinkDsn.parse(text)


def _shown(cursor: BlockCursor | None) -> str:
    return "-" if cursor is None else str(cursor)


def _document(stream: StreamStatus) -> dict[str, object]:
    def block(cursor: BlockCursor | None) -> dict[str, object] | None:
        return None if cursor is None else asdict(cursor)

    state = stream.state
    return {
        "id": stream.id,
        "cursor": block(state.cursor),
        "finalized": block(state.finalized),
        "can_go_back_to": [block(cursor) for cursor in state.landing_points()],
        "tables": [
            {"name": table.name, "undo": table.undo, "shared": table.shared}
            for table in stream.tables
        ],
    }


# --- outboxes -------------------------------------------------------------------------------------


outbox = typer.Typer(
    no_args_is_help=True,
    help="Show messages that wait to be delivered or were given up, and replay them.",
)
SHOWN = 100
OUTBOXES = outbox_table("").name


@outbox.command("show")
@takes(Place)
def show_messages(
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
    side_tables = admin.side_tables(stream_id)
    for name, (count, oldest) in side_tables.items():
        if name.startswith(OUTBOXES):
            since = f", the oldest of block {oldest}" if count else ""
            say(f"{name.removeprefix(OUTBOXES)}: {count} waiting{since}")
    dead: list[DeadLetter] = []
    if DEAD_LETTERS.name in side_tables:
        dead = read_dead_letters(stream_id, admin.read_side_table(stream_id, DEAD_LETTERS))
    say(f"{len(dead)} dead letters")
    if dead:
        _print_dead(
            sorted(dead, key=lambda letter: (letter.message.block_number, letter.message.ordinal))
        )


@outbox.command()
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
        reason = "".join(character if character.isprintable() else "?" for character in row.reason)
        message = row.message
        cells.append((row.name, message.block_number, message.key, row.attempts, since, reason))
    show_rows(("outbox", "block", "key", "attempts", "since", "reason"), cells)
    if len(rows) > SHOWN:
        say(f"and {len(rows) - SHOWN} more, in {PREFIX}{DEAD_LETTERS.name}")
