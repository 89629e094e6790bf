"""All that must be stored to resume: the committed cursor, the high-water mark, the rollback chain.

`PipeState` is the value that a target commits together with the data. It changes in three ways
only: `advance` (a batch was committed), `settle` (finality moved while nothing arrived), `rewind`
(a fork was rolled back). Each returns a new state, so that what is in memory cannot run ahead of
what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headwater.core import chain as chains
from headwater.core.chain import DEFAULT_CAP, Chain
from headwater.core.cursor import BlockCursor, BlockHeader, Head
from headwater.core.watermark import FinalizedWatermark
from headwater.errors import BlockOrderError, HotBatchError, RewindError


@dataclass(frozen=True, slots=True)
class PipeState:
    """What a stream has committed. The empty state is a stream that never committed anything."""

    cursor: BlockCursor | None = None
    finalized: BlockCursor | None = None
    rollback_chain: Chain = ()

    def is_final(self, number: int) -> bool:
        """Tell whether a block of this number lies at or below the high-water mark."""
        return FinalizedWatermark(self.finalized).covers(number)

    def landing_points(self) -> Chain:
        """Return every cursor that a rollback may land on, oldest first, the cursor last.

        Nothing below the high-water mark is one, so no rollback can give up final data. The mark
        itself is one where it lies between committed boundaries. While the cursor is itself final
        (a backfill), the cursor is the only one.
        """
        if self.cursor is None:
            return ()
        mark = self.finalized
        if mark is None:
            return self.rollback_chain
        if mark.number >= self.cursor.number:
            return (self.cursor,)
        hot = tuple(block for block in self.rollback_chain if block.number > mark.number)
        anchored = self.rollback_chain[0].number <= mark.number
        return (mark, *hot) if anchored else hot

    def advance(
        self, headers: Sequence[BlockHeader], head: Head, *, cap: int = DEFAULT_CAP
    ) -> PipeState:
        """Return the state that is committed with a batch of these blocks.

        Called on the driver before each commit. Replaying a batch from the same state gives the
        same state. `head` is that of the answer the blocks came in: the portal accepted our anchor,
        so its finalized head is on our chain unless a block that we hold says otherwise.
        """
        if not headers:
            raise BlockOrderError("a batch must hold at least one block")
        previous = -1 if self.cursor is None else self.cursor.number
        for header in headers:
            if header.number <= previous:
                raise BlockOrderError(
                    "a batch must ascend from the cursor", after=previous, got=header.number
                )
            previous = header.number
        finalized = accepted_finality(self, headers, head)
        mark = FinalizedWatermark(finalized)
        if finalized is not None and len(headers) > 1 and not mark.covers(previous):
            raise HotBatchError(
                "a batch of several blocks reaches above the finalized head",
                blocks=f"{headers[0].number}..{previous}",
                finalized=finalized,
            )
        cursor = headers[-1].cursor
        grown = chains.prune(chains.append(self.rollback_chain, cursor), finalized)
        return PipeState(cursor, finalized, chains.cap(grown, cap, finalized))

    def settle(self, head: Head) -> PipeState:
        """Return the state after an answer without blocks (204), whose head may report finality.

        The portal may answer 204 from a chain that our cursor is not on, so a finalized head counts
        only if it is a block that we hold, with the same hash.
        """
        reported = head.finalized
        if reported is None or (self.cursor is not None and reported not in self.rollback_chain):
            return self
        finalized = FinalizedWatermark(self.finalized).observe(reported).cursor
        return replace(
            self, finalized=finalized, rollback_chain=chains.prune(self.rollback_chain, finalized)
        )

    def rewind(self, safe_cursor: BlockCursor) -> PipeState:
        """Return the state that a rollback to `safe_cursor` commits. Finality is kept.

        Called on the driver after `resolve_fork`. Repeating it is harmless.
        """
        if safe_cursor not in self.landing_points():
            raise RewindError(
                "not a block this state can go back to",
                wanted=safe_cursor,
                oldest=next(iter(self.landing_points()), None),
                cursor=self.cursor,
            )
        kept = chains.append(self.rollback_chain, safe_cursor)
        return replace(self, cursor=safe_cursor, rollback_chain=chains.prune(kept, self.finalized))


def accepted_finality(
    state: PipeState, headers: Iterable[BlockHeader], head: Head
) -> BlockCursor | None:
    """Return the high-water mark after an answer that brought these blocks.

    A report that gives another hash to a block which we hold, or are about to, is not believed: it
    is of another branch, and adopting it would protect orphaned data from being rolled back.
    """
    reported = head.finalized
    if reported is not None:
        known = (*state.rollback_chain, *(header.cursor for header in headers))
        ours = chains.lookup(known, reported.number)
        if ours is not None and ours.hash is not None and ours.hash != reported.hash:
            reported = None
    return FinalizedWatermark(state.finalized).observe(reported).cursor


def hot_cursors(headers: Iterable[BlockHeader], finalized: BlockCursor | None) -> Chain:
    """Return a batch's own `rollback_chain`: the cursors of its blocks above finality.

    While finality is unknown every block counts as hot.
    """
    mark = FinalizedWatermark(finalized)
    return tuple(header.cursor for header in headers if not mark.covers(header.number))


def cut_batches(
    state: PipeState, headers: Sequence[BlockHeader], head: Head, *, cap: int = DEFAULT_CAP
) -> list[slice]:
    """Cut one answer into batches: its final blocks together, then each hot block alone.

    A hot block is a batch of its own because finality may later stop at any block: a batch is
    undone whole, and no undo may reach below the high-water mark. While finality is unknown, blocks
    deeper than `cap` below the latest are past every undo and stay together too.
    """
    finalized = accepted_finality(state, headers, head)
    if finalized is not None:
        settled = finalized.number
    elif head.latest is not None:
        settled = head.latest.number - cap
    else:
        settled = -1
    together = sum(1 for header in headers if header.number <= settled)
    first = [slice(0, together)] if together else []
    return first + [slice(index, index + 1) for index in range(together, len(headers))]
