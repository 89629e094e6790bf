"""`headwater status`: how far streams are, asked of their database or of their process."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.dashboard import Pipeline
from headwater.cli.outbox import OUTBOXES
from headwater.cli.target_options import StateSchema, StateTable, console, say, show_rows
from headwater.core import BlockCursor, PipeState
from headwater.dashboard.server import read_note
from headwater.errors import DuckDBFileError, HeadwaterError, PipelineSilentError
from headwater.metrics.facts import block_seconds
from headwater.portal import PortalClient, RetryPolicy
from headwater.stream.missing_blocks import MISSING, count_missing
from headwater.stream.view import can_draw
from headwater.targets.admin import Admin, StreamStatus, find_stream, kind_of, open_admin

_RETRY = RetryPolicy(attempts=5)  # three seconds: a person waits for the answer
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[\w.-]+):\d{1,5}")


def status(
    where: Annotated[
        str,
        typer.Argument(
            envvar="HEADWATER_TARGET",
            show_envvar=True,
            help="postgresql://user@host/name, http://user:password@host:8123/name (ClickHouse), "
            "the path of a DuckDB file, or HOST:PORT of a running pipeline.",
        ),
    ],
    stream_id: Annotated[str | None, typer.Option("--id", help="Only this stream.")] = None,
    portal: Annotated[
        str | None, typer.Option("--portal", help="Ask this dataset for the head of the chain.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again, until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, help="Seconds between two looks.")
    ] = 2.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="For machines; with --watch a line per look.")
    ] = False,
    state_schema: StateSchema = None,
    state_table: StateTable = "sync",
) -> None:
    """Show how far streams are: cursor, head, lag, finality, forks, speed, undo data, outboxes.

    A database knows where its streams stand, what they keep for undoing and what waits for
    delivery; the head comes from --portal. A running pipeline (`pipe_to(target, dashboard=9090)`,
    or `headwater run --port 9090`) knows head, forks and speed. A DuckDB file that a stream holds is
    not opened: its process is asked, if it serves a dashboard.

        headwater status postgresql://localhost/chain --portal https://portal.sqd.dev/datasets/base-mainnet

        headwater status chain.duckdb --watch

        headwater status localhost:9090 --json
    """  # noqa: E501
    looked = _look(where, stream_id, portal, state_schema, state_table)
    _print(looked, as_json=as_json)
    try:
        while watch:
            time.sleep(every)
            try:
                looked = _look(where, stream_id, portal, state_schema, state_table)
            except HeadwaterError as error:
                say(str(error), "red")
                continue
            if not as_json and can_draw(console()):
                console().clear()
            _print(looked, as_json=as_json)
    except KeyboardInterrupt:
        return


@dataclass
class Standing:
    """How far one stream is; None where it is not known."""

    id: str
    status: str | None = None
    cursor: dict[str, Any] | None = None
    finalized: dict[str, Any] | None = None
    head: int | None = None
    lag_blocks: int | None = None
    lag_seconds: float | None = None
    forks: int | None = None
    blocks_per_second: float | None = None
    undo_rows: int | None = None
    missing_blocks: int | None = None
    outboxes: dict[str, int] | None = None
    error: str | None = None
    portal: str | None = None
    sources: list[dict[str, Any]] | None = None


def _look(
    where: str, stream_id: str | None, portal: str | None, schema: str | None, table: str
) -> list[Standing]:
    """Ask the database or the process, then the portal."""
    if _ADDRESS.fullmatch(where) and not Path(where).exists():
        standings = _ask_process(where)
    else:
        standings = _ask_target(where, schema, table)
    if stream_id is not None:
        chosen = [standing for standing in standings if standing.id == stream_id]
        standings = chosen or [_missing(standings, stream_id)]
    if portal is not None:
        with PortalClient(portal, retry=_RETRY) as client:
            head = client.head()
        for standing in standings:
            standing.head = None if head is None else head.number
            if head is not None and standing.cursor is not None:
                standing.lag_blocks = max(0, head.number - standing.cursor["number"])
    return standings


def _missing(standings: list[Standing], stream_id: str) -> Standing:
    """Raise the error that names the streams that there are."""
    find_stream([StreamStatus(standing.id, PipeState()) for standing in standings], stream_id)
    raise AssertionError("it is not among them")


def _ask_target(where: str, schema: str | None, table: str) -> list[Standing]:
    place = open_admin(where, schema=schema, table=table)
    try:
        return [_stored(place, stream) for stream in place.streams()]
    except DuckDBFileError as error:
        if kind_of(where) != "duckdb":
            raise
        address = read_note(Path(where))
        if address is None:
            raise PipelineSilentError(
                "another process holds the file, and says nowhere how far it is", path=where
            ) from error
    return _ask_process(address, Path(where).resolve())


def _stored(place: Admin, stream: StreamStatus) -> Standing:
    state = stream.state
    side = place.side_tables(stream.id)
    return Standing(
        stream.id,
        cursor=_block(state.cursor),
        finalized=_block(state.finalized),
        lag_seconds=_age(state.cursor),
        undo_rows=place.undo_rows(stream.id),
        missing_blocks=_missing_blocks(place, stream.id) if MISSING.name in side else None,
        outboxes={
            name.removeprefix(OUTBOXES): outbox.rows
            for name, outbox in side.items()
            if name.startswith(OUTBOXES)
        },
    )


def _missing_blocks(place: Admin, stream_id: str) -> int:
    """Return how many blocks a stream has left out because its portal did not have them."""
    return count_missing(place.read_side_table(stream_id, MISSING))


def _ask_process(address: str, file: Path | None = None) -> list[Standing]:
    """Ask a process how far its streams are: all of them, or those of a file."""
    names = Standing.__dataclass_fields__
    try:
        shown = Pipeline(address).get("/api/streams")
        return [
            Standing(**{name: value for name, value in snapshot.items() if name in names})
            for snapshot in shown
            if file is None or snapshot.get("file") == str(file)
        ]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PipelineSilentError(
            "no pipeline answers there", address=address, reason=str(error) or type(error).__name__
        ) from error


def _block(cursor: BlockCursor | None) -> dict[str, Any] | None:
    return None if cursor is None else asdict(cursor)


def _age(cursor: BlockCursor | None) -> float | None:
    if cursor is None or not cursor.timestamp:
        return None
    return max(0.0, time.time() - block_seconds(cursor.timestamp))


def _print(standings: list[Standing], *, as_json: bool) -> None:
    if as_json:
        console().file.write(json.dumps([asdict(standing) for standing in standings]) + "\n")
        return
    if not standings:
        say("No stream has stored anything here.")
        return
    names = ("id", "status", "cursor", "head", "lag", "finalized", "forks", "blocks/s",
             "undo rows", "missing blocks", "outboxes")  # fmt: skip
    rows = [
        (
            standing.id,
            _shown(standing.status),
            _number(standing.cursor),
            _shown(standing.head),
            _lag(standing),
            _number(standing.finalized),
            _shown(standing.forks),
            "-" if standing.blocks_per_second is None else f"{standing.blocks_per_second:,.1f}",
            _shown(standing.undo_rows),
            _shown(standing.missing_blocks),
            ", ".join(f"{name}: {rows}" for name, rows in (standing.outboxes or {}).items()) or "-",
        )
        for standing in standings
    ]
    show_rows(names, rows)
    for standing in standings:
        for source in standing.sources or ():
            use = ", in use" if source["in_use"] else ""
            why = f": {source['reason']}" if source["reason"] else ""
            say(f"{standing.id}: source {source['source']}{use} is {source['verdict']}{why}")
        if standing.error:
            say(f"{standing.id}: {standing.error}", "red")


def _shown(value: str | int | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else value


def _number(block: dict[str, Any] | None) -> str:
    return "-" if block is None else _shown(block["number"])


def _lag(one: Standing) -> str:
    parts = []
    if one.lag_blocks is not None:
        parts.append(f"{one.lag_blocks:,} blocks")
    if one.lag_seconds is not None:
        parts.append(_duration(one.lag_seconds))
    return ", ".join(parts) or "-"


def _duration(seconds: float) -> str:
    """Return a time in the largest unit of which there are at least two."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.0f} s"
