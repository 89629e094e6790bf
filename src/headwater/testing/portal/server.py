"""The simulated portal over real HTTP, for pipelines that open real connections.

The bytes come from the same `PortalSim` as in memory; this module adds what only a socket has:
chunked bodies, connections that are closed or reset, answers that hang. One thread per connection,
127.0.0.1 only. Stopping is immediate, whatever clients are doing.
"""

from __future__ import annotations

import base64
import hmac
import json
import socket
import socketserver
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from time import monotonic, time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headwater.errors import InvalidOptionError
from headwater.portal.transport import Request
from headwater.testing.chain.live import LiveChain
from headwater.testing.chain.tree import ChainSim, ContentSettings, Network, SimBlock
from headwater.testing.portal.answer import STREAM_ROUTES, Break, Buffer, Ledger, SimAnswer
from headwater.testing.portal.control import handle_control
from headwater.testing.portal.dataset import PortalSim
from headwater.testing.portal.node import NodeSim

HOST = "127.0.0.1"
_MAX_UPLOAD = 16 * 1024 * 1024
_SLICE_S = 0.05  # of a wait, so that a server that stops is not waited for


class PortalServer:
    """Datasets on one port. Use as a context manager, or call `start` and `stop`.

    `auth` is (user, password); without it everybody is let in. The first dataset is the one that
    `url`, `chain`, `sim` and `ledger` speak of; `node` is a node that has the same chain.
    """

    def __init__(
        self,
        sim: PortalSim,
        *,
        port: int = 0,
        auth: tuple[str, str] | None = None,
        live: LiveChain | None = None,
    ) -> None:
        self.sim = sim
        self.live = live
        self.datasets: dict[str, PortalSim] = {}
        self.node = NodeSim(sim)
        self._auth = None if auth is None else _basic(*auth)
        try:
            self._server = _Server(self, port)
        except (OSError, OverflowError) as error:
            raise InvalidOptionError(
                f"port must be free, or 0 for any: {error}", got=port
            ) from None
        self._thread: Thread | None = None
        self.url = self.add_dataset(sim)

    @property
    def base_url(self) -> str:
        """The address of the server itself; `/control` is below it."""
        return f"http://{HOST}:{self._server.server_address[1]}"

    @property
    def node_url(self) -> str:
        """The address of a node that has the chain of the first dataset; EVM alone."""
        return f"rpc+{self.base_url}/rpc/a-secret-key"

    @property
    def chain(self) -> ChainSim:
        """The chain behind the first dataset."""
        return self.sim.chain

    @property
    def ledger(self) -> Ledger:
        """What the first dataset was asked and answered."""
        return self.sim.ledger

    def add_dataset(self, sim: PortalSim) -> str:
        """Serve one more dataset under its name; return its address."""
        if sim.dataset in self.datasets or "/" in sim.dataset or not sim.dataset:
            raise InvalidOptionError("a dataset needs a new name without '/'", got=sim.dataset)
        self.datasets[sim.dataset] = sim
        return f"{self.base_url}/datasets/{sim.dataset}"

    def extend(self, count: int = 1) -> list[SimBlock]:
        """Add blocks to the chain."""
        return self.chain.extend(count)

    def fork(self, depth: int, length: int | None = None, *, force: bool = False) -> SimBlock:
        """Replace the newest blocks of the chain; return the common ancestor."""
        return self.chain.fork(depth, length, force=force)

    def finalize(self, number: int) -> SimBlock:
        """Make the chain final up to a block."""
        return self.chain.finalize(number)

    def admits(self, authorization: str | None) -> bool:
        """Tell whether a request with this Authorization header is let in."""
        return self._auth is None or hmac.compare_digest(
            self._auth.encode(), (authorization or "").encode()
        )

    def leave_at_exit(self) -> None:
        """Let the process end while connections are open; called before `start`."""
        self._server.daemon_threads = True

    def start(self) -> PortalServer:
        """Start serving, and the live chain if there is one."""
        self._thread = Thread(target=self._server.serve, name="headwater-portal", daemon=True)
        self._thread.start()
        if self.live is not None:
            self.live.start()
        return self

    def stop(self) -> None:
        """Cut every connection, end every thread and free the port."""
        if self.live is not None:
            self.live.stop()
        self._server.stopping.set()
        if self._thread is not None:
            self._server.wake()
            self._thread.join()
            self._thread = None
        self._server.cut_connections()
        self._server.server_close()

    def __enter__(self) -> PortalServer:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


@contextmanager
def simulated_portal(
    seed: int = 0,
    *,
    blocks: int = 100,
    finality_depth: int = 20,
    network: Network = Network.EVM,
    content: ContentSettings | None = None,
    chain: ChainSim | None = None,
    port: int = 0,
    auth: tuple[str, str] | None = None,
    **options: Any,
) -> Iterator[PortalServer]:
    """Serve a simulated portal while the block runs; `options` are those of `PortalSim`.

    Without `chain`, one is made that has `blocks` blocks, final but for the newest
    `finality_depth`, filled as `content` says. It stands still until `portal.extend`, `portal.fork`
    or `portal.finalize`.
    """
    if chain is None:
        chain = ChainSim(seed, network=network, content=content)
        chain.grow(blocks - 1)
        chain.finalize_behind(finality_depth)
    sim = PortalSim(chain, seed=seed, **options)
    with PortalServer(sim, port=port, auth=auth) as server:
        yield server


def live_portal(
    seed: int = 0,
    *,
    blocks: int = 600,
    interval: float = 1.0,
    fork_rate: float = 0.1,
    finality_depth: int = 20,
    network: Network = Network.EVM,
    content: ContentSettings | None = None,
) -> PortalServer:
    """Serve a chain that grows and forks by itself, until this process ends: to try a pipeline.

    A second call with the same seed and network returns the same portal, so that a pipeline file
    that is run again, as `headwater run` does after a failure, finds the chain it has read. Times
    of blocks follow the clock, so that a stream at the head is seconds behind.
    """
    key = (seed, network)
    with _LIVE_GUARD:
        if key not in _LIVE:
            chain = ChainSim(seed, network=network, content=content, block_time_s=interval)
            chain.grow(blocks - 1)
            chain.follow_clock(time)
            chain.finalize_behind(finality_depth)
            live = LiveChain(
                chain, seed=seed, interval=interval, finality_depth=finality_depth,
                fork_rate=fork_rate,
            )  # fmt: skip
            server = PortalServer(PortalSim(chain, seed=seed), live=live)
            server.leave_at_exit()
            _LIVE[key] = server.start()
        return _LIVE[key]


_LIVE: dict[tuple[int, Network], PortalServer] = {}
_LIVE_GUARD = Lock()


class _Server(ThreadingHTTPServer):
    """Keeps track of its connections, so that it can cut them."""

    daemon_threads = False  # so that server_close waits for them
    request_queue_size = 128

    def __init__(self, portal: PortalServer, port: int) -> None:
        self.portal = portal
        self.stopping = Event()
        self._open: set[socket.socket] = set()
        self._guard = Lock()
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking for the name of the host, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def serve(self) -> None:
        """Take connections until the server stops."""
        while not self.stopping.is_set():
            self.handle_request()

    def wake(self) -> None:
        """Let the thread that waits for a connection see that the server stops."""
        with suppress(OSError):
            socket.create_connection((HOST, self.server_port)).close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take no connection once the server stops."""
        return not self.stopping.is_set()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection and hand it to a thread."""
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection and close it, or reset it if that is what it is marked for."""
        with self._guard:
            self._open.discard(request)
        if request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER):
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent about clients that leave; show everything else."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def cut_connections(self) -> None:
        """Wake every thread that reads from, writes to or hangs on a connection."""
        with self._guard:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Serve a GET."""
        self._serve()

    def do_POST(self) -> None:
        """Serve a POST."""
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing; the ledger has it all."""

    def _serve(self) -> None:
        portal = self.server.portal
        length = self.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > _MAX_UPLOAD:
            self.close_connection = True
            self._send_text(413, "body too large")
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):  # the client has left
            self.close_connection = True
            return
        if not portal.admits(self.headers.get("authorization")):
            self._send_text(
                401, "credentials are needed", {"www-authenticate": 'Basic realm="portal"'}
            )
            return
        area, _, rest = self.path.lstrip("/").partition("/")
        if area == "control":
            self._serve_control(rest, body)
            return
        if area == "rpc":
            self._deliver(portal.node.respond(body), chunked=False)
            return
        name, _, route = rest.partition("/")
        sim = portal.datasets.get(name) if area == "datasets" else None
        if sim is None:
            self._send_text(404, f"unknown dataset; try {', '.join(portal.datasets)}")
            return
        request = Request(self.command, route, body if self.command == "POST" else None)
        headers = {key.lower(): value for key, value in self.headers.items()}
        self._deliver(self._respond(sim, request, headers), chunked=route in STREAM_ROUTES)

    def _respond(self, sim: PortalSim, request: Request, headers: dict[str, str]) -> SimAnswer:
        """Answer a request; one for blocks that are not there yet waits for them, for a while."""
        deadline = None
        while True:
            moves = sim.chain.moves
            answer = sim.respond(request, headers)
            if answer.status != 204 or not answer.delay or answer.fault is not None:
                return answer
            deadline = deadline or monotonic() + answer.delay
            while not sim.chain.wait_for_move(moves, min(_SLICE_S, deadline - monotonic())):
                if self.server.stopping.is_set() or monotonic() >= deadline:
                    return replace(answer, delay=0.0)

    def _serve_control(self, rest: str, body: bytes) -> None:
        portal = self.server.portal
        parts = urlsplit(rest)
        name = parse_qs(parts.query).get("dataset", [portal.sim.dataset])[0]
        sim = portal.datasets.get(name)
        if sim is None:
            self._send_text(404, f"unknown dataset; try {', '.join(portal.datasets)}")
            return
        live = portal.live if sim is portal.sim else None
        status, value = handle_control(sim, live, self.command, parts.path, body)
        self._send_text(status, json.dumps(value), {"content-type": "application/json"})

    def _send_text(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        answer = SimAnswer(status, headers or {"content-type": "text/plain"}, (text.encode(),))
        self._deliver(answer, chunked=False)

    def _deliver(self, answer: SimAnswer, *, chunked: bool) -> None:
        """Send an answer, as far as it is meant to get."""
        if answer.delay:
            self.server.stopping.wait(answer.delay)
        if answer.broken is not None and answer.broken.after is None:
            self._break(answer.broken)
            return
        chunked = chunked and answer.status == 200
        self.send_response_only(answer.status)
        for key, value in answer.headers.items():
            self.send_header(key, value)
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        elif answer.status != 204:
            self.send_header("content-length", str(answer.size))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self._send_body(answer, chunked=chunked)
        if answer.broken is not None:
            self._break(answer.broken)

    def _send_body(self, answer: SimAnswer, *, chunked: bool) -> None:
        before = b""
        for chunk in answer.chunks():
            size = b"%s%x\r\n" % (before, len(chunk)) if chunked else b""
            _send_all(self.connection, size, chunk)
            before = b"\r\n"
        if chunked and answer.broken is None:
            self.connection.sendall(before + b"0\r\n\r\n")

    def _break(self, broken: Break) -> None:
        """Hang until the client leaves or the server stops, or drop the connection at once."""
        self.close_connection = True
        if broken.stall:
            if self.connection.recv(1, socket.MSG_PEEK):
                self.server.stopping.wait()
        elif broken.reset:
            linger = struct.pack("ii", 1, 0)  # on, no time: what is unsent is thrown away
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def _send_all(connection: socket.socket, head: bytes, data: Buffer) -> None:
    """Send two buffers without joining them."""
    sent = connection.sendmsg([head, data]) if head else 0
    if sent < len(head):
        connection.sendall(head[sent:])
        sent = len(head)
    if sent < len(head) + len(data):
        connection.sendall(memoryview(data)[sent - len(head) :])


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
