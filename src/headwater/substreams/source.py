"""A Substreams endpoint as the loop's source: outputs become blocks, undo signals become `Undo`.

A thread receives ahead of the loop, within bounds; another decodes the final blocks that have
arrived, all that wait together, while the loop waits for the database. What is ready by then is
handed out together, so that a slow commit is followed by a large one. If the target can prepare
rows, the second thread has it do so: the rows of one commit, while the one before it runs.

Between two readings the session stays open if the loop stands where the session does; otherwise the
endpoint is dialled anew, from the cursor of the block that the loop stands at. Runs on the driver.
A restart reads on from the stored cursor; if its block was orphaned meanwhile, the endpoint says so
first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Condition, Thread
from typing import Any

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
from headwater.errors import SubstreamsMessageError
from headwater.pipeline import Answers
from headwater.substreams.client import Reading, SubstreamsClient
from headwater.substreams.cursor_text import final_block
from headwater.substreams.cursors import CursorLog
from headwater.substreams.messages import (
    Message,
    ModuleOutput,
    Outputs,
    Progress,
    SessionInit,
    UndoSignal,
)
from headwater.substreams.outputs import Gathered, Piece, Tables

Decode = Callable[[Sequence[ModuleOutput]], Tables]
Prepare = Callable[[Mapping[str, pa.Table]], Any]
AHEAD_BYTES = 32 << 20  # of messages that wait for the loop
TOGETHER_BLOCKS, TOGETHER_BYTES = 2000, 16 << 20  # handed out at once: an index likes many rows
DECODED_BLOCKS, DECODED_BYTES = 500, 4 << 20  # decoded at once: caches hold as much
IDLE_S = 1.0  # without a message at the head: time for what waits by the clock


class SubstreamsSource:
    """Reads one module from `start` up to, not including, `stop`; 0 follows the head.

    `on_message` is told of every message, in the loop's thread. `check` raises if the run is to
    end. `decode` and `prepare`, the target's `prepare_rows`, are called ahead, in another thread.
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
        prepare: Prepare | None = None,
    ) -> None:
        self.receive: type[Feed] = Feed
        self._decode = decode
        self._prepare = prepare
        self._client = client
        self._log = log
        self._start = start
        self._stop = stop
        self._on_message = on_message
        self._check = check
        self._feed: Feed | None = None
        self._floor = self._last = -1  # what the loop had when dialled; the last number said
        self._held: Mapping[int, str | None] = {}  # blocks of the loop that may come again
        self._asked: tuple[PipeState, BlockCursor | None] = (PipeState(), None)
        self._undone: int | None = None  # the block of an undo signal, until the loop has landed
        self._unsure = False  # whether the loop's own block is still to be seen again
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
        elsewhere = self._undone not in (None, state.number) or state.number < self._log.last
        if feed is None or feed.stop != stop or elsewhere:
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
            elif (
                self._last > self._final
                and not self._unsure
                and (message is None or isinstance(message, Progress))
            ):
                yield AtHead(Head(None, self._latest()))
        self._check()
        self._feed = None
        self._exhausted.add(max(state.number, self._log.last))
        yield RangeEnd(Head(None, self._latest()))

    def _dial(self, state: PipeState, stop: int) -> Feed:
        """Begin a session after a state, and forget what the loop has not kept.

        The cursor of a block that can be orphaned tells the endpoint what to undo. Of one that is
        final it says nothing: an endpoint of another chain would go on with the next number. So the
        block itself is asked for, as where its cursor is not known, or what leads to it from a
        block that is; what comes again is compared.
        """
        self.close()
        self._log.undo(state.number)
        self._floor = self._last = state.number
        (cursor, exact), start = self._log.resume_at(state), self._start
        if exact and not state.is_hot:
            cursor, exact = "", False
        known = state.cursor is not None and state.cursor.hash not in (None, UNKNOWN_HASH)
        self._held = {
            point.number: point.hash
            for point in state.landing_points()
            if point.hash not in (None, UNKNOWN_HASH)
        }
        self._unsure = known and not exact
        self._asked, self._undone = (state, final_block(cursor)), None
        if not cursor and state.cursor is not None:
            start = state.number
        reading = self._client.read(cursor=cursor, start=start, stop=stop)
        self._feed = self.receive(reading, stop, decode=self._decode, prepare=self._prepare)
        return self._feed

    # --- what it says -----------------------------------------------------------------------------

    def _heard(self, gathered: Gathered) -> list[Piece]:
        """Tell of messages that were taken; return their blocks."""
        for message in gathered.messages:
            self._on_message(message)
        decoded = None if gathered.tables is None else gathered
        return [Piece(item, decoded) for item in gathered.items]

    def _blocks(self, message: Gathered, feed: Feed) -> Iterator[Blocks | Fork]:
        """Hand out the blocks of a message, and of those that arrived right after it.

        What is prepared is handed out alone: it is as large as a commit should be.
        """
        pieces, size = self._heard(message), message.size
        while len(pieces) < TOGETHER_BLOCKS and size < TOGETHER_BYTES:
            more = feed.take_outputs() if message.ahead is None else None
            if more is None:
                break
            pieces += self._heard(more)
            size += more.size
        taken: list[Piece] = []
        for piece in pieces:
            item = piece.output
            number = item.clock.number
            if number <= self._floor:
                at = item.clock.cursor
                if self._unsure and self._held.get(number, at.hash) != at.hash:
                    self.close()
                    yield Fork((at,))
                    return
                self._unsure = self._unsure and number < self._floor
                continue  # the loop has it
            if number < self._start:
                continue  # an undo went below the beginning
            if number <= self._last:
                raise SubstreamsMessageError(
                    "blocks do not ascend", after=self._last, got=item.clock.cursor
                )
            self._last, self._unsure = number, False
            self._final = max(self._final, min(item.final_height, number))
            self._log.note(item.clock.cursor, item.cursor)
            taken.append(piece)
        if taken:
            number = taken[-1].output.final_height  # the endpoint tells no hash of it
            final = BlockCursor(number, self._log.hash_of(number) or UNKNOWN_HASH)
            headers = tuple(_header(piece.output) for piece in taken)
            yield Blocks(headers, tuple(taken), Head(final, self._latest()))

    def _undo(self, signal: UndoSignal) -> Iterator[Undo]:
        """Pass an undo signal on, and stand at its block.

        The loop may land below it, where it does not hold that block: the next reading dials anew
        from where it stands. So it does where the endpoint could not locate the block of a cursor,
        and undoes down to what that calls final: the message of the same block may have said that
        one more was.
        """
        block = signal.last_valid
        self._undone = block.number
        state, final = self._asked
        if final == block and state.finalized is not None and state.is_final(block.number):
            block = state.finalized
        self._log.undo(block.number)
        if block == signal.last_valid and block.hash is not None and not self._log.cursor_of(block):
            self._log.note(block, signal.cursor)
        self._exhausted.clear()
        self._floor = self._last = block.number
        self._unsure = False
        yield Undo(block)

    def _latest(self) -> BlockCursor | None:
        newest = max(self._chain_head, self._last)
        return BlockCursor(newest) if newest >= 0 else None


Taken = Gathered | Message


class Feed:
    """Receives a reading in a thread of its own, ahead of the loop, within a bound of bytes.

    Final blocks are decoded in a second thread: those that have arrived while it was busy, all
    together. With `prepare`, it gathers as many as one commit should hold, or fewer if the loop
    has nothing else to do, and prepares them. What cannot be decoded or prepared is handed out as
    it is: the loop does it again, and says what is wrong with it.
    """

    def __init__(
        self,
        reading: Reading,
        stop: int,
        *,
        ahead: int = AHEAD_BYTES,
        decode: Decode | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self._decode = decode
        self._prepare = prepare
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
        for work in (self._receive, self._work):
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
        """Return what comes next if it is ready and holds blocks that are not prepared."""
        with self._changed:
            first = self._ready[0] if self._ready else None
            if isinstance(first, Gathered) and first.ahead is None:
                self._pop()
                return first
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

    def _work(self) -> None:
        """Pass messages on, final blocks with their tables."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._arrived or self._received or self._closed)
                if not self._arrived:
                    self._over = True
                    self._changed.notify_all()
                    return
                ready = [self._gather()]
            if self._decode is not None and isinstance(ready[0], Gathered) and _is_final(ready[0]):
                ready = self._with_tables(ready[0], self._decode)
            with self._changed:
                if not self._closed:
                    self._ready.extend(ready)
                    self._changed.notify_all()

    def _with_tables(self, first: Gathered, decode: Decode) -> list[Taken]:
        """Return final blocks with their tables, and what is prepared of them."""
        pieces = [_decoded(first, decode)]
        if self._prepare is None or pieces[0].tables is None:
            return [*pieces]
        while pieces[-1].tables is not None and (more := self._more(pieces)) is not None:
            pieces.append(_decoded(more, decode))
        good = [piece.tables for piece in pieces if piece.tables is not None]
        tables = good[0]
        if len(good) > 1:
            tables = {name: pa.concat_tables([part[name] for part in good]) for name in tables}
        whole = Gathered(
            tuple(message for piece in pieces[: len(good)] for message in piece.messages), tables
        )
        with suppress(Exception):  # the loop meets it again, and raises it
            whole = replace(whole, ahead=self._prepare(tables))
        return [whole, *pieces[len(good) :]]

    def _more(self, pieces: Sequence[Gathered]) -> Gathered | None:
        """Return the final blocks that follow, waiting for them while the loop is busy.

        None: there are enough, the loop has nothing to do, or something else follows.
        """
        blocks = sum(len(piece.items) for piece in pieces)
        if blocks >= TOGETHER_BLOCKS or sum(piece.size for piece in pieces) >= TOGETHER_BYTES:
            return None
        with self._changed:
            self._changed.wait_for(
                lambda: self._arrived or self._received or self._closed or not self._ready
            )
            if not self._arrived or not _is_final_message(self._arrived[0]):
                return None
            gathered = self._gather()
            return gathered if isinstance(gathered, Gathered) else None

    def _gather(self) -> Taken:
        """Return the next message; if its blocks are final, with those that follow it."""
        first = self._arrived.popleft()
        if not isinstance(first, Outputs):
            return first
        messages, blocks, size = [first], len(first.items), first.size
        while _is_final_message(messages[-1]) and self._arrived:
            more = self._arrived[0]
            if not isinstance(more, Outputs) or not _is_final_message(more):
                break
            blocks, size = blocks + len(more.items), size + more.size
            if blocks > self.together[0] or size > self.together[1]:
                break
            messages.append(more)
            self._arrived.popleft()
        return Gathered(tuple(messages))


def _decoded(gathered: Gathered, decode: Decode) -> Gathered:
    """Return messages with their tables; as they are if they cannot be decoded."""
    with suppress(Exception):  # the loop meets it again, and raises it
        return Gathered(gathered.messages, decode(gathered.items))
    return gathered


def _is_final(gathered: Gathered) -> bool:
    return all(map(_is_final_message, gathered.messages))


def _is_final_message(message: Message) -> bool:
    return isinstance(message, Outputs) and all(
        item.final_height >= item.clock.number for item in message.items
    )


def _size(message: Taken) -> int:
    return message.size if isinstance(message, Outputs | Gathered) else 0


def _header(output: ModuleOutput) -> BlockHeader:
    clock = output.clock
    return BlockHeader(clock.number, clock.hash, timestamp=clock.timestamp)
