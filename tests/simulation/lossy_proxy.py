"""A TCP proxy that loses connections, after any byte of an answer or of a request.

It stands between a client and a real server and knows nothing of what they say, so it serves HTTP
and PostgreSQL alike. A test arms one `Loss` at a time; it strikes when so many bytes have passed.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Loss:
    """What happens to the connection on which so many more bytes have passed, in one direction.

    `of_answer` counts what the server sends; otherwise what the client sends. With `hold` nothing
    passes any more and nothing is closed, until `release`: a half-open connection, or a delay.
    """

    after: int
    of_answer: bool = True
    hold: bool = False


class LossyProxy:
    """Passes bytes to one server and back, until a loss strikes. Threads of its own, daemons.

    `struck` lists the losses so far, `cut_headers` counts those that cut an HTTP answer behind its
    status and before the end of its headers. `is_holding` says that a held connection waits for
    `release`.
    """

    def __init__(self, host: str, port: int) -> None:
        self.struck: list[Loss] = []
        self.cut_headers = 0
        self._server = (host, port)
        self._loss: Loss | None = None
        self._passed = 0
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._released = threading.Event()
        self._deliver = False
        self._holding = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="lossy-proxy", daemon=True).start()

    @property
    def is_holding(self) -> bool:
        """Whether a connection is half-open."""
        return self._holding

    def arm(self, loss: Loss) -> None:
        """Let the next bytes meet a loss; one that has not struck yet is forgotten."""
        with self._guard:
            self._loss, self._passed = loss, 0

    def disarm(self) -> None:
        """Forget a loss that has not struck yet."""
        with self._guard:
            self._loss = None

    def release(self, *, deliver: bool) -> None:
        """End the hold: what was held back is delivered, or the connection is cut."""
        self._deliver = deliver
        self._holding = False
        self._released.set()

    def cut(self) -> None:
        """Cut every connection now."""
        with self._guard:
            for one in self._open:
                _shut(one)

    def close(self) -> None:
        """Stop listening, and cut every connection."""
        self.disarm()
        self.release(deliver=False)
        _shut(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            with self._guard:
                self._open.update(pair)
            for one in pair:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink in (pair, pair[::-1]):
                threading.Thread(
                    target=self._pump, args=(source, sink, source is server), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, of_answer: bool) -> None:
        """Pass bytes one way until either end is gone, or a loss strikes."""
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                kept = self._kept(len(piece), of_answer)
                if kept is None:
                    sink.sendall(piece)
                    continue
                passed, hold = kept
                self.cut_headers += not hold and _is_in_headers(piece, passed)
                sink.sendall(piece[:passed])
                if hold:
                    self._hold()
                if not (hold and self._deliver):
                    break
                sink.sendall(piece[passed:])
        for one in (source, sink):
            _shut(one)
            with self._guard:
                self._open.discard(one)
        source.close()  # the other pump closes the other end

    def _kept(self, size: int, of_answer: bool) -> tuple[int, bool] | None:
        """Return how much of a piece passes before the loss, and whether it holds; None: all."""
        with self._guard:
            loss = self._loss
            if loss is None or loss.of_answer is not of_answer:
                return None
            self._passed += size
            if self._passed <= loss.after:
                return None
            self._loss = None
            self.struck.append(loss)
            return size - (self._passed - loss.after), loss.hold

    def _hold(self) -> None:
        self._released.clear()
        self._holding = True
        self._released.wait()


def _is_in_headers(piece: bytes, passed: int) -> bool:
    """Tell whether what passed of an answer is its status, and not all of its headers."""
    seen = piece[:passed]
    return seen.startswith(b"HTTP/") and b"\r\n" in seen and b"\r\n\r\n" not in seen


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
