"""A TCP proxy in front of a PostgreSQL server: it cuts connections, or is away."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from psycopg.conninfo import conninfo_to_dict


class Proxy:
    """Passes bytes on, and cuts the connection at a moment that is asked for.

    `cut_at` is a text of the client's; `forward` tells whether the server still receives it. The
    server's answer never reaches the client.
    """

    def __init__(self, dsn: str) -> None:
        self._server = ("127.0.0.1", int(str(conninfo_to_dict(dsn)["port"])))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        port = self._listener.getsockname()[1]
        self.dsn = f"postgresql://postgres@127.0.0.1:{port}/{dsn.rsplit('/', 1)[1]}?sslmode=disable"
        self.cut_at: bytes | None = None
        self.forward = True
        self.cuts = 0
        self.refuse = False
        self.refusals = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuse:
                self.refusals += 1
                client.close()
                continue
            try:
                server = socket.create_connection(self._server)
            except OSError:  # as if nobody listened; the next one may be luckier
                client.close()
                continue
            self._pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if from_client and self.cut_at is not None and self.cut_at in data:
                    self.cut_at = None
                    self.cuts += 1
                    source.shutdown(socket.SHUT_RDWR)  # the client hears nothing more
                    if self.forward:
                        sink.sendall(data)
                    break
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def go_away(self) -> None:
        """Cut every connection, and accept none."""
        self.refuse, self.refusals = True, 0
        self._cut()

    def come_back(self) -> None:
        """Accept connections again."""
        self.refuse = False

    def _cut(self) -> None:
        for pair in self._pairs:
            for one in pair:
                with suppress(OSError):  # it was closed before
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        for pair in self._pairs:
            for one in pair:
                one.close()
