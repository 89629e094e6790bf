"""Walks of a target: scripts whose process dies at every step of I/O, and random ones with forks.

A script is a list of calls; its process dies, and must recover from it. A random walk goes along a
simulated chain that grows, forks and finalizes. What a block changes follows from its hash, so a
replay changes the same. After every step all tables are compared with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

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
from headwater.targets.contract import Capabilities, Delivery, Target, prepared
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.conformance.model import (
    LARGEST,
    Change,
    Rig,
    balance,
    delete,
    log,
    plain,
    upsert,
)

if TYPE_CHECKING:
    from headwater.testing.conformance.suite import TargetConformance

Point = TypeVar("Point")
Script = list[Callable[[Rig], None]]
_RECOVERY_STEPS = 5
OWNERS = ["a", "b", "c|d", "c", "d|e"]
TOKENS = ["t", "d|t"]


class Crash(BaseException):
    """The process is gone; nothing may catch it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Takes the first point, the last, and every `every`-th between them."""

    every: int = 1

    @property
    def is_whole(self) -> bool:
        """Tell whether it takes every point."""
        return self.every == 1

    def of(self, points: Sequence[Point]) -> list[Point]:
        """Return the points to visit, in their order."""
        last = len(points) - 1
        return [
            point for index, point in enumerate(points) if index == last or index % self.every == 0
        ]

    def seeds(self, points: Sequence[Point]) -> list[Point]:
        """Return the first point and every `every`-th after it: for points without an end."""
        return list(points[:: self.every])


WHOLE = Sample()


class Clock:
    """Counts the steps of I/O of each call; the process dies at chosen ones, and stays dead.

    `points` are those to die at: `(2, 5)` is the fifth step of the call at index 2. The process
    that begins a call dies at the last of its points; those that try the call again, each in a
    process that has just recovered, die at the first step, the second, and so on to the end, or,
    where `points` are a sample, at those of them that are left.
    """

    def __init__(self, points: Iterable[tuple[int, int]] = (), *, whole: bool = True) -> None:
        self.counts: list[int] = []
        self.died: list[tuple[int, int]] = []
        self._points = set(points)
        self._whole = whole
        self._at: int | None = None
        self._next: Iterator[int] = iter(())
        self._dead = False

    @property
    def is_over(self) -> bool:
        """Tell whether the call after the last one to die in has ended: no other is needed."""
        return bool(self.died) and len(self.counts) > max(call for call, _ in self._points) + 1

    def begin_call(self) -> None:
        """Count the steps of the next call."""
        self.counts.append(0)
        call = len(self.counts) - 1
        steps = sorted(step for one, step in self._points if one == call)
        self._at = steps[-1] if steps else None
        self._next = count(1) if self._whole else iter(steps[:-1])

    def tick(self) -> None:
        """Count one step, or die at it."""
        self.counts[-1] += 1
        call, step = len(self.counts) - 1, self.counts[-1]
        if self._at == step and not self._dead:
            self.died.append((call, step))
            self._dead = True
        if self._dead:
            raise Crash(call, step)

    def recovered(self, *, again: bool) -> None:
        """Let a new process live; it dies in this call as well if it tries all of it again."""
        self._dead = False
        self._at = next(self._next, None) if again else None
        self.counts[-1] = 0


def crash_everywhere(run: Callable[[Clock], None], sample: Sample = WHOLE) -> int:
    """Run a script until its process has died at every step of I/O; return how many there are.

    A crash that leaves the state as it was lets the call be tried again, and the process die in it
    again: one run dies at all steps before the commits, however many, and no call is replayed for
    the steps of a later one. Steps that a run does not reach (an opening is tried once, a call that
    was committed is not tried again) are left to the next run, which ends behind the last of them.
    A `sample` takes some of the steps instead.
    """
    run(counted := Clock())
    points = [(call, step) for call, n in enumerate(counted.counts) for step in range(1, n + 1)]
    left = set(sample.of(points))
    while left:
        run(clock := Clock(left, whole=sample.is_whole))
        assert left & set(clock.died), f"these steps were not reached: {sorted(left)}"
        left -= set(clock.died)
    return len(points)


def run_crashing(suite: TargetConformance, script: Script, clock: Clock) -> None:
    """Run a script on a fresh place; die where the clock says, recover, and go on to the end.

    Each recovery dies as well before it succeeds, at one of its first steps by turns. What is
    recovered must be the state before the interrupted call or after it, and the tables must be
    those of that state.
    """
    try:
        _run_crashing(suite, script, clock)
    except AssertionError as error:
        steps = ", ".join(f"step {step} of call {call}" for call, step in clock.died)
        error.add_note(f"The process died at {steps or 'no step'}. Call 0 is the first recover().")
        raise


def _run_crashing(suite: TargetConformance, script: Script, clock: Clock) -> None:
    suite.fresh()
    rig = Rig(_watched(suite, clock.tick), suite.read_rows, suite.tables)
    for step in [_recover, *script]:
        if clock.is_over:
            break
        clock.begin_call()
        while not _survives(suite, rig, step, clock):
            rig.check()  # not committed: nothing of it is there
        rig.check()
    suite.watch_io(rig.target, lambda: None)
    suite.restart(rig)
    rig.check()
    rig.target.close()


def _survives(
    suite: TargetConformance, rig: Rig, step: Callable[[Rig], None], clock: Clock
) -> bool:
    """Do a step once; False if the process died of it, and a new one has to do it again."""
    try:
        step(rig)
    except Crash:
        suite.crash(rig.target)
    else:
        return True
    clock.recovered(again=step is not _recover)
    state = _recover_dying(suite, rig, 1 + sum(clock.died[-1]) % _RECOVERY_STEPS)
    suite.watch_io(rig.target, clock.tick)
    if state == rig.state:
        return False
    _follow(rig, step, state)
    return True


class PreparesTwice:
    """Passes calls on, but prepares each batch twice, and calls `look` in between."""

    def __init__(self, target: Any, look: Callable[[], None]) -> None:
        self._target = target
        self._look = look

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """Those of the target, with another way to prepare."""
        return replace(self._target.capabilities, prepare_batch=self._prepare_twice)

    def _prepare_twice(self, batch: Batch[Delivery]) -> Batch[Delivery]:
        prepared(self._target, batch)
        self._look()
        return prepared(self._target, batch)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._target, verb)


class _Ignores:
    """Stands in for a target while only the model is to move."""

    capabilities: Capabilities[Delivery] = Capabilities()

    def __getattr__(self, verb: str) -> Any:
        return lambda *arguments: None


def _recover(rig: Rig) -> None:
    rig.target.recover()


def _recover_dying(suite: TargetConformance, rig: Rig, crash_at: int) -> PipeState:
    """Recover in a new process; the first one dies at this step of its recovery."""
    clock = Clock([(0, crash_at)])
    clock.begin_call()
    rig.target = _watched(suite, clock.tick)
    try:
        return rig.target.recover()  # it takes fewer steps than that
    except Crash:
        suite.crash(rig.target)
    rig.target = suite.make_target("one")
    return rig.target.recover()


def _follow(rig: Rig, step: Callable[[Rig], None], state: PipeState) -> None:
    """Move the model alone: the step had been committed when the process died."""
    real, rig.target = rig.target, _Ignores()
    step(rig)
    rig.target = real
    assert state == rig.state, f"a crash: recover() returned {state}, which was never committed"


def _watched(suite: TargetConformance, tick: Callable[[], None]) -> Target[Delivery]:
    target = suite.make_target("one")
    suite.watch_io(target, tick)
    return target


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
