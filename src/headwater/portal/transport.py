"""The seam to the network: one request, one response whose body arrives in chunks.

`HttpTransport` is the only place in the package that imports an HTTP library. The simulator in
`headwater.testing` implements the same two protocols in memory, so a test can run thousands of
histories without a socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol


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


class Transport(Protocol):
    """Sends requests to one dataset of one portal."""

    def send(self, request: Request) -> Response:
        """Send and return once the headers have arrived; `TransportError` if they do not."""
        ...

    def close(self) -> None:
        """Release every connection."""
        ...
