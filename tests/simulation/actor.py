"""A thread that runs only while it is told to: it stops between two statements like SIGSTOP would.

The simulation and its actors pass one turn around, so at any moment one of them runs, and a seed
always plays the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headwater.testing.conformance import Crash

POLL_S = 0.02


class Actor:
    """Runs `work` in a thread of its own and of its name, from one `pause` to the next.

    `work` calls `pause` where it can be stopped. `run` lets it go on.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.is_over = False
        self.failure: BaseException | None = None
        self._work = work
        self._killed = False
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._running = False

    @property
    def has_turn(self) -> bool:
        """Whether it is the actor that asks."""
        return threading.current_thread() is self._thread

    @property
    def is_blocked(self) -> bool:
        """Whether it was told to run and has not come back: something outside holds it."""
        return self._running

    def run(self, limit_s: float, is_held: Callable[[], bool] = lambda: False) -> bool:
        """Let it run to its next pause, or to its end; or wait for it, if it is blocked.

        Returns False if it does not come back: `is_held`, asked now and then, says that it cannot,
        or the time is up.
        """
        if self.is_over:
            return True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        elif not self._running:
            self._go.release()
        self._running = True
        waited = 0.0
        while not self._back.acquire(timeout=POLL_S):
            waited += POLL_S
            if is_held() or waited > limit_s:
                return False
        self._running = False
        return True

    def kill(self) -> None:
        """Let it die where it has paused; one that never ran is over at once.

        One that is blocked dies at its next pause.
        """
        self._killed = True
        if self._thread is None:
            self.is_over = True

    def pause(self) -> None:
        """Give the turn back, and wait for the next. Called by `work`."""
        self._back.release()
        self._go.acquire()
        self.live()

    def live(self) -> None:
        """Raise `Crash` if it was killed. Called by `work`."""
        if self._killed:
            raise Crash

    def _run(self) -> None:
        try:
            self.live()
            self._work()
        except BaseException as error:  # noqa: BLE001 - judged by whoever runs it
            self.failure = error
        self.is_over = True
        self._back.release()
