"""The journal: what a portal may not be able to give again, kept until nothing can ask for it.

A portal no longer serves a block that a fork has orphaned. Yet Spark may ask for any range of
offsets again until it has committed it, and a retraction needs the rows as they were. So the rows
of hot blocks, and every retraction, are written to a folder before an offset covers them. A file
(a segment) holds one step of the changelog: its rows, its changes and the state that follows. It is
written once and never changed; a segment that no offset covers yet, because the driver was killed
in between, is not written again but handed out as it is.

A segment goes when Spark has committed it and no fork can reach its blocks. So the journal holds
the hot blocks and what is under way: its size follows the chain's depth of finality, and grows
while finality stands still. Where finality is not known at all, a fork can reach the newest
thousand blocks (`DEFAULT_CAP`), and no more are held.

Used by one process, on the driver's machine.

An offset is the position in the changelog that Spark keeps in the checkpoint of a query. Changes
are numbered by versions. A block takes the version that follows from its number: a block that is
two above the last one takes a version two higher, whether or not the one between has rows. The
retraction of a block takes the next version. So a version never repeats, and between two
retractions the difference of version and number is constant: an executor works a row's version out
of its block number alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockCursor, PipeState
from headwater.core.codec import dump_state, load_state
from headwater.core.cursor import BlockHeader
from headwater.errors import (
    HeadwaterError,
    JournalFormatError,
    JournalMissingError,
    OffsetFormatError,
)
from headwater.spark.streaming.folder import Folder

OFFSET_FORMAT = 1
JOURNAL_FORMAT = 1
HEADER = "journal.json"
_ENDING = ".arrow"
_ABOUT = b"headwater"


class ReadFrom(StrEnum):
    """Where the changes that end in an offset are read from, now and at every replay."""

    START = "start"  # nowhere: nothing has been read yet
    PORTAL = "portal"  # they are the inserts of final blocks, which a portal can always give again
    JOURNAL = "journal"  # some are of hot blocks, which only the journal can give again


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a micro-batch: the last version, and the block that the chain ends with there.

    `finalized` is the highest final number that was known, `forks` counts the retractions so far.
    `first` is the block that the changelog begins with: Spark asks for the initial offset again
    when it runs the first micro-batch, and "latest" may have moved on by then.
    """

    version: int
    number: int
    hash: str | None
    read: ReadFrom
    finalized: int | None = None
    forks: int = 0
    first: int | None = None

    @classmethod
    def before(cls, first_block: int) -> Offset:
        """Return where a changelog begins that reads from this block on."""
        return cls(first_block - 1, first_block - 1, None, ReadFrom.START, first=first_block)

    def start_of(self, end: Offset) -> Offset:
        """Return where a micro-batch begins that Spark gives these two offsets for."""
        if self.read is ReadFrom.START and end.first is not None:
            return Offset.before(end.first)
        return self

    @property
    def shift(self) -> int:
        """What is added to the number of a following block to get its version."""
        return self.version - self.number

    def __str__(self) -> str:
        return f"{BlockCursor(self.number, self.hash)}, version {self.version}"

    def to_json(self) -> dict[str, Any]:
        """Return what Spark stores, and compares as text: keys have one order."""
        return {"format": OFFSET_FORMAT, **msgspec.to_builtins(self)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Offset:
        """Read what Spark has stored.

        Raises:
            OffsetFormatError: it has another format, or none.
        """
        known = stored.get("format")
        if known != OFFSET_FORMAT:
            raise OffsetFormatError(
                "an offset has another format", format=known, known=OFFSET_FORMAT
            )
        try:
            return msgspec.convert(stored, cls)
        except msgspec.ValidationError as error:
            raise OffsetFormatError("an offset is malformed", got=str(stored)[:200]) from error

    def extended(self, last: BlockHeader, read: ReadFrom, state: PipeState) -> Offset:
        """Return the offset after the blocks up to `last` were inserted."""
        version = self.version + last.number - self.number
        return replace(
            self,
            version=version,
            number=last.number,
            hash=last.hash,
            read=read,
            finalized=final_number(state),
        )

    def retracted(self, version: int, state: PipeState, *, forks: int) -> Offset:
        """Return the offset after a fork has taken blocks, down to the state's cursor."""
        assert state.cursor is not None, "a fork goes back to a block"
        return replace(
            self,
            version=version,
            number=state.cursor.number,
            hash=state.cursor.hash,
            read=ReadFrom.JOURNAL,
            finalized=final_number(state),
            forks=forks,
        )

    def final_state(self) -> PipeState:
        """Return the state at an offset that no journal is needed for."""
        if self.read is ReadFrom.START:
            return PipeState()
        cursor = BlockCursor(self.number, self.hash)
        return PipeState(cursor, cursor, (cursor,))


def final_number(state: PipeState) -> int | None:
    """Return the highest number that is known to be final."""
    return None if state.finalized is None else state.finalized.number


class Change(NamedTuple):
    """A block that came (`sign` 1) or went (-1), and the version of that."""

    version: int
    cursor: BlockCursor
    sign: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One step of the changelog, from one offset to the next: what happened, and the state then."""

    before: Offset
    after: Offset
    state: PipeState
    changes: tuple[Change, ...]
    mark: str | None = None  # what reading resumes with, where the last block is not enough

    @property
    def name(self) -> str:
        """The file it is kept in: its first version, so that no other can take its place."""
        return f"{self.before.version + 1:020d}{_ENDING}"


def encode_segment(segment: Segment, rows: pa.Table) -> bytes:
    """Return the file of a segment."""
    metadata = {
        "format": JOURNAL_FORMAT,
        "before": segment.before.to_json(),
        "after": segment.after.to_json(),
        "state": dump_state(segment.state),
        "changes": [
            [
                change.version,
                change.sign,
                change.cursor.number,
                change.cursor.hash,
                change.cursor.timestamp,
            ]
            for change in segment.changes
        ],
        "mark": segment.mark,
    }
    schema = rows.schema.with_metadata({_ABOUT: json.dumps(metadata).encode()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in rows.to_batches():
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def segment_rows(data: bytes) -> pa.Table:
    """Return the rows of a segment's file. Called on executors, too."""
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        return reader.read_all().replace_schema_metadata()


def decode_segment(data: bytes, name: str) -> Segment:
    """Return what a segment's file says of itself.

    Raises:
        JournalFormatError: it is damaged, or of another format.
    """
    try:
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            metadata = json.loads((reader.schema.metadata or {})[_ABOUT])
        if metadata["format"] != JOURNAL_FORMAT:
            raise JournalFormatError(
                "a segment has another format", file=name, format=metadata["format"]
            )
        return Segment(
            Offset.from_json(metadata["before"]),
            Offset.from_json(metadata["after"]),
            load_state(metadata["state"]),
            tuple(
                Change(version, BlockCursor(number, block_hash, timestamp), sign)
                for version, sign, number, block_hash, timestamp in metadata["changes"]
            ),
            metadata["mark"],
        )
    except HeadwaterError:
        raise
    except (pa.ArrowInvalid, pa.ArrowIOError, ValueError, KeyError, TypeError) as error:
        raise JournalFormatError(f"a segment is damaged: {error}", file=name) from error


class Journal:
    """The segments of one source of one query. `fingerprint` stands for what its rows are."""

    def __init__(self, folder: Folder, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._segments: list[Segment] = []
        self._sizes: dict[str, int] = {}
        self._live: dict[int, tuple[Segment, Change]] = {}
        self._newest: tuple[str, bytes] | None = None
        self._damaged: str | None = None
        self._start: Offset | None = None

    def open(self) -> Offset | None:
        """Read what is there; return where the changelog began, if it has begun.

        Raises:
            JournalFormatError: it is damaged, of another format, or of another query.
            JournalInUseError: another process uses it.
        """
        self._folder.open()
        self._segments, self._sizes, self._live = [], {}, {}
        header = self._folder.read(HEADER)
        if header is None:
            if any(name.endswith(_ENDING) for name in self._folder.names()):
                raise JournalFormatError("the journal has lost its header", file=HEADER)
            return None
        self._start = self._check_header(header)
        names = [name for name in self._folder.names() if name.endswith(_ENDING)]
        for name in names:
            data = self._folder.read(name) or b""
            try:
                self._add(decode_segment(data, name), len(data))
            except JournalFormatError:
                if name != names[-1]:
                    raise
                self._damaged = name
        return self._start

    def close(self) -> None:
        """Let other processes in."""
        self._folder.close()

    def begin(self, start: Offset) -> None:
        """Write down where the changelog begins. Called once, before its first segment."""
        header = {
            "format": JOURNAL_FORMAT,
            "fingerprint": self._fingerprint,
            "start": start.to_json(),
        }
        self._start = start
        self._folder.remove(HEADER)
        self._folder.create(HEADER, json.dumps(header).encode())

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments, oldest first. Between them may be blocks that were final when read."""
        return self._segments

    def size(self) -> dict[str, int]:
        """Return how many blocks are held that have not gone, and the bytes of all files."""
        return {"journal_blocks": len(self._live), "journal_bytes": sum(self._sizes.values())}

    def marks(self) -> list[tuple[BlockCursor, str]]:
        """Return the marks of the segments whose last block has not gone, oldest first."""
        return [
            (segment.state.cursor, segment.mark)
            for segment in self._segments
            if segment.mark is not None and segment.state.cursor is not None
            if self._holds(segment.state.cursor)
        ]

    def follows(self, offset: Offset) -> Segment | None:
        """Return the segment that begins at an offset, if it was written already."""
        segment = next(
            (segment for segment in self._segments if segment.before.version == offset.version),
            None,
        )
        if segment is not None and segment.before != offset:
            raise JournalFormatError(
                "the journal is of another checkpoint", checkpoint=offset, journal=segment.before
            )
        return segment

    def state_at(self, offset: Offset) -> PipeState:
        """Return the state at an offset that was read from the journal.

        Raises:
            JournalMissingError: no segment ends there.
        """
        for segment in self._segments:
            if segment.after == offset:
                return segment.state
        raise JournalMissingError(
            "no segment of the journal ends where the checkpoint stands",
            checkpoint=offset,
            newest=self._segments[-1].after if self._segments else None,
        )

    def check_complete(self) -> None:
        """Compare the blocks that are held with those that a fork can reach at the last segment.

        Called where a query goes on with hot blocks. One that goes on behind final blocks needs no
        segment, and may have been killed while the last ones were removed. Blocks below the first
        one of a changelog can be landed on, and were never read.

        Raises:
            JournalMissingError: a file is gone that a retraction would need.
        """
        if not self._segments:
            return
        state = self._segments[-1].state
        floor = max(state.undo_floor, -1 if self._start is None else self._start.number)
        for cursor in state.rollback_chain:
            if cursor.number > floor and cursor.number not in self._live:
                raise JournalMissingError("a file of the journal is gone", with_block=cursor)

    def forget_unfinished(self, offset: Offset) -> None:
        """Remove a damaged last segment, if no offset covers it: it was never handed out.

        Raises:
            JournalFormatError: the checkpoint needs it.
        """
        if self._damaged is None:
            return
        if int(self._damaged.removesuffix(_ENDING)) <= offset.version:
            raise JournalFormatError("a segment that is needed is damaged", file=self._damaged)
        self._folder.remove(self._damaged)
        self._damaged = None

    def append(self, segment: Segment, rows: pa.Table) -> None:
        """Write a segment and make sure that it stays. Then an offset may cover it."""
        data = encode_segment(segment, rows)
        self._folder.create(segment.name, data)
        self._newest = segment.name, data
        self._add(segment, len(data))

    def between(self, start: Offset, end: Offset) -> list[bytes]:
        """Return the files of the segments that lead from one offset to another.

        Raises:
            JournalMissingError: not all of them are there.
        """
        files, at = [], start
        while at.version < end.version:
            segment = self.follows(at)
            if segment is None or segment.after.version > end.version:
                raise JournalMissingError(
                    "the journal does not hold what is to be replayed", after=at, end=end
                )
            files.append(self._data(segment))
            at = segment.after
        return files

    def orphans(self, above: int, up_to: int) -> Iterator[tuple[Change, pa.Table]]:
        """Yield the blocks between two numbers that came and have not gone, newest first.

        Each with the rows that it came with. A segment is decoded once.
        """
        decoded: tuple[Segment, pa.Table] | None = None
        for number in sorted(self._live, reverse=True):
            if not above < number <= up_to:
                continue
            segment, change = self._live[number]
            if decoded is None or decoded[0] is not segment:
                decoded = segment, segment_rows(self._data(segment))
            rows = decoded[1]
            yield change, rows.filter(pc.equal(rows["_commit_version"], change.version))

    def prune(self, committed: Offset, state: PipeState) -> int:
        """Remove what neither a replay nor a retraction can ask for; return how many segments went.

        `state` is that at the end of the journal. The segment that ends where Spark has committed
        stays: a restart takes the state from it.
        """
        floor = state.undo_floor
        needed = {segment.name for number, (segment, _) in self._live.items() if number > floor}
        needed.update(
            segment.name for segment in self._segments if segment.after.version >= committed.version
        )
        gone = [segment.name for segment in self._segments if segment.name not in needed]
        for name in gone:
            self._folder.remove(name)
            del self._sizes[name]
        self._segments = [segment for segment in self._segments if segment.name in needed]
        self._live = {
            number: entry for number, entry in self._live.items() if entry[0].name in needed
        }
        return len(gone)

    def _add(self, segment: Segment, size: int) -> None:
        self._segments.append(segment)
        self._sizes[segment.name] = size
        for change in segment.changes:
            if change.sign > 0:
                self._live[change.cursor.number] = segment, change
            else:
                self._live.pop(change.cursor.number, None)

    def _holds(self, cursor: BlockCursor) -> bool:
        entry = self._live.get(cursor.number)
        return entry is not None and entry[1].cursor == cursor

    def _data(self, segment: Segment) -> bytes:
        if self._newest is not None and self._newest[0] == segment.name:
            return self._newest[1]
        data = self._folder.read(segment.name)
        if data is None:
            raise JournalMissingError("a file of the journal is gone", file=segment.name)
        return data

    def _check_header(self, header: bytes) -> Offset:
        try:
            facts = json.loads(header)
            known, fingerprint, start = facts["format"], facts["fingerprint"], facts["start"]
        except (ValueError, KeyError, TypeError) as error:
            raise JournalFormatError("the journal's header is damaged", file=HEADER) from error
        if known != JOURNAL_FORMAT:
            raise JournalFormatError(
                "the journal has another format", format=known, known=JOURNAL_FORMAT
            )
        if fingerprint != self._fingerprint:
            raise JournalFormatError("the journal was written by a query with other options")
        return Offset.from_json(start)
