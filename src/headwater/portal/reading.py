"""One reading: a range of blocks through as many requests as it takes.

The anchor moves with every good line, so it does not matter where a response ends or breaks: the
next request asks for what is missing, with the hash of the last good block where that block is the
true predecessor. Nothing is delivered twice and nothing is left out. A reading holds no state that
outlives it; to resume, make another one from the committed cursor.

A portal that repeats, reorders or swaps blocks would corrupt every table downstream without a sign,
so each block is checked against the one before it (`BlockOrder`). A block that fails leaves the
checker where it was: at the last good block. Runs on the driver, or on an executor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from headwater.core import (
    Answer,
    AtHead,
    BlockCursor,
    BlockHeader,
    BlockRange,
    Blocks,
    Head,
    RangeEnd,
    anchor_for,
)
from headwater.core.retry import RetryPolicy
from headwater.errors import (
    BlockLinkError,
    BlockOrderError,
    HeadwaterError,
    MalformedLineError,
    TransportError,
)
from headwater.portal.outage import Clock, Notice, NoticeKind, Observer, Outage, read_body
from headwater.portal.transport import NoAnswerYet, Request, Response, Transport
from headwater.portal.wire import LineSplitter, read_fork, read_head, read_header

MAX_TRUNCATIONS = 5
PROBE_BLOCKS = 1000


class StreamQuery(Protocol):
    """What a reading needs of a query."""

    @property
    def include_all_blocks(self) -> bool:
        """Whether every block is asked for, so that a gap is an error."""
        ...

    def body(
        self, from_block: int, to_block: int | None = None, parent_block_hash: str | None = None
    ) -> bytes:
        """Return the body of a stream request."""
        ...


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a client reads: the same for all its readings."""

    transport: Transport
    retry: RetryPolicy
    clock: Clock
    random: Callable[[], float]
    notify: Observer
    max_bytes: int
    poll_interval_s: float
    rollback_cap: int

    def outage(self, route: str, attempts: int | None = None) -> Outage:
        """Return a fresh count of failures for one reading or one question."""
        return Outage(route, self.retry, self.clock, self.random, self.notify, attempts)


class Reading:
    """Reads one range once; made by `PortalClient.read`, consumed by its caller."""

    def __init__(
        self,
        conditions: Conditions,
        query: StreamQuery,
        block_range: BlockRange,
        after: BlockCursor | None,
        outage: Outage,
        *,
        finalized: bool,
    ) -> None:
        self._on = conditions
        self._query = query
        self._finalized = finalized
        self._route = "finalized-stream" if finalized else "stream"
        self._order = BlockOrder(block_range, after, complete=query.include_all_blocks)
        self._outage = outage
        self._head = Head()
        self._asked_at = 0.0
        self._anchored = False
        self._truncations = 0
        self._empty_answers = 0
        self._first, self._end = block_range.from_block, block_range.to_block
        self._probes = False

    @property
    def next_block(self) -> int:
        """The block that is asked for next."""
        return self._order.next_block

    def answers(self) -> Generator[Answer, None, None]:
        """Ask until the range is read; see `PortalClient.read` for what is yielded when."""
        while not self._order.finished:
            before = self._order.last
            try:
                with closing(self._ask()) as response:
                    self._head = read_head(response.headers)
                    if response.status == 200:
                        yield from self._blocks(response)
                        body = b""
                    else:
                        body = read_body(response)
            except TransportError as error:
                if not self._order.finished:
                    self._outage.broke(error)
                continue
            except NoAnswerYet:
                if self._has_all():
                    yield AtHead(self._head)
                    self._outage.touch()
                continue
            except _BeyondTheEnd:
                self._outage.arrived()
                break
            if response.status not in (200, 204, 409):
                self._outage.refused(response.status, response.headers, body)
                continue
            self._outage.arrived()
            if response.status == 409:
                yield read_fork(body)
                return
            if self._order.last is not before:
                continue
            self._empty_answers = self._empty_answers + 1 if response.status == 200 else 0
            yield AtHead(self._head, confirmed=response.status == 200 and self._anchored)
            self._pace()
        yield RangeEnd(self._head)

    def _ask(self) -> Response:
        remaining = self._order.remaining
        anchor = anchor_for(remaining, self._order.anchor)
        self._anchored = anchor is not None
        beyond = self._beyond()
        self._probes = beyond is not None
        last = remaining.to_block if beyond is None else beyond
        body = self._query.body(remaining.from_block, last, None if anchor is None else anchor.hash)
        self._asked_at = self._on.clock.monotonic()
        return self._on.transport.send(Request("POST", self._route, body))

    def _blocks(self, response: Response) -> Generator[Blocks, None, None]:
        """Yield the blocks of one response; whatever breaks, those before it are yielded first.

        Blocks are gathered up to `max_bytes`. What reaches the end of the range, or the newest
        block that the portal had when it answered, goes with the chunk that brought it.
        """
        splitter = LineSplitter()
        batch = _Batch()
        try:
            for chunk in response.chunks():
                for line in splitter.feed(chunk):
                    self._accept(line, batch)
                    if batch.size >= self._on.max_bytes:
                        yield self._take(batch)
                        self._outage.touch()
                if batch.lines:
                    self._outage.arrived()
                if batch.lines and self._is_urgent():
                    yield self._take(batch)
                    self._outage.touch()
            self._accept_rest(splitter.rest, batch)
        except (HeadwaterError, _BeyondTheEnd):
            if batch.lines:
                yield self._take(batch)
                self._outage.touch()
            raise
        if batch.lines:
            yield self._take(batch)
            self._outage.touch()

    def _accept(self, line: bytes, batch: _Batch) -> None:
        last = self._order.last
        header = read_header(line, None if last is None else last.number)
        if self._probes and self._end is not None and header.number > self._end:
            self._tell_of_the_tail()
            raise _BeyondTheEnd
        try:
            self._order.accept(header)
        except BlockOrderError:
            if header.number >= self._first:
                batch.give_way_to(header.number)
            raise
        batch.add(header, line)
        self._truncations = self._empty_answers = 0

    def _accept_rest(self, rest: bytes, batch: _Batch) -> None:
        """Take a last line without a newline if it is whole; otherwise the body was cut short."""
        if not rest.strip():
            return
        try:
            self._accept(rest, batch)
        except MalformedLineError as error:
            self._truncations += 1
            if self._truncations >= MAX_TRUNCATIONS:
                raise
            raise TransportError("the body ended inside a line", phase="body") from error

    def _take(self, batch: _Batch) -> Blocks:
        blocks = Blocks(tuple(batch.headers), tuple(batch.lines), self._head)
        batch.clear()
        return blocks

    def _is_urgent(self) -> bool:
        """Tell whether the head is reached: nothing that the portal has is worth waiting for."""
        if self._order.finished:
            return True
        settled, latest = self._head.finalized, self._head.latest
        hot = settled is None or self._order.next_block > settled.number + 1
        at_head = latest is None or self._order.next_block > latest.number
        return not self._finalized and hot and at_head

    def _has_all(self) -> bool:
        """Tell whether the portal had no more blocks when it answered last."""
        newest = self._head.finalized if self._finalized else self._head.latest
        return newest is not None and self._order.next_block > newest.number

    def _beyond(self) -> int | None:
        """Return the block to ask for beyond the range, if its tail may hold none; else None.

        Numbers can be skipped, and then answers stay empty. But an empty answer may be a fault, and
        believing it would lose blocks. So after one of them more is asked for: a first block beyond
        the end proves that the tail is empty. The tail must be past any fork; while finality
        is unknown, what lies deeper than any rollback counts as past.
        """
        if self._end is None or not self._empty_answers:
            return None
        head = self._head
        settled = None if head.finalized is None else head.finalized.number
        if settled is None and head.latest is not None:
            settled = head.latest.number - (0 if self._finalized else self._on.rollback_cap)
        if settled is None or settled <= self._end:
            return None
        further = PROBE_BLOCKS << min(32, self._empty_answers - 1)
        return min(settled, self._end + further)

    def _tell_of_the_tail(self) -> None:
        if not self._order.finished:
            self._on.notify(
                Notice(
                    NoticeKind.EMPTY_TAIL,
                    "the last numbers of the range hold no block",
                    {"route": self._route, "range": str(self._order.remaining)},
                )
            )

    def _pace(self) -> None:
        """Wait before asking for the same again: the poll interval, longer if answers are empty.

        The interval is measured between the starts of requests, so a server that holds an answer
        back until there is news is not waited for twice.
        """
        clock = self._on.clock
        pause = self._asked_at + self._on.poll_interval_s - clock.monotonic()
        if self._empty_answers:
            pause = max(pause, self._on.retry.pause_s(self._empty_answers, self._on.random))
        if pause > 0:
            clock.sleep(pause)
        self._outage.touch()


class _BeyondTheEnd(Exception):  # noqa: N818 - not an error: the range is read
    """The first block after a range has arrived, which proves that no other one is left in it."""


class _Batch:
    """Lines that wait to be passed on."""

    __slots__ = ("headers", "lines", "size")

    def __init__(self) -> None:
        self.clear()

    def add(self, header: BlockHeader, line: bytes) -> None:
        self.headers.append(header)
        self.lines.append(line)
        self.size += len(line)

    def give_way_to(self, number: int) -> None:
        """Drop the blocks above one that came late: passed on, they would leave it out for good."""
        if any(header.number == number for header in self.headers):
            return
        while self.headers and self.headers[-1].number > number:
            self.headers.pop()
            self.size -= len(self.lines.pop())

    def clear(self) -> None:
        self.headers: list[BlockHeader] = []
        self.lines: list[bytes] = []
        self.size = 0


class BlockOrder:
    """Follows a stream from its anchor through its range.

    `after` is the block before the range; one that is not its direct predecessor (ranges may be
    disjoint) bounds nothing and links to nothing. `complete` says that the query asked for every
    block, so a gap is an error, also one before the first block. Where numbers are skipped
    (Solana), parent links show whether a gap is one; without any link the number decides, so such a
    query must select `parentNumber`.
    """

    __slots__ = ("_complete", "_range", "last")

    def __init__(
        self, block_range: BlockRange, after: BlockCursor | None = None, *, complete: bool = False
    ) -> None:
        adjacent = after is not None and after.number + 1 == block_range.from_block
        self.last: BlockCursor | BlockHeader | None = after if adjacent else None
        self._range = block_range
        self._complete = complete

    @property
    def anchor(self) -> BlockCursor | None:
        """The last good block, as a cursor."""
        return self.last.cursor if isinstance(self.last, BlockHeader) else self.last

    @property
    def next_block(self) -> int:
        """The first number that is still to come."""
        return self._range.from_block if self.last is None else self.last.number + 1

    @property
    def finished(self) -> bool:
        """Whether the last block of the range has been seen."""
        return self._range.to_block is not None and self.next_block > self._range.to_block

    @property
    def remaining(self) -> BlockRange:
        """What is still to be asked for; only while not `finished`."""
        return BlockRange(self.next_block, self._range.to_block)

    def accept(self, header: BlockHeader) -> None:
        """Take the next block.

        Raises:
            BlockOrderError: it was there before, comes too late, or was not asked for.
            BlockLinkError: it is no descendant of the block before it, or one is missing.
        """
        last = self.last
        if last is not None and header.number <= last.number:
            kind = "twice" if header.number == last.number else "out of order"
            raise BlockOrderError(
                f"a block arrived {kind}, after block {last.number}", block=header.number
            )
        if header.number not in self._range:
            raise BlockOrderError(
                "a block outside the requested range arrived",
                block=header.number,
                range=self._range,
                after=None if last is None else last.number,
            )
        if last is not None:
            self._check_link(last, header)
        elif self._complete:
            self._check_first(header)
        self.last = header

    def _check_first(self, header: BlockHeader) -> None:
        """Refuse a first block that has a parent within the range."""
        first = self._range.from_block
        parent = header.number - 1 if header.parent_number is None else header.parent_number
        if header.number > first and parent >= first:
            raise BlockLinkError(
                f"blocks are missing between {first} and {header.number}",
                parent_hash=header.parent_hash,
                parent_number=header.parent_number,
            )

    def _check_link(self, last: BlockCursor | BlockHeader, header: BlockHeader) -> None:
        known = header.parent_hash is not None and last.hash is not None
        same = known and header.parent_hash == last.hash
        foreign = known and not same
        parent = header.parent_number
        if parent is None:
            parent = last.number if same else header.number - 1
        if not last.number <= parent < header.number or (parent == last.number and foreign):
            problem = f"block {header.number} is not a descendant of block {last.number}"
        elif self._complete and parent != last.number:
            problem = f"blocks are missing between {last.number} and {header.number}"
        else:
            return
        raise BlockLinkError(
            problem,
            expected=last.hash,
            parent_hash=header.parent_hash,
            parent_number=header.parent_number,
        )
