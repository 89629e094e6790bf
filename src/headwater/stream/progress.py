"""How far and how fast: an estimate from the last batches."""

from __future__ import annotations

from collections import deque

from headwater.portal import Clock
from headwater.stream.context import Progress

WINDOW = 50


class ProgressTracker:
    """Measures blocks per second over the last batches of one run."""

    def __init__(self, clock: Clock) -> None:
        self.last: Progress | None = None
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def reached(self, first: int, current: int, last: int | None) -> Progress:
        """Note that the stream stands at `current`; return how far that is, and keep it."""
        self.last = self._measure(first, current, last)
        return self.last

    def _measure(self, first: int, current: int, last: int | None) -> Progress:
        self._samples.append((self._clock.monotonic(), current))
        (began, lowest), (now, highest) = self._samples[0], self._samples[-1]
        speed = (highest - lowest) / (now - began) if now > began and highest > lowest else None
        if last is None:
            return Progress(first, None, current, None, speed, None)
        if current >= last:
            return Progress(first, last, current, 100.0, speed, 0.0)
        percent = 0.0 if current <= first else 100 * (current - first) / (last - first)
        eta = None if speed is None else (last - current) / speed
        return Progress(first, last, current, percent, speed, eta)

    def went_back(self) -> None:
        """Forget the speed: a rollback would make it negative."""
        self._samples.clear()
