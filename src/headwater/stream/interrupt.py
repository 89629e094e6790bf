"""Clean stop on SIGINT and SIGTERM: the batch in hand commits, or vanishes.

While the loop waits for the portal a signal ends it at once. While the target is being changed the
signal waits until the change is whole. A second signal does not wait.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequested(BaseException):
    """Somebody wants the run to end; not an error.

    An observer may raise it to end a run cleanly: `pipe_to` then returns.
    """


class Interrupt:
    """Turns signals into `StopRequested`, at moments when that does no harm.

    Handlers are installed on the main thread only, and put back when the run is over.
    """

    def __init__(self) -> None:
        self._requested = False
        self._busy = False

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle signals for the duration of a run."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {one: signal.signal(one, self._handle) for one in SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Let a signal wait until this block is done, and its outcome was told (`check`)."""
        self._busy = True
        yield
        # A failure ends the run anyway; what succeeded stays protected until `check`.

    def check(self) -> None:
        """End the run if a signal has waited. Called after each event, once it was told."""
        self._busy = False
        if self._requested:
            raise StopRequested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
        if not self._busy:
            raise StopRequested
