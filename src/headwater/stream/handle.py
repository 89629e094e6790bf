"""A run that one can stop and ask: signals, `stop()`, and the handle that `start` returns.

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
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event as Flag
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any

from headwater.core.callbacks import Callback
from headwater.core.messages import Committed, Event, Listener
from headwater.errors import StoppedSparkError, TransportError
from headwater.metrics import StreamRecord, announce
from headwater.portal import Request, Response, SourceTransport, SystemClock
from headwater.spark.local_start import ignoring_interrupts
from headwater.stream.context import Progress

if TYPE_CHECKING:
    from headwater.stream.run import Run

logger = logging.getLogger("headwater.stream")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 2.0  # what a stop leaves executors to end their part of a batch
LOOK_S = 0.2  # how often it looks whether they do something then
BREAK_OFF_S = 1.5  # what a second signal leaves the run to end by itself
LEAVE_S = 2.0  # what a program that ends leaves a stream that it has not stopped
RECENT = 100  # how many entries `recent_progress` has at most


class StopRequested(BaseException):
    """The run is to end; not an error.

    A listener may raise it to end a run cleanly: `pipe_to` then returns.
    """


class StopNow(StopRequested):
    """A second signal: the run breaks off wherever it is."""


class Interrupt:
    """Turns signals and calls of `request` into `StopRequested`, at moments when that is harmless.

    Handlers are installed on the main thread only, and put back when the run is over. `signal` is
    the signal that came first, `gave_up` whether executors were not waited for.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.gave_up = False
        self._reached: list[tuple[Callable[[], None], Callable[[], bool]]] = []
        self._say: Callable[[str], None] = logger.warning
        self._breaking_off: list[Thread] = []
        self._requested = Flag()
        self._over = Flag()
        self._answered = False
        self._busy = False

    @contextmanager
    def reaching(self, abort: Callable[[], None], cancel: Callable[[], bool]) -> Iterator[None]:
        """Have a stop reach what a run waits for, as long as the run is open.

        `abort` breaks off a request that waits for its answer, `cancel` ends what executors do and
        tells whether they did anything. Both are called from other threads. A run that fills a part
        for another one is reached as well as that one.
        """
        reached = (abort, cancel)
        self._reached.append(reached)
        try:
            yield
        finally:
            self._reached.remove(reached)

    @contextmanager
    def handling(self, say: Callable[[str], None] | None = None) -> Iterator[None]:
        """Handle signals for the duration of a run; `say` tells a person what comes of them.

        Python runs a handler once the main thread is back from C code, which may take long while a
        database works. So a thread hears of signals as well, by the file descriptor that Python
        writes them to at once: it answers the first, and ends the process after the second.
        """
        if current_thread() is not main_thread():
            yield
            return
        self._say = say or self._say
        heard, told = socket.socketpair()
        told.setblocking(False)
        before: dict[int, Any] = {one: signal.signal(one, self._handle) for one in SIGNALS}
        fd = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        listener = Thread(target=self._listen, args=(heard,), name="headwater-signals", daemon=True)
        listener.start()
        try:
            yield
        finally:
            self._over.set()
            signal.set_wakeup_fd(fd)
            for one, handler in before.items():
                signal.signal(one, handler)
            told.close()
            for thread in (listener, *self._breaking_off):
                thread.join(BREAK_OFF_S)
            if self.signal is not None:
                self._answer()  # the listener may have missed it

    def exit_code(self) -> int | None:
        """Return what a program that was ended by a signal exits with; None if there was none."""
        return None if self.signal is None else 128 + self.signal

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Let a stop wait until this block is done, and its outcome was told (`check`)."""
        self._busy = True
        yield
        # A failure ends the run anyway; what succeeded stays protected until `check`.

    def check(self) -> None:
        """End the run if a stop has waited. Called after each event, once it was told."""
        self._busy = False
        self.check_if_idle()

    def check_if_idle(self) -> None:
        """End the run if a stop was requested and the target is not being changed."""
        if self._requested.is_set() and not self._busy:
            raise StopRequested

    def sleep(self, seconds: float) -> None:
        """Wait; a stop ends the wait, and the run."""
        if self._busy:
            time.sleep(seconds)
        elif self._requested.wait(seconds):
            raise StopRequested

    def wait(self, seconds: float) -> None:
        """Wait inside a change of the target that can be broken off; a stop ends the run."""
        if self._requested.wait(seconds):
            raise StopRequested

    def request(self) -> None:
        """Ask the run to end. Called from another thread, or by a listener."""
        self._requested.set()
        if not self._busy:
            for abort, _ in tuple(self._reached):
                abort()

    def break_off(self) -> None:
        """End what executors do: what the run waits for fails. Called from another thread.

        Where no executor works, for example while a database commits, nothing changes.
        """
        cancelled = [cancel() for _, cancel in tuple(self._reached)]
        if any(cancelled) and not self.gave_up:
            self.gave_up = True
            self._say("the batch in hand is dropped, and read again next time")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Run in the main thread, between two of its steps."""
        if self.signal is not None:
            raise StopNow
        self.signal = number
        self._requested.set()
        if not self._busy:
            raise StopRequested

    def _listen(self, heard: socket.socket) -> None:
        """Run in a thread of its own until the run is over."""
        signals = 0
        with heard:
            while number := heard.recv(1):
                signals += number[0] in SIGNALS
                if signals == 1:
                    self._answer()
                    breaking_off = Thread(target=self._lose_patience, daemon=True)
                    self._breaking_off.append(breaking_off)
                    breaking_off.start()
                elif signals > 1 and not self._over.wait(BREAK_OFF_S):
                    self._say("stopped in the middle of a batch; the next start recovers")
                    os._exit(128 + number[0])

    def _lose_patience(self) -> None:
        """Break off what is not done in time; at once where the target is not being changed."""
        end = time.monotonic() + PATIENCE_S
        while not self._over.wait(LOOK_S):
            if not self._busy or time.monotonic() > end:
                self.break_off()

    def _answer(self) -> None:
        """Answer the first signal, once."""
        if not self._answered:
            self._answered = True
            self._say("stopping after this batch; press again to stop now")


class StoppableClock(SystemClock):
    """The real time, with pauses that a stop ends."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt

    def sleep(self, seconds: float) -> None:
        """Wait, until a stop at most."""
        self._interrupt.sleep(seconds)


class StoppableTransport:
    """Requests that a stop breaks off. Used by the driver's client alone."""

    def __init__(
        self, transport: SourceTransport, interrupt: Interrupt, record: StreamRecord
    ) -> None:
        self._transport = transport
        self._record = record
        self._interrupt = interrupt

    def abort(self) -> None:
        """Break off the request that is under way. Called from any thread."""
        self._transport.abort()

    def send(self, request: Request) -> Response:
        """Send one request, unless the run is to end."""
        self._interrupt.check_if_idle()
        try:
            response = self._transport.send(request)
        except TransportError:
            self._record.asked(None)
            raise
        self._record.asked(response.status)
        return response

    def close(self) -> None:
        """Release every connection."""
        self._transport.close()


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

    def on_event(self, event: Event, run: Run) -> None:
        """Note how far the run is, and tell the listener."""
        if isinstance(event, Committed) and run.progress is not None:
            self._recent.append(run.progress)
        if self._tell is not None:
            self._tell(event)

    def _run_and_keep_error(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - `await_termination` raises it
            self._error = error
            logger.error("stream.failed id=%s error=%s", self.id, error)  # noqa: TRY400
        finally:
            self._finished.set()
            atexit.unregister(self._leave)


def stop_all(handles: Sequence[StreamHandle]) -> None:
    """Ask all of them to end, and wait until they have; executors are not waited for long.

    A handle whose thread calls this is only asked.
    """
    end = time.monotonic() + PATIENCE_S
    for one in handles:
        one.interrupt.request()
    waited = [one for one in handles if one._thread is not current_thread()]
    for one in waited:
        while not one._wait(LOOK_S):
            if time.monotonic() > end:
                for each in waited:
                    each.interrupt.break_off()
