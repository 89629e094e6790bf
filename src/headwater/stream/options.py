"""How a stream reads: sizes, pauses and patience. Made by `portal_stream`, used by each run."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core import DEFAULT_CAP, SpanLimits
from headwater.errors import InvalidOptionError
from headwater.portal import RetryPolicy, Timeouts

FAR = 1000  # blocks behind the finalized head at which executors take over
FIRST_SPAN = 2000


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Options of `portal_stream` that say how blocks are read; checked when the stream is made.

    `retry` and `timeouts` count on the driver and, pickled, on executors.
    """

    far: int = FAR
    first_span: int = FIRST_SPAN
    spans: SpanLimits = SpanLimits()  # noqa: RUF009 - immutable
    poll_interval_s: float = 0.25
    max_bytes: int = 10 * 1024 * 1024
    retry: RetryPolicy = RetryPolicy()  # noqa: RUF009 - immutable
    timeouts: Timeouts = Timeouts()  # noqa: RUF009 - immutable
    rollback_cap: int = DEFAULT_CAP

    def __post_init__(self) -> None:
        for name in ("far", "first_span", "max_bytes", "rollback_cap"):
            given = getattr(self, name)
            if type(given) is not int or given < 1:
                raise InvalidOptionError(f"{name} is a whole number from 1", got=repr(given))
        seconds = self.poll_interval_s
        if type(seconds) not in (int, float) or not seconds > 0:
            raise InvalidOptionError("poll_interval_s is a number above 0", got=repr(seconds))
        if not isinstance(self.retry, RetryPolicy):
            raise InvalidOptionError("retry is a RetryPolicy(…)", got=repr(self.retry))
        if not isinstance(self.timeouts, Timeouts):
            raise InvalidOptionError("timeouts are Timeouts(…)", got=repr(self.timeouts))
