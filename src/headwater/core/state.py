"""All that must be stored to resume: the committed cursor, the high-water mark, the rollback chain.

`PipeState` is the value that a target commits together with the data. It changes in three ways
only: `advance` (a batch was committed), `settle` (finality moved while nothing arrived), `rewind`
(a fork was rolled back). Each returns a new state, so that what is in memory cannot run ahead of
what is stored.

The rollback chain holds the committed cursors that a fork may send us back to: an ascending tuple
of batch boundaries, oldest first; its last entry is the committed cursor. Gaps are normal: a
filtered stream does not deliver every block, and Solana skips slots.

Portal replicas behind one address differ in height, and an archival answer reports an archival head
that is hours old: the finalized head that arrives can go backwards or vanish. Nothing keyed on
finality (pruning, undo, delivery) may follow it down, so all of it uses the highest ever seen, the
high-water mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater.core.cursor import UNKNOWN_HASH, BlockCursor, BlockHeader, Head
from headwater.errors import BlockOrderError, HotBatchError, RewindError

Chain = tuple[BlockCursor, ...]

DEFAULT_CAP = 1000


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


@dataclass(frozen=True, slots=True)
class PipeState:
    """The committed position of a stream; empty, if the stream has never committed anything.

    `finalized` is the high-water mark: the highest cursor of our own that is known to be final. The
    rollback chain starts with it, once there is one.
    """

    cursor: BlockCursor | None = None
    finalized: BlockCursor | None = None
    rollback_chain: Chain = ()

    def is_final(self, number: int) -> bool:
        """Tell whether a block of this number lies at or below the high-water mark."""
        return FinalizedWatermark(self.finalized).covers(number)

    def landing_points(self) -> Chain:
        """Return every cursor that a rollback may land on, oldest first, the cursor last.

        The oldest is the high-water mark, so no rollback can give up final data. While the cursor
        is itself final (a backfill), it is the only one.
        """
        mark = self.finalized
        if self.cursor is None:
            return ()
        if mark is None:
            return self.rollback_chain or (self.cursor,)
        if mark.number >= self.cursor.number:
            return (self.cursor,)
        return (mark, *(block for block in self.rollback_chain if block.number > mark.number))

    @property
    def number(self) -> int:
        """The number of the cursor; -1 before the first block."""
        return -1 if self.cursor is None else self.cursor.number

    @property
    def is_hot(self) -> bool:
        """Whether a fork may undo the newest block: targets keep what it changes."""
        return self.undo_floor < self.number

    @property
    def undo_floor(self) -> int:
        """The oldest block that a rollback may land on: only what is above it can be undone.

        The one rule of retention: what a target keeps for undoing may go up to this block. One with
        a setting keeps it for longer, see `prunable`.
        """
        points = self.landing_points()
        return points[0].number if points else -1

    def check_reach(self, safe: PipeState) -> None:
        """Refuse a rollback that undo data does not reach. Called by targets before they undo."""
        if safe.number < self.undo_floor:
            raise RewindError(
                "undo data does not reach that far",
                wanted=safe.cursor,
                oldest=self.landing_points()[0],
            )

    def prunable(self, retention: int) -> int:
        """Return the newest block whose undo data no fork needs; -1 if there is none.

        `retention` blocks below the finalized one are kept, and whatever a legal fork needs.
        """
        final = self.number if self.finalized is None else self.finalized.number
        oldest = min(self.number, final) - retention
        return max(-1, min(oldest, self.undo_floor - 1))

    def advance(
        self, headers: Sequence[BlockHeader], head: Head, *, cap: int = DEFAULT_CAP
    ) -> PipeState:
        """Return the state that is committed with a batch of these blocks.

        Called on the driver before each commit. Replaying a batch from the same state gives the
        same state. `head` is that of the answer the blocks came in: the portal accepted our anchor,
        so what it calls final is on our chain, unless a block that we hold says otherwise.
        """
        if not headers:
            raise BlockOrderError("a batch must hold at least one block")
        previous = self.number
        for header in headers:
            if header.number <= previous:
                raise BlockOrderError(
                    "a batch must ascend from the cursor", after=previous, got=header.number
                )
            previous = header.number
        final = final_number(self, headers, head)
        if len(headers) > 1 and 0 <= final < previous:
            raise HotBatchError(
                "a batch of several blocks reaches above the finalized head",
                blocks=f"{headers[0].number}..{previous}",
                finalized=final,
            )
        cursor = headers[-1].cursor
        begins = self.cursor is None and len(headers) == 1 and final < cursor.number
        chain = _beginning(headers[0], head) if begins else self.rollback_chain
        return self._with(cursor, extend_chain(chain, cursor), final, cap)

    def settle(self, head: Head, *, confirmed: bool = False, cap: int = DEFAULT_CAP) -> PipeState:
        """Return the state after an answer without blocks, whose head may report finality.

        The portal may answer 204 from a chain that our cursor is not on. Unless it has `confirmed`
        our anchor, a finalized head counts only if it is a block that we hold, with the same hash.
        """
        if self.cursor is None or not (confirmed or head.finalized in self.rollback_chain):
            return self
        final = final_number(self, (), head)
        return self._with(self.cursor, self.rollback_chain, final, cap)

    def capped(self, cap: int) -> PipeState:
        """Return the same state with a rollback chain of `cap` entries at most, the newest ones.

        Called by the loop with the state that a target recovers: the cap is the stream's.
        """
        chain = cap_chain(self.rollback_chain, cap, self.finalized)
        return PipeState(self.cursor, self.finalized, chain)

    def rewind(self, safe_cursor: BlockCursor) -> PipeState:
        """Return the state that a rollback to `safe_cursor` commits. Finality is kept.

        Called on the driver after `resolve_fork`. Repeating it is harmless. A block that is known
        by its number alone takes the hash of `safe_cursor`.
        """
        points = self.landing_points()
        unnamed = BlockCursor(safe_cursor.number, UNKNOWN_HASH)
        if safe_cursor not in points and unnamed not in points:
            raise RewindError(
                "not a block this state can go back to",
                wanted=safe_cursor,
                oldest=next(iter(points), None),
                cursor=self.cursor,
            )
        kept = truncate_chain(points, safe_cursor.number)
        if kept[-1] == unnamed:
            kept = (*kept[:-1], safe_cursor)
        return PipeState(safe_cursor, self.finalized, kept)

    def _with(self, cursor: BlockCursor, chain: Chain, final: int, cap: int) -> PipeState:
        """Raise the high-water mark to our own newest cursor that is final; prune and cap."""
        newest = newest_at_or_below(chain, final)
        finalized = FinalizedWatermark(self.finalized).observe(newest).cursor
        pruned = prune_chain(chain, finalized)
        return PipeState(cursor, finalized, cap_chain(pruned, cap, finalized))


def final_number(state: PipeState, headers: Iterable[BlockHeader], head: Head) -> int:
    """Return the highest number known to be final after an answer with these blocks, or -1.

    A report that gives another hash to a block which we hold, or are about to, is not believed: it
    is of another branch, and adopting it would protect orphaned data from being rolled back.
    """
    known = -1 if state.finalized is None else state.finalized.number
    reported = head.finalized
    if reported is None or reported.hash is None:
        return known
    delivered = (header.cursor for header in headers if header.number == reported.number)
    cursors = (*state.rollback_chain, *delivered)
    ours = find_number(cursors, reported.number)
    if ours is not None and ours.hash is not None and ours.hash != reported.hash:
        return known
    return max(known, reported.number)


def believed_head(state: PipeState, headers: Iterable[BlockHeader], head: Head) -> Head:
    """Return a head without the finality that our own blocks refute."""
    reported = head.finalized
    refuted = reported is not None and reported.number > final_number(state, headers, head)
    return Head(None, head.latest) if refuted else head


def _beginning(first: BlockHeader, head: Head) -> Chain:
    """Return what a stream that begins with a hot block can go back to if that block is orphaned.

    Nothing was committed at or below its parent, nor at or below the finalized block, so both are
    places to land on. Where the portal leaves the parent's hash out, the finalized block is the
    parent if it has the parent's number: the answer that brought the block reported it.
    """
    number = first.number - 1 if first.parent_number is None else first.parent_number
    known = first.parent_hash is not None and number >= 0
    parent = (BlockCursor(number, first.parent_hash),) if known else ()
    final = head.finalized
    if final is None or final.hash is None or final.number > number:
        return parent
    if final.number == number:
        return parent or (final,)
    return (final, *parent)


def hot_cursors(headers: Iterable[BlockHeader], final: int) -> Chain:
    """Return a batch's own `rollback_chain`: the cursors of its blocks above the number `final`.

    While finality is unknown (-1) every block counts as hot.
    """
    return tuple(header.cursor for header in headers if header.number > final)


def cut_batches(
    state: PipeState, headers: Sequence[BlockHeader], head: Head, *, cap: int = DEFAULT_CAP
) -> list[slice]:
    """Cut one answer into batches: its final blocks together, then each hot block alone.

    A hot block is a batch of its own because finality may later stop at any block: a batch is
    undone whole, and no undo may reach below the high-water mark. While finality is unknown, blocks
    deeper than `cap` below the latest are past every undo and stay together too.
    """
    settled = final_number(state, headers, head)
    if settled < 0 and head.latest is not None:
        settled = head.latest.number - cap
    together = sum(1 for header in headers if header.number <= settled)
    first = [slice(0, together)] if together else []
    return first + [slice(index, index + 1) for index in range(together, len(headers))]


# --- the rollback chain ---------------------------------------------------------------------------


def extend_chain(chain: Chain, cursor: BlockCursor) -> Chain:
    """Add a committed boundary; entries it replaces (same number or above) are dropped first."""
    return (*truncate_chain(chain, cursor.number - 1), cursor)


def truncate_chain(chain: Chain, number: int) -> Chain:
    """Keep what lies at or below `number`."""
    return tuple(cursor for cursor in chain if cursor.number <= number)


def prune_chain(chain: Chain, finalized: BlockCursor | None) -> Chain:
    """Keep `number >= finalized`: the finalized cursor stays, as the anchor of the deepest fork."""
    if finalized is None:
        return chain
    return tuple(cursor for cursor in chain if cursor.number >= finalized.number)


def cap_chain(chain: Chain, limit: int, finalized: BlockCursor | None) -> Chain:
    """Bound the chain to its newest `limit` entries, but never lose the finalized cursor."""
    if len(chain) <= limit:
        return chain
    newest = chain[len(chain) - limit :]
    return newest if finalized is None else (chain[0], *newest[1:])


def newest_at_or_below(chain: Chain, number: int) -> BlockCursor | None:
    """Return the newest entry at or below a number, if there is one."""
    return next((cursor for cursor in reversed(chain) if cursor.number <= number), None)


def find_number(cursors: Iterable[BlockCursor], number: int) -> BlockCursor | None:
    """Return the cursor of that number, if there is one."""
    return next((cursor for cursor in cursors if cursor.number == number), None)
