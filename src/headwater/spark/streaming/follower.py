"""What a micro-batch holds: follows the chain from one offset to the next.

The decisions are those of the loop (`pipeline.py`): `core` says what follows an answer of the
portal and where a fork goes back to. What differs is the commit: the loop hands a batch to a
target, this one writes hot blocks into the journal and returns an offset, and Spark comes for the
rows later, once or several times. Far behind the finalized head an offset covers final blocks that
executors read by themselves, and nothing is kept.

Runs in a Python process of its own on the driver's machine, called by the thread of the query. A
process that is killed at any point loses nothing: what was returned is in the journal, and what is
in the journal is returned again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headwater.core import (
    Answer,
    AtHead,
    BlockRange,
    Blocks,
    Density,
    Fork,
    ForkResolution,
    ForkRule,
    Head,
    PipeState,
    RangeEnd,
    Span,
    Undo,
    batches,
    block_count,
    descend,
    resolve_fork,
    resolve_undo,
)
from headwater.errors import JournalFormatError, JournalMissingError, OffsetFormatError
from headwater.portal import Clock, SystemClock
from headwater.spark.parts import Part, Receipt, RowMaker
from headwater.spark.streaming.changelog_rows import InsertRows, changelog_schema, retracted
from headwater.spark.streaming.journal import Change, Journal, Segment, segment_rows
from headwater.spark.streaming.offsets import Offset, ReadFrom
from headwater.spark.streaming.upstream import Answers, Blockstream, Limits, Upstream

PATIENCE = 5  # answers of replicas that are behind, before a fork is believed
WAIT_S = 1.0
POLLS = 40  # answers without blocks, before the end of `Trigger.AvailableNow` counts as reached


@dataclass(frozen=True, slots=True)
class FinalPart:
    """Blocks that are final: an executor asks the portal for them."""

    part: Part[BlockRange]
    shift: int
    finalized: int | None


@dataclass(frozen=True, slots=True)
class JournalPart:
    """A segment of the journal, as it is: small, so it travels with the task."""

    data: bytes
    columns: pa.Schema

    def rows(self) -> pa.Table:
        """Return its rows; an earlier release may have kept columns in fewer bits."""
        return segment_rows(self.data).cast(self.columns)


ChangelogPart = FinalPart | JournalPart


@dataclass(slots=True)
class _Step:
    """What has happened since an offset, before it is written."""

    at: Offset
    state: PipeState
    changes: list[Change]
    rows: list[pa.Table]
    descents: int = 0  # in a row, without a block of the portal's that we hold


class Follower:
    """Follows one chain for one source of one query. Without a journal only final blocks are read.

    `to_block` is the last block of the changelog, if any.
    """

    def __init__(
        self,
        upstream: Upstream,
        row_maker: RowMaker,
        journal: Journal | None,
        limits: Limits,
        *,
        to_block: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._upstream = upstream
        self._row_maker = row_maker
        self._columns = changelog_schema(row_maker.schema)
        self._journal = journal
        self._limits = limits
        self._to_block = to_block
        self._clock = clock or SystemClock()
        self._opened = False
        self._began: Offset | None = None
        self._goal: int | None = None
        self._at: Offset | None = None
        self._state = PipeState()
        self._head = Head()
        self._source: Blockstream | None = None
        self._reading: Answers | None = None
        self._left: Blocks | None = None
        self._measured: tuple[Offset, tuple[Density, ...]] | None = None

    # --- offsets ----------------------------------------------------------------------------------

    def begin(self, first_block: int) -> Offset:
        """Return where the changelog begins. Called for a query that has no checkpoint yet.

        A driver that was killed before its first checkpoint finds what it wrote, and begins there.

        Raises:
            JournalFormatError: the journal is that of a query whose checkpoint is gone.
        """
        journal, began = self._open()
        if journal is None:
            return Offset.before(first_block)
        if began is not None and journal.segments:
            if journal.segments[0].before != began:
                raise JournalFormatError(
                    "the query has no checkpoint, but its journal has been used for long",
                    journal_begins=journal.segments[0].before.number,
                )
            return began
        start = Offset.before(first_block)
        journal.begin(start)
        self._began = start
        return start

    def end_at_head(self) -> None:
        """Read no further than the newest block of now. Called once, for `Trigger.AvailableNow`."""
        head = self._upstream.newest(final=self._journal is None)
        self._goal = -1 if head is None else head.number
        self._stop_reading()
        self._source = None

    def next(self, start: Offset) -> Offset:
        """Return where the micro-batch ends that begins at `start`; `start` itself if it is empty.

        What is hot in between is in the journal when this returns. Called again with the same
        `start`, it returns the same offset, or one further on if nothing was written.

        Raises:
            HeadwaterError: whatever the client, a decoder or the resolution of a fork raises.
        """
        journal, _ = self._open()
        if self._at != start:
            self._stand_at(start, journal)
        written = None if journal is None else journal.follows(start)
        if written is not None:
            self._stop_reading()
            self._at, self._state = written.after, written.state
            return written.after
        end = self._advance(_Step(start, self._state, [], []))
        self._at = end
        return end

    def commit(self, end: Offset) -> None:
        """Remove from the journal what is no longer needed: Spark will not ask for it again."""
        journal, _ = self._open()
        if journal is not None:
            if self._at is None:
                self._stand_at(end, journal)
            journal.prune(end, self._end_state(journal, end))

    def newest(self) -> dict[str, Any] | None:
        """Return the newest block that is known, the lag behind it, and the size of the journal."""
        latest, at = self._head.latest, self._at
        if latest is None or at is None:
            return None
        ahead = replace(
            at, version=at.shift + latest.number, number=latest.number, hash=latest.hash
        )
        held = {} if self._journal is None else self._journal.size()
        return {**ahead.to_json(), "lag": max(0, latest.number - at.number), **held}

    def close(self) -> None:
        """Release the portal and the journal."""
        self._stop_reading()
        self._upstream.close()
        if self._journal is not None:
            self._journal.close()
        self._opened = False

    # --- what Spark reads -------------------------------------------------------------------------

    def plan(self, start: Offset, end: Offset) -> list[ChangelogPart]:
        """Return what tasks read to get the changes between two offsets: the same at every replay.

        Raises:
            JournalMissingError: the journal does not hold them any more.
            OffsetFormatError: the offsets do not belong together.
        """
        start = start.start_of(end)
        if end.version == start.version:
            return []
        if end.read is ReadFrom.JOURNAL:
            journal, _ = self._open()
            if journal is None:
                raise JournalMissingError("the query was started without the journal it had")
            return [JournalPart(data, self._columns) for data in journal.between(start, end)]
        if end.shift != start.shift or end.version < start.version:
            raise OffsetFormatError("offsets do not belong together", start=start, end=end)
        blocks = BlockRange(start.number + 1, end.number)
        measured: tuple[Density, ...] = ()
        if self._measured is not None and self._measured[0] == end:
            measured = self._measured[1]
        if sum(map(block_count, (one.blocks for one in measured))) != block_count(blocks):
            measured = ()
        return [
            FinalPart(Part(index, one), start.shift, end.finalized)
            for index, one in enumerate(self._upstream.cut(blocks, measured))
        ]

    # --- following the chain ----------------------------------------------------------------------

    def _advance(self, step: _Step) -> Offset:
        """Ask until there is something to return: blocks, a retraction, or nothing new."""
        waits = polls = 0
        while True:
            answer = self._ask(step.state)
            if isinstance(answer, Blocks | AtHead | RangeEnd):
                self._note(answer.head)
            match answer:
                case Blocks():
                    return self._take_blocks(step, answer)
                case Span():
                    self._note(answer.head)
                    if step.changes:  # the retraction first; the span is asked for again
                        return self._write(step)
                    return self._take_span(step, answer)
                case AtHead(head, confirmed):
                    if step.changes:
                        return self._write(step)
                    self._state = step.state = step.state.settle(head, confirmed=confirmed)
                    polls += 1
                    if polls >= POLLS or not self._is_short(step.at):
                        return step.at
                case Fork() | Undo():
                    waits = self._follow_fork(step, answer, waits)
                case RangeEnd() if not step.changes:
                    continue
                case RangeEnd() | None:
                    return self._write(step) if step.changes else step.at

    def _take_blocks(self, step: _Step, answer: Blocks) -> Offset:
        """Insert blocks, as many as a micro-batch may hold; the others wait in memory."""
        taken, self._left = _cut(answer, self._limits.hot_blocks, self._limits.hot_bytes)
        state = step.state
        for batch in batches(state, taken):
            state = batch.state
        if self._journal is None:
            self._state = state
            return step.at.extended(taken.headers[-1], ReadFrom.PORTAL, state)
        finalized = None if state.finalized is None else state.finalized.number
        shift = step.at.shift
        rows = InsertRows(self._row_maker, shift, finalized)
        made = list(rows.rows(taken, Receipt(0)))
        step.rows.append(pa.Table.from_batches(made, rows.schema))
        step.changes.extend(Change(one.number + shift, one.cursor, 1) for one in taken.headers)
        step.at = step.at.extended(taken.headers[-1], ReadFrom.JOURNAL, state)
        step.state = state
        return self._write(step)

    def _take_span(self, step: _Step, span: Span) -> Offset:
        """Cover final blocks that executors will read."""
        for batch in batches(step.state, span):
            self._state = batch.state
        end = step.at.extended(span.last, ReadFrom.PORTAL, self._state)
        self._measured = end, span.densities
        return end

    def _follow_fork(self, step: _Step, fork: Fork | Undo, waits: int) -> int:
        """Retract what a fork has orphaned, or wait for a stale replica; return the waits."""
        self._stop_reading()
        found: ForkResolution | None
        if isinstance(fork, Undo):
            found = resolve_undo(step.state, fork.last_valid)
        else:
            found = resolve_fork(step.state, fork.previous_blocks, patient=waits < PATIENCE)
            found = descend(step.state, found, step.descents)
        if found is None:
            return 0
        if found.rule is ForkRule.WAIT:
            self._upstream.rest()
            self._clock.sleep(WAIT_S)
            return waits + 1
        step.descents += found.rule is ForkRule.DESCEND
        self._retract(step, step.state.rewind(found.safe_cursor))
        return 0

    def _retract(self, step: _Step, safe: PipeState) -> None:
        """Take back the blocks above a safe cursor, newest first."""
        journal = self._journal
        assert journal is not None, "final blocks are not orphaned"
        finalized = None if safe.finalized is None else safe.finalized.number
        is_first = not step.changes  # a fork may be found in several answers
        version = step.at.version
        for orphan, rows in journal.orphans(safe.number, step.state.number):
            version += 1
            step.changes.append(Change(version, orphan.cursor, -1))
            step.rows.append(retracted(rows.cast(self._columns), version, finalized))
        step.at = step.at.retracted(version, safe, forks=step.at.forks + is_first)
        step.state = safe

    def _write(self, step: _Step) -> Offset:
        """Write a step into the journal; only then may Spark hear of it."""
        assert self._journal is not None, "hot blocks are read with a journal"
        assert self._at is not None, "a step follows an offset"
        assert step.state.cursor is not None, "a step ends at a block"
        mark = self._upstream.mark(step.state.cursor)
        segment = Segment(self._at, step.at, step.state, tuple(step.changes), mark)
        self._journal.append(segment, pa.concat_tables(step.rows))
        self._upstream.written(step.state)
        self._state = step.state
        return step.at

    def _ask(self, state: PipeState) -> Answer | Span | None:
        """Return what the portal says next; None when the whole range is read."""
        if self._left is not None:
            left, self._left = self._left, None
            return left
        while True:
            if self._reading is None:
                self._reading = self._open_source().read(state)
            if self._reading is None:
                return None
            for answer in self._reading:
                if isinstance(answer, RangeEnd):
                    self._stop_reading()
                return answer
            self._reading = None

    def _open_source(self) -> Blockstream:
        if self._source is None:
            assert self._at is not None, "reading begins at an offset"
            first = self._at.first  # forks go below the present block
            if first is None:  # a checkpoint without it
                first = (self._began or self._at).number + 1
            ends = [one for one in (self._to_block, self._goal) if one is not None]
            last = min(ends) if ends else None
            self._source = self._upstream.open(first, last, final=self._journal is None)
        return self._source

    def _stand_at(self, offset: Offset, journal: Journal | None) -> None:
        """Take up the position of a checkpoint: at a start, or where Spark asks for another one."""
        self._stop_reading()
        self._source = None
        if journal is not None:
            journal.forget_unfinished(offset)
        if offset.read is not ReadFrom.JOURNAL:
            self._state = offset.final_state()
        elif journal is None:
            raise JournalMissingError("the query was started without the journal it had")
        else:
            journal.check_complete()
            self._state = journal.state_at(offset)
        if journal is not None and self._began is None:
            journal.begin(offset)
            self._began = offset
        self._at = offset

    def _end_state(self, journal: Journal, committed: Offset) -> PipeState:
        """Return the state that says what a fork can reach: as it is stored, so that a restart at
        the committed offset agrees.

        Once Spark has committed final blocks behind the last segment, it is the present one.
        """
        newest = journal.segments[-1] if journal.segments else None
        if newest is None or newest.after.version < committed.version:
            return self._state
        return newest.state

    def _open(self) -> tuple[Journal | None, Offset | None]:
        if not self._opened and self._journal is not None:
            self._began = self._journal.open()
            self._upstream.resume(self._journal.marks())
        self._opened = True
        return self._journal, self._began

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.close()
        self._reading = self._left = None

    def _is_short(self, at: Offset) -> bool:
        """Tell whether the query must not end yet: a replica is behind the head of its start."""
        return self._goal is not None and at.number < self._goal

    def _note(self, head: Head) -> None:
        self._head = Head(head.finalized or self._head.finalized, head.latest or self._head.latest)


def _cut(answer: Blocks, blocks: int, size: int) -> tuple[Blocks, Blocks | None]:
    """Return the first blocks of an answer, within limits but one at least, and the others."""
    count, room = 0, size
    for line in answer.lines[:blocks]:
        room -= len(line)
        if count and room < 0:
            break
        count += 1
    if count == len(answer.lines):
        return answer, None
    first = Blocks(answer.headers[:count], answer.lines[:count], answer.head)
    return first, Blocks(answer.headers[count:], answer.lines[count:], answer.head)
