"""The rare situations that a campaign must have met to mean anything.

A campaign that never saw a fork at the watermark proves nothing about it. Each situation is counted
where it can be recognised: in the loop's events, in the ledger, or in what was done to the chain.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from headwater.core import ForkRule, PipeState
from headwater.errors import REGISTRY, HeadwaterError
from headwater.pipeline import (
    Buffered,
    Committed,
    Discarded,
    Event,
    RolledBack,
    Settled,
    Waited,
)
from headwater.testing.faults.plan import CATALOGUE
from tests.simulation.scenarios.settings import Flow


class Situation(StrEnum):
    """What is counted, beside every fault and every coded error."""

    FORK_OF_ONE = "fork of one block"
    DEEP_FORK = "deep fork (8 blocks or more)"
    FORK_AT_WATERMARK = "fork right above the high-water mark"
    FORK_WITHOUT_FINALITY = "fork while finality was never reported"
    FORK_BEYOND_HISTORY = "fork beyond the capped history"
    FORK_TAKEN_BACK = "fork back to a branch that was abandoned before"
    FORK_WHILE_DOWN = "fork while the pipeline was down"
    FORK_HIDDEN_BY_204 = "fork that hid behind a 204"
    FINALITY_VIOLATED = "fork below finality (refused)"
    CONFLICT_STORM = "three conflicts in a row or more"
    RULE_MATCH = "resolved by a common block"
    RULE_WATERMARK = "resolved by the high-water mark"
    RULE_DESCEND = "resolved by descending and asking again"
    REPLICA_BEHIND = "a replica was behind and was waited for"
    OUT_OF_PATIENCE = "a replica stayed behind and patience ran out"
    SETTLED_WHILE_IDLE = "finality moved while nothing arrived"
    FINALITY_UNCHECKED = "finality on a 204 that could not be checked was not adopted"
    CRASH_BEFORE_COMMIT = "crash before a commit"
    CRASH_AFTER_COMMIT = "crash after a commit"
    CRASH_BEFORE_ROLLBACK = "crash before a rollback"
    CRASH_AFTER_ROLLBACK = "crash after a rollback"
    CRASH_IN_RECOVERY = "crash while recovering"
    RESTART_ON_ORPHAN = "restart on a block that no longer exists"
    SKIPPED_SLOTS = "slots without a block"
    GAP_BETWEEN_RANGES = "a gap between two ranges"
    SPAN = "a span of final blocks taken at once"
    FELL_BEHIND = "a span after reading near the head: it had fallen behind"
    BEFORE_DATASET = "a range that begins before the dataset"
    RULE_UNDO = "hot blocks undone because nobody could confirm them"
    REFUSED_AS_GONE = "blocks that the portal had no more, and rows that nobody could confirm"
    BLOCKS_GONE = "blocks left out that the portal had no more"
    FLUSHED_TOGETHER = "several batches committed in one step"
    FORK_BEFORE_FLUSH = "fork that took what was not committed yet"
    FORK_IN_BUFFER = "fork that took only what the undo buffer held back"
    FORK_BELOW_BUFFER = "fork deeper than the undo buffer"


class Tally:
    """Counts situations, faults and errors over a campaign."""

    def __init__(self) -> None:
        self.situations: Counter[Situation] = Counter()
        self.faults: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._conflicts = 0
        self._waits = 0
        self._staged = False

    def meet(self, situation: Situation) -> None:
        """Count one occurrence."""
        self.situations[situation] += 1

    def error(self, error: HeadwaterError) -> None:
        """Count a coded error."""
        self.errors[error.code] += 1

    def event(self, event: Event, before: PipeState, patience: int) -> None:
        """Recognise what an event of the loop stands for; `before` is the state it started from."""
        match event:
            case RolledBack(state, orphaned, resolution):
                self._conflicts += 1
                if self._conflicts == 3:
                    self.meet(Situation.CONFLICT_STORM)
                if self._waits >= patience:
                    self.meet(Situation.OUT_OF_PATIENCE)
                self._waits = 0
                self.meet(_RULES[resolution.rule])
                self._rollback(state, orphaned.number)
            case Waited():
                self._waits += 1
                self.meet(Situation.REPLICA_BEHIND)
            case Settled(state):
                self._conflicts = self._waits = 0
                if state.finalized != before.finalized:
                    self.meet(Situation.SETTLED_WHILE_IDLE)
            case Discarded():
                self.meet(Situation.FORK_BEFORE_FLUSH)
            case Buffered():
                self._staged = True
            case Committed() if self._staged:
                self._conflicts = self._waits = 0
                self._staged = False
                self.meet(Situation.FLUSHED_TOGETHER)
            case _:
                self._conflicts = self._waits = 0

    def buffered(self, event: Event, flow: Flow) -> None:
        """Recognise what the undo buffer did."""
        if isinstance(event, Discarded) and flow.undo_buffer and flow.flush.live.at_once:
            self.meet(Situation.FORK_IN_BUFFER)
        if isinstance(event, RolledBack) and flow.undo_buffer:
            self.meet(Situation.FORK_BELOW_BUFFER)

    def _rollback(self, state: PipeState, orphaned: int) -> None:
        depth = orphaned - (state.cursor.number if state.cursor else 0)
        if depth == 1:
            self.meet(Situation.FORK_OF_ONE)
        if depth >= 8:
            self.meet(Situation.DEEP_FORK)
        if state.finalized is None:
            self.meet(Situation.FORK_WITHOUT_FINALITY)
        elif state.finalized == state.cursor:
            self.meet(Situation.FORK_AT_WATERMARK)

    def never_met(self) -> list[str]:
        """Name everything that should have occurred and did not."""
        faults = {fault.name for kind in CATALOGUE.values() for fault in kind}
        return [
            *(one.value for one in Situation if not self.situations[one]),
            *(f"fault {name}" for name in sorted(faults) if not self.faults[name]),
            *(f"error {code}" for code in EXPECTED_ERRORS if not self.errors[code]),
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
