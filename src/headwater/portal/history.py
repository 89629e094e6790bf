"""Far behind or near the head: which way of reading a state calls for.

Far behind the finalized head nothing can fork, so large spans are handed out for executors to
fetch in parallel. Near it, blocks are read here, one after the other. The switch is made by the
state alone: each reading starts at `cursor + 1`, so there is no seam that a block could fall into.
Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from headwater.core import (
    Answer,
    BlockCursor,
    BlockHeader,
    BlockRange,
    Blocks,
    Density,
    Head,
    PipeState,
    RangeEnd,
    Span,
    SpanLimits,
    SpanSize,
    clip_ranges,
    up_to,
)
from headwater.errors import HeadwaterError
from headwater.portal.client import PortalClient
from headwater.portal.density import probe
from headwater.portal.outage import Clock
from headwater.portal.reading import StreamQuery
from headwater.portal.source import PortalSource

FAR = 1000  # blocks behind the finalized head at which spans begin
LOOK_BACK = 1000  # slots to search for the last block before a skipped one


class HistorySource:
    """Hands out spans while the finalized head is `far` blocks ahead, and reads on from there."""

    def __init__(
        self,
        client: PortalClient,
        plan: Sequence[tuple[BlockRange, StreamQuery]],
        *,
        watch: StreamQuery,
        clock: Clock,
        far: int = FAR,
        first_span: int = 2000,
        limits: SpanLimits = SpanLimits(),  # noqa: B008 - immutable
        finalized: bool = False,
    ) -> None:
        self._client = client
        self._plan = tuple(plan)
        self._watch = watch
        self._clock = clock
        self._far = far
        self._near = PortalSource(client, plan, watch=watch, finalized=finalized)
        self._size = SpanSize(first_span, limits)
        self._estimates: dict[int, float] = {}

    def open(self, state: PipeState) -> None:
        """Do nothing: each reading opens what it needs."""

    def read(self, state: PipeState) -> Generator[Answer | Span, None, None] | None:
        """Read what follows this state, in spans or block by block.

        A span is not compared with what is committed, so it may only follow a final block: a hot
        one could have been orphaned meanwhile, and only `stream` would say so.
        """
        left = self._left(state.cursor)
        if left is not None and (state.cursor is None or state.is_final(state.cursor.number)):
            final = self._client.finalized_head(attempts=None)
            if final is not None and final.number - left.from_block >= self._far:
                return self._spans(state, left, final)
        reading = self._near.read(state)
        return None if reading is None else self._until_far(reading)

    def learn(self, block_range: BlockRange, size: int, rows: int) -> None:
        """Take note of the bytes and rows of a span that was read. Called before the next one."""
        estimate = self._estimates.pop(block_range.from_block, 0.0)
        self._size.held(estimate, size, rows)

    def watch(self, state: PipeState) -> Generator[Answer, None, None]:
        """Read headers beyond this state without an end."""
        return self._near.watch(state)

    def query_at(self, number: int) -> StreamQuery:
        """Return what is asked of the span that begins with this block."""
        return next(query for block_range, query in self._plan if number in block_range)

    def _left(self, cursor: BlockCursor | None) -> BlockRange | None:
        """Return the first range of the plan that is not read, from where the dataset begins."""
        first = self._client.start_block()
        for block_range, _ in self._plan:
            begun = clip_ranges((block_range,), BlockCursor(first - 1) if first else None)
            for left in clip_ranges(begun, cursor):
                if not self._near.is_exhausted(left, cursor):
                    return left
        return None

    def _spans(
        self, state: PipeState, left: BlockRange, final: BlockCursor
    ) -> Generator[Answer | Span, None, None]:
        """Hand out spans until the finalized head, as it was, is near."""
        first, end = left.from_block, final.number
        if left.to_block is not None:
            end = min(end, left.to_block)
        head = Head(final, self._latest())
        before = state.cursor
        self._check_link(left, before)
        while first <= end and (final.number - first >= self._far or end == left.to_block):
            densities = self._measure(first, min(first + self._size.blocks - 1, end))
            largest = first + self._size.fitting(densities) - 1
            last = self._last_header(first, largest, before)
            if last is None and first == left.from_block:
                yield from self._near.read(state) or ()  # only skipped slots are left here
            if last is None:
                return
            measured = tuple(up_to(densities, last.number))
            self._estimates[first] = sum(one.total for one in measured)
            started = self._clock.monotonic()
            yield Span(BlockRange(first, last.number), last, head, measured)
            self._size.took(self._clock.monotonic() - started, last.number - first + 1)
            first, before = last.number + 1, last.cursor
        if first > end == left.to_block:
            yield RangeEnd(head)

    def _latest(self) -> BlockCursor | None:
        """Return the newest block, which only progress needs: without an answer it is unknown."""
        try:
            return self._client.head()
        except HeadwaterError:
            return None

    def _measure(self, first: int, last: int) -> list[Density]:
        """Measure the blocks of a span to be."""
        return probe(self._client, self.query_at(first), BlockRange(first, last))

    def _check_link(self, left: BlockRange, cursor: BlockCursor | None) -> None:
        """Raise `BlockLinkError` if the next block does not name our last one as its parent."""
        asked = BlockRange(left.from_block, left.from_block + LOOK_BACK)
        for answer in self._client.read(self._watch, asked, cursor, finalized=True):
            if isinstance(answer, Blocks):
                return

    def _last_header(self, first: int, last: int, before: BlockCursor | None) -> BlockHeader | None:
        """Return the header of the last block of a span; its last numbers may be skipped slots.

        It is asked for together with its predecessor, so that the link between them is checked.
        """
        for lowest in (max(first, last - 1), max(first, last - LOOK_BACK)):
            found: BlockHeader | None = None
            asked = BlockRange(lowest, last)
            for answer in self._client.read(self._watch, asked, before, finalized=True):
                if isinstance(answer, Blocks):
                    found = answer.headers[-1]
            if found is not None:
                return found
        return None

    def _until_far(self, reading: Generator[Answer, None, None]) -> Generator[Answer, None, None]:
        """Read near the head, but stop if the head has run far away: then spans are quicker."""
        for answer in reading:
            yield answer
            if isinstance(answer, Blocks) and answer.head.finalized is not None:
                behind = answer.head.finalized.number - answer.headers[-1].number
                if behind >= 2 * self._far:
                    return
