"""Carries messages to a deliverer, in order, in a thread of its own: no receiver slows a stream.

A batch that fails is tried again after a growing pause. One that is refused, or has failed too
often, is taken apart: its messages go one by one, so that only those which fail again become dead
letters. The courier knows no target: what it has done is reported to the loop, which settles it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread

from headwater.core.callbacks import Callback
from headwater.effects.message import Message
from headwater.errors import AsyncCallbackError, DeliveryError, DeliveryRefusedError, HeadwaterError
from headwater.portal import RetryPolicy

logger = logging.getLogger("headwater.effects")

STOP_S = 10.0
REASON_CHARACTERS = 500
Deliver = Callable[[list[Message]], object]


@dataclass(frozen=True, slots=True)
class Dead:
    """A message that was given up."""

    message: Message
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Report:
    """The deliveries since the last report.

    `busy`: more is under way. `settled` is the newest message that needs no more work. `pause_s`:
    try again after it.
    """

    busy: bool
    settled: Message | None
    count: int
    dead: tuple[Dead, ...]
    pause_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    refused: bool
    retry_after_s: float | None


class Courier:
    """Delivers one subscription's messages. All methods are called by the loop's thread."""

    def __init__(
        self, deliver: Deliver, batch_size: int, retry: RetryPolicy, *, background: bool = True
    ) -> None:
        self._deliver = deliver
        self._call = Callback("deliver", deliver, "messages")
        self._batch_size = batch_size
        self._retry = retry
        self._background = background
        self._lock = Lock()
        self._stopping = Event()
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._failures = 0  # in a row, of the batch that comes next
        self._messages: Sequence[Message] = ()
        self._done = self._reported = 0
        self._dead: list[Dead] = []
        self._pause: tuple[float, str] | None = None

    def hand(self, messages: Sequence[Message]) -> None:
        """Begin to deliver messages. The last report must have said that nothing is under way."""
        self._messages, self._done, self._reported = messages, 0, 0
        if not self._background:
            self._carry()
            return
        self._thread = Thread(target=self._run, name="headwater-courier", daemon=True)
        self._thread.start()

    def report(self) -> Report:
        """Return what was done since the last report; raise what no message can be blamed for."""
        busy = self._thread is not None and self._thread.is_alive()
        with self._lock:
            if self._error is not None and not busy:
                raise self._error
            done, count = self._done, self._done - self._reported
            dead, self._dead, self._reported = tuple(self._dead), [], done
            pause, reason = (None, "") if busy or self._pause is None else self._pause
            if not busy:
                self._pause = None
        settled = self._messages[done - 1] if count else None
        return Report(busy, settled, count, dead, pause, reason)

    def wait(self) -> None:
        """Wait until all messages are delivered, or one has failed."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Begin no other delivery; wait a little for the one that is under way."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                logger.warning("outbox.left a delivery is still under way after %.0f s", STOP_S)
        close = getattr(self._deliver, "close", None)
        if callable(close):
            close()

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._carry()
        except BaseException as error:  # noqa: BLE001 - raised again where the loop can see it
            self._error = error

    def _carry(self) -> None:
        at = 0
        while at < len(self._messages) and not self._stopping.is_set():
            batch = self._messages[at : at + self._batch_size]
            failure = self._attempt(batch)
            if failure is None:
                at += len(batch)
                self._failures = 0
                self._note(at)
                continue
            self._failures += 1
            limit = self._retry.attempts
            exhausted = limit is not None and self._failures >= limit
            if failure.refused or exhausted:
                at, failure = self._one_by_one(at, batch, failure, exhausted=exhausted)
                self._failures = 0 if failure is None else 1
            if failure is not None:
                pause = self._retry.pause_s(self._failures, random.random, failure.retry_after_s)
                self._pause = (pause, failure.reason)
                return

    def _one_by_one(
        self, at: int, batch: Sequence[Message], failure: _Failure, *, exhausted: bool
    ) -> tuple[int, _Failure | None]:
        """Deliver the messages of a batch singly; stop at one that only fails for now."""
        for message in batch:
            if self._stopping.is_set():
                break
            found: _Failure | None = failure
            if len(batch) > 1:
                found = self._attempt([message])
            if found is not None and not found.refused and not exhausted:
                return at, found
            at += 1
            self._note(at, None if found is None else Dead(message, found.reason, self._failures))
        return at, None

    def _attempt(self, batch: Sequence[Message]) -> _Failure | None:
        try:
            self._call(batch)
        except AsyncCallbackError:
            raise  # no message can be blamed for it: the run ends, and all of them are kept
        except DeliveryRefusedError as error:
            return _Failure(str(error), True, None)
        except DeliveryError as error:
            return _Failure(str(error), False, error.retry_after_s)
        except Exception as error:  # noqa: BLE001 - whatever user code raises is tried again
            coded = isinstance(error, HeadwaterError)
            reason = str(error) if coded else f"{type(error).__name__}: {error}"
            return _Failure(reason[:REASON_CHARACTERS], False, None)
        return None

    def _note(self, at: int, dead: Dead | None = None) -> None:
        with self._lock:
            self._done = at
            if dead is not None:
                self._dead.append(dead)
