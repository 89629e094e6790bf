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
from dataclasses import replace
from functools import partial
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
from headwater.spark.executors import (
    DataFrameRows,
    ExecutorRows,
    RowChange,
    SpanRows,
    coded_failures,
    described_job,
    map_in_arrow,
    read_parts,
    shown_parts,
    unpack_columns,
    unpack_part,
)
from headwater.spark.frames import SpanFrame, spark_schema
from headwater.spark.parts import (
    PACKED,
    RECEIPT,
    Packed,
    Part,
    PartReader,
    Receipt,
    SpanReader,
    SpanReport,
    TableRows,
    plan_parts,
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
        self._outputs = list(schemas)
        self._report: SpanReport | None = None
        self._kept: RDD[Packed] | DataFrame | None = None
        self.frames = {
            name: SpanFrame(self, name, RowChange(schema)) for name, schema in schemas.items()
        }

    @abstractmethod
    def _sum(self, receipts: Sequence[Receipt]) -> SpanReport:
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
        kept: RDD[Packed] | DataFrame
        if self._spark.is_remote:  # all that there is of Spark is a session
            numbers = self._spark.session.range(0, len(self.parts), 1, len(self.parts))
            kept = map_in_arrow(numbers, partial(_pack, self._reader, self.parts), PACKED)
        else:
            spread = self._spark.context.parallelize(self._numbered(), len(self.parts))
            kept = spread.flatMap(self._reader.packed)
        kept = kept.persist(StorageLevel.DISK_ONLY)
        try:
            self._compare(_receipts(kept))
        except BaseException:
            kept.unpersist()
            raise
        return kept

    def _numbered(self) -> list[Part[Any]]:
        return [Part(index, blocks) for index, blocks in enumerate(self.parts)]

    def dataframe(self, name: str, change: RowChange) -> DataFrame:
        """Return what becomes of an output's rows, as a DataFrame over what is kept."""
        schema = pa.schema([field.with_nullable(True) for field in change.schema])
        kept = self.keep()
        if isinstance(kept, RDD):
            kept = catalyst.of_rows(self._spark.session, kept, spark_schema(PACKED))
        return map_in_arrow(kept, partial(unpack_columns, self._place(name), change), schema)

    def executor_rows(self, name: str, change: RowChange) -> ExecutorRows:
        """Return what becomes of an output's rows, where these lie: to be read, or kept."""
        if self._kept is None and len(self._outputs) == 1 and not self._spark.is_remote:
            parts, reading = self._numbered(), partial(read_parts, self._reader)
            shown = f"read and write {shown_parts(self.parts)}"
            return SpanRows(self._spark.context, parts, reading, change, shown, self._compare)
        kept = self.keep()
        if not isinstance(kept, RDD):
            return DataFrameRows(self.dataframe(name, change))
        unpacking = partial(unpack_part, self._place(name))
        return SpanRows(kept.context, kept, unpacking, change, "write rows that are kept")

    def _place(self, name: str) -> int:
        return self._outputs.index(name)

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
        self._report = self._sum([Receipt.from_text(text) for text in texts])


class PortalSpan(Span):
    """A range of final blocks that executors ask a portal for. The parts are of one chain."""

    _reader: PartReader

    @property
    def block_range(self) -> BlockRange:
        """The range, which the parts cover."""
        return BlockRange(self.parts[0].from_block, self.parts[-1].to_block)

    def _sum(self, receipts: Sequence[Receipt]) -> SpanReport:
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


def _pack(
    reader: SpanReader[Any], parts: Sequence[Any], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield what is kept of parts whose numbers Spark hands over. Runs on executors."""
    with coded_line_first():
        for batch in batches:
            for index in batch.column(0).to_pylist():
                for output, rows in reader.packed(Part(index, parts[index])):
                    row = {"output": output, "rows": rows}
                    yield pa.RecordBatch.from_pylist([row], schema=PACKED)


def _receipts(kept: RDD[Packed] | DataFrame) -> list[str]:
    """Return what tasks say of their reading. Runs the job that reads."""
    if isinstance(kept, RDD):
        said = kept.filter(_is_receipt).values().collect()
    else:
        said = kept.where(f"output = {RECEIPT}").select("rows").toArrow().column(0).to_pylist()
    return [text.decode() for text in said]


def _is_receipt(packed: Packed) -> bool:
    return packed[0] == RECEIPT
