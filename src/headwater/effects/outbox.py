"""The transactional outbox: a message is stored with its batch, and delivered once it is final.

A message row is written in the transaction of its batch, so it exists exactly if its block is in
the stored state; a fork takes it away with the block. Once the high-water mark has passed the block
nothing can, and the message is delivered and then removed. A crash in between delivers it again,
with the same key. One subscription is one table, `headwater_outbox_<name>`.

The courier delivers in order, in a thread of its own: no receiver slows a stream. A batch that
fails is tried again after a growing pause. One that is refused, or has failed too often, is taken
apart: its messages go one by one, so that only those which fail again become dead letters. The
courier knows no target: it reports what it has done to the loop, which settles it.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import Batch, PipeState
from headwater.core.callbacks import Callback
from headwater.effects.dead_letters import DEAD_LETTERS, dead_letter_rows, outbox_table
from headwater.effects.message import Message, collect_messages, read_messages
from headwater.errors import (
    AsyncCallbackError,
    DeliveryError,
    DeliveryRefusedError,
    HeadwaterError,
    InvalidOptionError,
)
from headwater.portal import Clock, RetryPolicy, SystemClock
from headwater.targets.contract import Delivery, KeepsSideTables, SideTable

WINDOW = 10_000  # messages in hand at once
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
RETRY = RetryPolicy(
    schedule_s=(1, 2, 4, 8, 16, 32, 64, 128, 256, 300), attempts=12, retry_after_cap_s=3600
)
STOP_S = 10.0
REASON_CHARACTERS = 500
Deliver = Callable[[list[Message]], object]
_COUNTED = 100_000  # rows of an outbox that are read at once, when a run begins
logger = logging.getLogger("headwater.effects")


@dataclass(frozen=True, slots=True)
class Subscription:
    """The arguments of `on_finalized`. Called with a stream's id it makes the outbox of a run."""

    output: str
    deliver: Deliver
    name: str
    batch_size: int = 100
    retry: RetryPolicy = RETRY

    def __post_init__(self) -> None:
        Callback("deliver", self.deliver, "messages")
        if not NAME.fullmatch(self.name):
            raise InvalidOptionError(
                "a name has at most 40 letters, digits and underscores: give name=", got=self.name
            )
        if self.batch_size < 1:
            raise InvalidOptionError("batch_size must be at least 1", got=self.batch_size)

    def __call__(self, stream_id: str) -> Outbox:
        """Make the outbox of one run."""
        return Outbox(stream_id, self, SystemClock())


class Depth(NamedTuple):
    """How much of an outbox waits: messages, and how many blocks the oldest is behind finality."""

    name: str
    messages: int
    age_blocks: int


class Outbox:
    """An extension of a running stream: stores messages, hands them to the courier, settles them.

    All calls come from the loop's thread. With `background=False` deliveries are made there too.
    """

    def __init__(
        self, stream_id: str, subscription: Subscription, clock: Clock, *, background: bool = True
    ) -> None:
        self._id = stream_id
        self._output = subscription.output
        self._name = subscription.name
        self._table = outbox_table(subscription.name)
        self._courier = Courier(
            subscription.deliver, subscription.batch_size, subscription.retry, background=background
        )
        self._clock = clock
        self._target: KeepsSideTables | None = None
        self._not_before = 0.0
        self._searched = -1  # nothing is waiting up to this block
        self._waiting: dict[int, int] = {}  # messages that are not settled, by block, oldest first

    @property
    def tables(self) -> Sequence[SideTable]:
        """The outbox, and the dead letters of the whole stream."""
        return [self._table, DEAD_LETTERS]

    def start(self, target: KeepsSideTables, state: PipeState) -> None:
        """Go on with what an earlier run has left."""
        self._target = target
        self._waiting, after = {}, None
        while True:
            rows = target.read_side_table(self._table.name, after=after, limit=_COUNTED)
            self._count(rows)
            if rows.num_rows < _COUNTED:
                break
            after = rows["block_number"][-1].as_py(), rows["ordinal"][-1].as_py()
        self.advanced(state)

    def rows(self, batch: Batch[Delivery]) -> Mapping[str, pa.Table]:
        """Return the messages of a batch."""
        messages = collect_messages(self._id, self._output, batch)
        self._count(messages)
        return {self._table.name: messages}

    def advanced(self, state: PipeState) -> None:
        """Settle what was delivered, and hand over what is final now."""
        busy = self._settle(self._courier.report())
        if not busy and self._clock.monotonic() >= self._not_before and self._hand_over(state):
            self._settle(self._courier.report())

    def rolled_back(self, state: PipeState) -> None:
        """Forget messages that are gone with their blocks; those in hand are final."""
        self._waiting = {at: count for at, count in self._waiting.items() if at <= state.number}

    def depth(self, state: PipeState) -> Depth:
        """Return how much waits, for metrics."""
        final = -1 if state.finalized is None else state.finalized.number
        oldest = next(iter(self._waiting), final)
        return Depth(self._name, sum(self._waiting.values()), max(0, final - oldest))

    def _count(self, rows: pa.Table) -> None:
        for entry in pc.value_counts(rows["block_number"]).to_pylist():
            number = entry["values"]
            self._waiting[number] = self._waiting.get(number, 0) + entry["counts"]

    def _uncount(self, messages: int) -> None:
        """Forget so many of the oldest messages."""
        for number in list(self._waiting):
            taken = min(messages, self._waiting[number])
            messages -= taken
            self._waiting[number] -= taken
            if self._waiting[number]:
                return
            del self._waiting[number]

    def finish(self, state: PipeState) -> None:
        """Deliver all that is final: no further block will come to trigger it."""
        while True:
            self._courier.wait()
            self._settle(self._courier.report())
            self._clock.sleep(max(0.0, self._not_before - self._clock.monotonic()))
            if not self._hand_over(state):
                return

    def stop(self) -> None:
        """Deliver no more. What is not settled is delivered again by the next run."""
        self._courier.stop()

    def _hand_over(self, state: PipeState) -> bool:
        """Give the courier the oldest messages of final blocks; tell whether there are any."""
        final = -1 if state.finalized is None else state.finalized.number
        if final <= self._searched or self._target is None:
            return False
        rows = self._target.read_side_table(self._table.name, up_to_block=final, limit=WINDOW)
        if not rows.num_rows:
            self._searched = final
            return False
        self._courier.hand(read_messages(self._id, self._output, rows))
        return True

    def _settle(self, report: Report) -> bool:
        """Remove what is delivered, and move what was given up, in one step.

        Tell whether more is under way.
        """
        if report.pause_s is not None:
            self._not_before = self._clock.monotonic() + report.pause_s
            logger.warning(
                "outbox.retry id=%s name=%s in_s=%.1f reason=%s",
                self._id, self._name, report.pause_s, report.reason,
            )  # fmt: skip
        last = report.settled
        if last is None or self._target is None:
            return report.busy
        moved = {}
        if report.dead:
            moved[DEAD_LETTERS.name] = dead_letter_rows(self._name, report.dead, self._clock.now())
        self._target.settle_side_rows(self._table.name, (last.block_number, last.ordinal), moved)
        self._uncount(report.count)
        logger.info(
            "outbox.settled id=%s name=%s messages=%d to=%d",
            self._id, self._name, report.count, last.block_number,
        )  # fmt: skip
        for letter in report.dead:
            logger.error(
                "outbox.dead_letter id=%s name=%s key=%s attempts=%d reason=%s",
                self._id, self._name, letter.message.key, letter.attempts, letter.reason,
            )  # fmt: skip
        return report.busy


# --- deliveries -----------------------------------------------------------------------------------


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
            outcome: _Failure | None = failure
            if len(batch) > 1:
                outcome = self._attempt([message])
            if outcome is not None and not outcome.refused and not exhausted:
                return at, outcome
            at += 1
            self._note(
                at, None if outcome is None else Dead(message, outcome.reason, self._failures)
            )
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
