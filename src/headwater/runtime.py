"""What a run hands to its parts: the time, how to wait, whom to tell, how to stop, what to record.

One `Runtime` is made for each run, and given to its source, its target (`bind`) and the run itself
before any of them begins: none of them is assigned to later.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event as Flag
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from headwater.portal import Clock, Notice, SystemClock, log_notice

if TYPE_CHECKING:
    from headwater.metrics import StreamRecord

logger = logging.getLogger("headwater.stream")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 2.0  # what a stop leaves executors to end their part of a batch
LOOK_S = 0.2  # how often it looks whether they do something then
BREAK_OFF_S = 1.5  # what a second signal leaves the run to end by itself


class StopRequested(BaseException):
    """The run is to end; not an error.

    A listener may raise it to end a run cleanly: `pipe_to` then returns.
    """


class StopNow(StopRequested):
    """A second signal: the run breaks off wherever it is."""


class Reached(Protocol):
    """A run that a stop is to reach wherever it waits. Both calls come from other threads."""

    def abort(self) -> None:
        """Break off the request that waits for its answer."""
        ...

    def cancel(self) -> bool:
        """End what executors do; tell whether they did anything."""
        ...


class Interrupt:
    """Turns signals and calls of `request` into `StopRequested`, at moments when that is harmless.

    Handlers are installed on the main thread only, and put back when the run is over. `signal` is
    the signal that came first, `gave_up` whether executors were not waited for.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.gave_up = False
        self._reached: list[Reached] = []
        self._say: Callable[[str], None] = logger.warning
        self._breaking_off: list[Thread] = []
        self._requested = Flag()
        self._over = Flag()
        self._answered = False
        self._busy = False

    @contextmanager
    def reaching(self, run: Reached) -> Iterator[None]:
        """Have a stop reach what a run waits for, as long as the run is open.

        A run that fills a part for another one is reached as well as that one.
        """
        self._reached.append(run)
        try:
            yield
        finally:
            self._reached.remove(run)

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
        before: dict[int, Any] = {number: signal.signal(number, self._handle) for number in SIGNALS}
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
            for run in tuple(self._reached):
                run.abort()

    def break_off(self) -> None:
        """End what executors do: what the run waits for fails. Called from another thread.

        Where no executor works, for example while a database commits, nothing changes.
        """
        cancelled = [run.cancel() for run in tuple(self._reached)]
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


Wait = Callable[[float, str], None]
"""Waits so many seconds, and is told for what."""


def sleep(seconds: float, why: str) -> None:
    """Wait, where nobody watches."""
    time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the parts of a run share.

    `clock` says the time, and its pauses are ended by a stop. `wait` waits for a server that is
    away: a stream that runs shows why, and a stop ends the wait. `tell` is told of what a client
    meets. `stop` is asked whether the run is to end. `record` keeps the figures of a stream.
    """

    clock: Clock = SystemClock()  # noqa: RUF009 - immutable
    wait: Wait = sleep
    tell: Callable[[Notice], None] = log_notice
    stop: Interrupt = field(default_factory=Interrupt)
    record: StreamRecord | None = None

    @classmethod
    def of(
        cls, record: StreamRecord, stop: Interrupt | None = None, clock: Clock | None = None
    ) -> Runtime:
        """Return the runtime of a stream, which shows in its record what it waits for."""
        interrupt = Interrupt() if stop is None else stop

        def wait(seconds: float, why: str) -> None:
            record.waits_for_target(why)
            interrupt.wait(seconds)

        def tell(notice: Notice) -> None:
            log_notice(notice)
            record.noticed(notice)

        return cls(clock or StoppableClock(interrupt), wait, tell, interrupt, record)


ALONE = Runtime()
"""That of a target which no stream runs: in a command, or in a test."""
