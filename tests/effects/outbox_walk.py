"""A stream with an outbox on a chain that forks, a receiver that fails, and a process that dies.

What a block holds follows from its hash. The oracle is plain: the rows of the canonical, final
blocks, in order. Every call of the receiver is compared with it at once: a message that is not in
it is of an orphaned or a hot block, and one that comes too early has overtaken another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from headwater.core import (
    BlockHeader,
    Blocks,
    ForkRule,
    Head,
    PipeState,
    batches,
    resolve_fork,
)
from headwater.effects import Message, Outbox, Subscription
from headwater.effects.message import idempotency_key
from headwater.errors import DeliveryRefusedError
from headwater.portal import RetryPolicy
from headwater.stream.extensions import Extensions
from headwater.targets.contract import Delivery
from headwater.testing import ChainSim, SimBlock, VirtualClock
from headwater.testing.conformance import Crash
from tests.targets.places import has_effect

STREAM = "walk"
ACTIONS = ("grow", "final", "fork", "time", "read")
RETRY = RetryPolicy(schedule_s=(1, 2, 4), attempts=None)
SCHEMA = pa.schema(
    [
        ("block_number", pa.int64()),
        ("block_hash", pa.string()),
        ("log_index", pa.int32()),
        ("value", pa.decimal128(38, 0)),
    ]
)


def rows_of(block: SimBlock) -> list[dict[str, Any]]:
    """Return the rows of a block, in the order of the chain."""
    dice = Random(block.hash)
    return [
        {
            "block_number": block.number,
            "block_hash": block.hash,
            "log_index": index,
            "value": dice.randrange(10**30),
        }
        for index in range(dice.randrange(4))
    ]


def expected_messages(chain: ChainSim) -> list[Message]:
    """Return the messages of all final blocks."""
    if chain.finalized is None:
        return []
    found = []
    for block in chain.canonical(0, chain.finalized.number):
        for ordinal, row in enumerate(rows_of(block)):
            key = idempotency_key(STREAM, "transfers", block.number, block.hash, ordinal)
            text = json.dumps({**row, "value": str(row["value"])}, separators=(",", ":"))
            found.append(Message(key, STREAM, "transfers", block.number, block.hash, ordinal, text))
    return found


class Violation(BaseException):
    """A promise is broken; not an `Exception`, which would be taken for a failed delivery."""


def require(holds: bool, what: str) -> None:
    """Raise what nobody catches."""
    if not holds:
        raise Violation(what)


class Receiver:
    """The world outside: it survives crashes of the stream, and remembers everything."""

    def __init__(self, chain: ChainSim, dice: Random, tick: Callable[[], None]) -> None:
        self._chain = chain
        self._dice = dice
        self._tick = tick
        self.failing = 0.0
        self.poison = 0  # every so many messages
        self.received: list[Message] = []
        self.unique: list[Message] = []
        self.repeats = self.failures = 0

    def __call__(self, messages: Sequence[Message]) -> None:
        self._tick()
        if self._dice.random() < self.failing:
            self.failures += 1
            raise OSError("the connection broke before anything was received")
        if any(self.is_poison(one) for one in messages):
            raise DeliveryRefusedError("poison")
        wanted = [one for one in expected_messages(self._chain) if not self.is_poison(one)]
        place = {one.key: index for index, one in enumerate(wanted)}
        for message in messages:
            require(message.key in place, f"{message} is of an orphaned or a hot block")
            at = place[message.key]
            require(message == wanted[at], f"{message} is not {wanted[at]}")
            require(at <= len(self.unique), f"{message} comes before {wanted[at - 1]}")
            self.received.append(message)
            if at == len(self.unique):
                self.unique.append(message)
            else:
                self.repeats += 1
        self._tick()
        if self._dice.random() < self.failing:
            self.failures += 1
            raise OSError("the answer was lost")

    def is_poison(self, message: Message) -> bool:
        return bool(self.poison) and int(message.key, 16) % self.poison == 0


class OutboxWalk:
    """One history, drawn from a seed; the process dies at one step, or now and then."""

    def __init__(
        self, make_target: Callable[[], Any], seed: int, *, crash_at: int = 0, crashes: float = 0.0
    ) -> None:
        self._make_target = make_target
        self.dice, self._fate = Random(f"outbox {seed}"), Random(f"fate {seed}")
        self._crash_at = crash_at
        self._crashes = crashes
        self.ticks = self.forks = self.deaths = 0
        self._dead = True  # not started yet
        self.chain = ChainSim(seed)
        self.chain.grow(4)
        self.clock = VirtualClock()
        self.receiver = Receiver(self.chain, Random(f"receiver {seed}"), self._tick)
        self.state = PipeState()
        self._target: Any = None
        self._extensions = Extensions([])

    def run(self, steps: int | Sequence[str]) -> None:
        """Let everything happen, then let the chain rest and deliver the rest."""
        if isinstance(steps, int):
            steps = [self.dice.choices(ACTIONS, [3, 2, 2, 1, 8])[0] for _ in range(steps)]
        for action in steps:
            if action == "read":
                self._alive(self._read)
            else:
                self._change(action)
        self.receiver.failing = 0.0
        self.chain.finalize(self.chain.head.number)
        self._alive(self._rest)
        self._target.close()
        wanted = expected_messages(self.chain)
        assert self.receiver.unique == [
            one for one in wanted if not self.receiver.is_poison(one)
        ], "something final was missed"

    def resume(self) -> None:
        """Start once more at the end of the history."""
        self._dead = True
        self._alive(self._rest)
        self._target.close()

    # --- life and death ---------------------------------------------------------------------------

    def _alive(self, action: Callable[[], None]) -> None:
        """Do something; if the process dies of it, start it again and do it then."""
        while True:
            try:
                if self._dead:
                    self._open()
                action()
            except Crash:
                self._dead = True
                self.deaths += 1
                self._target.close()
                continue
            return

    def _tick(self) -> None:
        self.ticks += 1
        if self.ticks == self._crash_at or self._fate.random() < self._crashes:
            raise Crash(self.ticks)

    def _open(self) -> None:
        self._target = self._make_target()
        self._target.bind(STREAM)
        self._target.on_statement = lambda sql: self._tick() if has_effect(sql) else None
        subscription = Subscription("transfers", self.receiver, "transfers", 3, RETRY)
        self._extensions = Extensions([Outbox(STREAM, subscription, self.clock, background=False)])
        self._extensions.open(self._target)
        self.state = self._target.recover()
        self._extensions.start(self.state)
        self._dead = False

    # --- what happens -----------------------------------------------------------------------------

    def _change(self, action: str) -> None:
        dice, chain = self.dice, self.chain
        match action:
            case "grow":
                chain.extend(dice.randrange(1, 4))
            case "final":
                final = -1 if chain.finalized is None else chain.finalized.number
                chain.finalize(max(final, 0, chain.head.number - dice.randrange(6)))
            case "fork":
                final = -1 if chain.finalized is None else chain.finalized.number
                hot = chain.head.number - final
                if final >= 0 and hot:
                    depth = dice.randint(1, min(hot, 5))
                    chain.fork(depth, depth + dice.randrange(2))
            case _:
                self.clock.sleep(dice.choice([0.5, 2, 8]))

    def _head(self) -> Head:
        final = self.chain.finalized
        return Head(None if final is None else final.cursor, self.chain.head.cursor)

    def _read(self) -> None:
        """Take the next answer, as the loop does: a fork, nothing new, or some blocks."""
        cursor, chain = self.state.cursor, self.chain
        if cursor is not None and not chain.is_ancestor(str(cursor.hash), chain.head.hash):
            sample = [one.cursor for one in chain.canonical(max(0, cursor.number - 2))]
            sample = sample or [chain.head.cursor]
            found = resolve_fork(self.state, sample[: self.dice.randint(1, 3)], patient=False)
            assert found.rule is not ForkRule.WAIT
            safe = self.state.rewind(found.safe_cursor)
            self._target.roll_back(safe)
            self._tick()
            self.state = safe
            self.forks += 1
            self._extensions.rolled_back(safe)
            return
        start = 0 if cursor is None else cursor.number + 1
        blocks = chain.canonical(start, start + self.dice.randrange(5))
        if not blocks:
            settled = self.state.settle(self._head(), confirmed=True)
            if settled != self.state:
                self._target.commit((), settled)
                self.state = settled
            self._extensions.advanced(self.state)
            return
        answer = Blocks(tuple(map(_header, blocks)), tuple(b"" for _ in blocks), self._head())
        for batch in batches(self.state, answer):
            numbers = {header.number for header in batch.headers}
            rows = [row for one in blocks if one.number in numbers for row in rows_of(one)]
            Random(len(rows)).shuffle(rows)
            frame = pa.Table.from_pylist(rows, schema=SCHEMA)
            made = self._extensions.add_rows(batch.with_data(Delivery({"transfers": frame})))
            self._target.commit([made], batch.state)
            self._tick()
            self.state = batch.state
            self._extensions.advanced(self.state)

    def _rest(self) -> None:
        """Read to the end of the chain, and deliver all that is final."""
        while self.state.cursor != self.chain.head.cursor or not self.state.is_final(
            self.chain.head.number
        ):
            self._read()
        self._extensions.finish(self.state)
        self._extensions.stop()


def _header(block: SimBlock) -> BlockHeader:
    return BlockHeader(
        block.number, block.hash, block.parent_hash, block.parent_number, block.timestamp
    )
