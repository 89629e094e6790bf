"""From blocks to what user code sees: rows of each output, transformed, with their context.

The one place where backfill and head differ, and where the difference ends: a span is fetched and
decoded by executors, block lines are decoded right here; both become frames of the same names and
columns, and the same user code runs on them. Runs on the driver. Assembling a batch again gives the
same rows again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater import core
from headwater.address import HttpAddress
from headwater.core import Batch, BlockCursor, BlockRange, FinalizedWatermark, Flush, Head
from headwater.decode import Decoded, Output, decode_outputs
from headwater.pipeline import Raw
from headwater.portal import Clock, Dataset, RetryPolicy, Timeouts
from headwater.query import Query
from headwater.spark.frames import frames
from headwater.spark.parts import SpanReport
from headwater.spark.row_wise import JoinedFrame, cut_by_block
from headwater.spark.spans import Span, read_span
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
from headwater.stream.factories import Factories
from headwater.stream.transformer import Frames, Step
from headwater.targets.contract import Delivery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


class Assembler:
    """Makes deliveries of one run's batches. `shared`: others than the target read them too.

    `finalized` is the stored high-water mark; with `final_only` the stream ends at the finalized
    block, whatever the latest one is. `retry` and `timeouts` are those of executors.
    """

    def __init__(
        self,
        stream_id: str,
        portal: HttpAddress,
        outputs: Mapping[str, Output],
        steps: Sequence[Step],
        plan: Plan,
        dataset: Dataset | None,
        spark: SparkOfRun,
        clock: Clock,
        backfill: Flush,
        factories: Factories | None,
        *,
        shared: bool = False,
        on_span: OnSpan = lambda blocks, size, rows: None,
        finalized: BlockCursor | None = None,
        final_only: bool = False,
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._id = stream_id
        self._portal = portal
        self._outputs = outputs
        self._steps = steps
        self._plan = plan
        self._dataset = dataset
        self._spark = spark
        self._factories = factories
        self._shared = shared
        self._on_span = on_span
        self._watermark = FinalizedWatermark(finalized)
        self._final_only = final_only
        self._retry = retry
        self._timeouts = timeouts
        self._latest: BlockCursor | None = None
        self.progress = ProgressTracker(clock)
        self._backfill = backfill
        self._held: list[Span] = []
        self._released: list[Span] = []
        self._joins_blocks = bool(steps) and all(step.may_join_blocks for step in steps)

    def __call__(self, batch: Batch[Raw]) -> Batch[Delivery]:
        """Return the batch with the rows that user code made of it."""
        made: Frames
        if isinstance(batch.data, core.Span):
            span = self._plan_span(batch, batch.data)
            made = span.frames
            info = BatchInfo(_blocks(batch), partial(_span_counts, span), partial(_known, span))
        else:
            decoded = self._decode(batch, batch.data)
            made = frames(decoded.tables, self._session)
            info = _head_info(batch, decoded)
        ctx = self._context(batch, info)
        return batch.with_data(Delivery(self._transform(made, ctx), ctx))

    def several(self, batches: Sequence[Batch[Raw]]) -> Iterator[Batch[Delivery]]:
        """Yield hot batches with the rows that user code made of each.

        They are transformed together if all transforms work row by row. What each gets is what it
        would have got alone; where that is not sure, each is transformed alone, also from then on.
        """
        if len(batches) < 2 or not self._joins_blocks:
            yield from map(self, batches)
            return
        decoded: list[Decoded] = []
        contexts: list[BatchContext] = []
        for batch in batches:
            assert not isinstance(batch.data, core.Span), "a span is final"
            decoded.append(self._decode(batch, batch.data))
            contexts.append(self._context(batch, _head_info(batch, decoded[-1])))
        made: Iterable[Frames] | None
        made = self._transform_together(batches, decoded, contexts[-1])
        if made is None:
            self._joins_blocks = False
            made = (
                self._transform(frames(one.tables, self._session), ctx)
                for one, ctx in zip(decoded, contexts, strict=True)
            )
        for batch, data, ctx in zip(batches, made, contexts, strict=True):
            yield batch.with_data(Delivery(data, ctx))

    def _transform_together(
        self, batches: Sequence[Batch[Raw]], decoded: Sequence[Decoded], last: BatchContext
    ) -> Sequence[Frames] | None:
        """Transform several blocks at once, and cut the result by block; None if it cannot be."""
        given = {
            name: JoinedFrame(
                pa.concat_tables([one.tables[name] for one in decoded]), self._session
            )
            for name in self._outputs
        }
        chain = tuple(cursor for batch in batches for cursor in batch.rollback_chain)
        state = replace(last.stream.state, rollback_chain=chain)
        counts = partial(_sum_counts, batches, decoded)
        info = BatchInfo(len(batches), counts, counts)
        made = self._transform(
            given, BatchContext(last.id, replace(last.stream, state=state), info)
        )
        return cut_by_block(
            made,
            given,
            [batch.headers[-1].number for batch in batches],
            self._session,
            trusted=all(step.row_wise for step in self._steps),
        )

    def _transform(self, made: Frames, ctx: BatchContext) -> Frames:
        for step in self._steps:
            made = step.transform(made, ctx)
        return made

    def release(self) -> None:
        """Let go of what spans keep on the executors. Called when they are committed or dropped.

        A span may be used after that by code that was handed its frames: what it keeps then is
        released the next time.
        """
        for span in self._held:
            self._learn(span)
        for span in (*self._released, *self._held):
            span.release()
        self._released, self._held = self._held, []

    def _learn(self, span: Span) -> None:
        """Tell the source what a span held, so that the next ones keep within their limits."""
        report = span.known_report
        if report is not None:
            self._on_span(span.block_range, report.bytes_read, sum(report.rows.values()))

    def _session(self) -> SparkSession:
        return self._spark.session

    def _decode(self, batch: Batch[Raw], lines: Sequence[bytes]) -> Decoded:
        if self._factories is not None:
            return self._factories.decode(self._outputs, batch, self._plan.ranges)
        return decode_outputs(self._outputs, lines, self._plan.ranges)

    def _plan_span(self, batch: Batch[Raw], asked: core.Span) -> Span:
        """Plan how executors read a span. Its rows are read when they are used.

        What others read besides the target is read now and kept, so that no block is fetched twice.
        So are spans that wait for others: else a flush would read them all at once.
        """
        outputs, query = self._outputs, self._plan.query_at(asked.block_range.from_block)
        densities = asked.densities
        if self._factories is not None:
            ranges, densities = self._plan.ranges, ()  # what is asked for is another query
            outputs, query = self._factories.prepare_span(outputs, batch, ranges, query)
        span = read_span(
            self._spark,
            self._portal,
            outputs,
            self._plan.ranges,
            query,
            asked.block_range,
            dataset=self._dataset,
            densities=densities,
            retry=self._retry,
            timeouts=self._timeouts,
        )
        self._held.append(span)
        if self._shared or not self._backfill.at_once:
            span.keep()
        return span

    def _context(self, batch: Batch[Raw], info: BatchInfo) -> BatchContext:
        current = batch.headers[-1].cursor
        self._watermark = self._watermark.observe(batch.head.finalized)
        head = replace(batch.head, finalized=self._watermark.cursor)
        last = self._last(head, current)
        query = self._plan.query_at(batch.headers[-1].number) if self._plan.requests else None
        progress = self.progress.reached(self._plan.initial, current.number, last)
        state = StreamState(
            self._plan.initial, last, current, self._plan.merged, batch.rollback_chain
        )
        asked = QueryInfo(
            str(self._portal),
            "" if query is None else query.query_hash,
            b"" if query is None else query.body(current.number),
        )
        return BatchContext(self._id, StreamInfo(self._dataset, head, state, progress, asked), info)

    def _last(self, head: Head, current: BlockCursor) -> int | None:
        """Return the last block that the stream will reach, as far as is known now."""
        ends = [block_range.to_block for block_range in self._plan.merged]
        self._latest = head.latest or self._latest  # a portal may leave the header out
        newest = head.finalized if self._final_only else self._latest
        if newest is None:
            return ends[-1] if ends else None
        end = newest.number if not ends or ends[-1] is None else min(ends[-1], newest.number)
        return max(end, current.number)


def _span_counts(span: Span) -> BatchCounts:
    return _counts(span.report())


def _known(span: Span) -> BatchCounts | None:
    report = span.known_report
    return None if report is None else _counts(report)


def _counts(report: SpanReport) -> BatchCounts:
    return BatchCounts(report.bytes_read, sum(report.rows.values()), report.skipped)


def _head_info(batch: Batch[Raw], decoded: Decoded) -> BatchInfo:
    counts = partial(_head_counts, decoded, _size(batch))
    return BatchInfo(_blocks(batch), counts, counts)


def _sum_counts(batches: Sequence[Batch[Raw]], decoded: Sequence[Decoded]) -> BatchCounts:
    counts = [_head_counts(one, _size(batch)) for batch, one in zip(batches, decoded, strict=True)]
    skipped: Counter[str] = Counter()
    for one in counts:
        skipped.update(one.skipped)
    return BatchCounts(
        sum(one.bytes_size for one in counts), sum(one.rows_count for one in counts), skipped
    )


def _head_counts(decoded: Decoded, size: int) -> BatchCounts:
    rows = sum(table.num_rows for table in decoded.tables.values())
    return BatchCounts(size, rows, decoded.skipped)


def _blocks(batch: Batch[Raw]) -> int:
    return batch.data.blocks if isinstance(batch.data, core.Span) else len(batch.headers)


def _size(batch: Batch[Raw]) -> int:
    return 0 if isinstance(batch.data, core.Span) else sum(map(len, batch.data))
