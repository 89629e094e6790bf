"""The seam to the network: one request, one response whose body arrives in chunks.

`HttpTransport` is the only place in the package that imports an HTTP library. The simulator in
`headwater.testing` implements the same two protocols in memory, so a test can run thousands of
scenarios without a socket.
"""

from __future__ import annotations

import http
import http.client
import math
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from typing import Protocol, cast

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.response import HTTPResponse
from urllib3.util.wait import wait_for_read

from headwater import __version__
from headwater.address import NODE_SCHEME, HttpAddress, NodeAddress, UrlError
from headwater.errors import AnswerTooLargeError, InvalidOptionError, PortalUrlError, TransportError

USER_AGENT = f"headwater/{__version__}"

_READ_BYTES = 65_536
_HEADER_LINES = 100  # a portal sends about twenty; interim answers (1xx) count too
_HEADER_BYTES = 65_536
_RIGHT_BACK_S = 0.25  # a caller that comes back later than this asks anew
_FAILURES = (HTTPError, http.client.HTTPException, OSError)


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a dataset. `route` is relative to the dataset's address: "stream", "head"."""

    method: str
    route: str
    body: bytes | None = None


class Response(Protocol):
    """An answer whose headers are there and whose body is still arriving."""

    @property
    def status(self) -> int:
        """The HTTP status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The response headers; names are in lower case."""
        ...

    def chunks(self) -> Iterator[bytes]:
        """Yield the decoded body as it arrives, cut anywhere; `TransportError` if it breaks."""
        ...

    def close(self) -> None:
        """Give the connection back, or drop it if the body was not read to its end."""
        ...


class NoAnswerYet(Exception):  # noqa: N818 - not an error: the portal waits for a block
    """No answer has begun within `hold_s`. The caller that sends the request again waits on."""


class Transport(Protocol):
    """Sends requests to one dataset of one portal."""

    def send(self, request: Request) -> Response:
        """Send and return once the headers have arrived; `TransportError` if they do not.

        A request for blocks may raise `NoAnswerYet`: send it again.
        """
        ...

    def close(self) -> None:
        """Release every connection."""
        ...


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait: for a connection, for the headers, and between two chunks of a body."""

    connect_s: float = 10.0
    headers_s: float = 20.0
    chunk_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "headers_s", "chunk_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidOptionError(f"{name} must be above 0", got=getattr(self, name))


class _WholeHeaders(http.client.HTTPResponse):
    """An answer whose headers are read to their end.

    Python takes the end of a connection for the end of the headers, and a number that was cut for
    the whole one; here it is a lost connection. Python also takes an interim answer (103) for the
    final one; here it is skipped.
    """

    def begin(self) -> None:
        """Read status and headers."""
        stream, lines = self.fp, cast("BufferedReader", _Lines(self.fp))
        self.fp = lines
        try:
            super().begin()
            while http.HTTPStatus.SWITCHING_PROTOCOLS < self.status < http.HTTPStatus.OK:
                self.headers = self.msg = None  # type: ignore[assignment]
                super().begin()
        finally:
            if self.fp is lines:  # else it is closed
                self.fp = stream


class _Lines:
    """Reads lines that must end in a line feed; so many of them, of so many bytes in all."""

    def __init__(self, stream: BufferedReader) -> None:
        self._stream = stream
        self._lines = 0
        self._size = 0

    def readline(self, limit: int) -> bytes:
        line = self._stream.readline(limit)
        self._lines += 1
        self._size += len(line)
        if self._lines > _HEADER_LINES or self._size > _HEADER_BYTES:
            raise AnswerTooLargeError(
                "the headers are too long", lines=_HEADER_LINES, bytes=_HEADER_BYTES
            )
        if not line.endswith(b"\n") and len(line) < limit:
            raise http.client.RemoteDisconnected("the answer ended inside its headers")
        return line

    def close(self) -> None:
        self._stream.close()


@dataclass(slots=True)
class _Held:
    """A request that is under way, and when its caller last heard `NoAnswerYet`."""

    request: Request
    connection: HTTPConnection
    sent_at: float
    left_at: float = 0.0


def portal_address(url: str | HttpAddress) -> HttpAddress:
    """Understand the address of a dataset, or of a node. Called before anything is sent.

    Raises:
        PortalUrlError: it is not an http(s) URL with a host, alone or behind `rpc+`; the error does
            not repeat it.
    """
    if isinstance(url, HttpAddress):
        return url
    try:
        if isinstance(url, str) and url.strip().startswith(NODE_SCHEME):
            return NodeAddress.of(url)
        return HttpAddress.parse(url)
    except UrlError as error:
        raise PortalUrlError(f"the portal address cannot be used: {error}") from None


class HttpTransport:
    """Requests over HTTP, on connections that are kept alive.

    Runs on the driver and on executors; each builds its own from the pickled address and timeouts,
    and connections never travel. No retry and no redirect happens here: the client
    that sends a request learns what became of it.

    A portal holds the answer to a request for blocks back for seconds, until there is one. With
    `hold_s` the caller hears `NoAnswerYet` after so many seconds. The request stays under way, for
    a caller that sends the same one again at once.
    """

    def __init__(
        self,
        url: str | HttpAddress,
        timeouts: Timeouts | None = None,
        *,
        hold_s: float | None = None,
    ) -> None:
        self.address = portal_address(url)
        self.timeouts = timeouts or Timeouts()
        self._hold_s = hold_s
        self._held: _Held | None = None
        self._idle: list[HTTPConnection] = []
        self._socket: socket.socket | None = None  # of the request that was sent last
        self._tls = ssl.create_default_context() if self.address.scheme == "https" else None

    def send(self, request: Request) -> Response:
        """Send one request; return once its headers are there."""
        held = self._take_held(request)
        connection = self._connection() if held is None else held.connection
        self._socket = connection.sock
        try:
            if held is None:
                connection.timeout = self.timeouts.headers_s
                connection.request(
                    request.method,
                    self.address.target(request.route),
                    body=request.body,
                    headers=self._headers(request),
                    preload_content=False,
                )
            if self._hold_s is not None and request.body is not None:
                self._wait(held or _Held(request, connection, time.monotonic()), self._hold_s)
            sock = connection.sock
            response = connection.getresponse()
            _check_end(response)
            # the socket is kept from above: with "connection: close" the connection forgets it
            sock.settimeout(self.timeouts.chunk_s)
        except NoAnswerYet:
            raise
        except _FAILURES as error:
            connection.close()
            raise _failed("headers", error, self.timeouts.headers_s) from None
        except BaseException:
            connection.close()
            raise
        return _HttpResponse(connection, response, self._idle, self.timeouts.chunk_s, self.address)

    def abort(self) -> None:
        """Break off the request that was sent last, if it is still under way.

        The one thing here that may be called from another thread: the one that waits for the answer
        gets a `TransportError`.
        """
        if self._socket is not None:
            with suppress(OSError):  # it is closed, or was never connected
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the idle connections; those in use are closed with their responses."""
        if self._held is not None:
            self._held.connection.close()
            self._held = None
        while self._idle:
            self._idle.pop().close()

    def __repr__(self) -> str:
        return f"HttpTransport({self.address})"

    def __reduce__(self) -> tuple[type[HttpTransport], tuple[HttpAddress, Timeouts]]:
        return HttpTransport, (self.address, self.timeouts)

    def _take_held(self, request: Request) -> _Held | None:
        """Return the request that is under way, if it is this one and its caller came right back.

        An answer that has waited for its reader says what was, so it is asked for again.
        """
        held, self._held = self._held, None
        if held is None:
            return None
        if held.request == request and time.monotonic() - held.left_at <= _RIGHT_BACK_S:
            return held
        held.connection.close()
        return None

    def _wait(self, held: _Held, hold_s: float) -> None:
        """Wait for the first byte of an answer, for a while.

        Raises:
            NoAnswerYet: there is none yet; the request stays under way.
            TimeoutError: there is none within `headers_s`.
        """
        left = held.sent_at + self.timeouts.headers_s - time.monotonic()
        if wait_for_read(held.connection.sock, max(0.0, min(hold_s, left))):
            return
        if left <= hold_s:
            raise TimeoutError
        held.left_at = time.monotonic()
        self._held = held
        raise NoAnswerYet

    def _connection(self) -> HTTPConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_connected:
                return connection
            connection.close()  # the server hung up while it was idle
        connection = self._new_connection()
        try:
            connection.connect()
        except _FAILURES as error:
            connection.close()
            raise _failed("connect", error, self.timeouts.connect_s) from None
        return connection

    def _new_connection(self) -> HTTPConnection:
        host, port, limit = self.address.host, self.address.port, self.timeouts.connect_s
        if self._tls is not None:
            made: HTTPConnection = HTTPSConnection(host, port, timeout=limit, ssl_context=self._tls)
        else:
            made = HTTPConnection(host, port, timeout=limit)
        made.response_class = _WholeHeaders
        return made

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"accept-encoding": "gzip, zstd", "user-agent": USER_AGENT}
        if request.body is not None:
            headers["content-type"] = "application/json"
        authorization = self.address.authorization
        if authorization is not None:
            headers["authorization"] = authorization.reveal()
        return headers


class _HttpResponse:
    """One answer. Its connection goes back to `idle` only once the body has been read to its end.

    `read1` gives whatever has arrived, decoded, so a block is seen when it is sent and not when a
    buffer is full.
    """

    def __init__(
        self,
        connection: HTTPConnection,
        response: HTTPResponse,
        idle: list[HTTPConnection],
        chunk_s: float,
        address: HttpAddress,
    ) -> None:
        self._connection = connection
        self._response = response
        self._idle = idle
        self._chunk_s = chunk_s
        self._address = address
        self._open = True
        self.status = response.status
        self.headers: Mapping[str, str] = {
            name.lower(): value for name, value in response.headers.items()
        }

    def chunks(self) -> Iterator[bytes]:
        try:
            # an empty body is not given to a decoder: zstd would call it incomplete
            while self._response.length_remaining != 0 or self._response.tell() > 0:
                chunk = self._response.read1(_READ_BYTES)
                if not chunk:
                    break
                yield chunk if self.status < 400 else self._without_secrets(chunk)
        except _FAILURES as error:
            self.close()
            raise _failed("body", error, self._chunk_s) from error
        self._release()

    def close(self) -> None:
        if self._open and self._response.length_remaining == 0 and self._response.tell() == 0:
            self._release()  # 204, or an empty body: there is nothing left to read
        if self._open:
            self._open = False
            self._response.close()
            self._connection.close()

    def _without_secrets(self, chunk: bytes) -> bytes:
        """Return a part of a refusal, which is shown: servers like to repeat what was asked."""
        text = chunk.decode(errors="surrogateescape")
        return self._address.hide(text).encode(errors="surrogateescape")

    def _release(self) -> None:
        if self._open:
            self._open = False
            self._response.close()
            self._idle.append(self._connection)


def _check_end(response: HTTPResponse) -> None:
    """Refuse an answer without length or chunks: its end could not be told from a cut."""
    if response.length_remaining is None and not response.chunked:
        response.close()
        raise http.client.HTTPException("the answer does not say where it ends")


def _failed(phase: str, error: BaseException, limit_s: float) -> TransportError:
    """Say what broke, in words that cannot hold the address: those of the innermost cause.

    It is raised without its cause, whose frames hold credentials: some tools print frames whole.
    """
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    if isinstance(root, TimeoutError):
        return TransportError("the portal took too long", phase=phase, timeout_s=limit_s)
    reason = f"{type(root).__name__}: {root}"[:200]
    return TransportError("the connection to the portal failed", phase=phase, reason=reason)
