"""Where tasks send their rows: a port of the driver, open while a job runs.

Each attempt of a task has a connection of its own. Both sides prove that they know the relay's
secret, without saying it; the attempt says its number, then sends bytes, and is told when the
driver holds all of them. They lie in a file without a name, so memory stays small however many
there are. An attempt that breaks off leaves nothing. An attempt that is repeated has another
number, so its bytes do not mix with earlier ones; which attempts count, the results of the job say.

Where other machines can reach the port, connections are TLS, and tasks accept only the certificate
that came with their work (`relay_tls`). A connection that proves nothing within `patience_s` is
cut, and so is the oldest such connection where more than `waiting` of them are open. Leaving the
relay cuts all connections.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import random
import secrets
import socket
import ssl
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Condition, Lock, Thread
from typing import IO, Any, ClassVar

import pyarrow as pa

from headwater.address import Secret
from headwater.errors import InvalidOptionError, RelayError
from headwater.spark.relay_tls import driver_identity, is_loopback, trusting

PROOF_BYTES, ATTEMPT_BYTES, SIZE_BYTES = 32, 8, 4
RECEIVED = b"\x06"
PATIENCE_S = 10.0
WAITING = 256
_PIECE = 1 << 20
_CONNECT_S = 30.0
_PAUSES_S = (0.1, 0.5, 2.0)
_CUT = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError)


@dataclass(frozen=True, slots=True)
class Entrance:
    """What a task needs to send its rows; it pickles. Without a certificate there is no TLS."""

    host: str
    port: int
    token: Secret[bytes]
    certificate: bytes | None = None


class Spool:
    """What one attempt has sent. Can be read several times."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self) -> Iterator[bytes]:
        """Yield the bytes, a megabyte at a time."""
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            yield piece

    def open(self) -> IO[bytes]:
        """Return the file, at its beginning."""
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        """Delete them."""
        self._file.close()


class Relay:
    """Takes in what tasks send while it is entered. Runs on the driver, in threads of its own.

    `host` is the name by which executors know the driver, `bind` the address to listen on.
    """

    def __init__(
        self,
        host: str,
        bind: str,
        port: int,
        *,
        patience_s: float = PATIENCE_S,
        waiting: int = WAITING,
    ) -> None:
        self.token = Secret(secrets.token_bytes(PROOF_BYTES))
        self.patience_s = patience_s
        self.waiting = waiting
        self.identity = None if is_loopback(bind) else driver_identity()
        self._host = host
        self._bind = bind
        self._port = port
        self._spools: dict[int, Spool] = {}
        self._changed = Condition()
        self._ended = False

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def entrance(self) -> Entrance:
        """What tasks are given to send their rows."""
        certificate = None if self.identity is None else self.identity.certificate
        return Entrance(self._host, self.port, self.token, certificate)

    def __enter__(self) -> Relay:
        try:
            self._server = _Server((self._bind, self._port), self)
        except (OSError, OverflowError) as error:
            raise InvalidOptionError(
                f"relay_port must be free, or 0 for any: {error}", got=self._port
            ) from error
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.cut_all()
        self._server.server_close()
        self.end()
        for spool in self._spools.values():
            spool.close()

    def keep(self, attempt: int, file: IO[bytes]) -> None:
        """Note that an attempt is complete. Called by the connection's thread."""
        with self._changed:
            self._spools[attempt] = Spool(file)
            self._changed.notify_all()

    def end(self) -> None:
        """Note that no more attempts are waited for."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def arriving(self) -> Iterator[tuple[int, Spool]]:
        """Yield attempts as they become complete, until the end."""
        seen: set[int] = set()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or len(self._spools) > len(seen))
                new = [(one, spool) for one, spool in self._spools.items() if one not in seen]
                ended = self._ended
            yield from new
            seen.update(one for one, _ in new)
            if ended:
                return

    def take(self, attempts: list[int]) -> list[Spool]:
        """Return what these attempts have sent; the caller closes it. The rest is deleted."""
        return [self._spools.pop(one) for one in attempts]


def send(entrance: Entrance, attempt: int, chunks: Iterable[bytes | memoryview]) -> None:
    """Send what an attempt has to send, and wait until the driver holds it. Runs on executors.

    Raises:
        RelayError: the driver cannot be reached, or another program answers in its place.
    """
    with _let_in(entrance) as connection:
        connection.settimeout(None)
        connection.sendall(attempt.to_bytes(ATTEMPT_BYTES))
        for chunk in chunks:
            connection.sendall(len(chunk).to_bytes(SIZE_BYTES))
            connection.sendall(chunk)
        connection.sendall(bytes(SIZE_BYTES))
        if connection.recv(1) != RECEIVED:
            raise ConnectionResetError("the driver did not take the rows")


def _let_in(entrance: Entrance) -> socket.socket:
    """Return a connection on which both sides know each other.

    Strangers that crowd the port may have a connection of ours cut before it has proved anything:
    that is tried again.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            return _connect(entrance)
        except OSError as error:
            if pause_s is None or not isinstance(error, _CUT):
                raise RelayError(
                    "an executor cannot reach the driver",
                    driver=entrance.host,
                    port=entrance.port,
                    reason=error,
                ) from error
        time.sleep(random.uniform(pause_s / 2, pause_s))
    raise AssertionError("the last attempt returns or raises")


def _connect(entrance: Entrance) -> socket.socket:
    connection = socket.create_connection((entrance.host, entrance.port), _CONNECT_S)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if entrance.certificate is not None:
            connection = trusting(entrance.certificate).wrap_socket(connection)
        _introduce(connection, entrance.token)
    except BaseException:
        connection.close()
        raise
    return connection


def _introduce(connection: socket.socket, token: Secret[bytes]) -> None:
    """Prove to the driver that this is a task of its own, and have it prove that it is the driver.

    Raises:
        OSError: it is not, or the connection was cut.
    """
    asked, own = _exactly(connection, PROOF_BYTES), secrets.token_bytes(PROOF_BYTES)
    connection.sendall(own + _proof(token, b"executor", asked, own))
    proof = _exactly(connection, PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(token, b"driver", asked, own)):
        raise PermissionError("what answers does not know the secret")


def _proof(token: Secret[bytes], side: bytes, *nonces: bytes) -> bytes:
    """Return what only a holder of the secret can say, at this one time, on this one side."""
    return hmac.digest(token.reveal(), b"".join((side, *nonces)), hashlib.sha256)


def _exactly(connection: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """Read so many bytes, to a deadline for all of them."""
    parts = b""
    while len(parts) < size:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the connection was cut")
        parts += part
    return parts


def new_attempt() -> int:
    """Return a number for an attempt of a task. Runs on executors."""
    return secrets.randbits(62)


@dataclass(frozen=True, slots=True)
class IpcSender:
    """Sends the batches of a part to the driver as they are. It pickles, and runs on executors."""

    RESULT: ClassVar = pa.schema([("attempt", pa.int64())])

    entrance: Entrance

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        """Send; yield the number of the attempt, or nothing where there are no rows."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        attempt = new_attempt()
        send(self.entrance, attempt, _ipc_stream(first, filled))
        yield pa.RecordBatch.from_pydict({"attempt": [attempt]}, schema=self.RESULT)


def _ipc_stream(first: pa.RecordBatch, others: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the bytes of an Arrow stream, a batch at a time."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, first.schema) as writer:
        for batch in chain([first], others):
            writer.write_batch(batch)
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()


def read_batches(spool: Spool) -> Iterator[pa.RecordBatch]:
    """Yield the batches that an `IpcSender` has sent, one at a time. Runs on the driver."""
    with pa.ipc.open_stream(spool.open()) as reader:
        yield from reader


class _Server(ThreadingTCPServer):
    daemon_threads = False  # so that server_close waits for them
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], relay: Relay) -> None:
        self.relay = relay
        self._lock = Lock()
        self._open: dict[socket.socket, bool] = {}  # whether it is known; the oldest is first
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection, and note it before a thread serves it: so none is left uncut."""
        connection, address = super().get_request()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(self.relay.patience_s)
        identity = self.relay.identity
        if identity is not None:
            connection = identity.context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        with self._lock:
            strangers = [one for one, is_known in self._open.items() if not is_known]
            if len(strangers) >= self.relay.waiting:
                del self._open[strangers[0]]  # cut once, however late its thread notices
                _cut(strangers[0])
            self._open[connection] = False
        return connection, address

    def let_in(self, connection: socket.socket) -> None:
        """Note that a connection has proved who it is.

        Raises:
            ConnectionAbortedError: it was cut meanwhile.
        """
        with self._lock:
            if connection not in self._open:
                raise ConnectionAbortedError("the connection was cut")
            self._open[connection] = True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def cut_all(self) -> None:
        """Wake every thread that still reads. No new connection is taken any more."""
        with self._lock:
            connections = list(self._open)
        for one in connections:
            _cut(one)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: Spark knows what became of the task, and tries it again."""


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS: its own would wait


class _Handler(BaseRequestHandler):
    server: _Server
    request: socket.socket

    def handle(self) -> None:
        """Let an attempt of a task in, and take its rows."""
        relay = self.server.relay
        if not self._is_known(relay.token, time.monotonic() + relay.patience_s):
            return
        self.server.let_in(self.request)
        self.request.settimeout(None)
        attempt = int.from_bytes(_exactly(self.request, ATTEMPT_BYTES))
        file = tempfile.TemporaryFile()  # noqa: SIM115 - kept until the batch is committed
        try:
            for piece in self._pieces():
                file.write(piece)
        except BaseException:
            file.close()
            raise
        relay.keep(attempt, file)
        self.request.sendall(RECEIVED)

    def _is_known(self, token: Secret[bytes], deadline: float) -> bool:
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()  # within the timeout of the socket
        asked = secrets.token_bytes(PROOF_BYTES)
        self.request.sendall(asked)
        said = _exactly(self.request, 2 * PROOF_BYTES, deadline)
        own, proof = said[:PROOF_BYTES], said[PROOF_BYTES:]
        if not hmac.compare_digest(proof, _proof(token, b"executor", asked, own)):
            return False
        self.request.sendall(_proof(token, b"driver", asked, own))
        return True

    def _pieces(self) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(_PIECE))
        while size := int.from_bytes(_exactly(self.request, SIZE_BYTES)):
            while size:
                got = self.request.recv_into(buffer, min(size, _PIECE))
                if not got:
                    raise ConnectionResetError("the attempt broke off")
                yield buffer[:got]
                size -= got
