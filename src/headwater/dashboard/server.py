"""The HTTP server of a pipeline: Prometheus metrics, JSON, and the page that draws it.

It answers GET alone and changes nothing. It listens on this machine unless told otherwise, and
there it answers only requests that name this machine as their host, so that a web page elsewhere
cannot read it through the user's browser. It runs on the driver, in threads of its own; a stream
never waits for it.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import platform
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from headwater.errors import DashboardAddressError
from headwater.metrics import REGISTRY, BatchFacts, Counts, records

logger = logging.getLogger("headwater.dashboard")

HOST, PORT = "127.0.0.1", 9090
LOCAL = {"localhost", "127.0.0.1", "::1"}
JSON = "application/json; charset=utf-8"
_PAGE = files("headwater.dashboard").joinpath("page.html")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}

Answer = tuple[int, str, bytes]


class Shown(Protocol):
    """A stream as the page asks for it: the record of one that runs here, or of another process."""

    id: str
    portal: str

    @property
    def status(self) -> str:
        """Whether it runs, and how."""
        ...

    @property
    def facts(self) -> BatchFacts | None:
        """The rows of its last batch."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return where the stream stands, and its recent past."""

    def preview(self, rows: int = 5) -> dict[str, list[dict[str, Any]]]:
        """Return rows of the last batch, by output."""

    def profiles(self) -> list[tuple[float, dict[Any, float]]]:
        """Return the seconds per stage of the last commits."""


Streams = Callable[[], Mapping[str, Shown]]


class Dashboard:
    """One server. Several streams of a process share it.

    `address` is a port, "host:port" or ":port"; port 0 takes a free one. `streams` says what is
    shown: the streams of this process, unless another function is given.
    """

    def __init__(
        self,
        address: int | str = PORT,
        *,
        streams: Streams = records,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        host, port = parse_address(address)
        self._streams = streams
        self._registry = registry
        self._local = _is_local(host)
        try:
            self._server = _Server((host, port), self)
        except OSError as error:
            raise DashboardAddressError(
                "the dashboard cannot listen there", address=f"{host}:{port}",
                reason=error.strerror,
            ) from error  # fmt: skip
        self.host, self.port = host, int(self._server.server_address[1])
        self.url = f"http://{'localhost' if self._local else host}:{self.port}/"
        self._thread = Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True,
            name="headwater-dashboard",
        )  # fmt: skip
        self._thread.start()
        logger.info("dashboard.listening url=%s", self.url)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def admits(self, host: str | None, origin: str | None) -> bool:
        """Tell whether a request may be answered, by what it calls us and who sends it."""
        if origin is not None and _hostname(origin) not in {*LOCAL, self.host}:
            return False
        return not self._local or (host is not None and _hostname(f"//{host}") in LOCAL)

    def answer(self, target: str) -> Answer:
        """Answer a GET: status, content type and body."""
        path, _, rest = target.partition("?")
        query = parse_qs(rest)
        streams = self._streams()
        wanted = query.get("id", [""])[0]
        chosen = streams.get(wanted) if wanted else next(iter(streams.values()), None)
        match path:
            case "/":
                return 200, "text/html; charset=utf-8", _PAGE.read_bytes()
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)
            case "/health":
                failed = [record.id for record in streams.values() if record.status == "failed"]
                text = f"failed: {', '.join(failed)}" if failed else "ok"
                return 503 if failed else 200, "text/plain; charset=utf-8", text.encode()
            case "/api/streams":
                return _json([record.snapshot() for record in streams.values()])
            case "/api/preview":
                return _json({} if chosen is None else chosen.preview())
            case "/stats":
                return _json({"payload": _stats(streams)})
            case "/profiler":
                since = query.get("from", [""])[0]
                return _json({"payload": _profiler(chosen, since)})
            case "/preview/transformation":
                return _json({"payload": _preview(chosen)})
            case _:
                return 404, "text/plain; charset=utf-8", b"not found"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note a connection that broke; the next one is answered as ever."""
        logger.debug("dashboard.connection_failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "headwater", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        dashboard, origin = self.server.dashboard, self.headers.get("Origin")
        if not dashboard.admits(self.headers.get("Host"), origin):
            self._send((403, "text/plain; charset=utf-8", b"this host or origin is not admitted"))
            return
        self._send(dashboard.answer(self.path), origin)

    do_HEAD = do_GET  # noqa: N815 - named by the base class

    def _send(self, answer: Answer, origin: str | None = None) -> None:
        status, kind, body = answer
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if origin is not None:
            self.send_header("Access-Control-Allow-Origin", origin)
            self.send_header("Vary", "Origin")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep requests out of the log."""


_open: dict[tuple[str, int], Dashboard] = {}
_guard = Lock()


def serve(address: int | str) -> Dashboard:
    """Return the dashboard of this process at an address; made at the first call.

    It stays open while the process lives, so that the end of a stream can be seen.
    """
    key = parse_address(address)
    with _guard:
        if key not in _open:
            _open[key] = Dashboard(address)
        return _open[key]


def open_dashboards() -> list[Dashboard]:
    """Return the dashboards that `serve` has opened in this process."""
    with _guard:
        return list(_open.values())


def parse_address(address: int | str) -> tuple[str, int]:
    """Return host and port of 9090, ":9090", "0.0.0.0:9090" or "[::1]:9090"."""
    host, port = HOST, str(address)
    if isinstance(address, str) and ":" in address:
        host, _, port = address.rpartition(":")
        host = host.strip("[]") or HOST
    if isinstance(address, bool) or not port.isdecimal() or not int(port) < 65536:
        raise DashboardAddressError("not an address to listen on", got=repr(address))
    return host, int(port)


def _is_local(host: str) -> bool:
    try:
        return host in LOCAL or ip_address(host).is_loopback
    except ValueError:
        return False


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # half of an IPv6 address
        return None


def _json(value: object) -> Answer:
    return 200, JSON, json.dumps(value, default=str).encode()


# --- answers of the Pipes SDK's metrics server ----------------------------------------------------
# Its own page can so show our streams: names and nesting are the SDK's (reference/pipes-sdk.md,
# section 2), values are ours.


def _stats(streams: Mapping[str, Shown]) -> dict[str, Any]:
    """Return what `/stats` answers."""
    from headwater import __version__

    return {
        "sdk": {"version": __version__},
        "runtime": {"name": "python", "version": platform.python_version()},
        "entrypoint": sys.argv[0] if sys.argv else "",
        "usage": {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024},
        "pipes": [_pipe(one) for one in streams.values()],
    }


def _pipe(record: Shown) -> dict[str, Any]:
    shown = record.snapshot()
    cursor = shown["cursor"] or {"number": 0}
    return {
        "id": record.id,
        "dataset": None,
        "portal": {"url": record.portal, "query": {}},
        "progress": {
            "from": shown["from_block"] or 0,
            "current": cursor["number"],
            "to": shown["to_block"] or 0,
            "percent": shown["percent"] or 0,
            "etaSeconds": shown["eta_seconds"] or 0,
        },
        "speed": {"blocksPerSecond": shown["blocks_per_second"], "bytesPerSecond": 0},
    }


def _profiler(record: Shown | None, since: str) -> dict[str, Any]:
    """Return what `/profiler` answers: the stages of the last batches, in milliseconds."""
    after = _moment(since)
    profiles = [] if record is None else [p for at, p in record.profiles() if at >= after]
    return {"enabled": True, "profiles": [_tree(stages) for stages in profiles]}


def _tree(stages: Mapping[Any, float]) -> dict[str, Any]:
    children, offset = [], 0.0
    for name, seconds in stages.items():
        spent = 1000 * seconds
        children.append({"name": name, "totalTime": spent, "startOffset": offset, "children": []})
        offset += spent
    return {"name": "batch", "totalTime": offset, "startOffset": 0, "children": children}


def _preview(record: Shown | None) -> dict[str, Any]:
    """Return what `/preview/transformation` answers: the last rows near the head."""
    facts = None if record is None else record.facts
    if record is None or facts is None:
        return {}
    counts = facts.counts() or Counts()
    children = [
        {"name": name, "data": json.dumps(rows, default=str), "children": []}
        for name, rows in record.preview(1).items()
    ]
    return {
        "transformation": {"name": "batch", "data": None, "children": children},
        "batch": {
            "from": facts.last.number - facts.blocks + 1,
            "to": facts.last.number,
            "blocksCount": facts.blocks,
            "bytesSize": counts.bytes,
        },
    }


def _moment(text: str) -> float:
    """Read a date as JavaScript writes it; anything else is the beginning of time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


# --- notes beside files ---------------------------------------------------------------------------

SUFFIX = ".headwater.json"
_written: set[Path] = set()


def leave_note(file: Path) -> None:
    """Say beside a file where its streams are shown. Called by a stream that holds the file."""
    shown = open_dashboards()
    note = _beside(file)
    if not shown or note in _written:
        return
    text = json.dumps({"pid": os.getpid(), "address": f"{shown[0].host}:{shown[0].port}"})
    new = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(note)
    except OSError as error:  # a folder where only the file may be written
        logger.info("dashboard.no_note file=%s reason=%s", note, error.strerror)
        return
    _written.add(note)
    atexit.register(_remove, note)


def read_note(file: Path) -> str | None:
    """Return the address of the dashboard of the process that holds a file; None if unknown."""
    try:
        note = json.loads(_beside(file).read_text(encoding="utf-8"))
        os.kill(int(note["pid"]), 0)
        return str(note["address"])
    except PermissionError:  # it lives, and is another user's
        return str(note["address"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _beside(file: Path) -> Path:
    file = file.resolve()
    return file.with_name(file.name + SUFFIX)


def _remove(note: Path) -> None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(note.read_text(encoding="utf-8"))["pid"] == os.getpid():
            note.unlink()
