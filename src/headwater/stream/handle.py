"""The handle of a run that `start` returns: how far it is, `stop()`, and how it ended.

While the loop waits for the portal, a stop ends it at once: a pause is cut short, and so is a
request that waits for its answer. While the target is being changed the stop waits until the change
is whole, so the batch in hand commits or vanishes. Executors that take long over their part of it,
because the portal is away for example, are not waited for: their jobs are cancelled after some
seconds. A second signal does not wait at all: the run breaks off where it is, and if that takes
longer than a moment, the process ends. Each of these is a crash to the target, from which the next
start recovers.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from html import escape
from threading import Event as Flag
from threading import Thread, current_thread
from typing import TYPE_CHECKING

from headwater.core.callbacks import Callback
from headwater.core.messages import Committed, Event, Listener
from headwater.errors import StoppedSparkError
from headwater.metrics import StreamRecord, announce
from headwater.runtime import LOOK_S, PATIENCE_S, Interrupt, StopRequested
from headwater.spark.local_start import ignoring_interrupts
from headwater.stream.context import Progress
from headwater.stream.user_code import headline
from headwater.stream.view import describe

if TYPE_CHECKING:
    from headwater.stream.run import Run

logger = logging.getLogger("headwater.stream")

LEAVE_S = 2.0  # what a program that ends leaves a stream that it has not stopped
RECENT = 100  # how many entries `recent_progress` has at most


class StreamHandle:
    """A stream that runs in a thread of its own. Made by `stream.start(target)`.

    Its names are those of Spark's `StreamingQuery`. All of it may be called from any thread.
    """

    def __init__(
        self,
        record: StreamRecord,
        work: Callable[[StreamHandle], None],
        on_event: Listener | None,
    ) -> None:
        self.id = record.id
        self.record = record
        self.interrupt = Interrupt()
        self._work = work
        self._tell = Callback.optional("on_event", on_event, "event")
        self._recent: deque[Progress] = deque(maxlen=RECENT)
        self._error: BaseException | None = None
        self._thread: Thread | None = None
        self._finished = Flag()

    def __repr__(self) -> str:
        return f"StreamHandle[{describe(self.record)}]"

    def _repr_html_(self) -> str:
        """Show in a notebook where the stream is."""
        progress = self.last_progress
        done = None if progress is None else progress.percent
        bar = "" if done is None else f'<progress max="100" value="{done:.1f}"></progress> '
        return f"<div>{bar}<code>{escape(describe(self.record))}</code></div>"

    @property
    def is_active(self) -> bool:
        """Whether the stream is running."""
        return self._thread is not None and not self._finished.is_set()

    @property
    def last_progress(self) -> Progress | None:
        """How far the stream was with its last commit; None before the first one of this run."""
        return self._recent[-1] if self._recent else None

    @property
    def recent_progress(self) -> list[Progress]:
        """The progress of the last commits of this run, oldest first; 100 at most."""
        return list(self._recent)

    def exception(self) -> BaseException | None:
        """Return what the stream ended with; None while it runs, and after a clean end."""
        return None if self.is_active else self._error

    def stop(self) -> None:
        """End the run, and wait until it has ended: the batch in hand commits or vanishes.

        Called by a listener, in the stream's own thread, it only asks for the end. A stream that
        has ended already stays as it is. An error of the stream is not raised here.
        """
        stop_all([self])

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the stream has ended, for `timeout` seconds at most; tell whether it has.

        Raises:
            BaseException: what the stream ended with.
        """
        if not self._wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def _wait(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended; tell whether it has. A signal may end the wait.

        Python 3.11 takes a thread for ended if an exception ends `join`, so a flag is waited for.
        """
        if self._thread is None:
            return True
        if not self._finished.wait(timeout):
            return False
        self._thread.join()
        return True

    # --- what the stream calls --------------------------------------------------------------------

    def run(self) -> None:
        """Run in this thread until the range is read, or until a stop."""
        announce(self.record)
        try:
            self._work(self)
        except StopRequested:
            self._stopped()
        except Exception as error:
            stopped = isinstance(error, StoppedSparkError)
            if self.interrupt.signal is None and not self.interrupt.gave_up and not stopped:
                self.record.ended(error)
                raise
            # signals reach executors, too, and what they worked at then fails
            reason = "jobs were cancelled" if self.interrupt.gave_up else error
            logger.warning("stream.broken_off id=%s error=%s", self.id, reason)
            self._stopped()
        except BaseException as error:
            self.record.ended(error)
            raise
        else:
            self.record.ended()

    def _stopped(self) -> None:
        self.record.ended(stopped=True)
        logger.info("stream.stopped id=%s", self.id)

    def start(self) -> StreamHandle:
        """Run in a thread of its own."""
        name = f"headwater-{self.id}"
        self._thread = Thread(target=self._run_and_keep_error, name=name, daemon=True)
        self._thread.start()
        atexit.register(self._leave)
        return self

    def _leave(self) -> None:
        """Let a stream that still runs when the program ends come to a clean end, if it is quick.

        A thread that outlives the interpreter is frozen where it is, and extensions report leaks.
        """
        self.interrupt.request()
        with ignoring_interrupts():
            self._wait(LEAVE_S)

    def listener(self, run: Run) -> Listener:
        """Return what notes how far a run is, and tells the user's listener of every event."""

        def hear(event: Event) -> None:
            if isinstance(event, Committed) and run.progress is not None:
                self._recent.append(run.progress)
            if self._tell is not None:
                self._tell(event)

        return hear

    def _run_and_keep_error(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - `await_termination` raises it
            self._error = error
            logger.error("stream.failed id=%s error=%s", self.id, headline(error))  # noqa: TRY400
        finally:
            self._finished.set()
            atexit.unregister(self._leave)


def stop_all(handles: Sequence[StreamHandle]) -> None:
    """Ask all of them to end, and wait until they have; executors are not waited for long.

    A handle whose thread calls this is only asked.
    """
    end = time.monotonic() + PATIENCE_S
    for handle in handles:
        handle.interrupt.request()
    waited = [one for one in handles if one._thread is not current_thread()]
    for handle in waited:
        while not handle._wait(LOOK_S):
            if time.monotonic() > end:
                for each in waited:
                    each.interrupt.break_off()
