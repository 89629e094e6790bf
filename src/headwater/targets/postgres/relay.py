"""Where tasks send their rows: a port of the driver, open while a frame is written.

Each attempt of a task has a connection of its own. It says the relay's secret and the attempt's
number, then sends rows, and is told when the driver holds all of them. They lie in a file without a
name, so memory stays small however many there are. An attempt that breaks off leaves nothing.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Condition, Thread
from types import TracebackType
from typing import IO, Any

from headwater.errors import InvalidOptionError

TOKEN_BYTES, ATTEMPT_BYTES, SIZE_BYTES = 32, 8, 4
RECEIVED = b"\x06"
_PIECE = 1 << 20


class Spool:
    """The rows of one attempt, in the binary form of COPY. Can be read several times."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self) -> Iterator[bytes]:
        """Yield the rows, a megabyte at a time."""
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            yield piece

    def close(self) -> None:
        """Delete them."""
        self._file.close()


class Relay:
    """Takes in rows while it is entered. Used by the driver's thread and by one that publishes."""

    def __init__(self, bind: str, port: int) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._bind = bind
        self._port = port
        self._spools: dict[int, Spool] = {}
        self._changed = Condition()
        self._ended = False

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Relay:
        try:
            self._server = _Server((self._bind, self._port), self)
        except (OSError, OverflowError) as error:
            raise InvalidOptionError(
                f"relay_port must be free, or 0 for any: {error}", got=self._port
            ) from error
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.cut_connections()
        self._server.server_close()
        self.end()

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
        """Return what these attempts have sent, and delete what others have."""
        taken = [self._spools.pop(one) for one in attempts]
        for spool in self._spools.values():
            spool.close()
        return taken


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
