"""Scripts of calls whose process dies at every step of I/O, and must recover from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.core import Batch, PipeState
from headwater.targets.contract import Capabilities, Delivery, Target, prepared
from headwater.testing.conformance.model import Rig
from headwater.testing.scenarios.crash import Crash

if TYPE_CHECKING:
    from headwater.testing.conformance.suite import TargetConformance

Script = list[Callable[[Rig], None]]
_RECOVERY_STEPS = 5


class Clock:
    """Counts the steps of I/O of each call; the process dies at chosen ones, and stays dead.

    `plan` says at which step of I/O of which call: `{2: 5}` is the fifth of the call at index 2.
    """

    def __init__(self, plan: Mapping[int, int] | None = None) -> None:
        self.counts: list[int] = []
        self.died: list[tuple[int, int]] = []
        self._plan = plan or {}
        self._dead = False

    def begin_call(self) -> None:
        """Count the steps of the next call."""
        self.counts.append(0)

    def tick(self) -> None:
        """Count one step, or die at it."""
        self.counts[-1] += 1
        call, step = len(self.counts) - 1, self.counts[-1]
        if self._plan.get(call) == step and not self._dead:
            self.died.append((call, step))
            self._dead = True
        if self._dead:
            raise Crash(call, step)

    def recovered(self) -> None:
        """Let a new process live; the rest of this call is not counted."""
        self._dead = False
        self._plan = {call: at for call, at in self._plan.items() if call >= len(self.counts)}


def crash_everywhere(run: Callable[[Clock], None]) -> int:
    """Run a script until its process has died at every step of I/O; return how many those are.

    A run dies in every second call, once in each: so the calls between run in a process that has
    begun well, and a script with many calls is not run anew for each of its steps. A step that such
    a run does not reach, because a recovery spared it, gets a run of its own.
    """
    run(counted := Clock())
    points = {(call, step) for call, n in enumerate(counted.counts) for step in range(1, n + 1)}
    left = set(points)
    for first in (0, 1):
        calls = range(first, len(counted.counts), 2)
        for step in range(1, max(counted.counts[first::2], default=0) + 1):
            run(clock := Clock({one: step for one in calls if step <= counted.counts[one]}))
            left -= set(clock.died)
    for call, step in sorted(left):
        run(clock := Clock({call: step}))
        assert clock.died == [(call, step)], f"step {step} of call {call} was not reached"
    return len(points)


def run_crashing(suite: TargetConformance, script: Script, clock: Clock) -> None:
    """Run a script on a fresh place; die where the clock says, recover, and go on to the end.

    Each recovery dies as well before it succeeds, at one of its first steps by turns. What is
    recovered must be the state before the interrupted call or after it, and the tables must be
    those of that state.
    """
    suite.fresh()
    rig = Rig(_watched(suite, clock.tick), suite.read_rows, suite.tables)
    for step in [_recover, *script]:
        clock.begin_call()
        try:
            step(rig)
            continue
        except Crash:
            suite.crash(rig.target)
        clock.recovered()
        state = _recover_dying(suite, rig, 1 + sum(clock.died[-1]) % _RECOVERY_STEPS)
        suite.watch_io(rig.target, clock.tick)
        if state == rig.state:
            rig.check()  # not committed: nothing of it is there
            step(rig)
        else:
            _follow(rig, step, state)
        rig.check()
    suite.watch_io(rig.target, lambda: None)
    rig.check()
    suite.restart(rig)
    rig.target.close()


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
    clock = Clock({0: crash_at})
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
