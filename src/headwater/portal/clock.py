"""Time as an argument, so that retry schedules and stalls can be tested without waiting."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the client needs of time."""

    def monotonic(self) -> float:
        """Seconds that only grow; for durations."""
        ...

    def now(self) -> float:
        """Seconds since 1970 UTC; only to read HTTP dates."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The real one."""

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def now(self) -> float:
        """Return `time.time()`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait for real."""
        time.sleep(seconds)
