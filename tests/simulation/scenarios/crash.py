"""A target whose process dies at a chosen point: before or after an effect."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.core import Batch, PipeState
from headwater.targets import MemoryStore, MemoryTarget
from headwater.testing.conformance import Crash
from headwater.testing.oracle import Rows
from tests.simulation.situations import Situation


class CrashingTarget(MemoryTarget[Rows]):
    """A target whose process dies before or after an effect, once, where it is told to."""

    def __init__(self, store: MemoryStore[Rows], crash_at: Situation | None) -> None:
        super().__init__(store)
        self.crash_at = crash_at

    def recover(self) -> PipeState:
        """Recover, or die doing so."""
        self._die(Situation.CRASH_IN_RECOVERY)
        return super().recover()

    def commit(self, batches: Sequence[Batch[Rows]], state: PipeState) -> None:
        """Commit, or die before or after it."""
        self._die(Situation.CRASH_BEFORE_COMMIT)
        super().commit(batches, state)
        self._die(Situation.CRASH_AFTER_COMMIT)

    def roll_back(self, state: PipeState) -> None:
        """Roll back, or die before or after it."""
        self._die(Situation.CRASH_BEFORE_ROLLBACK)
        super().roll_back(state)
        self._die(Situation.CRASH_AFTER_ROLLBACK)

    def _die(self, here: Situation) -> None:
        if self.crash_at is here:
            self.crash_at = None
            raise Crash(here)
