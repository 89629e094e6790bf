"""A Substreams endpoint as the loop's source: outputs become blocks, undo signals become `Undo`.

A thread receives ahead of the loop, within bounds; another decodes the final blocks that have
arrived, all that wait together, while the loop waits for the database. What is ready by then is
handed out together, so that a slow commit is followed by a large one. Between two readings the
session stays open if the loop stands where the session does; otherwise the endpoint is dialled
anew, from the cursor of the block that the loop stands at. Runs on the driver. A restart reads on
from the stored cursor; if its block was orphaned meanwhile, the endpoint says so first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread

import pyarrow as pa

from headwater.core import (
    AtHead,
    BlockCursor,
    BlockHeader,
    Blocks,
    Fork,
    Head,
    PipeState,
    RangeEnd,
    Undo,
)
from headwater.core.cursor import UNKNOWN_HASH
from headwater.errors import HeadwaterError, SubstreamsMessageError
from headwater.pipeline import Answers
from headwater.substreams.client import Reading, SubstreamsClient
from headwater.substreams.cursors import CursorLog
from headwater.substreams.messages import (
    Message,
    ModuleOutput,
    Outputs,
    Progress,
    SessionInit,
    UndoSignal,
)

Decode = Callable[[Sequence[ModuleOutput]], Mapping[str, pa.Table]]
AHEAD_BYTES = 24 << 20  # of messages that wait for the loop
TOGETHER_BLOCKS, TOGETHER_BYTES = 2000, 16 << 20  # handed out at once: an index likes many rows
DECODED_BLOCKS, DECODED_BYTES = 500, 4 << 20  # decoded at once: caches hold as much
IDLE_S = 1.0  # without a message at the head: time for what waits by the clock


class SubstreamsSource:
    """Reads one module from `start` up to, not including, `stop`; 0 follows the head.

    `on_message` is told of every message, in the loop's thread. `check` raises if the run is to
    end. `decode` is called ahead, in the thread that receives.
    """

    def __init__(
        self,
        client: SubstreamsClient,
        log: CursorLog,
        *,
        start: int = 0,
        stop: int = 0,
        on_message: Callable[[Message], None] = lambda message: None,
        check: Callable[[], None] = lambda: None,
        decode: Decode | None = None,
    ) -> None:
        self._decode = decode
        self._client = client
        self._log = log
        self._start = start
        self._stop = stop
        self._on_message = on_message
        self._check = check
        self._feed: Feed | None = None
        self._floor = self._last = -1  # what the loop had when dialled; the last number said
        self._anchor: BlockCursor | None = None  # a block to find again, where no cursor is stored
        self._final = self._chain_head = 0
        self._exhausted: set[int] = set()

    def open(self, state: PipeState) -> None:
        """Do nothing: the first reading dials."""

    def read(self, state: PipeState) -> Answers | None:
        """Read what follows this state; None once the range is read."""
        if self._stop and (state.number >= self._stop - 1 or state.number in self._exhausted):
            self.close()
            return None
        return self._answers(state, self._stop)

    def watch(self, state: PipeState) -> Answers:
        """Read on beyond the range, only to learn how deep its last blocks are."""
        return self._answers(state, 0)

    def abort(self) -> None:
        """Break off what waits for the endpoint. Called from any thread."""
        feed = self._feed
        if feed is not None:
            feed.close()

    def close(self) -> None:
        """End the session."""
        self.abort()
        self._feed = None

    # --- the session ------------------------------------------------------------------------------

    def _answers(self, state: PipeState, stop: int) -> Answers:
        feed = self._feed
        if feed is None or feed.stop != stop or not state.number >= self._log.last:
            feed = self._dial(state, stop)
        while True:
            self._check()
            message = feed.take(IDLE_S)
            if isinstance(message, Gathered):
                yield from self._blocks(message, feed)
                continue
            if message is not None:
                self._on_message(message)
            if isinstance(message, UndoSignal):
                yield from self._undo(message)
                return
            elif isinstance(message, SessionInit):
                self._chain_head = max(self._chain_head, message.chain_head)
            elif feed.ended:
                break
            elif self._last > self._final and (message is None or isinstance(message, Progress)):
                yield AtHead(Head(None, self._latest()))
        self._check()
        self._feed = None
        self._exhausted.add(max(state.number, self._log.last))
        yield RangeEnd(Head(None, self._latest()))

    def _dial(self, state: PipeState, stop: int) -> Feed:
        """Begin a session after a state, and forget what the loop has not kept."""
        self.close()
        self._log.undo(state.number)
        self._floor = self._last = state.number
        cursor, start = self._log.resume_at(state), self._start
        self._anchor = None
        if not cursor and state.cursor is not None and state.cursor.hash != UNKNOWN_HASH:
            start, self._anchor = state.number, state.cursor
        reading = self._client.read(cursor=cursor, start=start, stop=stop)
        self._feed = Feed(reading, stop, decode=self._decode)
        return self._feed

    # --- what it says -----------------------------------------------------------------------------

    def _heard(self, gathered: Gathered) -> list[ModuleOutput]:
        """Tell of messages that were taken; return their blocks."""
        for message in gathered.messages:
            self._on_message(message)
        items = [item for message in gathered.messages for item in message.items]
        if gathered.tables is not None:
            self._log.decoded(items, gathered.tables)
        return items

    def _blocks(self, message: Gathered, feed: Feed) -> Iterator[Blocks | Fork]:
        """Hand out the blocks of a message, and of those that arrived right after it."""
        items, size = self._heard(message), message.size
        while len(items) < TOGETHER_BLOCKS and size < TOGETHER_BYTES:
            more = feed.take_outputs()
            if more is None:
                break
            items += self._heard(more)
            size += more.size
        taken: list[ModuleOutput] = []
        for item in items:
            number = item.clock.number
            if number <= self._floor:
                if self._anchor is not None and item.clock.cursor != self._anchor:
                    self.close()
                    yield Fork((item.clock.cursor,))
                    return
                continue  # the loop has it
            if number < self._start:
                continue  # an undo went below the beginning
            if number <= self._last:
                raise SubstreamsMessageError(
                    "blocks do not ascend", after=self._last, got=item.clock.cursor
                )
            self._last, self._anchor = number, None
            self._final = max(self._final, min(item.final_height, number))
            self._log.note(item)
            taken.append(item)
        if taken:
            final = taken[-1].final_height
            yield Blocks(
                tuple(_header(item) for item in taken),
                tuple(item.value for item in taken),
                Head(BlockCursor(final, self._hash_at(final)), self._latest()),
            )

    def _undo(self, signal: UndoSignal) -> Iterator[Undo]:
        """Pass an undo signal on, and stand at its block."""
        self._log.undo(signal.last_valid.number)
        self._exhausted.clear()
        self._floor = self._last = signal.last_valid.number
        self._anchor = None
        yield Undo(signal.last_valid)

    def _hash_at(self, number: int) -> str:
        """Return the hash of the final block, if we have it; the endpoint tells its number only."""
        return self._log.hash_of(number) or UNKNOWN_HASH

    def _latest(self) -> BlockCursor | None:
        newest = max(self._chain_head, self._last)
        return BlockCursor(newest) if newest >= 0 else None


@dataclass(frozen=True, slots=True)
class Gathered:
    """Messages of blocks that are taken together, with the tables of all of them if decoded."""

    messages: tuple[Outputs, ...]
    tables: Mapping[str, pa.Table] | None = None

    @property
    def size(self) -> int:
        """Their size on the wire."""
        return sum(one.size for one in self.messages)


Taken = Gathered | Message


class Feed:
    """Receives a reading in a thread of its own, ahead of the loop, within a bound of bytes.

    Final blocks are decoded in a second thread: those that have arrived while it was busy, all
    together. What cannot be decoded is decoded again by the loop, which says what is wrong with it.
    """

    def __init__(
        self,
        reading: Reading,
        stop: int,
        *,
        ahead: int = AHEAD_BYTES,
        decode: Decode | None = None,
    ) -> None:
        self._decode = decode
        self.together = (
            (TOGETHER_BLOCKS, TOGETHER_BYTES) if decode is None else (DECODED_BLOCKS, DECODED_BYTES)
        )
        self.stop = stop
        self._reading = reading
        self._ahead = ahead
        self._arrived: deque[Message] = deque()
        self._ready: deque[Taken] = deque()
        self._size = 0  # of all that was received and not taken
        self._received = self._over = self._closed = False
        self._error: BaseException | None = None
        self._changed = Condition()
        for work in (self._receive, self._prepare):
            Thread(target=work, name="headwater-substreams", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether the range is read and all of it was taken. A failure is no end: `take` raises."""
        with self._changed:
            return self._over and not self._ready and self._error is None

    def take(self, timeout: float) -> Taken | None:
        """Return what comes next; None if there is nothing in time, or ever.

        Raises:
            BaseException: what the reading failed with, once all before it was taken.
        """
        with self._changed:
            if not self._ready and not self._over:
                self._changed.wait_for(lambda: self._ready or self._over, timeout)
            if self._ready:
                return self._pop()
            if self._over and self._error is not None:
                raise self._error
            return None

    def take_outputs(self) -> Gathered | None:
        """Return what comes next if it is ready and holds blocks."""
        with self._changed:
            if self._ready and isinstance(self._ready[0], Gathered):
                return self._pop()  # type: ignore[return-value]
            return None

    def close(self) -> None:
        """Break off the reading; what has arrived is dropped."""
        with self._changed:
            self._closed = self._over = True
            self._arrived.clear()
            self._ready.clear()
            self._changed.notify_all()
        self._reading.abort()

    def _pop(self) -> Taken:
        taken = self._ready.popleft()
        self._size -= _size(taken)
        self._changed.notify_all()
        return taken

    def _receive(self) -> None:
        try:
            for message in self._reading:
                with self._changed:
                    self._changed.wait_for(lambda: self._size < self._ahead or self._closed)
                    if self._closed:
                        break
                    self._arrived.append(message)
                    self._size += _size(message)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - `take` raises it
            self._error = error
        with self._changed:
            self._received = True
            self._changed.notify_all()

    def _prepare(self) -> None:
        """Pass messages on, final blocks with their tables."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._arrived or self._received or self._closed)
                if not self._arrived:
                    self._over = True
                    self._changed.notify_all()
                    return
                taken = self._gather()
            if isinstance(taken, Gathered) and self._decode is not None and _is_final(taken):
                items = [item for message in taken.messages for item in message.items]
                with suppress(HeadwaterError):
                    taken = Gathered(taken.messages, self._decode(items))
            with self._changed:
                if not self._closed:
                    self._ready.append(taken)
                    self._changed.notify_all()

    def _gather(self) -> Taken:
        """Return the next message; if its blocks are final, with those that follow it."""
        first = self._arrived.popleft()
        if not isinstance(first, Outputs):
            return first
        held, blocks, size = [first], len(first.items), first.size
        while _is_final(Gathered((held[-1],))) and self._arrived:
            more = self._arrived[0]
            if not isinstance(more, Outputs) or not _is_final(Gathered((more,))):
                break
            blocks, size = blocks + len(more.items), size + more.size
            if blocks > self.together[0] or size > self.together[1]:
                break
            held.append(more)
            self._arrived.popleft()
        return Gathered(tuple(held))


def _is_final(gathered: Gathered) -> bool:
    items = (item for message in gathered.messages for item in message.items)
    return all(item.final_height >= item.clock.number for item in items)


def _size(message: Taken) -> int:
    return message.size if isinstance(message, Outputs | Gathered) else 0


def _header(output: ModuleOutput) -> BlockHeader:
    clock = output.clock
    return BlockHeader(clock.number, clock.hash, timestamp=clock.timestamp)
