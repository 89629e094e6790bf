"""Where tasks send their rows: a port of the driver, open while a job runs.

Each attempt of a task has a connection of its own. It says the relay's secret and the attempt's
number, then sends bytes, and is told when the driver holds all of them. They lie in a file without
a name, so memory stays small however many there are. An attempt that breaks off leaves nothing. An
attempt that is repeated has another number, so its bytes do not mix with earlier ones; which
attempts count, the results of the job say.
"""

from __future__ import annotations

import hmac
import io
import secrets
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Condition, Thread
from typing import IO, Any, ClassVar

import pyarrow as pa

from headwater.errors import InvalidOptionError, RelayError

TOKEN_BYTES, ATTEMPT_BYTES, SIZE_BYTES = 32, 8, 4
RECEIVED = b"\x06"
_PIECE = 1 << 20
_CONNECT_S = 30.0


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

    def __init__(self, host: str, bind: str, port: int) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
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
    def address(self) -> tuple[str, int]:
        """Where executors connect to."""
        return self._host, self.port

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
        self._server.cut_connections()
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


def send(
    address: tuple[str, int], token: bytes, attempt: int, chunks: Iterable[bytes | memoryview]
) -> None:
    """Send what an attempt has to send, and wait until the driver holds it. Runs on executors.

    Raises:
        RelayError: the driver cannot be reached.
    """
    try:
        connection = socket.create_connection(address, _CONNECT_S)
    except OSError as error:
        host, port = address
        raise RelayError(
            "an executor cannot reach the driver", driver=host, port=port, reason=error
        ) from error
    with connection:
        connection.settimeout(None)
        connection.sendall(token + attempt.to_bytes(ATTEMPT_BYTES))
        for chunk in chunks:
            connection.sendall(len(chunk).to_bytes(SIZE_BYTES))
            connection.sendall(chunk)
        connection.sendall(bytes(SIZE_BYTES))
        if connection.recv(1) != RECEIVED:
            raise ConnectionResetError("the driver did not take the rows")


def new_attempt() -> int:
    """Return a number for an attempt of a task. Runs on executors."""
    return secrets.randbits(62)


@dataclass(frozen=True, slots=True)
class IpcSender:
    """Sends the batches of a part to the driver as they are. It pickles, and runs on executors."""

    RESULT: ClassVar = pa.schema([("attempt", pa.int64())])

    address: tuple[str, int]
    token: bytes = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        """Send; yield the number of the attempt, or nothing where there are no rows."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        attempt = new_attempt()
        send(self.address, self.token, attempt, _ipc_stream(first, filled))
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
        self.open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def cut_connections(self) -> None:
        """Wake every thread that still reads."""
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: Spark knows what became of the task, and tries it again."""


class _Handler(BaseRequestHandler):
    server: _Server

    def setup(self) -> None:
        self.server.open.add(self.request)

    def finish(self) -> None:
        self.server.open.discard(self.request)

    def handle(self) -> None:
        """Take in the rows of an attempt."""
        relay = self.server.relay
        if not hmac.compare_digest(self._exactly(TOKEN_BYTES), relay.token):
            return
        attempt = int.from_bytes(self._exactly(ATTEMPT_BYTES))
        file = tempfile.TemporaryFile()  # noqa: SIM115 - kept until the batch is committed
        try:
            for piece in self._pieces():
                file.write(piece)
        except BaseException:
            file.close()
            raise
        relay.keep(attempt, file)
        self.request.sendall(RECEIVED)

    def _pieces(self) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(_PIECE))
        while size := int.from_bytes(self._exactly(SIZE_BYTES)):
            while size:
                got = self.request.recv_into(buffer, min(size, _PIECE))
                if not got:
                    raise ConnectionResetError("the attempt broke off")
                yield buffer[:got]
                size -= got

    def _exactly(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self.request.recv(size - len(parts))
            if not part:
                raise ConnectionResetError("the attempt broke off")
            parts += part
        return parts
