"""From blocks to what user code sees: rows of each output, transformed, with their context.

The one place where history and head differ, and where the difference ends: a span is fetched and
decoded by executors, block lines are decoded right here; both become frames of the same names and
columns, and the same user code runs on them. Runs on the driver. Assembling a batch again gives the
same rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from headwater.core import Batch, BlockCursor, BlockRange, FinalizedWatermark, Flush, Head
from headwater.decode import Decoded, Output, decode_outputs
from headwater.pipeline import Raw
from headwater.portal import Clock, Dataset
from headwater.query import Query
from headwater.spark.checked import CheckedFrame
from headwater.spark.frames import frames
from headwater.spark.history import read_span
from headwater.stream.context import (
    BatchContext,
    BatchInfo,
    QueryInfo,
    StreamInfo,
    StreamState,
)
from headwater.stream.factories import Factories
from headwater.stream.progress import ProgressTracker
from headwater.stream.transformer import Frames, Step
from headwater.targets.contract import Delivery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


class _Released(Protocol):
    def release(self) -> None: ...


class Assembler:
    """Makes deliveries of one run's batches. `shared`: others than the target read them too.

    `finalized` is the stored high-water mark; with `final_only` the stream ends at the finalized
    block, whatever the latest one is.
    """

    def __init__(
        self,
        stream_id: str,
        portal: str,
        shown_portal: str,
        outputs: Mapping[str, Output],
        steps: Sequence[Step],
        plan: Plan,
        dataset: Dataset | None,
        spark: Callable[[], SparkSession],
        clock: Clock,
        history: Flush,
        factories: Factories | None,
        *,
        shared: bool = False,
        finalized: BlockCursor | None = None,
        final_only: bool = False,
    ) -> None:
        self._id = stream_id
        self._portal = portal
        self._shown_portal = shown_portal
        self._outputs = outputs
        self._steps = steps
        self._plan = plan
        self._dataset = dataset
        self._spark = spark
        self._factories = factories
        self._shared = shared or bool(steps)
        self._watermark = FinalizedWatermark(finalized)
        self._final_only = final_only
        self._latest: BlockCursor | None = None
        self.progress = ProgressTracker(clock)
        self._history = history
        self._held: list[_Released] = []

    def __call__(self, batch: Batch[Raw]) -> Batch[Delivery]:
        """Return the batch with the rows that user code made of it."""
        if isinstance(batch.data, BlockRange):
            made, skipped, size, rows = self._fetch(batch, batch.data)
        else:
            decoded = self._decode(batch, batch.data)
            made, skipped = frames(decoded.tables, self._spark), decoded.skipped
            size = sum(map(len, batch.data))
            rows = sum(table.num_rows for table in decoded.tables.values())
        ctx = self._context(batch, BatchInfo(_blocks(batch), size, skipped, rows))
        for step in self._steps:
            made = step.transform(made, ctx)
        return batch.with_data(Delivery(made, ctx))

    def release(self) -> None:
        """Let go of what spans keep on the executors. Called when they are committed or dropped."""
        while self._held:
            self._held.pop().release()

    def _decode(self, batch: Batch[Raw], lines: Sequence[bytes]) -> Decoded:
        if self._factories is not None:
            return self._factories.decode(self._outputs, batch, self._plan.ranges)
        return decode_outputs(self._outputs, lines, self._plan.ranges)

    def _fetch(
        self, batch: Batch[Raw], block_range: BlockRange
    ) -> tuple[Frames, Mapping[str, int], int, int]:
        """Let executors read a span. What several readers share is read now, and checked whole.

        A single output that nobody transforms is read when the target takes it, and checked then:
        the rows do not pass through Spark's cache. Spans that wait for others are read now too:
        else a flush would read them all at once.
        """
        grouped = not self._history.at_once
        outputs, query = self._outputs, self._plan.query_at(block_range.from_block)
        if self._factories is not None:
            ranges = self._plan.ranges
            outputs, query = self._factories.prepare_span(outputs, batch, ranges, query)
        span = read_span(
            self._spark(),
            self._portal,
            outputs,
            self._plan.ranges,
            query,
            block_range,
            dataset=self._dataset,
            reuse=self._shared or grouped,
        )
        self._held.append(span)
        if self._shared or len(self._outputs) > 1 or grouped:
            report = span.report()
            counted = span.frames.values() if self._history.rows is not None else ()
            rows = sum(frame.count() for frame in counted)
            return span.frames, report.skipped, report.bytes_read, rows
        return {name: CheckedFrame(frame, span) for name, frame in span.frames.items()}, {}, 0, 0

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
            self._shown_portal,
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


def _blocks(batch: Batch[Raw]) -> int:
    span = batch.data
    if isinstance(span, BlockRange) and span.to_block is not None:
        return span.to_block - span.from_block + 1
    return len(batch.headers)
