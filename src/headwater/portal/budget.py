"""How much one run asks of a portal, by all of its processes together.

The driver has the one `PortalBudget` of a run; its own clients ask it directly, those of executors
over a connection (`headwater.spark.relay`). A request begins when the budget lets it, and its
bytes are counted as they arrive. When the portal says that it is asked too much (429, 529, or 503
with Retry-After), nothing new begins until the time that it names has passed; then half as many
requests as before run at once, and one more each time that all of them have succeeded. Nothing of
it is stored: a restart begins without a pause.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Condition

from headwater.core.retry import parse_retry_after
from headwater.errors import InvalidOptionError
from headwater.portal.transport import Request, Response, Transport

OVERLOADED = frozenset({429, 529})
UNAVAILABLE = 503  # an overload if it says when to come back
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_LONGEST_S = 300.0
_LOOK_S = 0.1
_PIECE = 256 << 10  # bytes that are counted together


@dataclass(frozen=True, slots=True)
class PortalLimits:
    """What a run may ask of a portal, all executors together. None: what their cores can do.

    `requests` in flight at once; `bytes_per_second` of answers, decompressed, on average.
    """

    requests: int | None = None
    bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "bytes_per_second"):
            limit = getattr(self, name)
            if limit is not None and (type(limit) is not int or limit < 1):
                raise InvalidOptionError(f"{name} is a whole number from 1, or None", got=limit)


class Permits:
    """Asked by a client before and during a request. These permits let every request through."""

    def begin(self) -> None:
        """Wait until a request may begin."""

    def spend(self, size: int) -> None:
        """Count bytes that have arrived; wait until more may."""

    def refused(self, retry_after_s: float | None) -> None:
        """Note that the portal is asked too much."""

    def end(self, *, succeeded: bool) -> None:
        """Note that the request has ended."""

    def close(self) -> None:
        """Give back what is not given back at the end of each request."""


class PortalBudget:
    """The budget of one run. All methods may be called from any thread."""

    def __init__(
        self, limits: PortalLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits or PortalLimits()
        self._clock = clock
        self._changed = Condition()
        self._most = float(self.limits.requests or math.inf)
        self._allowed = self._most
        self._in_flight = 0
        self._refusals = 0
        self._was_refused = False
        self._resume_at = -math.inf
        self._rate = float(self.limits.bytes_per_second or math.inf)
        self._free_at = -math.inf  # when all bytes that have come are paid for

    @property
    def is_to_be_asked(self) -> bool:
        """Whether executors have to ask: a limit is set, or the portal has been asked too much."""
        limits = self.limits
        limited = limits.requests is not None or limits.bytes_per_second is not None
        return limited or self._was_refused

    def note_refusal(self) -> None:
        """Have executors ask from now on: the portal has refused one that did not."""
        self._was_refused = True

    def begin(self, sleep: Callable[[float], None] | None = None) -> None:
        """Wait until a request may begin; `sleep` is used instead of `wait`, and may raise."""
        sleep = sleep or self.wait
        while True:
            with self._changed:
                now = self._clock()
                pause = max(self._resume_at, self._free_at) - now
                if pause <= 0 and self._in_flight < max(1, int(min(self._allowed, 1e9))):
                    self._in_flight += 1
                    return
                wait_s = min(pause, _LOOK_S) if pause > 0 else _LOOK_S
            sleep(wait_s)

    def wait(self, seconds: float) -> None:
        """Wait until a request has ended, or for some seconds."""
        with self._changed:
            self._changed.wait(seconds)

    def spend(self, size: int, sleep: Callable[[float], None] = time.sleep) -> None:
        """Count bytes; wait while more have come than the rate allows, a second's worth apart."""
        with self._changed:
            now = self._clock()
            self._free_at = max(self._free_at, now - 1.0) + size / self._rate
            wait_s = self._free_at - now
        if wait_s > 0:
            sleep(wait_s)

    def refused(self, retry_after_s: float | None) -> None:
        """Let nothing begin for a while, and less at once afterwards.

        Refusals of requests that were under way together count once.
        """
        with self._changed:
            now = self._clock()
            self._was_refused = True
            if now >= self._resume_at:
                self._refusals += 1
                self._allowed = max(1.0, self._in_flight // 2)
            schedule = _PAUSES_S[min(self._refusals, len(_PAUSES_S)) - 1]
            pause = min(retry_after_s or schedule, _LONGEST_S)
            self._resume_at = max(self._resume_at, now + pause)

    def end(self, *, succeeded: bool) -> None:
        """Note that a request has ended; those that succeed let more run at once again."""
        with self._changed:
            self._in_flight -= 1
            if succeeded:
                self._refusals = 0
                self._allowed = min(self._most, self._allowed + 1 / self._allowed)
            self._changed.notify_all()


class DriverPermits(Permits):
    """The permits of a client on the driver. `sleep` is one that a stop of the run ends."""

    def __init__(self, budget: PortalBudget, sleep: Callable[[float], None]) -> None:
        self._budget = budget
        self._sleep = sleep

    def begin(self) -> None:
        """Wait until a request may begin."""
        self._budget.begin(self._sleep)

    def spend(self, size: int) -> None:
        """Count bytes; wait until more may come."""
        self._budget.spend(size, self._sleep)

    def refused(self, retry_after_s: float | None) -> None:
        """Slow all down."""
        self._budget.refused(retry_after_s)

    def end(self, *, succeeded: bool) -> None:
        """Note the end of a request."""
        self._budget.end(succeeded=succeeded)


class UnlimitedPermits(Permits):
    """The permits of a client that asks nobody. `on_refused` is told that the portal refuses."""

    def __init__(self, on_refused: Callable[[], None]) -> None:
        self._on_refused = on_refused

    def refused(self, retry_after_s: float | None) -> None:
        """Tell of it; the client itself waits before it asks again."""
        self._on_refused()


class LimitedTransport:
    """A transport whose requests keep within a budget. Runs on the driver and on executors."""

    def __init__(self, transport: Transport, permits: Permits) -> None:
        self._transport = transport
        self._permits = permits

    def send(self, request: Request) -> Response:
        """Send one request once it may begin; return when its headers are there."""
        self._permits.begin()
        try:
            response = self._transport.send(request)
        except BaseException:
            self._permits.end(succeeded=False)
            raise
        retry_after_s = parse_retry_after(response.headers.get("retry-after"), time.time())
        overloaded = response.status in OVERLOADED
        if overloaded or (response.status == UNAVAILABLE and retry_after_s is not None):
            self._permits.refused(retry_after_s)
        return _LimitedResponse(response, self._permits)

    def close(self) -> None:
        """Release every connection, and what is held of the budget."""
        self._transport.close()
        self._permits.close()


class _LimitedResponse:
    """One answer, counted; its place in the budget is free when it was read, or is closed."""

    def __init__(self, response: Response, permits: Permits) -> None:
        self._response = response
        self._permits = permits
        self._ended = False
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> Iterator[bytes]:
        size = 0
        for chunk in self._response.chunks():
            size += len(chunk)
            if size >= _PIECE:
                self._permits.spend(size)
                size = 0
            yield chunk
        if size:
            self._permits.spend(size)
        self._end()

    def close(self) -> None:
        self._response.close()
        self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._permits.end(succeeded=self.status < 400)
