"""A changelog for Structured Streaming: the loop, one step at a time, with a journal as its target.

Spark drives: it asks where a micro-batch ends, reads it once or several times, and says when it is
done with it. `Pipeline.steps` is a generator, so a request for the next offset takes events from it
until one has led to another offset, or nothing is new. `JournalTarget` keeps what Spark may come
for: a commit of hot blocks and a rollback each append a segment, and final blocks that executors
read by themselves are nothing but an offset.

Runs in a Python process of its own on the driver's machine, called by the thread of the query. A
process that is killed at any point loses nothing: what was returned is in the journal, and what is
in the journal is returned again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.core import (
    AtHead,
    Batch,
    BlockRange,
    Blocks,
    Density,
    Head,
    PipeState,
    RangeEnd,
    Raw,
    Span,
    block_count,
)
from headwater.core.messages import Settled
from headwater.errors import JournalFormatError, JournalMissingError, OffsetFormatError
from headwater.pipeline import Answers, Event, Host, Pipeline, Said, Source
from headwater.portal import Clock, SystemClock
from headwater.runtime import ALONE, Runtime
from headwater.spark.parts import Part, Receipt, RowMaker
from headwater.spark.streaming.changelog_rows import InsertRows, changelog_schema, retracted
from headwater.spark.streaming.journal import (
    Change,
    Journal,
    Offset,
    ReadFrom,
    Segment,
    final_number,
)
from headwater.spark.streaming.source import (
    Changelog,
    ChangelogPart,
    FinalPart,
    JournalPart,
    Limits,
    Upstream,
)
from headwater.targets.contract import Capabilities

WAIT_S = 1.0
POLLS = 40  # answers without blocks, before the end of `Trigger.AvailableNow` counts as reached


class JournalTarget:
    """Where the loop of a changelog commits. Without a journal there are only final blocks.

    `told` is the offset that Spark may be told. A fork may be found in several answers, each deeper
    than the one before, and may turn out to be too deep; so a retraction waits for an answer that
    is none, and is written with the blocks that follow, or by `flush`. Until then it can be lost:
    whoever recovers finds the fork again.
    """

    capabilities: Capabilities[Raw] = Capabilities()

    def __init__(self, upstream: Upstream, row_maker: RowMaker, journal: Journal | None) -> None:
        self.columns = changelog_schema(row_maker.schema)
        self.told: Offset | None = None
        self.state = PipeState()
        self.measured: dict[Offset, tuple[Density, ...]] = {}
        self._upstream = upstream
        self._row_maker = row_maker
        self._journal = journal
        self._at = Offset.before(0)  # `told`, and behind it what waits
        self._changes: list[Change] = []
        self._rows: list[pa.Table] = []

    def stand_at(self, offset: Offset, state: PipeState) -> None:
        """Take up a position; the next commit or rollback follows it."""
        self.told = self._at = offset
        self.state = state
        self._changes, self._rows = [], []

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Do nothing: the journal is of one query."""

    def recover(self) -> PipeState:
        """Return the state at the offset."""
        return self.state

    def commit(self, batches: Sequence[Batch[Raw]], state: PipeState) -> None:
        """Append blocks to the journal, or move on over final blocks that executors will read.

        Finality that moved while nothing arrived is stored with the segment that follows.
        """
        self.state = state
        if not batches:
            return
        last, data = batches[-1].headers[-1], batches[0].data
        if self._journal is not None and not isinstance(data, Span):
            self._insert(batches, state)
            return
        assert not self.owes, "a retraction is flushed before a span is read"
        self.stand_at(self._at.extended(last, ReadFrom.PORTAL, state), state)
        self.measured = {self._at: data.densities} if isinstance(data, Span) else {}

    def roll_back(self, state: PipeState) -> None:
        """Take back the blocks above a state, newest first."""
        assert self._journal is not None, "final blocks are not orphaned"
        forks = self._at.forks + (not self.owes)
        version, finalized = self._at.version, final_number(state)
        for orphan, rows in self._journal.orphans(state.number, self.state.number):
            version += 1
            self._changes.append(Change(version, orphan.cursor, -1))
            self._rows.append(retracted(rows.cast(self.columns), version, finalized))
        if not self._changes:
            version += 1  # a fork below the first block takes none of ours, and is a step as well
        self._at = self._at.retracted(version, state, forks=forks)
        self.state = state

    @property
    def owes(self) -> bool:
        """Whether something waits to be written."""
        return self._at != self.told

    def flush(self) -> None:
        """Write what waits into the journal as a segment; only then may Spark hear of it."""
        state = self.state
        if not self.owes or self._journal is None:
            return
        assert self.told is not None, "a segment follows an offset"
        assert state.cursor is not None, "a segment ends at a block"
        mark = self._upstream.mark(state.cursor)
        segment = Segment(self.told, self._at, state, tuple(self._changes), mark)
        self._journal.append(segment, pa.concat_tables(self._rows or [self.columns.empty_table()]))
        self._upstream.written(state)
        self.stand_at(self._at, state)

    def close(self) -> None:
        """Do nothing: a loop ends wherever Spark asks for another position."""

    def _insert(self, batches: Sequence[Batch[Raw]], state: PipeState) -> None:
        """Write the rows of blocks, behind a retraction that waits."""
        headers = tuple(header for batch in batches for header in batch.headers)
        data = (batch.data for batch in batches)
        lines = tuple(line for answer in data if not isinstance(answer, Span) for line in answer)
        shift = self._at.shift
        rows = InsertRows(self._row_maker, shift, final_number(state))
        decoded = list(rows.rows(Blocks(headers, lines, batches[-1].head), Receipt(0)))
        self._rows.append(pa.Table.from_batches(decoded, rows.schema))
        self._changes.extend(Change(header.number + shift, header.cursor, 1) for header in headers)
        self._at = self._at.extended(headers[-1], ReadFrom.JOURNAL, state)
        self.flush()


class Follower(Host[Raw]):
    """Follows one chain for one source of one query, and is the host of its loop."""

    def __init__(self, changelog: Changelog, clock: Clock | None = None) -> None:
        self._upstream = changelog.upstream
        self._journal = changelog.journal
        self._limits = changelog.limits
        self._to_block = changelog.to_block
        self._target = JournalTarget(changelog.upstream, changelog.row_maker, changelog.journal)
        self._clock = clock or SystemClock()
        self._opened = False
        self._began: Offset | None = None
        self._goal: int | None = None
        self._head = Head()
        self._events: Generator[Event, None, None] | None = None

    # --- offsets ----------------------------------------------------------------------------------

    def begin(self, first_block: int) -> Offset:
        """Return where the changelog begins. Called for a query that has no checkpoint yet.

        A driver that was killed before its first checkpoint finds what it wrote, and begins there.

        Raises:
            JournalFormatError: the journal is that of a query whose checkpoint is gone.
        """
        journal = self._open()
        if journal is None:
            return Offset.before(first_block)
        if self._began is not None and journal.segments:
            if journal.segments[0].before != self._began:
                raise JournalFormatError(
                    "the query has no checkpoint, but its journal has been used for long",
                    journal_begins=journal.segments[0].before.number,
                )
            return self._began
        self._began = Offset.before(first_block)
        journal.begin(self._began)
        return self._began

    def end_at_head(self) -> None:
        """Read no further than the newest block of now. Called once, for `Trigger.AvailableNow`."""
        head = self._upstream.newest(final=self._journal is None)
        self._goal = -1 if head is None else head.number
        self._stop_reading()

    def next(self, start: Offset) -> Offset:
        """Return where the micro-batch ends that begins at `start`; `start` itself if it is empty.

        What is hot in between is in the journal when this returns. Called again with the same
        `start`, it returns the same offset, or one further on if nothing was written.

        Raises:
            HeadwaterError: whatever the client, a decoder or the resolution of a fork raises.
        """
        journal, target = self._open(), self._target
        if target.told != start:
            self._stand_at(start)
        written = None if journal is None else journal.follows(start)
        if written is not None:
            self._stop_reading()
            target.stand_at(written.after, written.state)
            return written.after
        polls = 0
        while target.told == start and (event := self._step()) is not None:
            if isinstance(event, Settled):
                polls += 1
                target.flush()
                is_short = self._goal is not None and start.number < self._goal
                if polls >= POLLS or not is_short:
                    break
        target.flush()
        assert target.told is not None, "it stands at an offset"
        return target.told

    def commit(self, end: Offset) -> None:
        """Remove from the journal what is no longer needed: Spark will not ask for it again.

        The state at the end of the journal says what a fork can reach, so that a restart at the
        committed offset agrees; once Spark has committed final blocks behind it, the present one.
        """
        journal = self._open()
        if journal is None:
            return
        if self._target.told is None:
            self._stand_at(end)
        newest = journal.segments[-1] if journal.segments else None
        is_behind = newest is None or newest.after.version < end.version
        journal.prune(end, self._target.state if newest is None or is_behind else newest.state)

    def newest(self) -> dict[str, Any] | None:
        """Return the newest block that is known, the lag behind it, and the size of the journal."""
        latest, at = self._head.latest, self._target.told
        if latest is None or at is None:
            return None
        ahead = replace(
            at, version=at.shift + latest.number, number=latest.number, hash=latest.hash
        )
        journal = {} if self._journal is None else self._journal.size()
        return {**ahead.to_json(), "lag": max(0, latest.number - at.number), **journal}

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
            journal = self._open()
            if journal is None:
                raise JournalMissingError("the query was started without the journal it had")
            columns = self._target.columns
            return [JournalPart(data, columns) for data in journal.between(start, end)]
        if end.shift != start.shift or end.version < start.version:
            raise OffsetFormatError("offsets do not belong together", start=start, end=end)
        blocks = BlockRange(start.number + 1, end.number)
        measured = self._target.measured.get(end, ())
        if sum(map(block_count, (piece.blocks for piece in measured))) != block_count(blocks):
            measured = ()
        return [
            FinalPart(Part(index, piece), start.shift, end.finalized)
            for index, piece in enumerate(self._upstream.cut(blocks, measured))
        ]

    # --- the loop ---------------------------------------------------------------------------------

    def transform(self, batch: Batch[Raw]) -> Batch[Raw]:
        """Return the batch as it is: the target makes rows of it."""
        return batch

    def pause(self) -> None:
        """Let connections go, and give a replica time."""
        self._upstream.rest()
        self._clock.sleep(WAIT_S)

    def _step(self) -> Event | None:
        """Let the loop take a step; None once the whole range is read."""
        if self._events is None:
            source = _Bounded(self._open_source(), self._limits, self._target, self._note)
            self._events = Pipeline(source, self._target, self).steps()
        try:
            return next(self._events, None)
        except BaseException:
            self._stop_reading()
            self._target.told = None  # what waits is found again
            raise

    def _note(self, head: Head) -> None:
        self._head = Head(head.finalized or self._head.finalized, head.latest or self._head.latest)

    def _open_source(self) -> Source:
        """Return what reads on from where the target stands, to the end that comes first."""
        told = self._target.told
        assert told is not None, "reading begins at an offset"
        first = told.first  # forks go below the present block
        if first is None:  # a checkpoint without it
            first = (self._began or told).number + 1
        ends = [end for end in (self._to_block, self._goal) if end is not None]
        last = min(ends) if ends else None
        return self._upstream.open(first, last, final=self._journal is None)

    def _stand_at(self, offset: Offset) -> None:
        """Take up the position of a checkpoint: at a start, or where Spark asks for another one."""
        self._stop_reading()
        journal = self._journal
        if journal is not None:
            journal.forget_unfinished(offset)
        if offset.read is not ReadFrom.JOURNAL:
            state = offset.final_state()
        elif journal is None:
            raise JournalMissingError("the query was started without the journal it had")
        else:
            journal.check_complete()
            state = journal.state_at(offset)
        if journal is not None and self._began is None:
            journal.begin(offset)
            self._began = offset
        self._target.stand_at(offset, state)

    def _open(self) -> Journal | None:
        if not self._opened and self._journal is not None:
            self._began = self._journal.open()
            self._upstream.resume(self._journal.marks())
        self._opened = True
        return self._journal

    def _stop_reading(self) -> None:
        if self._events is not None:
            self._events.close()
        self._events = None


class _Bounded:
    """A source whose answers hold no more blocks than a micro-batch may; `note` gets all heads."""

    def __init__(
        self, source: Source, limits: Limits, target: JournalTarget, note: Callable[[Head], None]
    ) -> None:
        self._source = source
        self._limits = limits
        self._target = target
        self._note = note

    def open(self, state: PipeState) -> None:
        self._source.open(state)

    def read(self, state: PipeState) -> Answers | None:
        answers = self._source.read(state)
        return None if answers is None else self._pieces(answers)

    def _pieces(self, answers: Answers) -> Answers:
        with closing(answers):
            for answer in answers:
                if isinstance(answer, Blocks | Span | AtHead | RangeEnd):
                    self._note(answer.head)
                if isinstance(answer, Span) and self._target.owes:
                    yield AtHead(Head())  # the retraction first: a span is not of the journal
                yield from self._cut(answer) if isinstance(answer, Blocks) else (answer,)

    def _cut(self, answer: Blocks) -> Iterator[Said]:
        """Yield the blocks of an answer in pieces within limits, but of one block at least."""
        first, size = 0, 0
        for index, line in enumerate(answer.lines):
            size += len(line)
            full = index - first == self._limits.hot_blocks or size > self._limits.hot_bytes
            if full and index > first:
                yield Blocks(answer.headers[first:index], answer.lines[first:index], answer.head)
                first, size = index, len(line)
        yield Blocks(answer.headers[first:], answer.lines[first:], answer.head)
