"""A plan of requests as one source of blocks: which request follows from which state.

Used by the loop on the driver. It keeps no position; the state it is given is the only one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from headwater.core import (
    Answer,
    BlockCursor,
    BlockRange,
    Blocks,
    Fork,
    Head,
    PipeState,
    RangeEnd,
    clip_ranges,
)
from headwater.portal.client import PortalClient
from headwater.portal.reading import StreamQuery


class PortalSource:
    """Reads the ranges of a plan one after the other, following each to its end.

    `watch` is a query without filters: it is used where no output wants blocks but a fork could
    still orphan what is committed, in a gap between ranges and once after the last one.
    """

    def __init__(
        self,
        client: PortalClient,
        plan: Sequence[tuple[BlockRange, StreamQuery]],
        *,
        watch: StreamQuery,
        finalized: bool = False,
    ) -> None:
        self._client = client
        self._plan = tuple(plan)
        self._watch = watch
        self._finalized = finalized
        self._checked: BlockCursor | None = None
        self._exhausted: set[tuple[BlockCursor | None, int | None]] = set()

    def open(self, state: PipeState) -> None:
        """Do nothing: each reading opens what it needs."""

    def read(self, state: PipeState) -> Generator[Answer, None, None] | None:
        """Read what follows this state, to the end of its range; None when all is read."""
        cursor = state.cursor
        hot = cursor is not None and not state.is_final(cursor.number) and not self._finalized
        for block_range, query in self._plan:
            for left in clip_ranges((block_range,), cursor):
                if self.is_exhausted(left, cursor):
                    continue
                if hot and cursor is not None and left.from_block > cursor.number + 1:
                    gap = _gap(cursor, left)
                    if not self.is_exhausted(gap, cursor):
                        return self._read(self._watch, gap, cursor)
                return self._read(query, left, cursor)
        if not hot or cursor is None or cursor == self._checked:
            return None
        return self._check_tail(cursor)

    def watch(self, state: PipeState) -> Generator[Answer, None, None]:
        """Read headers beyond this state without an end, only to learn how deep our blocks are."""
        assert state.cursor is not None, "there is a block to watch"
        return self._client.read(self._watch, BlockRange(state.cursor.number + 1), state.cursor)

    def is_exhausted(self, left: BlockRange, cursor: BlockCursor | None) -> bool:
        """Tell whether what is left of a range after this cursor is known to hold no block."""
        return (cursor, left.to_block) in self._exhausted

    def _read(
        self, query: StreamQuery, block_range: BlockRange, cursor: BlockCursor | None
    ) -> Generator[Answer, None, None]:
        """Read one range; remember where it ended: its last numbers may hold no block, for good."""
        last = cursor
        for answer in self._client.read(query, block_range, cursor, finalized=self._finalized):
            if isinstance(answer, Blocks):
                last = answer.headers[-1].cursor
            if isinstance(answer, RangeEnd):
                self._exhausted.add((last, block_range.to_block))
            yield answer

    def _check_tail(self, cursor: BlockCursor) -> Generator[Answer, None, None]:
        """Ask once whether the last committed block, which is hot, is still on the chain."""
        self._checked = cursor
        for answer in self._client.read(self._watch, BlockRange(cursor.number + 1), cursor):
            yield answer if isinstance(answer, Fork) else RangeEnd(Head())
            return


def _gap(cursor: BlockCursor, following: BlockRange) -> BlockRange:
    """Return the blocks between the cursor and a range, which no output asked for."""
    return BlockRange(cursor.number + 1, following.from_block - 1)
