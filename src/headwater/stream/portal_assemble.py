"""What a portal's batches are made of: spans that executors read, and lines that are decoded here.

The one place where backfill and head differ, and where the difference ends: both become frames of
the same names and columns. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headwater import core
from headwater.core import Batch, BlockCursor, BlockRange
from headwater.decode import Decoded, decode_blocks, decode_outputs
from headwater.pipeline import Raw
from headwater.portal import Clock, Dataset
from headwater.query import Query
from headwater.spark.spans import PortalSpan, Span, read_span
from headwater.spark.startup import SparkOfRun
from headwater.stream.assemble import Assembler
from headwater.stream.context import BatchContext, BatchInfo, QueryInfo
from headwater.stream.factories import Factories
from headwater.stream.transformer import Frames

if TYPE_CHECKING:
    from headwater.stream.portal import PortalStream


OnSpan = Callable[[BlockRange, int, int], None]
"""Is told the blocks of a span that was read, its bytes and its rows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run reads: the resolved ranges of each output, and the requests that cover them."""

    ranges: Mapping[str, tuple[BlockRange, ...]]
    requests: Sequence[tuple[BlockRange, Query]]

    @property
    def initial(self) -> int:
        """The first block that any output wants."""
        return min(one.from_block for ranges in self.ranges.values() for one in ranges)

    @property
    def merged(self) -> tuple[BlockRange, ...]:
        """The ranges of the requests."""
        return tuple(block_range for block_range, _ in self.requests)

    def query_at(self, number: int) -> Query:
        """Return what is asked for a block."""
        return next(query for block_range, query in self.requests if number in block_range)


class PortalAssembler(Assembler):
    """Makes deliveries of a portal's batches. `shared`: others than the target read them too."""

    def __init__(
        self,
        stream: PortalStream,
        plan: Plan,
        dataset: Dataset | None,
        spark: SparkOfRun,
        clock: Clock,
        factories: Factories | None,
        *,
        shared: bool = False,
        on_span: OnSpan = lambda blocks, size, rows: None,
        finalized: BlockCursor | None = None,
        final_only: bool = False,
        missing_before: Callable[[int], tuple[BlockRange, ...]] | None = None,
    ) -> None:
        super().__init__(
            stream.id,
            str(stream.portal),
            stream.steps,
            spark,
            clock,
            dataset=dataset,
            finalized=finalized,
            final_only=final_only,
        )
        self._portal = stream.portal
        self._outputs = stream.outputs
        self._reading = stream.reading
        self._backfill = stream.flush.backfill
        self._plan = plan
        self._factories = factories
        self._shared = shared
        self._on_span = on_span
        self._missing_before = missing_before

    def _context(self, batch: Batch[Raw], info: BatchInfo) -> BatchContext:
        """Return the context, with the blocks that were left out before the batch."""
        if self._missing_before is not None:
            info = replace(info, missing=self._missing_before(batch.headers[-1].number))
        return super()._context(batch, info)

    @property
    def ranges(self) -> tuple[BlockRange, ...]:
        """The ranges of the requests."""
        return self._plan.merged

    def _asked(self, number: int) -> QueryInfo:
        query = self._plan.query_at(number) if self._plan.requests else None
        return QueryInfo(
            self._address,
            "" if query is None else query.query_hash,
            b"" if query is None else query.body(number),
        )

    def _frames(self, batch: Batch[Raw]) -> tuple[Frames, BatchInfo]:
        if not isinstance(batch.data, core.Span):
            return super()._frames(batch)
        span = self._plan_span(batch, batch.data)
        keep = self._shared or not self._backfill.at_once
        frames, info = self._hold(span, batch.data.blocks, keep=keep)
        if self._factories is not None and (skipped := self._factories.take_skipped()):
            info = info.with_skipped(skipped)
        return frames, info

    def _learn(self, span: Span) -> None:
        """Tell the source what a span held, so that the next ones keep within their limits."""
        report = span.known_report
        if report is not None and isinstance(span, PortalSpan):
            self._on_span(span.block_range, report.bytes_read, sum(report.rows.values()))

    def _decode(self, batch: Batch[Raw], lines: Sequence[bytes]) -> Decoded:
        if self._factories is not None:
            return self._factories.decode(self._outputs, batch, self._plan.ranges)
        return decode_outputs(self._outputs, lines, self._plan.ranges)

    def _decode_all(self, batches: Sequence[Batch[Raw]]) -> Iterator[Decoded]:
        """Yield the tables of each, decoded at once where no block changes what the next one is."""
        lines = {
            batch.headers[-1].number: batch.data[0]
            for batch in batches
            if len(batch.headers) == 1 and not isinstance(batch.data, core.Span) and batch.data
        }
        made = None
        if self._factories is None and len(lines) == len(batches):
            made = decode_blocks(self._outputs, lines, self._plan.ranges)
        yield from super()._decode_all(batches) if made is None else made

    def _plan_span(self, batch: Batch[Raw], asked: core.Span) -> Span:
        """Plan how executors read a span. Its rows are read when they are used."""
        outputs, query = self._outputs, self._plan.query_at(asked.block_range.from_block)
        densities = asked.densities
        if self._factories is not None:
            ranges, densities = self._plan.ranges, ()  # what is asked for is another query
            outputs, query = self._factories.prepare_span(outputs, batch, ranges, query)
        return read_span(
            self._spark,
            self._portal,
            outputs,
            self._plan.ranges,
            query,
            asked.block_range,
            dataset=self._dataset,
            densities=densities,
            retry=self._reading.retry,
            timeouts=self._reading.timeouts,
        )
