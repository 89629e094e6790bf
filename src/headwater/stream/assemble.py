"""From blocks to what user code sees: rows of each output, transformed, with their context.

Blocks are decoded right here and become frames, or executors decode them, a span at a time. The
same user code runs on all of them. Runs on the driver. Assembling a batch again gives the same rows
again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headwater import core
from headwater.core import Batch, BlockCursor, BlockRange, FinalizedWatermark, Head
from headwater.decode import Decoded, decode_blocks, decode_outputs
from headwater.pipeline import Raw
from headwater.portal import Clock, Dataset, PortalClient, PortalSource
from headwater.query import Query
from headwater.spark.frames import frames
from headwater.spark.parts import SpanReport
from headwater.spark.spans import PortalSpan, Span, read_span
from headwater.spark.startup import SparkOfRun
from headwater.stream.context import (
    BatchContext,
    BatchCounts,
    BatchInfo,
    ProgressTracker,
    QueryInfo,
    StreamInfo,
    StreamState,
)
from headwater.stream.extensions import MissingBlocks
from headwater.stream.factories import Factories
from headwater.stream.user_code import Frames, Step, Transforms
from headwater.targets.contract import Delivery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.stream.portal import PortalStream


@dataclass(frozen=True, slots=True)
class Planned:
    """How executors read a batch: the span, its blocks, and what was left out while it was planned.

    `keep`: it is read now and kept. What others read besides the target is, so that no block is
    read twice, and what waits for other spans: else a flush would read them all at once.
    """

    span: Span
    blocks: int
    keep: bool
    skipped: Mapping[str, int] = field(default_factory=dict)


class Decoder(ABC):
    """What a kind of stream makes of its blocks: the one part of assembling that they differ in."""

    ranges: tuple[BlockRange, ...]  # what is read, in order

    @abstractmethod
    def plan(self, batch: Batch[Raw]) -> Planned | None:
        """Return how executors read a batch; None where it is decoded here."""

    @abstractmethod
    def decode(self, batch: Batch[Raw]) -> Decoded:
        """Return the tables of every output for the blocks of a batch."""

    def decode_all(self, batches: Sequence[Batch[Raw]]) -> Iterable[Decoded]:
        """Yield the tables of hot batches that arrived together."""
        return map(self.decode, batches)

    def ahead(self, batch: Batch[Raw]) -> Any:
        """Return what the target has prepared of a batch while it arrived."""
        return None

    @abstractmethod
    def asked(self, number: int) -> QueryInfo:
        """Return what was asked for to get a block."""

    def missing(self, batch: Batch[Raw]) -> tuple[BlockRange, ...]:
        """Return the blocks before a batch that were left out."""
        return ()

    def learn(self, span: Span) -> None:
        """Take note of what a span held, which sizes the next ones."""
        return


class Assembler:
    """Makes deliveries of one run's batches, which `decoder` makes tables of.

    `finalized` is the stored high-water mark; with `final_only` the stream ends at the finalized
    block, whatever the latest one is.
    """

    def __init__(
        self,
        stream_id: str,
        decoder: Decoder,
        steps: Sequence[Step],
        spark: SparkOfRun,
        clock: Clock,
        *,
        dataset: Dataset | None = None,
        finalized: BlockCursor | None = None,
        final_only: bool = False,
    ) -> None:
        self._id = stream_id
        self._decoder = decoder
        self._spark = spark
        self._dataset = dataset
        self._watermark = FinalizedWatermark(finalized)
        self._final_only = final_only
        self._latest: BlockCursor | None = None
        self.progress = ProgressTracker(clock)
        self._held: list[Span] = []
        self._released: list[Span] = []
        by_batch = [step.by_batch() for step in steps] if spark.is_remote else steps
        self._transforms = Transforms(stream_id, by_batch, self._session)

    def release(self) -> None:
        """Let go of what spans keep on the executors. Called when they are committed or dropped.

        A span may be used after that by code that was handed its frames: what it keeps then is
        released the next time.
        """
        for span in self._held:
            self._decoder.learn(span)
        for span in (*self._released, *self._held):
            span.release()
        self._released, self._held = self._held, []

    def __call__(self, batch: Batch[Raw]) -> Batch[Delivery]:
        """Return the batch with the rows that user code made of it."""
        planned = self._decoder.plan(batch)
        if planned is None:
            decoded = self._decoder.decode(batch)
            info = _head_info(batch, decoded)
            tables: Frames = frames(decoded.tables, self._session)
        else:
            tables, info = self._hold(planned)
        ctx = self._context(batch, info)
        data = self._transforms(tables, ctx)
        return batch.with_data(Delivery(data, ctx, ahead=self._decoder.ahead(batch)))

    def _hold(self, planned: Planned) -> tuple[Frames, BatchInfo]:
        """Return a span's frames and counts; release it with its batch."""
        span = planned.span
        self._held.append(span)
        if planned.keep:
            span.keep()

        def known() -> BatchCounts | None:
            report = span.known_report
            return None if report is None else _counts(report, planned.skipped)

        return span.frames, BatchInfo(
            planned.blocks, lambda: _counts(span.report(), planned.skipped), known
        )

    def several(self, batches: Sequence[Batch[Raw]]) -> Iterator[Batch[Delivery]]:
        """Yield hot batches with the rows that user code made of each.

        They are transformed together if each row is made of one row. What each gets is what it
        would have got alone.
        """
        if len(batches) < 2:
            yield from map(self, batches)
            return
        decoded: Iterable[Decoded] = self._decoder.decode_all(batches)
        together: Sequence[Frames] | None = None
        if self._transforms.may_share:
            tables = decoded = list(decoded)
            together = self._transforms.together([output.tables for output in tables])
        for place, (batch, one) in enumerate(zip(batches, decoded, strict=True)):
            ctx = self._context(batch, _head_info(batch, one))
            if together is None:
                data = self._transforms(frames(one.tables, self._session), ctx)
            else:
                data = together[place]
            yield batch.with_data(Delivery(data, ctx))

    def _session(self) -> SparkSession:
        return self._spark.session

    def _context(self, batch: Batch[Raw], info: BatchInfo) -> BatchContext:
        current = batch.headers[-1].cursor
        self._watermark = self._watermark.observe(batch.head.finalized)
        head = replace(batch.head, finalized=self._watermark.cursor)
        last = self._last(head, current)
        ranges, info = self._decoder.ranges, replace(info, missing=self._decoder.missing(batch))
        initial = min((block_range.from_block for block_range in ranges), default=0)
        progress = self.progress.reached(initial, current.number, last)
        state = StreamState(initial, last, current, ranges, batch.rollback_chain)
        asked = self._decoder.asked(current.number)
        return BatchContext(self._id, StreamInfo(self._dataset, head, state, progress, asked), info)

    def _last(self, head: Head, current: BlockCursor) -> int | None:
        """Return the last block that the stream will reach, as far as is known now."""
        ends = [block_range.to_block for block_range in self._decoder.ranges]
        self._latest = head.latest or self._latest  # a portal may leave the header out
        newest = head.finalized if self._final_only else self._latest
        if newest is None:
            return ends[-1] if ends else None
        end = newest.number if not ends or ends[-1] is None else min(ends[-1], newest.number)
        return max(end, current.number)


def _head_info(batch: Batch[Raw], decoded: Decoded) -> BatchInfo:
    def counts() -> BatchCounts:
        rows = {name: table.num_rows for name, table in decoded.tables.items()}
        return _counted(size_of(batch), rows, decoded.skipped, decoded.unlike)

    return BatchInfo(len(batch.headers), counts, counts)


def _counts(report: SpanReport, skipped: Mapping[str, int]) -> BatchCounts:
    """Return what executors counted; `skipped` was left out before they began."""
    return _counted(report.bytes_read, report.rows, {**report.skipped, **skipped}, report.unlike)


def _counted(
    size: int, rows: Mapping[str, int], skipped: Mapping[str, int], unlike: Mapping[str, int]
) -> BatchCounts:
    filled = frozenset(name for name, count in rows.items() if count)
    return BatchCounts(size, sum(rows.values()), skipped, unlike, filled)


def size_of(batch: Batch[Raw]) -> int:
    """Return the bytes of the lines of a batch; 0 of a span, which is not read yet."""
    return 0 if isinstance(batch.data, core.Span) else sum(map(len, batch.data))


# --- a portal's blocks: spans that executors read, and lines that are decoded here ----------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run reads: the resolved ranges of each output, and the requests that cover them."""

    ranges: Mapping[str, tuple[BlockRange, ...]]
    requests: Sequence[tuple[BlockRange, Query]]

    @property
    def initial(self) -> int:
        """The first block that any output wants."""
        return min(
            block_range.from_block for ranges in self.ranges.values() for block_range in ranges
        )

    def query_at(self, number: int) -> Query:
        """Return what is asked for a block."""
        return next(query for block_range, query in self.requests if number in block_range)


class PortalDecoder(Decoder):
    """Makes tables of a portal's batches. `shared`: others than the target read them too.

    Executors read what `client` says is the best source when a span is planned.
    """

    def __init__(
        self,
        stream: PortalStream,
        plan: Plan,
        dataset: Dataset | None,
        spark: SparkOfRun,
        factories: Factories | None,
        missing: MissingBlocks | None,
        client: PortalClient,
        source: PortalSource,
        *,
        shared: bool,
    ) -> None:
        self._portal = stream.portal
        self._client = client
        self._source = source
        self._outputs = stream.outputs
        self._reading = stream.reading
        self._plan = plan
        self.ranges = tuple(block_range for block_range, _ in plan.requests)
        self._dataset = dataset
        self._spark = spark
        self._factories = factories
        self._missing = missing
        self._keep = shared or not stream.flush.backfill.at_once

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
            self._client.best_first(self._portal),
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
        return super().decode_all(batches) if together is None else together

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
            self._source.learn(span.block_range, report.bytes_read, sum(report.rows.values()))
