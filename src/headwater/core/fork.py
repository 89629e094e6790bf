"""Fork resolution: the block that a stream goes back to when the portal says 409.

Pure. Called by the loop on the driver, once per 409, before anything is undone; calling it again
with the same arguments gives the same answer. It never gives up a block at or below the finalized
high-water mark, and every rollback it orders is strictly lower than the cursor it starts from, so
consecutive 409s converge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headwater.core.cursor import UNKNOWN_HASH, BlockCursor
from headwater.core.state import PipeState
from headwater.errors import (
    EmptyForkSampleError,
    ForkCursorMissingError,
    LaggingPortalError,
    UndoDepthError,
)


class ForkRule(StrEnum):
    """Which rule decided."""

    MATCH = "match"  # the highest local cursor that the sample holds
    WATERMARK = "watermark"  # the sample lies below finality: a lagging replica
    DESCEND = "descend"  # no common block in the sample: go below it and ask again
    UNDO = "undo"  # the source named the last valid block: an endpoint, or a portal's window
    WAIT = "wait"  # the replica is behind, or contradicts finality: ask again, change nothing


@dataclass(frozen=True, slots=True)
class ForkResolution:
    """Where to go back to and why. With `ForkRule.WAIT` the safe cursor is the cursor itself."""

    safe_cursor: BlockCursor
    rule: ForkRule


def find_rollback_index(chain_a: Sequence[BlockCursor], chain_b: Sequence[BlockCursor]) -> int:
    """Return the index in `chain_a` of the last entry both ascending chains agree on, or -1.

    It stops at the first number that both hold with different hashes. For targets that keep their
    own rollback chain (`create_target`); the built-in targets use `resolve_fork`.
    """
    a_index = b_index = 0
    last_common_index = -1
    while a_index < len(chain_a) and b_index < len(chain_b):
        a, b = chain_a[a_index], chain_b[b_index]
        if a.number < b.number:
            a_index += 1
        elif a.number > b.number:
            b_index += 1
        elif a.hash != b.hash:
            return last_common_index
        else:
            last_common_index = a_index
            a_index += 1
            b_index += 1
    return last_common_index


def resolve_fork(
    state: PipeState, previous_blocks: Iterable[BlockCursor], *, patient: bool = True
) -> ForkResolution:
    """Decide where a 409 sends us, given the portal's sample of its chain, in any order.

    With `patient`, a replica that is merely behind, or whose chain cannot be ours, gives
    `ForkRule.WAIT`: another replica may answer next. The loop waits, asks again, and after a
    bounded number of times calls with `patient=False` to get a rollback or an error.

    Raises:
        EmptyForkSampleError: the sample is empty.
        ForkCursorMissingError: out of patience, and the sample contradicts finality, or nothing is
            left to go back to.
        LaggingPortalError: out of patience with a portal that ends below our final cursor.
    """
    sample = frozenset(previous_blocks)
    if not sample:
        raise EmptyForkSampleError("the portal sent a fork without previousBlocks")
    cursor = state.cursor
    if cursor is None:
        raise ForkCursorMissingError("the portal sent a fork before any block was committed")
    wait = ForkResolution(cursor, ForkRule.WAIT)
    if patient and is_stale(state, sample):
        return wait
    _refuse_contradiction(state, sample)

    lowest = min(block.number for block in sample)
    highest = max(block.number for block in sample)
    lower = [block for block in state.landing_points() if block.number < cursor.number]
    for block in reversed(lower):
        if block in sample:
            return ForkResolution(block, ForkRule.MATCH)
    below = [block for block in lower if block.number < lowest]
    if below:
        return ForkResolution(below[-1], ForkRule.DESCEND)
    if lower and state.is_final(lower[0].number):
        rule = ForkRule.WATERMARK if highest < lower[0].number else ForkRule.DESCEND
        return ForkResolution(lower[0], rule)
    if lower and highest < lower[0].number:
        return ForkResolution(lower[0], ForkRule.DESCEND)
    if patient:
        return wait
    if highest < cursor.number and state.is_final(cursor.number):
        raise LaggingPortalError(
            "the portal answers from below a final cursor", cursor=cursor, highest=highest
        )
    raise ForkCursorMissingError(
        "no block is left to go back to",
        cursor=cursor,
        finalized=state.finalized,
        sample=_show(sample),
    )


def descend(state: PipeState, found: ForkResolution, before: int) -> ForkResolution:
    """Return a resolution that goes further down the more often the search has found no match.

    A service may name one block in a conflict, so its sample says little of where the branches
    part. The first step down is the one of `resolve_fork`, then two blocks more, four, and so on:
    sixty blocks take seven questions. What was undone without need is read again.
    """
    points = state.landing_points()
    if found.rule is not ForkRule.DESCEND or found.safe_cursor not in points:
        return found
    lower = points[: points.index(found.safe_cursor) + 1]
    return replace(found, safe_cursor=lower[-min(2**before, len(lower))])


def resolve_undo(state: PipeState, last_valid: BlockCursor) -> ForkResolution | None:
    """Return where an undo signal sends us; None if nothing above the last valid block is held.

    It is the newest block of ours at or below the last valid one, which itself may have had no
    output. So the same signal, given again, finds nothing to undo. A block of ours that is known
    by its number alone gets its hash from the signal.

    Raises:
        UndoDepthError: it lies below what can be undone, or is another block than ours.
    """
    points = state.landing_points()
    ours = next((block for block in reversed(points) if block.number <= last_valid.number), None)
    if state.cursor is None:
        return None
    if ours is None:
        raise UndoDepthError(
            "an undo signal reaches below what can be undone",
            last_valid=last_valid,
            oldest=points[0],
            cursor=state.cursor,
            finalized=state.finalized,
        )
    unknown = {ours.hash, last_valid.hash} & {None, UNKNOWN_HASH}
    if ours.number == last_valid.number and not unknown and ours != last_valid:
        raise UndoDepthError(
            "an undo signal names another block than the one that is stored",
            last_valid=last_valid,
            stored=ours,
            cursor=state.cursor,
        )
    if ours == state.cursor:
        return None
    named = ours.number == last_valid.number and ours.hash == UNKNOWN_HASH
    return ForkResolution(last_valid if named and last_valid.hash else ours, ForkRule.UNDO)


def _refuse_contradiction(state: PipeState, sample: frozenset[BlockCursor]) -> None:
    """Raise if the sample gives another hash to the block that we know to be final."""
    theirs = contradicting_block(state, sample)
    if theirs is not None:
        raise ForkCursorMissingError(
            "the portal contradicts a finalized block", ours=state.finalized, portal=theirs
        )


def contradicting_block(
    state: PipeState, previous_blocks: Collection[BlockCursor]
) -> BlockCursor | None:
    """Return the block of the sample that has the number of our final block and another hash.

    A sample that holds our final block does not contradict it, whatever else it holds: a service
    may name one number twice.
    """
    ours = state.finalized
    if ours is None or ours in previous_blocks:
        return None
    return next((b for b in previous_blocks if b.number == ours.number and b != ours), None)


def is_stale(state: PipeState, previous_blocks: Collection[BlockCursor]) -> bool:
    """Tell whether a replica is behind, or still on a branch that finality has ruled out.

    Neither says anything against our blocks, so it is worth waiting for another answer. Called by
    what holds blocks that are not committed: the loop and the undo buffer.
    """
    sample = frozenset(previous_blocks)
    return _is_behind(state, sample) or contradicting_block(state, sample) is not None


def _is_behind(state: PipeState, sample: frozenset[BlockCursor]) -> bool:
    """Tell whether the portal holds our own chain, only shorter, or agrees with our cursor again.

    Entries below what we still hold cannot be compared, and do not speak against it.
    """
    cursor = state.cursor
    if cursor is None or not sample:
        return False
    if cursor in sample:
        return True
    if max(block.number for block in sample) >= cursor.number:
        return False
    if state.is_final(cursor.number):
        return True
    points = state.landing_points()
    comparable = [block for block in sample if block.number >= points[0].number]
    return bool(comparable) and all(block in points for block in comparable)


def _show(sample: Iterable[BlockCursor]) -> str:
    """Write a sample for an error text: its ends tell more than its middle."""
    ordered = sorted(sample, key=lambda block: block.number)
    if len(ordered) <= 4:
        return " ".join(map(str, ordered))
    return f"{ordered[0]} … {ordered[-1]} ({len(ordered)} blocks)"
