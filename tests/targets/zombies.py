"""A writer that pauses at a statement, and goes on when it is woken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.shared import HANG_S
from tests.targets import points


class Zombie:
    """Runs an action in a thread of its own, which pauses before the n-th statement of some."""

    def __init__(
        self,
        kind: str,
        target: Any,
        action: Callable[[], object],
        at: int,
        counts: Callable[[str], bool] = lambda sql: True,
    ) -> None:
        self.paused, self.woken = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.done = threading.Event()
        self.seen = 0
        self._kind, self._stop = kind, at
        self._counts = counts
        self.at = ""
        target.on_statement = self._hook
        self._action = action
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        while not (self.paused.wait(0.01) or self.done.is_set()):
            pass

    def _hook(self, sql: str) -> None:
        if self.paused.is_set() or not self._counts(sql):
            return
        self.seen += 1
        if self.seen > self._stop:
            self.at = sql
            points.note(self._kind, "paused", sql)
            self.paused.set()
            assert self.woken.wait(HANG_S)

    def _run(self) -> None:
        try:
            self._action()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error
        self.done.set()

    def wake(self) -> None:
        self.woken.set()
        self._thread.join(HANG_S)
        assert self.done.is_set()
