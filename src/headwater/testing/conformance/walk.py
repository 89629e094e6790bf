"""A random walk of a target along a simulated chain that grows, forks and finalizes, with crashes.

What a block changes follows from its hash, so a replay changes the same. After every step all
tables are compared with the model, and now and then the process dies and recovers.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from headwater.core import (
    Batch,
    BlockCursor,
    BlockHeader,
    Blocks,
    ForkRule,
    Head,
    PipeState,
    batches,
    resolve_fork,
)
from headwater.targets.contract import Delivery
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.conformance.model import LARGEST, Change, balance, delete, log, plain, upsert

if TYPE_CHECKING:
    from headwater.testing.conformance.suite import TargetConformance

OWNERS = ["a", "b", "c|d", "c", "d|e"]
TOKENS = ["t", "d|t"]


class RandomWalk:
    """One scenario, drawn from a seed."""

    def __init__(self, suite: TargetConformance, seed: int, *, steps: int) -> None:
        self._suite = suite
        self._dice = Random(f"conformance {seed}")
        self._steps = steps
        self._finality = self._dice.random() < 0.8
        self.chain = ChainSim(seed)
        self.chain.grow(self._dice.randrange(1, 12))
        self.rig = suite.start()

    def run(self) -> None:
        """Let everything happen, comparing after each step."""
        dice, chain = self._dice, self.chain
        for _ in range(self._steps):
            match dice.choices(["grow", "final", "fork", "crash", "read"], [3, 2, 2, 1, 8])[0]:
                case "grow":
                    chain.extend(dice.randrange(1, 4))
                case "final":
                    chain.finalize(max(0, chain.head.number - dice.randrange(9)))
                case "fork":
                    self._fork()
                case "crash":
                    self._suite.restart(self.rig)
                case _:
                    self._read()
            self.rig.check()
        self.rig.target.close()

    def _fork(self) -> None:
        final = self.chain.finalized
        hot = self.chain.head.number - (0 if final is None else final.number)
        if hot:
            depth = self._dice.randint(1, min(hot, 6))
            self.chain.fork(depth, depth + self._dice.randrange(2))

    def _head(self) -> Head:
        final = self.chain.finalized if self._finality else None
        return Head(None if final is None else final.cursor, self.chain.head.cursor)

    def _read(self) -> None:
        """Take the next answer: a fork, nothing new, or some blocks."""
        rig, chain = self.rig, self.chain
        cursor = rig.state.cursor
        if cursor is not None and not self._on_chain(cursor):
            sample = [one.cursor for one in chain.canonical(max(0, cursor.number - 2))]
            sample = sample or [chain.head.cursor]
            found = resolve_fork(rig.state, sample[: self._dice.randint(1, 3)], patient=False)
            assert found.rule is not ForkRule.WAIT
            rig.roll_back(found.safe_cursor.number)
            return
        start = 0 if cursor is None else cursor.number + 1
        blocks = chain.canonical(start, start + self._dice.randrange(5))
        if not blocks:
            settled = rig.state.settle(self._head(), confirmed=True)
            if settled != rig.state:
                rig.target.commit((), settled)
                rig.model.settle(settled)
            return
        answer = Blocks(tuple(map(_header, blocks)), tuple(b"" for _ in blocks), self._head())
        waiting: list[Batch[Delivery]] = []
        held: list[tuple[list[Change], PipeState]] = []
        for batch in batches(rig.state, answer):
            numbers = {header.number for header in batch.headers}
            changes = [
                change for one in blocks if one.number in numbers for change in self._changes(one)
            ]
            waiting.append(rig.prepare(batch.with_data(tuple(changes))))
            held.append((changes, batch.state))
            if batch.headers[-1].number < blocks[-1].number and self._dice.random() < 0.4:
                continue  # it waits for the next one, to be committed with it
            rig.target.commit(waiting, batch.state)
            for one, after in held:
                rig.model.commit(one, after)
            waiting, held = [], []
            rig.check()

    def _on_chain(self, cursor: BlockCursor) -> bool:
        return self.chain.is_ancestor(str(cursor.hash), self.chain.head.hash)

    def _changes(self, block: SimBlock) -> list[Change]:
        """Return what a block changes; it follows from its hash alone."""
        dice, suite = Random(block.hash), self._suite
        changes = [log(block.number, *(dice.randrange(LARGEST) for _ in range(dice.randrange(3))))]
        for _ in range(dice.randrange(4)):
            keys = {(dice.choice(OWNERS), dice.choice(TOKENS)) for _ in range(dice.randrange(1, 4))}
            if suite.deletes and dice.random() < 0.35:
                changes.append(delete(*sorted(keys)))
            elif suite.upserts:
                rows = [balance(*key, dice.choice([LARGEST, -5, None, dice.getrandbits(200)]))
                        for key in sorted(keys)]  # fmt: skip
                changes.append(upsert(*rows))
            elif suite.keyless:
                changes.append(plain(dice.choice(OWNERS), "same"))
        if suite.keyless and dice.random() < 0.5:
            changes.append(plain("same", dice.choice(OWNERS)))
        return changes


def _header(block: SimBlock) -> BlockHeader:
    return BlockHeader(
        block.number, block.hash, block.parent_hash, block.parent_number, block.timestamp
    )
