"""A large range of final blocks as DataFrames: one fetch, however many outputs there are.

Executors fetch, parse and decode the parts; the rows of all outputs come back in one table with a
struct column each, so that no block is asked for twice. What has several readers is persisted and
must be released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from headwater.core import BlockRange
from headwater.decode import Output
from headwater.errors import HeadwaterError
from headwater.portal import Address, Dataset, RetryPolicy, StreamQuery
from headwater.spark import receipt as receipts
from headwater.spark.part_reader import PartReader
from headwater.spark.plan import PROBE_BYTES, SAMPLES, block_count, plan_parts
from headwater.spark.receipt import SpanReport, sum_receipts
from headwater.spark.rows import CombinedRows, RowMaker, TableRows, combined_column
from headwater.spark.span_source import load_parts

_RECEIPT = receipts.COLUMN.name


class Span:
    """A range of final blocks, planned, and read when an action asks for its frames.

    `frames` holds one lazy DataFrame per output, `parts` the ranges that the tasks read. Release a
    span when its batch is committed; a `with` block does.
    """

    def __init__(
        self,
        rows: DataFrame,
        outputs: Sequence[str],
        parts: Sequence[BlockRange],
        *,
        reuse: bool,
        complete: bool,
    ) -> None:
        self.parts = tuple(parts)
        self._complete = complete
        self._report: SpanReport | None = None
        self._observation: Observation | None = None
        self._rows = rows
        if reuse:
            rows = self._rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
        else:
            self._observation = Observation()
            rows = rows.observe(self._observation, F.collect_set(_RECEIPT).alias("receipts"))
        self._persisted = reuse
        self.frames = {
            name: _frame(rows, None if len(outputs) == 1 else index)
            for index, name in enumerate(outputs)
        }

    def report(self) -> SpanReport:
        """Return what was read. Call it after an action has run over the frames.

        If the range has not been read to its end by then (no action, or one that stopped early, as
        `limit` does), the rest is read now: this runs a Spark job.

        Raises:
            BlockLinkError: two neighbouring parts are not of one chain.
        """
        if self._report is None:
            self._report = self._sum(self._seen()) or self._sum(self._collect())
        assert self._report is not None, "each part of a finished reading has a receipt"
        return self._report

    def release(self) -> None:
        """Give up what is persisted. May be repeated; the frames can still be used, and refetch."""
        if self._persisted:
            self._rows.unpersist()
            self._persisted = False

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _sum(self, texts: Sequence[str]) -> SpanReport | None:
        return sum_receipts(texts, self.parts, complete=self._complete)

    def _seen(self) -> Sequence[str]:
        """Return the receipts that the first action has brought; none if none has run.

        Spark's own `get` would wait for an action for ever, hence the look at its future.
        """
        observation = self._observation
        if observation is None or observation._jo is None:
            return ()
        if not observation._jo.future().isCompleted():
            return ()
        return list(observation.get["receipts"])

    def _collect(self) -> Sequence[str]:
        rows = self._rows.where(F.col(_RECEIPT).isNotNull()).select(_RECEIPT)
        return list(rows.toArrow().column(0).to_pylist())


def read_span(
    spark: SparkSession,
    portal: str | Address,
    outputs: Mapping[str, Output],
    ranges: Mapping[str, Sequence[BlockRange]],
    query: StreamQuery,
    block_range: BlockRange,
    *,
    partitions: int | None = None,
    dataset: Dataset | None = None,
    reuse: bool = False,
    samples: int = SAMPLES,
    retry: RetryPolicy | None = None,
) -> Span:
    """Plan the reading of a range on executors and return its DataFrames, not yet read.

    Called by the loop on the driver, for ranges that are final to their end: what is not final yet
    is waited for. `query` is the union of what the outputs ask for there, `ranges` the resolved
    ranges of each. Each block is fetched once: with several outputs, or `reuse`, rows are persisted
    (memory, then disk) until `Span.release`; a single output is not, so two actions on it fetch
    twice. Tasks that are tried again give the same rows.

    `samples` short requests measure how dense the range is, unless `partitions` is 1; 0 for none.

    Raises:
        InvalidRangeError: the range has no end.
        InvalidOptionError: `partitions` is below 1.
        ColumnTypeError: an output has a column that Spark cannot hold.
        HeadwaterError: the portal refuses the query.
    """
    block_count(block_range)  # a range without an end is refused before anything is asked
    reader = PartReader(
        address=portal if isinstance(portal, Address) else Address.parse(portal),
        query=query,
        row_maker=_row_maker(outputs, ranges),
        dataset=dataset,
        retry=retry or RetryPolicy(),
        with_receipts=True,
    )
    with reader.client(PROBE_BYTES) as client:
        if dataset is None:
            with suppress(HeadwaterError):  # tasks then ask by themselves
                reader = replace(reader, dataset=client.metadata())
        parts = plan_parts(
            client,
            query,
            block_range,
            partitions=partitions,
            cores=spark.sparkContext.defaultParallelism,
            samples=samples,
        )
    return Span(
        load_parts(spark, reader, parts),
        list(outputs),
        parts,
        reuse=reuse or len(outputs) > 1,
        complete=query.include_all_blocks,
    )


def _row_maker(
    outputs: Mapping[str, Output], ranges: Mapping[str, Sequence[BlockRange]]
) -> RowMaker:
    if len(outputs) != 1:
        return CombinedRows(dict(outputs), {name: tuple(ranges[name]) for name in outputs})
    ((name, output),) = outputs.items()
    return TableRows(name, output, tuple(ranges[name]))


def _frame(rows: DataFrame, index: int | None) -> DataFrame:
    """Return the rows of one output; with an index, those of its struct column."""
    if index is None:
        return rows.where(F.col(_RECEIPT).isNull()).drop(_RECEIPT)
    column = combined_column(index)
    return rows.where(F.col(column).isNotNull()).select(f"{column}.*")
