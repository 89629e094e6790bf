"""What a portal's batches are made of: spans that executors read, and lines that are decoded here.

The one place where backfill and head differ, and where the difference ends: both become frames of
the same names and columns. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater import core
from headwater.core import Batch, BlockRange
from headwater.decode import Decoded, decode_blocks, decode_outputs
from headwater.pipeline import Raw
from headwater.portal import Address, Dataset
from headwater.query import Query
from headwater.spark.spans import PortalSpan, Span, read_span
from headwater.spark.startup import SparkOfRun
from headwater.stream.assemble import Planned
from headwater.stream.context import QueryInfo
from headwater.stream.factories import Factories
from headwater.stream.missing_blocks import MissingBlocks

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


class PortalDecoder:
    """Makes tables of a portal's batches. `shared`: others than the target read them too.

    `address` is where executors read, as it is best when a span is planned.
    """

    def __init__(
        self,
        stream: PortalStream,
        plan: Plan,
        dataset: Dataset | None,
        spark: SparkOfRun,
        factories: Factories | None,
        missing: MissingBlocks | None,
        *,
        shared: bool = False,
        address: Callable[[], Address],
        on_span: OnSpan = lambda blocks, size, rows: None,
    ) -> None:
        self._portal = stream.portal
        self._address = address
        self._outputs = stream.outputs
        self._reading = stream.reading
        self._plan = plan
        self._dataset = dataset
        self._spark = spark
        self._factories = factories
        self._missing = missing
        self._keep = shared or not stream.flush.backfill.at_once
        self._on_span = on_span

    @property
    def ranges(self) -> tuple[BlockRange, ...]:
        """The ranges of the requests."""
        return self._plan.merged

    def plan(self, batch: Batch[Raw]) -> Planned | None:
        """Plan how executors read a span. Its rows are read when they are used."""
        asked = batch.data
        if not isinstance(asked, core.Span):
            return None
        outputs, query = self._outputs, self._plan.query_at(asked.block_range.from_block)
        densities, skipped = asked.densities, dict[str, int]()
        if self._factories is not None:
            ranges, densities = self._plan.ranges, ()  # what is asked for is another query
            outputs, query = self._factories.prepare_span(outputs, batch, ranges, query)
            skipped = self._factories.take_skipped()
        span = read_span(
            self._spark,
            self._address(),
            outputs,
            self._plan.ranges,
            query,
            asked.block_range,
            dataset=self._dataset,
            densities=densities,
            retry=self._reading.retry,
            timeouts=self._reading.timeouts,
        )
        return Planned(span, asked.blocks, self._keep, skipped)

    def decode(self, batch: Batch[Raw]) -> Decoded:
        """Return the tables of every output for the blocks of a batch."""
        assert not isinstance(batch.data, core.Span), "a span is planned"
        if self._factories is not None:
            return self._factories.decode(self._outputs, batch, self._plan.ranges)
        return decode_outputs(self._outputs, batch.data, self._plan.ranges)

    def decode_all(self, batches: Sequence[Batch[Raw]]) -> Iterable[Decoded]:
        """Yield the tables of each, decoded at once where no block changes what the next one is."""
        lines = {
            batch.headers[-1].number: batch.data[0]
            for batch in batches
            if len(batch.headers) == 1 and not isinstance(batch.data, core.Span) and batch.data
        }
        together = None
        if self._factories is None and len(lines) == len(batches):
            together = decode_blocks(self._outputs, lines, self._plan.ranges)
        return map(self.decode, batches) if together is None else together

    def ahead(self, batch: Batch[Raw]) -> None:
        """Return nothing: a portal's blocks are decoded when their turn comes."""

    def asked(self, number: int) -> QueryInfo:
        """Return the request that a block was asked for with."""
        address = str(self._portal)
        if not self._plan.requests:
            return QueryInfo(address, "", b"")
        query = self._plan.query_at(number)
        return QueryInfo(address, query.query_hash, query.body(number))

    def missing(self, batch: Batch[Raw]) -> tuple[BlockRange, ...]:
        """Return the blocks before a batch that were left out."""
        return () if self._missing is None else self._missing.before(batch.headers[-1].number)

    def learn(self, span: Span) -> None:
        """Tell the source what a span held, so that the next ones keep within their limits."""
        report = span.known_report
        if report is not None and isinstance(span, PortalSpan):
            self._on_span(span.block_range, report.bytes_read, sum(report.rows.values()))
