"""Recognises rare situations in the events of a scenario, and says what must occur at all."""

from __future__ import annotations

from headwater.core import ForkRule, PipeState
from headwater.errors import REGISTRY
from headwater.pipeline import (
    Buffered,
    Committed,
    Discarded,
    Event,
    RolledBack,
    Settled,
    Waited,
)
from headwater.testing.fault_plan import CATALOGUE
from tests.simulation.scenarios.settings import Flow
from tests.simulation.situations import Situation, Tally


class Recogniser:
    """Counts what the events of one scenario stand for."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._conflicts = 0
        self._waits = 0
        self._staged = False

    def event(self, event: Event, before: PipeState, patience: int) -> None:
        """Recognise what an event of the loop stands for; `before` is the state it started from."""
        match event:
            case RolledBack(state, orphaned, resolution):
                self._conflicts += 1
                if self._conflicts == 3:
                    self._tally.meet(Situation.CONFLICT_STORM)
                if self._waits >= patience:
                    self._tally.meet(Situation.OUT_OF_PATIENCE)
                self._waits = 0
                self._tally.meet(_RULES[resolution.rule])
                self._rollback(state, orphaned.number)
            case Waited():
                self._waits += 1
                self._tally.meet(Situation.REPLICA_BEHIND)
            case Settled(state):
                self._conflicts = self._waits = 0
                if state.finalized != before.finalized:
                    self._tally.meet(Situation.SETTLED_WHILE_IDLE)
            case Discarded():
                self._tally.meet(Situation.FORK_BEFORE_FLUSH)
            case Buffered():
                self._staged = True
            case Committed() if self._staged:
                self._conflicts = self._waits = 0
                self._staged = False
                self._tally.meet(Situation.FLUSHED_TOGETHER)
            case _:
                self._conflicts = self._waits = 0

    def buffered(self, event: Event, flow: Flow) -> None:
        """Recognise what the undo buffer did."""
        if isinstance(event, Discarded) and flow.undo_buffer and flow.flush.live.at_once:
            self._tally.meet(Situation.FORK_IN_BUFFER)
        if isinstance(event, RolledBack) and flow.undo_buffer:
            self._tally.meet(Situation.FORK_BELOW_BUFFER)

    def _rollback(self, state: PipeState, orphaned: int) -> None:
        depth = orphaned - (state.cursor.number if state.cursor else 0)
        if depth == 1:
            self._tally.meet(Situation.FORK_OF_ONE)
        if depth >= 8:
            self._tally.meet(Situation.DEEP_FORK)
        if state.finalized is None:
            self._tally.meet(Situation.FORK_WITHOUT_FINALITY)
        elif state.finalized == state.cursor:
            self._tally.meet(Situation.FORK_AT_WATERMARK)


def never_met(tally: Tally) -> list[str]:
    """Name every situation, fault and error that should have occurred and did not."""
    faults = {fault.name for kind in CATALOGUE.values() for fault in kind}
    return [
        *tally.lacks(Situation),
        *(f"fault {name}" for name in sorted(faults) if not tally.faults[name]),
        *(f"error {code}" for code in EXPECTED_ERRORS if not tally.errors[code]),
    ]


EXPECTED_ERRORS = tuple(
    code for code in REGISTRY if code in {"E1002", "E1003", "E3001", "E3003", "E3004", "E3005",
                                          "E3006"}
)  # fmt: skip

_RULES = {
    ForkRule.MATCH: Situation.RULE_MATCH,
    ForkRule.WATERMARK: Situation.RULE_WATERMARK,
    ForkRule.DESCEND: Situation.RULE_DESCEND,
    ForkRule.WAIT: Situation.REPLICA_BEHIND,
    ForkRule.UNDO: Situation.RULE_UNDO,
}
