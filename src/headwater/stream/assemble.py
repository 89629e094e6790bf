"""From blocks to what user code sees: rows of each output, transformed, with their context.

Blocks are decoded right here and become frames, or executors decode them, a span at a time. The
same user code runs on all of them. Runs on the driver. Assembling a batch again gives the same rows
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headwater import core
from headwater.core import Batch, BlockCursor, BlockRange, FinalizedWatermark, Head
from headwater.decode import Decoded
from headwater.pipeline import Raw
from headwater.portal import Clock, Dataset
from headwater.spark.frames import frames
from headwater.spark.parts import SpanReport
from headwater.spark.spans import Span
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
from headwater.stream.transformer import Frames, Step, Transforms
from headwater.targets.contract import Delivery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


class Decoder(Protocol):
    """What a kind of stream makes of its blocks: the one part of assembling that they differ in."""

    @property
    def ranges(self) -> tuple[BlockRange, ...]:
        """What is read, in order."""
        ...

    def plan(self, batch: Batch[Raw]) -> Planned | None:
        """Return how executors read a batch; None where it is decoded here."""
        ...

    def decode(self, batch: Batch[Raw]) -> Decoded:
        """Return the tables of every output for the blocks of a batch."""
        ...

    def decode_all(self, batches: Sequence[Batch[Raw]]) -> Iterable[Decoded]:
        """Yield the tables of hot batches that arrived together."""
        ...

    def ahead(self, batch: Batch[Raw]) -> Any:
        """Return what the target has prepared of a batch while it arrived."""
        ...

    def asked(self, number: int) -> QueryInfo:
        """Return what was asked for to get a block."""
        ...

    def missing(self, batch: Batch[Raw]) -> tuple[BlockRange, ...]:
        """Return the blocks before a batch that were left out."""
        ...

    def learn(self, span: Span) -> None:
        """Take note of what a span held."""
        ...


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
        info = BatchInfo(planned.blocks, partial(_span_counts, span), partial(_known, span))
        return span.frames, info.with_skipped(planned.skipped) if planned.skipped else info

    def several(self, batches: Sequence[Batch[Raw]]) -> Iterator[Batch[Delivery]]:
        """Yield hot batches with the rows that user code made of each.

        They are transformed together if each row is made of one row. What each gets is what it
        would have got alone.
        """
        if len(batches) < 2:
            yield from map(self, batches)
            return
        decoded: Iterable[Decoded] = self._decoder.decode_all(batches)
        made: Sequence[Frames] | None = None
        if self._transforms.may_share:
            tables = decoded = list(decoded)
            made = self._transforms.together([one.tables for one in tables])
        for place, (batch, one) in enumerate(zip(batches, decoded, strict=True)):
            ctx = self._context(batch, _head_info(batch, one))
            if made is None:
                data = self._transforms(frames(one.tables, self._session), ctx)
            else:
                data = made[place]
            yield batch.with_data(Delivery(data, ctx))

    def _session(self) -> SparkSession:
        return self._spark.session

    def _context(self, batch: Batch[Raw], info: BatchInfo) -> BatchContext:
        current = batch.headers[-1].cursor
        self._watermark = self._watermark.observe(batch.head.finalized)
        head = replace(batch.head, finalized=self._watermark.cursor)
        last = self._last(head, current)
        ranges, info = self._decoder.ranges, replace(info, missing=self._decoder.missing(batch))
        initial = min((one.from_block for one in ranges), default=0)
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
    counts = partial(_head_counts, decoded, size_of(batch))
    return BatchInfo(len(batch.headers), counts, counts)


def _head_counts(decoded: Decoded, size: int) -> BatchCounts:
    rows = sum(table.num_rows for table in decoded.tables.values())
    filled = frozenset(name for name, table in decoded.tables.items() if table.num_rows)
    return BatchCounts(size, rows, decoded.skipped, decoded.unlike, filled)


def _span_counts(span: Span) -> BatchCounts:
    return _counts(span.report())


def _known(span: Span) -> BatchCounts | None:
    report = span.known_report
    return None if report is None else _counts(report)


def _counts(report: SpanReport) -> BatchCounts:
    rows = sum(report.rows.values())
    filled = frozenset(name for name, count in report.rows.items() if count)
    return BatchCounts(report.bytes_read, rows, report.skipped, report.unlike, filled)


def size_of(batch: Batch[Raw]) -> int:
    """Return the bytes of the lines of a batch; 0 of a span, which is not read yet."""
    return 0 if isinstance(batch.data, core.Span) else sum(map(len, batch.data))
