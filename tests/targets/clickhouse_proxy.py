"""A TCP proxy in front of a ClickHouse server that cuts answers after any byte."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from urllib.parse import unquote_plus, urlsplit

Cut = Callable[[str, bytes], int | bytes | None]


class CuttingProxy:
    """Passes requests on, one connection each, and answers as far as it is told.

    `cut(statement, answer)` is called with each statement, its id before it, and the bytes of the
    whole answer; it returns after how many of them the connection ends, another answer, or None.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (str(parts.hostname), int(parts.port or 8123))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.cut: Cut = lambda statement, answer: None
        self.cuts = 0
        port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}{parts.path}?{parts.query}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client:
            head, body = _request(client)
            if not head:
                return
            answer = self._ask(head, body)
            statement = unquote_plus(head.split(b"\r\n", 1)[0].decode()) + body[:4000].decode(
                errors="replace"
            )
            end = self.cut(statement, answer)
            self.cuts += end is not None
            client.sendall(end if isinstance(end, bytes) else answer[:end])

    def _ask(self, head: bytes, body: bytes) -> bytes:
        """Send a request to the server, and return all of its answer."""
        head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head)
        with socket.create_connection(self._server) as server:
            server.sendall(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
            parts = []
            while part := server.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)


def headers_end(answer: bytes) -> int:
    """Return how many bytes of an answer are status and headers."""
    return answer.index(b"\r\n\r\n") + 4


def _request(client: socket.socket) -> tuple[bytes, bytes]:
    """Read one request: its head, with the empty line, and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = client.recv(1 << 16)
        if not part:
            return b"", b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    while len(body) < int(length[1] if length else 0):
        body += client.recv(1 << 16)
    return head + b"\r\n\r\n", body
