"""The factories of one run: which creations to read, when, and which children outputs may see.

It belongs to the stream's plan, to reading and to decoding, and where the target keeps side tables
it is a part of the stream that stores the children (`headwater.stream.parts`). Where none are kept,
they are found anew when a run starts, by reading the creations up to the cursor. Runs on the
driver, in one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from headwater.core import Batch, BlockCursor, BlockRange, PipeState, Span
from headwater.decode import Decoded, Factory, Output, decode_entities, read_outputs
from headwater.errors import BlockLinkError
from headwater.pipeline import Raw
from headwater.portal import PortalClient
from headwater.query import Query
from headwater.stream.child_queries import query_children
from headwater.stream.child_rows import CHILDREN
from headwater.stream.factory_index import FactoryIndex
from headwater.stream.factory_scan import FactoryScan, ReadSpan
from headwater.targets.contract import Delivery, KeepsSideTables, SideTable

Ranges = Mapping[str, Sequence[BlockRange]]

_TRIES = 5  # readings of the creations up to a hot cursor, before it counts as gone


class Factories:
    """Keeps the children of a run in step with it. Implements `StreamPart`."""

    def __init__(
        self,
        factories: Sequence[Factory],
        client: PortalClient,
        read_span: ReadSpan,
        far: int,
        pause: Callable[[], None],
    ) -> None:
        self._factories = factories
        self._client = client
        self._read_span = read_span
        self._far = far
        self._pause = pause
        self._stored = CHILDREN.columns.empty_table()
        self._index = FactoryIndex((), {})
        self._scan = FactoryScan(self._index, client, read_span, far)
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
        resolved = {one.key: self._client.resolve_range(one.start) for one in self._factories}
        starts = {key: one.from_block for key, one in resolved.items()}
        self._index = FactoryIndex(self._factories, starts)
        self._index.load(self._stored)
        self._stored = CHILDREN.columns.empty_table()
        self._scan = FactoryScan(self._index, self._client, self._read_span, self._far)
        ends = [one.to_block for one in ranges]
        self._end = None if None in ends else max(one for one in ends if one is not None)
        self._first = 0 if cursor is not None else min(one.from_block for one in ranges)
        if min(starts.values()) < self._first:
            self._first = min(self._first, self._final() + 1)
        return [
            (block_range, output.query)
            for output, wanted in self._index.wanted(BlockRange(self._first, self._end))
            for block_range in wanted
        ]

    def catch_up(self, state: PipeState) -> None:
        """Learn the creations up to a state, if they are not known. Called before each reading."""
        self._cursor = state.cursor
        if state.cursor is None:
            self._scan.read_final(self._first - 1)
        elif self._index.missing(state.cursor.number):
            self._scan.read_to(state.cursor, self._final())

    def forget(self, state: PipeState) -> None:
        """Forget the children above a cursor, where a fork has sent the stream."""
        assert state.cursor is not None, "a rollback lands on a block"
        self._index.roll_back(state.cursor.number)
        self._cursor = state.cursor

    # --- decoding ---------------------------------------------------------------------------------

    def decode(self, outputs: Mapping[str, Output], batch: Batch[Raw], ranges: Ranges) -> Decoded:
        """Decode a batch near the head: find its creations first, then the rows of all children."""
        assert not isinstance(batch.data, Span), "a span is decoded by executors"
        self._insist()
        last = batch.headers[-1].cursor
        wanted: list[tuple[Output, Sequence[BlockRange]]]
        wanted = [(one, ranges[name]) for name, one in outputs.items()]
        asked = last.number >= self._first  # else a fork went back behind all that is asked for
        if asked:
            wanted += self._index.wanted(BlockRange(self._first, last.number))
        entities = read_outputs(wanted, batch.data)
        if asked:
            self._index.observe(entities, last.number)
        self._cursor = last
        return decode_entities(self._index.bind(outputs, last.number), entities, ranges)

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
        asking = [bound[name] for name in bound if any(first in one for one in ranges[name])]
        if not asking:
            return bound, query.headers_only()
        return bound, query_children(asking, last.number)

    def _insist(self) -> None:
        """Make sure that all creations up to the last batch are known.

        They are, unless the chain moved while they were read; that a batch has come nonetheless
        means that it has moved back.
        """
        if self._cursor is None or not self._index.missing(self._cursor.number):
            return
        for _ in range(_TRIES):
            if self._scan.read_to(self._cursor, self._final()):
                return
            self._pause()
        raise BlockLinkError(
            "the creations of factories could not be read on the chain of the cursor",
            cursor=self._cursor,
        )

    def _final(self) -> int:
        final = self._client.finalized_head(attempts=None)
        return -1 if final is None else final.number

    # --- a part of the stream ---------------------------------------------------------------------

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

    def advanced(self, state: PipeState) -> None:
        """Do nothing: children are known before they are stored."""

    def rolled_back(self, state: PipeState) -> None:
        """Do nothing: `forget` is called also where nothing is stored."""

    def finish(self, state: PipeState) -> None:
        """Do nothing: all children are stored."""

    def stop(self) -> None:
        """Hold nothing."""
