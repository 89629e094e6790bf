"""The portal as the loop's source: spans far behind the finalized head, single blocks near it.

Far behind the finalized head nothing can fork, so large spans are handed out for executors to
fetch in parallel. Near it, blocks are read here, one after the other. The switch is made by the
state alone: each reading starts at `cursor + 1`, so there is no seam that a block could fall into.
Runs on the driver. It keeps no position; the state it is given is the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from threading import Thread

from headwater.core import (
    Answer,
    BlockCursor,
    BlockHeader,
    BlockRange,
    Blocks,
    Density,
    Fork,
    Head,
    PipeState,
    RangeEnd,
    Span,
    SpanLimits,
    SpanSize,
    Undo,
    block_count,
    clip_ranges,
    up_to,
)
from headwater.errors import (
    HeadwaterError,
    MissingBlocksError,
    PortalHttpError,
    PortalUnreachableError,
)
from headwater.portal.client import QUESTION_ATTEMPTS, PortalClient
from headwater.portal.density import probe, probe_beginning
from headwater.portal.outage import Clock, NoticeKind, SystemClock
from headwater.portal.reading import StreamQuery

STAY_S = 4.0  # what the driver will have read within this time is not left to executors
CLOSE_S = 1.0  # what the end of a run waits for a plan that was begun ahead
LOOK_BACK = 1000  # slots to search for the last block before a skipped one
_CLOSE = 1.25  # by this factor a plan made ahead may differ from one that is made now


LeaveOut = Callable[[Sequence[BlockRange]], None]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A span to be: its first and last block, and how dense it is. No `last`: no block is there."""

    first: int
    last: BlockHeader | None
    densities: Sequence[Density]


class PortalSource:
    """Reads the ranges of a plan one after the other, following each to its end.

    Spans are handed out while the finalized head is `far` blocks ahead; without `far` there are
    none. `watch` is a query without filters: it is used where no output wants blocks but a fork
    could still orphan what is committed, in a gap between ranges and once after the last one. With
    `finalized` only final blocks are read. While `executors_ready` says no, blocks are read here,
    however far behind. Without `first_span` the first span is sized by its bytes. With `planner`,
    which opens one more client, the next span is measured while the last one is written.

    Blocks that the portal does not have any more end the reading (`MissingBlocksError`). With
    `leave_out` it goes on behind them: hot blocks that nobody can confirm then are undone, and
    `leave_out` is told what was missed, again at each reading that misses it.
    """

    def __init__(
        self,
        client: PortalClient,
        plan: Sequence[tuple[BlockRange, StreamQuery]],
        *,
        watch: StreamQuery,
        far: int | None = None,
        first_span: int | None = None,
        limits: SpanLimits = SpanLimits(),  # noqa: B008 - immutable
        finalized: bool = False,
        clock: Clock | None = None,
        executors_ready: Callable[[], bool] = lambda: True,
        planner: Callable[[], PortalClient] | None = None,
        leave_out: LeaveOut | None = None,
    ) -> None:
        self._client = client
        self._planner = planner
        self._plan = tuple(plan)
        self._watch = watch
        self._far = far
        self._finalized = finalized
        self._clock = clock or SystemClock()
        self._executors_ready = executors_ready
        self._size = SpanSize(first_span, limits)
        self._estimates: dict[int, float] = {}
        self._planning: list[Thread] = []
        self._checked: BlockCursor | None = None
        self._exhausted: set[tuple[BlockCursor | None, int | None]] = set()
        self._leave_out = leave_out
        self._oldest = 0  # behind what is left out

    def open(self, state: PipeState) -> None:
        """Do nothing: each reading opens what it needs."""

    def read(self, state: PipeState) -> Generator[Answer | Span, None, None] | None:
        """Read what follows this state, in spans or block by block; None when all is read."""
        self._client.trust(state.finalized)
        if self._leave_out is None:
            return self._follow(state)
        cursor = state.cursor
        is_final = cursor is None or state.is_final(cursor.number)
        if not is_final and state.number + 1 < self._oldest and self._has_rows(state.number):
            return self._give_up_hot(state)
        if missed := self._missed(cursor):
            self._leave_out(missed)
        answers = self._follow(state)
        return None if answers is None else self._up_to_a_gap(answers)

    def _follow(self, state: PipeState) -> Generator[Answer | Span, None, None] | None:
        """Read what follows this state, in spans or block by block; None when all is read.

        A span is not compared with what is committed, so it may only follow a final block: a hot
        one could have been orphaned meanwhile, and only `stream` would say so.
        """
        if self._far is None:
            return self._blocks(state)
        left = self._left(state.cursor)
        if left is not None and (state.cursor is None or state.is_final(state.cursor.number)):
            final = self._client.finalized_head(attempts=None)
            if final is None:
                return self._blocks(state)  # no finality, no spans
            if final.number - left.from_block >= self._far:
                if self._executors_ready():
                    return self._spans(state, left, final, self._far)
                reading = self._blocks(state)
                end = final.number if left.to_block is None else min(final.number, left.to_block)
                return None if reading is None else self._until_ready(reading, end)
        reading = self._blocks(state)
        return None if reading is None else _until_far(reading, self._far)

    def learn(self, block_range: BlockRange, size: int, rows: int) -> None:
        """Take note of the bytes and rows of a span that was read. Called before the next one."""
        estimate = self._estimates.pop(block_range.from_block, 0.0)
        self._size.held(estimate, size, rows)

    def watch(self, state: PipeState) -> Generator[Answer, None, None]:
        """Read headers beyond this state without an end, only to learn how deep our blocks are."""
        assert state.cursor is not None, "there is a block to watch"
        return self._client.read(self._watch, BlockRange(state.cursor.number + 1), state.cursor)

    def query_at(self, number: int) -> StreamQuery:
        """Return what is asked of the span that begins with this block."""
        return next(query for block_range, query in self._plan if number in block_range)

    def _until_ready(
        self, reading: Generator[Answer, None, None], end: int
    ) -> Generator[Answer, None, None]:
        """Read block by block until executors are ready, unless `end` is near: spans are quicker.

        The first span of a session is slow, so what is left is read here if that takes less than
        `STAY_S` at the rate so far, and never for longer than twice that.
        """
        started, first = self._clock.monotonic(), None
        ready_at: float | None = None
        for answer in reading:
            yield answer
            if not isinstance(answer, Blocks):
                continue
            last = answer.headers[-1].number
            first = answer.headers[0].number if first is None else first
            if ready_at is None and not self._executors_ready():
                continue
            now = self._clock.monotonic()
            ready_at = now if ready_at is None else ready_at
            took, blocks = now - started, last - first + 1
            near = (end - last) * took <= STAY_S * blocks and now - ready_at < 2 * STAY_S
            if last >= end or not near:
                self._size.read_before(took, blocks)
                return

    # --- blocks that the portal does not have any more --------------------------------------------

    def _up_to_a_gap(
        self, answers: Generator[Answer | Span, None, None]
    ) -> Generator[Answer | Span, None, None]:
        """Pass answers on up to missing blocks; the next reading begins behind them, if any are."""
        with closing(answers):
            try:
                yield from answers
            except MissingBlocksError as error:
                oldest = error.facts["oldest"]
                assert isinstance(oldest, int), "it says where the portal begins"
                if not self.leaves_out(oldest):
                    raise

    def leaves_out(self, oldest: int | None = None) -> bool:
        """Tell whether the next reading begins behind missing blocks, at the oldest that is there.

        Without a number the portal is asked for it.
        """
        if self._leave_out is None:
            return False
        oldest = self._client.oldest_block() if oldest is None else oldest
        ends = [block_range.to_block for block_range, _ in self._plan]
        if oldest <= self._oldest or all(end is not None and end < oldest for end in ends):
            return False
        self._oldest = oldest
        return True

    def _give_up_hot(self, state: PipeState) -> Generator[Answer, None, None]:
        """Undo hot blocks: the portal lacks what follows them, so nobody says if they are orphans.

        They are read again, if they are there, or counted with what is missing. What cannot be
        undone, and is not final, is refused: nothing of it is ever left in doubt.
        """
        safe = state.landing_points()[0]
        if not state.is_final(safe.number) and self._has_rows(safe.number):
            raise MissingBlocksError(
                "the portal does not have the next blocks any more, and what is committed is not "
                "known to be final, so nobody can confirm it",
                missing=BlockRange(state.number + 1, self._oldest - 1),
                oldest=self._oldest,
                cursor=state.cursor,
            )
        yield Undo(safe)

    def _has_rows(self, number: int) -> bool:
        """Tell whether a block or one below it may have rows."""
        return any(block_range.from_block <= number for block_range, _ in self._plan)

    def _missed(self, cursor: BlockCursor | None) -> list[BlockRange]:
        """Return what the plan wants behind the cursor and the portal does not have any more."""
        last = self._oldest - 1
        return [
            BlockRange(
                block_range.from_block,
                last if block_range.to_block is None else min(block_range.to_block, last),
            )
            for block_range in clip_ranges([block_range for block_range, _ in self._plan], cursor)
            if block_range.from_block <= last
        ]

    def _remaining(self, cursor: BlockCursor | None) -> Iterator[tuple[BlockRange, StreamQuery]]:
        """Yield what is left of the plan after the cursor, from where the portal's blocks begin."""
        begins_after = BlockCursor(self._oldest - 1) if self._oldest else None
        for block_range, query in self._plan:
            for left in clip_ranges(clip_ranges((block_range,), begins_after), cursor):
                yield left, query

    # --- near the head ----------------------------------------------------------------------------

    def _blocks(self, state: PipeState) -> Generator[Answer, None, None] | None:
        """Read what follows this state block by block, to the end of its range."""
        cursor = state.cursor
        hot = cursor is not None and not state.is_final(cursor.number) and not self._finalized
        hot = hot and state.number + 1 >= self._oldest  # else nothing above says anything of it
        for left, query in self._remaining(cursor):
            if self._is_exhausted(left, cursor):
                continue
            if hot and cursor is not None and left.from_block > cursor.number + 1:
                gap = BlockRange(cursor.number + 1, left.from_block - 1)
                if not self._is_exhausted(gap, cursor):
                    return self._read_range(self._watch, gap, cursor)
            return self._read_range(query, left, cursor)
        if not hot or cursor is None or cursor == self._checked:
            return None
        return self._check_tail(cursor)

    def _read_range(
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
        """Ask once whether the last committed block, which is hot, is still on the chain.

        All of the range is committed, so a portal that does not answer is no reason to fail.
        """
        self._checked = cursor
        answer: Answer = RangeEnd(Head())
        try:
            if not self._is_there(cursor):
                following = BlockRange(cursor.number + 1)
                reading = self._client.read(
                    self._watch, following, cursor, attempts=QUESTION_ATTEMPTS
                )
                with closing(reading) as answers:
                    answer = next(answers)
        except (PortalHttpError, PortalUnreachableError) as error:
            self._client.tell(
                NoticeKind.END_UNCHECKED,
                "whether the last block is still on the chain is not known",
                cursor=cursor,
                reason=str(error),
            )
        yield answer if isinstance(answer, Fork) else RangeEnd(Head())

    def _is_there(self, cursor: BlockCursor) -> bool:
        """Ask for a block by its number: it is there at once, while one that follows is waited for.

        Where it is another block, or none, the answer to a request behind it says what to do.
        """
        asked = BlockRange(cursor.number, cursor.number)
        reading = self._client.read(self._watch, asked, attempts=QUESTION_ATTEMPTS)
        with closing(reading) as answers:
            try:
                answer = next(answers)
            except MissingBlocksError:
                return False
        return isinstance(answer, Blocks) and answer.headers[-1].cursor == cursor

    def _is_exhausted(self, left: BlockRange, cursor: BlockCursor | None) -> bool:
        """Tell whether what is left of a range after this cursor is known to hold no block."""
        return (cursor, left.to_block) in self._exhausted

    # --- far behind it ----------------------------------------------------------------------------

    def _left(self, cursor: BlockCursor | None) -> BlockRange | None:
        """Return the first range of the plan that is not read."""
        remaining = (left for left, _ in self._remaining(cursor))
        return next(
            (
                block_range
                for block_range in remaining
                if not self._is_exhausted(block_range, cursor)
            ),
            None,
        )

    def _spans(
        self, state: PipeState, left: BlockRange, final: BlockCursor, far: int
    ) -> Generator[Answer | Span, None, None]:
        """Hand out spans until the finalized head, as it was, is near."""
        first, end = left.from_block, final.number
        if left.to_block is not None:
            end = min(end, left.to_block)
        head = Head(final, self._latest())
        before = state.cursor
        self._check_link(left, before)
        ahead: Future[_Plan] | None = None
        while first <= end and (final.number - first >= far or end == left.to_block):
            plan = self._made_ahead(ahead, end) or self._plan_span(self._client, first, end, before)
            last = plan.last
            if last is None and first == left.from_block:
                yield from self._blocks(state) or ()  # only skipped slots are left here
            if last is None:
                return
            measured = tuple(up_to(plan.densities, last.number))
            self._estimates[first] = sum(density.total for density in measured)
            following, before = last.number + 1, last.cursor
            ahead = self._begin_ahead(following, end, before) if following <= end else None
            started = self._clock.monotonic()
            yield Span(BlockRange(first, last.number), last, head, measured)
            self._size.took(self._clock.monotonic() - started, following - first)
            first = following
        if first > end == left.to_block:
            yield RangeEnd(head)

    def _plan_span(
        self, client: PortalClient, first: int, end: int, before: BlockCursor | None
    ) -> _Plan:
        """Measure what comes next, and find the last block of a span that is as long as it may."""
        query = self.query_at(first)
        if not self._size.blocks:
            self._size.begin(probe_beginning(client, query, BlockRange(first, end)))
        blocks = BlockRange(first, min(first + self._size.blocks - 1, end))
        densities = probe(client, query, blocks)
        largest = first + self._size.fitting(densities) - 1
        return _Plan(first, self._last_header(client, first, largest, before), densities)

    def _begin_ahead(self, first: int, end: int, before: BlockCursor) -> Future[_Plan] | None:
        """Plan the next span on a thread of its own, with a client of its own.

        Only a help: what fails there is done again here, where it is waited for or raised.
        """
        if self._planner is None:
            return None
        future: Future[_Plan] = Future()

        def plan(open_client: Callable[[], PortalClient]) -> None:
            try:
                with open_client() as client:
                    future.set_result(self._plan_span(client, first, end, before))
            except Exception as error:  # noqa: BLE001 - its reader decides
                future.set_exception(error)

        thread = Thread(target=plan, args=(self._planner,), name="headwater-plan", daemon=True)
        thread.start()
        self._planning = [*(other for other in self._planning if other.is_alive()), thread]
        return future

    def close(self) -> None:
        """Wait a moment for threads that plan ahead, whose clients were told to end.

        A thread that outlives the interpreter keeps objects from being freed, which some libraries
        then list.
        """
        for thread in self._planning:
            thread.join(CLOSE_S)

    def _made_ahead(self, ahead: Future[_Plan] | None, end: int) -> _Plan | None:
        """Return the plan that was made ahead, if it is as good as one that is made now.

        Since then the last span has told how long spans may be, and what they hold. A plan that is
        not made yet is not waited for: a stream that is told to stop waits for no portal.
        """
        if ahead is None or not ahead.done() or ahead.exception() is not None:
            return None
        plan = ahead.result()
        if plan.last is None:
            return None
        measured = sum(block_count(density.blocks) for density in plan.densities)
        room = self._size.fitting(plan.densities)
        wanted = room if room < measured else min(self._size.blocks, end - plan.first + 1)
        blocks = plan.last.number - plan.first + 1
        return plan if wanted / _CLOSE <= blocks <= wanted * _CLOSE else None

    def _latest(self) -> BlockCursor | None:
        """Return the newest block, which only progress needs: without an answer it is unknown."""
        try:
            return self._client.head()
        except HeadwaterError:
            return None

    def _check_link(self, left: BlockRange, cursor: BlockCursor | None) -> None:
        """Raise `BlockLinkError` if the next block does not name our last one as its parent."""
        asked = BlockRange(left.from_block, left.from_block + LOOK_BACK)
        for answer in self._client.read(self._watch, asked, cursor, finalized=True):
            if isinstance(answer, Blocks):
                return

    def _last_header(
        self, client: PortalClient, first: int, last: int, before: BlockCursor | None
    ) -> BlockHeader | None:
        """Return the header of the last block of a span; its last numbers may be skipped slots.

        It is asked for together with its predecessor, so that the link between them is checked.
        """
        for lowest in (max(first, last - 1), max(first, last - LOOK_BACK)):
            header: BlockHeader | None = None
            asked = BlockRange(lowest, last)
            for answer in client.read(self._watch, asked, before, finalized=True):
                if isinstance(answer, Blocks):
                    header = answer.headers[-1]
            if header is not None:
                return header
        return None


def _until_far(reading: Generator[Answer, None, None], far: int) -> Generator[Answer, None, None]:
    """Read near the head, but stop if the head has run far away: then spans are quicker."""
    for answer in reading:
        yield answer
        if isinstance(answer, Blocks) and answer.head.finalized is not None:
            behind = answer.head.finalized.number - answer.headers[-1].number
            if behind >= 2 * far:
                return
