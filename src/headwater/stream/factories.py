"""The factories of one run: which creations to read, when, and which children outputs may see.

It belongs to the stream's plan, to reading and to decoding, and where the target keeps side tables
it is an extension of the stream that stores the children (`headwater.stream.extensions`). Where
none are kept, they are found anew when a run starts, by reading the creations up to the cursor.
Runs on the driver, in one thread.

Creations that no batch brings, those before a stream's first block and those ahead, are read by
`FactoryScan`: final blocks by executors if they are many, else here. Hot ones are read only where a
cursor is given by a user who keeps no children: then what was read must end in that very cursor, or
it is of another branch and is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headwater.core import Batch, BlockCursor, BlockRange, Blocks, Fork, PipeState, Span
from headwater.decode import (
    CreationsOutput,
    Decoded,
    Factory,
    Output,
    decode_entities,
    read_outputs,
)
from headwater.errors import BlockLinkError
from headwater.pipeline import Raw
from headwater.portal import LeaveOut, PortalClient
from headwater.query import Query, merge_requests
from headwater.stream.extensions import Extension
from headwater.stream.factory_index import CHILDREN, FactoryIndex, query_children
from headwater.targets.contract import Delivery, KeepsSideTables, SideTable

Ranges = Mapping[str, Sequence[BlockRange]]

_TRIES = 5  # readings of the creations up to a hot cursor, before it counts as gone


class Factories(Extension):
    """Keeps the children of a run in step with it: they are known before they are stored."""

    def __init__(
        self,
        factories: Sequence[Factory],
        client: PortalClient,
        read_span: ReadSpan,
        far: int,
        pause: Callable[[], None],
        leave_out: LeaveOut | None = None,
    ) -> None:
        self._factories = factories
        self._client = client
        self._pause = pause
        self._stored = CHILDREN.columns.empty_table()
        self._index = FactoryIndex((), {})
        self._scan = FactoryScan(self._index, client, read_span, far, leave_out)
        self._first = 0
        self._end: int | None = None
        self._cursor: BlockCursor | None = None

    # --- planning and reading ---------------------------------------------------------------------

    def plan(
        self, ranges: Sequence[BlockRange], cursor: BlockCursor | None
    ) -> list[tuple[BlockRange, Query]]:
        """Return what to ask for beside the outputs, given their ranges: all creations.

        They are asked for in every block of the stream, so that "known up to the cursor" is true
        whatever outputs want; also in those behind a cursor, to which a fork may go back. What lies
        before a stream's first block is read apart, if it is final; a stream that begins with hot
        blocks begins with the first of them, because only what it reads itself is rolled back.
        """
        resolved = {
            factory.key: self._client.resolve_range(factory.start) for factory in self._factories
        }
        starts = {key: block_range.from_block for key, block_range in resolved.items()}
        self._index = FactoryIndex(self._factories, starts)
        self._index.load(self._stored)
        self._stored = CHILDREN.columns.empty_table()
        self._scan = replace(self._scan, index=self._index)
        ends = [block_range.to_block for block_range in ranges]
        self._end = None if None in ends else max(end for end in ends if end is not None)
        self._first = (
            0 if cursor is not None else min(block_range.from_block for block_range in ranges)
        )
        if min(starts.values()) < self._first:
            self._first = min(self._first, self._final() + 1)
        return [
            (block_range, output.query)
            for output, wanted in self._index.wanted(BlockRange(self._first, self._end))
            for block_range in wanted
        ]

    def catch_up(self, state: PipeState) -> bool:
        """Learn the creations up to a state, if they are not known. Called before each reading.

        False if they could not be read: the cursor is not on the chain of the replica that was
        asked. Then a fork is to come, which takes the cursor back.
        """
        self._cursor = state.cursor
        if state.cursor is None:
            self._scan.read_final(self._first - 1)
        elif self._index.missing(state.cursor.number):
            return self._scan.read_to(state.cursor, self._final())
        return True

    def insist(self) -> bool:
        """Try to learn the creations up to the last batch, of one replica after the other.

        A batch has come nonetheless, so some replica holds the cursor; or held it.
        """
        if self._cursor is None or not self._index.missing(self._cursor.number):
            return True
        final = self._final()  # asked once: every try is one request, which goes to another replica
        for _ in range(_TRIES):
            if self._scan.read_to(self._cursor, final):
                return True
            self._pause()
        return False

    def forget(self, state: PipeState) -> None:
        """Forget the children above a cursor, where a fork has sent the stream."""
        assert state.cursor is not None, "a rollback lands on a block"
        self._index.roll_back(state.cursor.number)
        self._cursor = state.cursor

    # --- decoding ---------------------------------------------------------------------------------

    def decode(self, outputs: Mapping[str, Output], batch: Batch[Raw], ranges: Ranges) -> Decoded:
        """Decode a batch near the head: find its creations first, then the rows of all children."""
        assert not isinstance(batch.data, Span), "a span is decoded by executors"
        if not self.insist():
            raise BlockLinkError(
                "the creations of factories could not be read on the chain of the cursor",
                cursor=self._cursor,
            )
        last = batch.headers[-1].cursor
        wanted: list[tuple[Output, Sequence[BlockRange]]]
        wanted = [(output, ranges[name]) for name, output in outputs.items()]
        asked = last.number >= self._first  # else a fork went back behind all that is asked for
        if asked:
            wanted += self._index.wanted(BlockRange(self._first, last.number))
        entities = read_outputs(wanted, batch.data)
        if asked:
            self._index.observe(entities, last.number)
        self._cursor = last
        creations = decode_entities(self._index.bind(outputs, last.number), entities, ranges)
        return replace(creations, skipped={**creations.skipped, **self._index.take_skipped()})

    def prepare_span(
        self, outputs: Mapping[str, Output], batch: Batch[Raw], ranges: Ranges, query: Query
    ) -> tuple[dict[str, Output], Query]:
        """Return outputs that know their children, and what to ask executors to fetch for them.

        Creations are read ahead up to the finalized head, so that this costs one reading for many
        spans. `query` is what would be asked otherwise.
        """
        assert isinstance(batch.data, Span), "only spans are decoded by executors"
        last = batch.headers[-1].cursor
        final = batch.head.finalized
        ahead = max(last.number, last.number if final is None else final.number)
        self._scan.read_final(ahead if self._end is None else min(ahead, self._end))
        self._cursor = last
        bound = self._index.bind(outputs, last.number)
        first = batch.data.block_range.from_block
        asking = [
            bound[name]
            for name in bound
            if any(first in block_range for block_range in ranges[name])
        ]
        if not asking:
            return bound, query.headers_only()
        return bound, query_children(asking, last.number)

    def note_skipped(self, counts: Mapping[str, int]) -> None:
        """Count creations that executors could not decode, by the keys of factories."""
        self._index.skip(counts)

    def take_skipped(self) -> dict[str, int]:
        """Return how many creations were left out since the last batch, by their factories."""
        return self._index.take_skipped()

    def _final(self) -> int:
        final = self._client.finalized_head(attempts=None)
        return -1 if final is None else final.number

    # --- an extension of the stream ---------------------------------------------------------------

    @property
    def tables(self) -> Sequence[SideTable]:
        """The table of children."""
        return (CHILDREN,)

    def start(self, target: KeepsSideTables, state: PipeState) -> None:
        """Read the children that are stored; `plan` takes them over."""
        if state.cursor is not None:
            number = state.cursor.number
            self._stored = target.read_side_table(CHILDREN.name, up_to_block=number)

    def rows(self, batch: Batch[Delivery]) -> Mapping[str, pa.Table]:
        """Return the children that a batch adds."""
        return {CHILDREN.name: self._index.take_rows(batch.headers[-1].number)}


ReadSpan = Callable[
    [Mapping[str, Output], Mapping[str, tuple[BlockRange, ...]], Query, BlockRange],
    Iterator[tuple[str, pa.Table]],
]
"""Reads final blocks on executors: outputs, their ranges, what to ask for, and where.

Yields tables of bounded size; each output has one at least.
"""

Missing = Mapping[str, tuple[CreationsOutput, BlockRange]]

_EMPTY_ANSWERS = 3  # answers without blocks before a replica counts as too far behind


@dataclass(frozen=True, slots=True)
class FactoryScan:
    """Completes an index. `far` is the number of blocks from which on executors read them.

    Creations in blocks that the portal does not have any more are an error, unless `leave_out`
    takes note of them: children without a creation would miss all of their rows.
    """

    index: FactoryIndex
    client: PortalClient
    read_span: ReadSpan
    far: int
    leave_out: LeaveOut | None = None

    def read_final(self, to_block: int) -> None:
        """Learn all creations up to a block that is final."""
        while missing := self.index.missing(to_block):
            first = self._first(missing, to_block)
            if first > to_block:
                self._add(missing, [], to_block)
                continue
            blocks = BlockRange(first, to_block)
            if to_block - blocks.from_block + 1 < self.far:
                lines: list[bytes] = []
                for answer in self.client.read(_union(missing), blocks, finalized=True):
                    lines += answer.lines if isinstance(answer, Blocks) else ()
                self._add(missing, lines, to_block)
                continue
            ranges = {key: (block_range,) for key, (_, block_range) in missing.items()}
            outputs: dict[str, Output] = {key: output for key, (output, _) in missing.items()}
            query = query_children(outputs.values(), to_block)
            for key, creations in self.read_span(outputs, ranges, query, blocks):
                self.index.add(key, creations, to_block)

    def read_to(self, cursor: BlockCursor, final: int) -> bool:
        """Learn all creations up to a cursor that may be hot; False if it is not on the chain."""
        self.read_final(min(cursor.number, final))
        while missing := self.index.missing(cursor.number):
            first = self._first(missing, cursor.number)
            if first > cursor.number:
                self._add(missing, [], cursor.number)
                continue
            lines = self._lines_up_to(cursor, _union(missing), first)
            if lines is None:
                return False
            self._add(missing, lines, cursor.number)
        return True

    def _first(self, missing: Missing, to_block: int) -> int:
        """Return the first block to read, behind what the portal does not have any more."""
        first = min(block_range.from_block for _, block_range in missing.values())
        if self.leave_out is None:
            return first  # what is missing is refused when it is read
        oldest = self.client.oldest_block()
        if first < oldest:
            self.leave_out([BlockRange(first, min(oldest - 1, to_block))])
        return max(first, oldest)

    def _add(self, missing: Missing, lines: list[bytes], to_block: int) -> None:
        entities = read_outputs(
            [(output, [block_range]) for output, block_range in missing.values()], lines
        )
        for key, (output, block_range) in missing.items():
            creations = output.decode(entities, [block_range])
            self.index.skip({key: creations.skipped})
            self.index.add(key, creations.table, to_block)

    def _lines_up_to(self, cursor: BlockCursor, query: Query, first: int) -> list[bytes] | None:
        """Return the blocks up to a cursor, if they end in it."""
        lines: list[bytes] = []
        last: BlockCursor | None = None
        empty = 0
        for answer in self.client.read(query, BlockRange(first, cursor.number)):
            if isinstance(answer, Blocks):
                lines += answer.lines
                last = answer.headers[-1].cursor
            elif isinstance(answer, Fork) or (empty := empty + 1) >= _EMPTY_ANSWERS:
                break
        same = last is not None and last.number == cursor.number
        return lines if same and cursor.hash in (None, last.hash if last else None) else None


def _union(missing: Missing) -> Query:
    return merge_requests([output.query for output, _ in missing.values()])
