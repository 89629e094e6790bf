"""What the outbox of a stream has delivered, compared with the chain, message by message.

A message must be of a final block of the chain, must not overtake another, and must be the same
whenever it comes again. A receiver fails now and then, before or after it has taken a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from headwater.core.retry import RetryPolicy
from headwater.effects.message import Message
from headwater.effects.outbox import Outbox, Subscription
from headwater.portal import Clock
from headwater.testing.chain.tree import ChainSim
from tests.simulation.situations import Met, Tally
from tests.simulation.tables import COLUMNS, TRANSFERS, Row, transfers_of

_RETRY = RetryPolicy(schedule_s=(1, 2, 4), jitter=0, attempts=None)
_BATCH = 3


class Inbox:
    """The receiver of one stream's messages; it outlives the stream's processes.

    `wrong` says what was wrong with a message, if anything ever was.
    """

    def __init__(
        self, chain: ChainSim, tokens: Sequence[str], seed: object, failing: float, tally: Tally
    ) -> None:
        self.wrong: str | None = None
        self._chain = chain
        self._tokens = tokens
        self._dice = Random(f"inbox {seed}")
        self._failing = failing
        self._tally = tally
        self._wanted: list[tuple[int, str, int, Row]] = []  # block, hash, ordinal, row
        self._places: dict[tuple[int, str, int], int] = {}
        self._searched = -1
        self._keys: list[str] = []  # of the messages that came, each once

    def outbox(self, stream_id: str, clock: Clock) -> Outbox:
        """Return an outbox of one process that delivers here, in the thread of its loop."""
        subscription = Subscription(TRANSFERS, self, TRANSFERS, _BATCH, _RETRY)
        return Outbox(stream_id, subscription, clock, background=False)

    def __call__(self, messages: Sequence[Message]) -> None:
        """Take messages. Called by the courier."""
        self._fail("before")
        self._learn()
        for one in messages:
            self.wrong = self.wrong or self._take(one)
        self._fail("after")

    def calm(self) -> None:
        """Fail no more."""
        self._failing = 0.0

    def is_complete(self, final: int) -> bool:
        """Tell whether all messages of blocks up to one have come."""
        self._learn()
        wanted = sum(1 for number, *_ in self._wanted if number <= final)
        return len(self._keys) >= wanted

    def _fail(self, when: str) -> None:
        if self._dice.random() < self._failing:
            self._tally.meet(Met.DELIVERY_FAILED)
            raise OSError(f"the receiver failed {when} it took the messages")

    def _learn(self) -> None:
        """Add what became final. Final blocks never change."""
        final = self._chain.finalized
        if final is None or final.number <= self._searched:
            return
        for block in self._chain.path(final.hash, self._searched + 1):
            for ordinal, row in enumerate(transfers_of(self._chain, block, self._tokens)):
                self._places[block.number, block.hash, ordinal] = len(self._wanted)
                self._wanted.append((block.number, block.hash, ordinal, row))
        self._searched = final.number

    def _take(self, message: Message) -> str | None:
        """Return what is wrong with a message."""
        at = self._places.get((message.block_number, message.block_hash, message.ordinal))
        if at is None:
            return f"{message} is not of a final block"
        row = message.row
        held = tuple(str(row[name]) for name in COLUMNS[TRANSFERS])
        if held != tuple(map(str, self._wanted[at][3])):
            return f"{message} is not {self._wanted[at]}"
        if at > len(self._keys):
            return f"{message} has overtaken {self._wanted[len(self._keys)]}"
        if at == len(self._keys):
            self._keys.append(message.key)
            self._tally.meet(Met.DELIVERED)
        elif self._keys[at] != message.key:
            return f"{message} came before as {self._keys[at]}"
        else:
            self._tally.meet(Met.DELIVERED_AGAIN)
        return None
