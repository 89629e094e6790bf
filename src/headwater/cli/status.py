"""`headwater status` and `headwater dashboard`: how far streams are, asked of those who know."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

import typer
from prometheus_client import CollectorRegistry

from headwater.cli.cursor import OUTBOXES
from headwater.cli.target_options import StateSchema, StateTable, console, say, say_json, show_rows
from headwater.core import BlockCursor, PipeState
from headwater.dashboard import Dashboard
from headwater.dashboard.server import read_note
from headwater.errors import (
    DuckDBFileError,
    HeadwaterError,
    InvalidOptionError,
    PipelineSilentError,
)
from headwater.metrics import StreamRecord
from headwater.metrics.facts import block_seconds
from headwater.portal import PortalClient, RetryPolicy
from headwater.stream.extensions import MISSING, count_missing
from headwater.stream.view import can_draw
from headwater.targets.admin import Admin, StreamStatus, find_stream, kind_of, open_admin

_RETRY = RetryPolicy(attempts=5)  # three seconds: a person waits for the answer
_TIMEOUT_S = 3.0
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
        say_json([asdict(standing) for standing in standings])
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


# --- pipelines that serve their streams over HTTP -------------------------------------------------


def dashboard(
    pipelines: Annotated[
        list[str], typer.Argument(help="Addresses of running pipelines: localhost:9090 …")
    ],
    port: Annotated[str, typer.Option("--port", help="Where to serve the page.")] = "9099",
) -> None:
    """Show the streams of several pipelines on one page, until Ctrl-C.

    Each pipeline serves its own page already (`pipe_to(target, dashboard=9090)`, or `headwater run
    --port 9090`); this one asks them all once a second.

        headwater dashboard localhost:9090 localhost:9091
    """
    asked = [Pipeline(address) for address in pipelines]
    with Dashboard(port, streams=lambda: ask_all(asked)) as page:
        say(f"dashboard: {page.url}")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return


class Pipeline:
    """A pipeline that serves its streams at an address."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address if "//" in address else f"//{address}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if not parts.hostname or port is None or parts.scheme not in ("", "http"):
            raise InvalidOptionError("not the address of a pipeline: host:port", got=address)
        self.name, self._host, self._port = f"{parts.hostname}:{port}", parts.hostname, port

    def get(self, path: str) -> Any:
        """Ask the pipeline; raise OSError or ValueError if it does not answer as it should."""
        connection = HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        except HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()


class RemoteStream:
    """A stream of another process, as the page asks for it."""

    facts = None

    def __init__(self, pipeline: Pipeline, shown: dict[str, Any]) -> None:
        self.id = f"{shown['id']} @ {pipeline.name}"
        self.portal, self.status = shown.get("portal", ""), shown["status"]
        self._pipeline, self._shown = pipeline, shown

    def snapshot(self) -> dict[str, Any]:
        """Return what the pipeline said."""
        return {**self._shown, "id": self.id}

    def preview(self, rows: int = 5) -> dict[str, Any]:
        """Ask the pipeline for its latest rows."""
        try:
            tables = self._pipeline.get(f"/api/preview?{urlencode({'id': self._shown['id']})}")
        except (OSError, ValueError):
            return {}
        return {name: several[:rows] for name, several in tables.items()}

    def profiles(self) -> list[Any]:
        """Return nothing: profiles are shown by the pipeline itself."""
        return []


def ask_all(pipelines: Sequence[Pipeline]) -> Mapping[str, RemoteStream]:
    """Ask every pipeline for its streams; one that does not answer is shown as failed."""
    with ThreadPoolExecutor(max_workers=max(1, len(pipelines))) as pool:
        return {stream.id: stream for several in pool.map(_ask, pipelines) for stream in several}


def _ask(pipeline: Pipeline) -> list[RemoteStream]:
    try:
        return [RemoteStream(pipeline, shown) for shown in pipeline.get("/api/streams")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [RemoteStream(pipeline, _silent(str(error) or type(error).__name__))]


def _silent(reason: str) -> dict[str, Any]:
    """Return what is shown of a pipeline that does not answer."""
    shown = StreamRecord("?", registry=CollectorRegistry()).snapshot()
    error = f"the pipeline does not answer: {reason}"
    return {**shown, "status": "failed", "began": 0, "error": error}
