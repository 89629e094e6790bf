"""A large range of final blocks: one fetch, however many outputs there are.

Executors fetch, parse and decode the parts. A single output's rows go from there to where they are
written. Rows of several outputs, or that are used more than once, are kept by Spark in pieces of
Arrow, so that no block is asked for twice: as a few values of bytes, which no engine takes apart
before somebody wants their columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame, SparkSession

from headwater.core import BlockRange, Density, block_count
from headwater.decode import Output
from headwater.errors import HeadwaterError, coded_line_first
from headwater.portal import (
    SAMPLES,
    Address,
    Dataset,
    RetryPolicy,
    StreamQuery,
    Timeouts,
    source_address,
)
from headwater.spark import catalyst
from headwater.spark.arrow_plan import ArrowPlan
from headwater.spark.executors import (
    DataFrameRows,
    ExecutorRows,
    PackedRows,
    RowChange,
    SpanRows,
    Unpacking,
    described_job,
    map_in_arrow,
    shown_parts,
)
from headwater.spark.failures import coded_failures
from headwater.spark.frames import SpanFrame, spark_schema
from headwater.spark.partitions import plan_parts
from headwater.spark.parts import (
    PACKED,
    RECEIPT,
    Packed,
    Part,
    PartReader,
    SpanReader,
    SpanReport,
    TableRows,
    sum_receipts,
)
from headwater.spark.startup import SparkOfRun


class Span(ABC):
    """Final blocks, planned, and read when its frames are used.

    `frames` holds one frame per output, `parts` what the tasks read. With a single output, the
    tasks that work on its rows read them. Where DataFrames are wanted, or there are several
    outputs, the blocks are read once, and Spark keeps their rows on its disks until the span is
    released; a `with` block does. Whatever is handed on, the receipts of the parts were looked
    at first: none is missing.
    """

    def __init__(
        self,
        spark: SparkOfRun,
        reader: SpanReader[Any],
        schemas: Mapping[str, pa.Schema],
        parts: Sequence[Any],
    ) -> None:
        self.parts = tuple(parts)
        self._spark = spark
        self._reader = reader
        self._schemas = dict(schemas)
        self._report: SpanReport | None = None
        self._kept: RDD[Packed] | DataFrame | None = None
        self.frames = {name: SpanFrame(self, name, schema) for name, schema in schemas.items()}

    @abstractmethod
    def _sum(self, receipts: Sequence[str]) -> SpanReport:
        """Sum up what the tasks of a job say of their reading."""

    def report(self) -> SpanReport:
        """Return what was read. If nothing was yet, the range is read now, and its rows are kept.

        Raises:
            BlockLinkError: two neighbouring parts are not of one chain.
        """
        if self._report is None:
            self.keep()
        assert self._report is not None, "what is kept was read"
        return self._report

    @property
    def known_report(self) -> SpanReport | None:
        """What was read, if anything was."""
        return self._report

    def keep(self) -> RDD[Packed] | DataFrame:
        """Have executors read the range, unless they did, and keep its rows. Runs a Spark job."""
        if self._kept is None:
            described = described_job(self._spark.session, f"read {shown_parts(self.parts)}")
            with coded_failures(), described:
                self._kept = self._read()
        return self._kept

    def _read(self) -> RDD[Packed] | DataFrame:
        """Have executors read the range and keep its rows; compare the parts."""
        if self._spark.is_remote:
            return self._read_by_session()
        parts = [Part(index, blocks) for index, blocks in enumerate(self.parts)]
        spread = self._spark.context.parallelize(parts, len(parts))
        kept = spread.mapPartitions(_Pack(self._reader)).persist(StorageLevel.DISK_ONLY)
        try:
            self._compare(kept.mapPartitions(_receipts).collect())
        except BaseException:
            kept.unpersist()
            raise
        return kept

    def _read_by_session(self) -> DataFrame:
        """Do the same where all that there is of Spark is a session."""
        numbers = self._spark.session.range(0, len(self.parts), 1, len(self.parts))
        kept = map_in_arrow(numbers, _PackNumbered(_Pack(self._reader), self.parts), PACKED)
        kept = kept.persist(StorageLevel.DISK_ONLY)
        try:
            receipts = kept.where(f"output = {RECEIPT}").select("rows").toArrow()
            self._compare([said.decode() for said in receipts.column(0).to_pylist()])
        except BaseException:
            kept.unpersist()
            raise
        return kept

    def dataframe(self, name: str, plans: Sequence[ArrowPlan] = ()) -> DataFrame:
        """Return what plans make of an output's rows, as a DataFrame over what is kept."""
        change = self._change(name, plans)
        schema = pa.schema([one.with_nullable(True) for one in change.schema])
        kept = self.keep()
        if isinstance(kept, RDD):
            kept = catalyst.of_rows(self._spark.session, kept, spark_schema(PACKED))
        return map_in_arrow(kept, Unpacking(self._place(name), change), schema)

    def _change(self, name: str, plans: Sequence[ArrowPlan]) -> RowChange:
        return RowChange(plans[-1].schema if plans else self._schemas[name], tuple(plans))

    def executor_rows(self, name: str, plans: Sequence[ArrowPlan] = ()) -> ExecutorRows:
        """Return what plans make of an output's rows, where these lie: to be read, or kept."""
        change = self._change(name, plans)
        if self._kept is None and len(self._schemas) == 1 and not self._spark.is_remote:
            context = self._spark.context
            return SpanRows(context, self._reader, self.parts, self._compare, change)
        kept = self.keep()
        if isinstance(kept, RDD):
            return PackedRows(kept, Unpacking(self._place(name), change))
        return DataFrameRows(self.dataframe(name, plans))

    def _place(self, name: str) -> int:
        return list(self._schemas).index(name)

    def release(self) -> None:
        """Give up what is kept. May be repeated; frames can still be used, and are read again."""
        if self._kept is not None:
            self._kept.unpersist()
            self._kept = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _compare(self, texts: Sequence[str]) -> None:
        self._report = self._sum(texts)


class PortalSpan(Span):
    """A range of final blocks that executors ask a portal for. The parts are of one chain."""

    _reader: PartReader

    @property
    def block_range(self) -> BlockRange:
        """The range, which the parts cover."""
        return BlockRange(self.parts[0].from_block, self.parts[-1].to_block)

    def _sum(self, receipts: Sequence[str]) -> SpanReport:
        complete = self._reader.query.include_all_blocks
        report = sum_receipts(receipts, self.parts, complete=complete)
        if report.refused:
            self._spark.refused()
        return report


def read_span(
    spark: SparkSession | SparkOfRun,
    portal: str | Address,
    outputs: Mapping[str, Output],
    ranges: Mapping[str, Sequence[BlockRange]],
    query: StreamQuery,
    block_range: BlockRange,
    *,
    partitions: int | None = None,
    dataset: Dataset | None = None,
    samples: int = SAMPLES,
    densities: Sequence[Density] = (),
    retry: RetryPolicy | None = None,
    timeouts: Timeouts | None = None,
) -> PortalSpan:
    """Plan the reading of a range on executors and return its frames, not yet read.

    Called by the loop on the driver, for ranges that are final to their end: what is not final yet
    is waited for. `query` is the union of what the outputs ask for there, `ranges` the resolved
    ranges of each. Tasks that are tried again give the same rows. No session is made unless a
    DataFrame is wanted.

    `densities` is what was measured of the range; without it `samples` short requests measure it,
    unless `partitions` is 1; 0 for none.

    Raises:
        InvalidRangeError: the range has no end.
        InvalidOptionError: `partitions` is below 1.
        ColumnTypeError: an output has a column that Spark cannot hold.
        HeadwaterError: the portal refuses the query.
    """
    spark = spark if isinstance(spark, SparkOfRun) else SparkOfRun(spark)
    block_count(block_range)  # a range without an end is refused before anything is asked
    reader = PartReader(
        address=source_address(portal),
        query=query,
        row_maker=TableRows(dict(outputs), {name: tuple(ranges[name]) for name in outputs}),
        dataset=dataset,
        retry=retry or RetryPolicy(),
        timeouts=timeouts,
        office=spark.office,
    )
    with reader.client(on_refused=spark.refused) as client:
        if dataset is None:
            with suppress(HeadwaterError):  # tasks then ask by themselves
                reader = replace(reader, dataset=client.metadata())
        parts = plan_parts(
            client,
            query,
            block_range,
            partitions=partitions,
            cores=spark.parallelism,
            samples=samples,
            densities=densities,
        )
    schemas = {name: output.schema for name, output in outputs.items()}
    return PortalSpan(spark, reader, schemas, parts)


@dataclass(frozen=True, slots=True)
class _Pack:
    """Reads parts and packs their rows. It pickles, and runs on executors."""

    reader: SpanReader[Any]

    def __call__(self, parts: Iterable[Part[Any]]) -> Iterator[Packed]:
        """Yield the rows of the parts of one partition, and what is said of their reading."""
        for part in parts:
            yield from self.reader.packed(part)


@dataclass(frozen=True, slots=True)
class _PackNumbered:
    """Does so with the numbers of parts, as Spark hands them to functions over batches."""

    pack: _Pack
    parts: tuple[Any, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what is kept of the parts of one partition."""
        with coded_line_first():
            for batch in batches:
                numbers = batch.column(0).to_pylist()
                for output, rows in self.pack(Part(at, self.parts[at]) for at in numbers):
                    made = {"output": output, "rows": rows}
                    yield pa.RecordBatch.from_pylist([made], schema=PACKED)


def _receipts(packed: Iterable[Packed]) -> Iterator[str]:
    """Yield what tasks say of their reading."""
    for output, said in packed:
        if output == RECEIPT:
            yield said.decode()
