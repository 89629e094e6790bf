"""When to ask again, and how long to wait first. Pure: time and chance are arguments.

A stream must outlive any outage of its portal, so by default the number of attempts has no bound;
the pauses grow to 20 s and a stall is reported instead. A single question (the head, a timestamp)
is asked a bounded number of times, because a caller waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from headwater.errors import InvalidOptionError

RETRYABLE_STATUSES = frozenset({429, 502, 503, 504, 521, 522, 523, 524, 529})
SERVER_ERROR = 500
MAX_SERVER_ERRORS = 5  # 500 is as often a defect as an accident: tried again, but not for ever


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Pauses between attempts, and their limits. An attempt counts while nothing has arrived.

    `attempts=None`: no bound for streams, 10 for single questions. `jitter` is the share of a pause
    that chance may take away, so that many executors do not return at the same moment.
    """

    schedule_s: tuple[float, ...] = (0.01, 0.1, 0.5, 2, 10, 20)
    jitter: float = 0.5
    attempts: int | None = None
    retry_after_cap_s: float = 300
    stall_after_s: float = 30

    def __post_init__(self) -> None:
        if not self.schedule_s or not all(0 <= pause < math.inf for pause in self.schedule_s):
            raise InvalidOptionError(
                "schedule_s must hold at least one pause, none below 0", got=self.schedule_s
            )
        if not 0 <= self.jitter <= 1:
            raise InvalidOptionError("jitter must be from 0 to 1", got=self.jitter)
        if self.attempts is not None and self.attempts < 1:
            raise InvalidOptionError("attempts must be at least 1, or None", got=self.attempts)
        if not self.retry_after_cap_s >= 0:
            raise InvalidOptionError(
                "retry_after_cap_s must not be below 0", got=self.retry_after_cap_s
            )
        if not self.stall_after_s > 0:
            raise InvalidOptionError("stall_after_s must be above 0", got=self.stall_after_s)

    def pause_s(
        self, failures: int, random: Callable[[], float], retry_after_s: float | None = None
    ) -> float:
        """Return the pause after this many failures in a row (1 is the first).

        What the server asks for wins, up to the cap. "Retry after 0 seconds" is no answer to how
        long, so the schedule decides; otherwise such a server would be asked in a busy loop.
        """
        if retry_after_s:
            return min(retry_after_s, self.retry_after_cap_s)
        base = self.schedule_s[min(failures, len(self.schedule_s)) - 1]
        return base * (1 - self.jitter * random())


def is_retryable(status: int, retry_after_s: float | None, server_errors: int = 0) -> bool:
    """Tell whether a request that got this status may be sent again.

    `server_errors` is how many times in a row the portal has answered 500, this one included.
    """
    if 200 <= status < 300 or status == 409:
        return False
    if status in RETRYABLE_STATUSES or retry_after_s is not None:
        return True
    return status == SERVER_ERROR and server_errors <= MAX_SERVER_ERRORS


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Read a Retry-After header: seconds or an HTTP date. A past date is 0, anything else None."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return _seconds_until(value, now)
    return seconds if 0 <= seconds < math.inf else None


def _seconds_until(value: str, now: float) -> float | None:
    try:
        date = parsedate_to_datetime(value)
        aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return max(0.0, aware.timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None
