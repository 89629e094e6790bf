"""The transactional outbox: a message is stored with its batch, and delivered once it is final.

A message row is written in the transaction of its batch, so it exists exactly if its block is in
the stored state; a fork takes it away with the block. Once the high-water mark has passed the block
nothing can, and the message is delivered and then removed. A crash in between delivers it again,
with the same key. One subscription is one table, `headwater_outbox_<name>`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import Batch, PipeState
from headwater.core.callbacks import Callback
from headwater.effects.courier import Courier, Deliver, Report
from headwater.effects.dead_letters import DEAD_LETTERS, dead_letter_rows, outbox_table
from headwater.effects.message import collect_messages, read_messages
from headwater.errors import InvalidOptionError
from headwater.portal import Clock, RetryPolicy, SystemClock
from headwater.targets.contract import Delivery, KeepsSideTables, SideTable

WINDOW = 10_000  # messages in hand at once
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
RETRY = RetryPolicy(
    schedule_s=(1, 2, 4, 8, 16, 32, 64, 128, 256, 300), attempts=12, retry_after_cap_s=3600
)
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
        made = collect_messages(self._id, self._output, batch)
        self._count(made)
        return {self._table.name: made}

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
        for one in pc.value_counts(rows["block_number"]).to_pylist():
            number = one["values"]
            self._waiting[number] = self._waiting.get(number, 0) + one["counts"]

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
        for one in report.dead:
            logger.error(
                "outbox.dead_letter id=%s name=%s key=%s attempts=%d reason=%s",
                self._id, self._name, one.message.key, one.attempts, one.reason,
            )  # fmt: skip
        return report.busy
