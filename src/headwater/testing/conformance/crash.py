"""A script of calls whose process dies at a chosen step of I/O, and must recover from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.core import Batch, PipeState
from headwater.targets.contract import Capabilities, Delivery, Target, prepared
from headwater.testing.conformance.model import Rig
from headwater.testing.scenarios.crash import Crash

if TYPE_CHECKING:
    from headwater.testing.conformance.suite import TargetConformance

Script = list[Callable[[Rig], None]]


def run_crashing(suite: TargetConformance, script: Script, crash_at: int) -> int:
    """Run a script on a fresh place; die at the n-th step of I/O, recover, and go on to the end.

    The recovery dies as well, twice, before it succeeds. What is recovered must be the state before
    the interrupted call or after it, and the tables must be those of that state. Returns how many
    steps of I/O were counted; with `crash_at=0` nothing dies.
    """
    suite.fresh()
    clock = _Clock(crash_at)
    rig = Rig(_watched(suite, clock), suite.read_rows, suite.tables)
    for step in [_recover, *script]:
        try:
            step(rig)
            continue
        except Crash:
            suite.crash(rig.target)
        state = _recover_dying(suite, rig)
        if state == rig.state:
            rig.check()  # not committed: nothing of it is there
            step(rig)
        else:
            _follow(rig, step, state)
        rig.check()
    rig.check()
    assert suite.reopen(rig) == rig.state
    rig.target.close()
    return clock.count


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


class _Clock:
    """Counts steps of I/O; the process dies at one of them, and stays dead."""

    def __init__(self, crash_at: int) -> None:
        self.count = 0
        self._crash_at = crash_at

    def tick(self) -> None:
        self.count += 1
        if 0 < self._crash_at <= self.count:
            raise Crash(self.count)


class _Ignores:
    """Stands in for a target while only the model is to move."""

    capabilities: Capabilities[Delivery] = Capabilities()

    def __getattr__(self, verb: str) -> Any:
        return lambda *arguments: None


def _recover(rig: Rig) -> None:
    rig.target.recover()


def _recover_dying(suite: TargetConformance, rig: Rig) -> PipeState:
    """Recover in a new process that dies at its first step, then at its second."""
    for crash_at in (1, 2):
        rig.target = _watched(suite, _Clock(crash_at))
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
    assert state == rig.state, f"{state} was never committed"


def _watched(suite: TargetConformance, clock: _Clock) -> Target[Delivery]:
    target = suite.make_target("one")
    suite.watch_io(target, clock.tick)
    return target
