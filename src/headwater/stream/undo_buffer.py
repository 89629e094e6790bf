"""`undo_buffer=N`: a source that holds back the newest N blocks, so that most forks cost nothing.

It stands between the portal and the loop and reads ahead of it. A fork among the blocks it holds is
settled here: they are dropped and read anew, and the target never hears of them. A deeper one is
passed on. Nothing held is stored: a restart reads it again. Runs on the driver; its memory is what
the N blocks of the widest answer take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Protocol

from headwater.core import (
    DEFAULT_CAP,
    AtHead,
    BlockCursor,
    Blocks,
    Dropped,
    Fork,
    Head,
    HeldBlock,
    Holding,
    PipeState,
    RangeEnd,
    Span,
    Undo,
    believed_head,
    is_stale,
)
from headwater.core.undo_buffer import newest_number
from headwater.pipeline import Answers, Said, Source


class WatchedSource(Source, Protocol):
    """A source that can also say how the chain goes on after its last range."""

    def watch(self, state: PipeState) -> Answers:
        """Read headers beyond this state without an end."""
        ...


class UndoBuffer:
    """A `Source` in front of another. `patience` and `pause` are as for the loop."""

    def __init__(
        self,
        source: WatchedSource,
        depth: int,
        *,
        pause: Callable[[], None],
        patience: int = 5,
        cap: int = DEFAULT_CAP,
    ) -> None:
        self._source = source
        self._depth = depth
        self._pause = pause
        self._patience = patience
        self._cap = cap
        self._now = Holding(None, PipeState())
        self._waits = 0

    def open(self, state: PipeState) -> None:
        """Open the source behind it."""
        self._source.open(state)

    def read(self, state: PipeState) -> Answers | None:
        """Read what follows, less the newest blocks; after the last range, watch until they may go.

        What is held stays held between two readings, unless the loop went elsewhere meanwhile.
        """
        if not self._now.wanted or self._now.given != state.cursor:
            self._now = Holding(state.cursor, state)
        answers = self._source.read(self._now.ahead)
        if answers is not None:
            return self._hold(answers, watched=False)
        if not self._now.wanted:
            return None
        return self._hold(self._source.watch(self._now.ahead), watched=True)

    def _hold(self, answers: Answers, *, watched: bool) -> Answers:
        with closing(answers):
            for answer in answers:
                yield from self._take(answer, watched=watched)
                if isinstance(answer, Fork | Undo | RangeEnd):
                    return
                if watched and not self._now.wanted:
                    yield RangeEnd(Head())
                    return

    def _take(self, answer: Said, *, watched: bool) -> Iterator[Said]:
        now = self._now
        match answer:
            case Blocks(headers, _, head):
                head = believed_head(now.ahead, headers, head)
                self._now, self._waits = now.add(answer, watched=watched, cap=self._cap), 0
                yield from self._release(newest_number(headers[-1], head), head)
            case AtHead(head, confirmed):
                self._waits = 0
                yield from self._settle(head, confirmed=confirmed)
            case Fork(previous_blocks):
                yield from self._resolve(previous_blocks)
            case Undo(last_valid):
                yield from self._undo(last_valid)
            case RangeEnd() if now.held:
                pass  # what is held must grow old first
            case Span(_, last, head):
                assert not now.held, "a span follows a final block"
                self._now = Holding(last.cursor, now.ahead.advance((last,), head, cap=self._cap))
                yield answer
            case _:
                yield answer

    def _release(self, newest: int, head: Head) -> Iterator[Said]:
        """Hand out what may go; if nothing may, finality may still have moved below it."""
        self._now, gone = self._now.release(newest, self._depth)
        yield _blocks(gone, head) if gone else AtHead(head, confirmed=True)

    def _settle(self, head: Head, *, confirmed: bool) -> Iterator[Said]:
        """Hand out what has become final, or old by the head of a chain that holds our blocks."""
        now = self._now
        head = believed_head(now.ahead, (), head)
        ahead = now.ahead.settle(head, confirmed=confirmed, cap=self._cap)
        self._now = Holding(now.given, ahead, now.held)
        if now.held:
            last = now.held[-1].header
            newest = newest_number(last, head if confirmed else Head())
            self._now, gone = self._now.release(newest, self._depth)
            if gone:
                yield _blocks(gone, Head(ahead.finalized, head.latest))
        yield AtHead(head, confirmed)

    def _resolve(self, previous_blocks: Sequence[BlockCursor]) -> Iterator[Said]:
        """Settle a fork among the held blocks, or drop them all and pass it on."""
        now = self._now
        if not now.held:
            yield Fork(tuple(previous_blocks))
            return
        if self._waits < self._patience and is_stale(now.ahead, previous_blocks):
            self._waits += 1
            self._pause()
            yield AtHead(Head())
            return
        left = now.landing(previous_blocks)
        self._now, self._waits = left or Holding(now.given, PipeState()), 0
        assert now.ahead.cursor is not None, "a held block is ahead"
        if now.wanted > self._now.wanted:
            yield Dropped(now.ahead.cursor, now.wanted - self._now.wanted)
        if left is None:
            yield Fork(tuple(previous_blocks))

    def _undo(self, last_valid: BlockCursor) -> Iterator[Said]:
        """Drop what is held above the last valid block, and pass the signal on if it is deeper."""
        now = self._now
        left = now.undo(last_valid)
        self._now, self._waits = left or Holding(now.given, PipeState()), 0
        if now.ahead.cursor is not None and now.wanted > self._now.wanted:
            yield Dropped(now.ahead.cursor, now.wanted - self._now.wanted)
        if left is None:
            yield Undo(last_valid)


def _blocks(gone: Sequence[HeldBlock], head: Head) -> Blocks:
    headers = tuple(block.header for block in gone)
    return Blocks(headers, tuple(block.line for block in gone), head)
