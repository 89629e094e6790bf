"""The finalized high-water mark.

Portal replicas behind one address differ in height, and an archival answer reports an archival
head that is hours old: the finalized head that arrives can go backwards or vanish. Nothing keyed on
finality (pruning, undo, delivery) may follow it down, so all of it uses the highest ever seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core.cursor import BlockCursor


@dataclass(frozen=True, slots=True)
class FinalizedWatermark:
    """The highest finalized cursor ever seen; it never regresses and survives restarts."""

    cursor: BlockCursor | None = None

    def observe(self, finalized: BlockCursor | None) -> FinalizedWatermark:
        """Return the mark after one report: higher ones raise it; a tie keeps the first hash."""
        if finalized is None or finalized.hash is None or self.covers(finalized.number):
            return self
        return FinalizedWatermark(finalized)

    def covers(self, number: int) -> bool:
        """Tell whether a block of this number is final. Block 0 can be; unknown finality never."""
        return self.cursor is not None and number <= self.cursor.number
