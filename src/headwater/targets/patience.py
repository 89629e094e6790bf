"""How long a server that is away is waited for, visibly, by the driver and by executors."""

from __future__ import annotations

import time

from headwater.runtime import Wait

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.05, 5.0


def delay_s(failures: int) -> float:
    """Return how long to wait after so many failures."""
    return min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** (failures - 1))


class Patience:
    """How long failures of one piece of work are borne: `attempts` times, or else `wait_s` long."""

    def __init__(self, attempts: int | None, wait_s: float, pause: Wait) -> None:
        self.failures = 0
        self._attempts = attempts
        self._wait_s = wait_s
        self._pause = pause
        self._began = time.monotonic()

    def ends(self) -> bool:
        """Count a failure; tell whether it was the last one."""
        if not self.failures:
            self._began = time.monotonic()
        self.failures += 1
        if self._attempts is not None:
            return self.failures >= self._attempts
        return time.monotonic() - self._began >= self._wait_s

    def wait(self, why: str) -> None:
        """Wait before the next attempt."""
        self._pause(delay_s(self.failures), why)
