"""The simulated portal as a `Transport`, in memory, with a clock that tests own.

No socket, no waiting: a drop is a `TransportError`, a stall is a `TransportError` after the clock
has been moved by the timeout. Thousands of scenarios run in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from headwater.errors import TransportError
from headwater.portal.transport import Request
from headwater.testing.portal.answer import SimAnswer, decoded
from headwater.testing.portal.dataset import PortalSim


class VirtualClock:
    """Time that passes only when a caller sleeps or moves it.

    `on_sleep` is called with the seconds after each sleep: the place to move the chain while a
    client waits.
    """

    def __init__(
        self, start: float = 1_750_000_000.0, on_sleep: Callable[[float], object] | None = None
    ) -> None:
        self.sleeps: list[float] = []
        self.on_sleep = on_sleep
        self._start = start
        self._elapsed = 0.0

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self._elapsed

    def now(self) -> float:
        """Return the seconds since 1970 UTC."""
        return self._start + self._elapsed

    def sleep(self, seconds: float) -> None:
        """Record the wish and let the time pass at once."""
        self.sleeps.append(seconds)
        self.advance(max(0.0, seconds))
        if self.on_sleep is not None:
            self.on_sleep(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass without a sleep."""
        self._elapsed += seconds

    def jump(self, seconds: float) -> None:
        """Set the clock of the machine forward or back; no time passes by it."""
        self._start += seconds


class SimResponse:
    """An answer in memory."""

    def __init__(self, answer: SimAnswer, transport: SimTransport) -> None:
        self.closed = False
        self._answer = answer
        self._transport = transport

    @property
    def status(self) -> int:
        """The HTTP status code."""
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The response headers; names are in lower case."""
        return self._answer.headers

    def chunks(self) -> Iterator[bytes]:
        """Yield the decoded body, cut anywhere; `TransportError` where it breaks."""
        yield from decoded(self._answer.chunks(), self.headers.get("content-encoding"))
        if self._answer.broken is not None:
            self._transport.fail(stall=self._answer.broken.stall)

    def close(self) -> None:
        """Mark the response as done with."""
        if not self.closed:
            self.closed = True
            self._transport.open_responses -= 1


class SimTransport:
    """Sends requests to a `PortalSim`.

    `timeout` is what a stall costs on the clock. `on_request` is called before each request, so
    that a test can move the chain between two of them. `open_responses` counts what the client has
    not closed yet.
    """

    def __init__(
        self,
        portal: PortalSim,
        clock: VirtualClock,
        *,
        timeout: float = 20.0,
        accept_encoding: str = "identity",
        on_request: Callable[[Request], object] | None = None,
    ) -> None:
        self.portal = portal
        self.clock = clock
        self.on_request = on_request
        self.open_responses = 0
        self.closed = False
        self._timeout = timeout
        self._accept_encoding = accept_encoding

    def send(self, request: Request) -> SimResponse:
        """Answer at once; `TransportError` if the connection fails before the headers."""
        if self.on_request is not None:
            self.on_request(request)
        headers = {"accept-encoding": self._accept_encoding}
        answer = self.portal.respond(request, headers, now=self.clock.now())
        self.clock.advance(answer.delay)
        if answer.broken is not None and answer.broken.after is None:
            self.fail(stall=answer.broken.stall)
        self.open_responses += 1
        return SimResponse(answer, self)

    def close(self) -> None:
        """Note that the client is done."""
        self.closed = True

    def fail(self, *, stall: bool) -> None:
        """Raise what a broken connection raises, after the time it takes to notice."""
        if stall:
            self.clock.advance(self._timeout)
            raise TransportError("the portal stopped answering", timeout=self._timeout)
        raise TransportError("the connection was closed by the portal")
