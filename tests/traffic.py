"""What reaches a simulated portal at once: requests that are in flight for certain."""

from __future__ import annotations

import time
from threading import Lock
from typing import Any

import pytest

from headwater.testing.portal import server


class Traffic:
    """When requests came, and how many were held at once, and refusals.

    A request is held for a while before it is answered. Only then is it counted as in flight: while
    an answer is sent, its client may have read it to the end and asked for the next.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hold_s: float) -> None:
        self._lock = Lock()
        self._held = self.most = 0
        self.begun: list[float] = []
        self.refused: list[float] = []
        deliver = server._Handler._deliver

        def watched(handler: Any, answer: Any, *, chunked: bool) -> None:
            self._begin(answer)
            time.sleep(hold_s)
            with self._lock:
                self._held -= 1
            deliver(handler, answer, chunked=chunked)

        monkeypatch.setattr(server._Handler, "_deliver", watched)

    def _begin(self, answer: Any) -> None:
        with self._lock:
            self._held += 1
            self.most = max(self.most, self._held)
            self.begun.append(time.monotonic())
            if answer.status == 429:
                self.refused.append(time.monotonic())
