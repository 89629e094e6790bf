"""Faults in a 409: samples of the chain that are empty, tiny, too old, unordered or absent."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from headwater.core import BlockCursor
from headwater.testing.faults.kinds import Fault
from headwater.testing.portal.answer import Draft


@dataclass(frozen=True, slots=True)
class ConflictFault(Fault):
    """Base of faults in a 409. With `forced`, requests without a conflict get one too."""

    forced: bool = False

    def applies(self, draft: Draft) -> bool:
        """Need a 409, or leave to make one."""
        if draft.status == 409:
            return True
        return self.forced and draft.on_stream and draft.status in (200, 204)

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Rewrite the sample."""
        sample = draft.sample
        if sample is None:
            sample = draft.view.sample(draft.view.tip.number) if draft.view else []
        draft.conflict(self.bend(sample, draft, dice))

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Return the sample to send instead."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EmptySample(ConflictFault):
    """A 409 that names no block."""

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Name nothing."""
        return []


@dataclass(frozen=True, slots=True)
class SampleOfOne(ConflictFault):
    """A 409 that names only the newest block, as archives do."""

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Keep the newest."""
        return sample[-1:]


@dataclass(frozen=True, slots=True)
class SampleBelowFinality(ConflictFault):
    """A 409 whose blocks all lie below the finalized one, from a replica that is far behind."""

    def applies(self, draft: Draft) -> bool:
        """Need final blocks to show."""
        if not ConflictFault.applies(self, draft) or draft.view is None:
            return False
        return bool(_below_finality(draft))

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Show older blocks."""
        return _below_finality(draft)


@dataclass(frozen=True, slots=True)
class NoPreviousBlocks(ConflictFault):
    """A 409 whose JSON lacks previousBlocks."""

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Say something else."""
        draft.become(409, '{"error":"conflict"}')
        draft.content_type = "application/json"


@dataclass(frozen=True, slots=True)
class ShuffledSample(ConflictFault):
    """A 409 whose blocks come in no order."""

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Shuffle."""
        return dice.sample(sample, len(sample))


@dataclass(frozen=True, slots=True)
class NewestFirst(ConflictFault):
    """A 409 whose blocks come newest first."""

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Reverse."""
        return sample[::-1]


def _below_finality(draft: Draft) -> list[BlockCursor]:
    view = draft.view
    if view is None or view.final is None:
        return []
    return view.sample(view.final.number - 1)
