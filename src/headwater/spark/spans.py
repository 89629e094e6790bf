"""A large range of final blocks: one fetch, however many outputs there are.

Executors fetch, parse and decode the parts. A single output's rows go from there to where they are
written. The rows of several outputs are kept by Spark in one table with a struct column each, so
that no block is asked for twice.
"""

from __future__ import annotations

import base64
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Self
from weakref import WeakSet

import pyarrow as pa
from Crypto.Cipher import AES
from pyspark import StorageLevel, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from headwater.address import HttpAddress
from headwater.core import BlockRange, Density, block_count
from headwater.decode import Output
from headwater.errors import HeadwaterError, SourceOptionError
from headwater.portal import SAMPLES, Dataset, RetryPolicy, StreamQuery, Timeouts, portal_address
from headwater.spark.executors import DataFrameRows, ExecutorRows, SpanRows, replan
from headwater.spark.frames import SpanFrame, spark_schema
from headwater.spark.partitions import plan_parts
from headwater.spark.parts import (
    RECEIPT_COLUMN,
    CombinedRows,
    PartReader,
    PartsReader,
    RowMaker,
    SpanReader,
    SpanReport,
    TableRows,
    combined_column,
    sum_receipts,
)
from headwater.spark.startup import SparkOfRun

_RECEIPT = RECEIPT_COLUMN.name


class Span(ABC):
    """Final blocks, planned, and read when its frames are used.

    `frames` holds one frame per output, `parts` what the tasks read. With a single output, the
    tasks that work on its rows read them. Where DataFrames are wanted, or there are several
    outputs, the blocks are read once, and Spark keeps their rows (memory, then disk) until the span
    is released; a `with` block does. Whatever is handed on, the receipts of the parts were looked
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
        self._kept: DataFrame | None = None
        self.frames = {name: SpanFrame(self, name, schema) for name, schema in schemas.items()}

    @abstractmethod
    def _load(self, reader: SpanReader[Any]) -> DataFrame:
        """Return the DataFrame that a reader makes of the parts. Runs no job."""

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

    def keep(self) -> DataFrame:
        """Have executors read the range, unless they did, and keep its rows. Runs a Spark job."""
        if self._kept is None:
            self._kept = replan(self._read)
        return self._kept

    def _read(self) -> DataFrame:
        """Have executors read the range and keep its rows; compare the parts."""
        reader = replace(self._reader, with_receipts=True)
        rows = self._load(reader).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            found = rows.where(F.col(_RECEIPT).isNotNull()).select(_RECEIPT).toArrow()
            self._compare(found.column(0).to_pylist())
        except BaseException:
            rows.unpersist()
            raise
        return rows

    def dataframe(self, name: str) -> DataFrame:
        """Return the rows of an output as a DataFrame over what is kept."""
        rows = self.keep()
        if len(self._outputs) == 1:
            return rows.where(F.col(_RECEIPT).isNull()).drop(_RECEIPT)
        column = combined_column(self._outputs.index(name))
        return rows.where(F.col(column).isNotNull()).select(f"{column}.*")

    def executor_rows(self, name: str) -> ExecutorRows:
        """Return the rows of an output where they lie: to be read, or kept."""
        if self._kept is None and len(self._outputs) == 1:
            return SpanRows(self._spark.context, self._reader, self.parts, self._compare)
        return DataFrameRows(self.dataframe(name))

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

    def _load(self, reader: SpanReader[Any]) -> DataFrame:
        return load_parts(self._spark.session, reader, self.parts)

    def _sum(self, receipts: Sequence[str]) -> SpanReport:
        complete = self._reader.query.include_all_blocks
        return sum_receipts(receipts, self.parts, complete=complete)


def read_span(
    spark: SparkSession | SparkOfRun,
    portal: str | HttpAddress,
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
        address=portal_address(portal),
        query=query,
        row_maker=_row_maker(outputs, ranges),
        dataset=dataset,
        retry=retry or RetryPolicy(),
        timeouts=timeouts,
        office=spark.office,
    )
    with reader.client() as client:
        if dataset is None:
            with suppress(HeadwaterError):  # tasks then ask by themselves
                reader = replace(reader, dataset=client.metadata())
        parts = plan_parts(
            client,
            query,
            block_range,
            partitions=partitions,
            cores=spark.context.defaultParallelism,
            samples=samples,
            densities=densities,
        )
    schemas = {name: output.schema for name, output in outputs.items()}
    return PortalSpan(spark, reader, schemas, parts)


def _row_maker(
    outputs: Mapping[str, Output], ranges: Mapping[str, Sequence[BlockRange]]
) -> RowMaker:
    if len(outputs) != 1:
        return CombinedRows(dict(outputs), {name: tuple(ranges[name]) for name in outputs})
    ((name, output),) = outputs.items()
    return TableRows(name, output, tuple(ranges[name]))


NAME = "headwater_span"
OPTION = "secret.plan"  # "secret" is what spark.redaction.regex looks for
_NONCE_BYTES, _SIGNATURE_BYTES = 12, 16

_KEY = secrets.token_bytes(32)
_registered: WeakSet[SparkSession] = WeakSet()


class SpanSource(DataSource):
    """A data source whose whole configuration is one sealed option. Not for users.

    Made on the driver when a span is loaded, pickled from there to executors. The key is a part of
    the class, which travels as code; it stands in no option, plan or log.
    """

    key: ClassVar[bytes] = b""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the planned rows."""
        reader, _ = _unseal(self.options, self.key)
        return spark_schema(reader.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the planned reading. Called on the driver whenever a scan is planned."""
        reader, parts = _unseal(self.options, self.key)
        return PartsReader(reader, parts)


def load_parts(
    spark: SparkSession, reader: SpanReader[Any], parts: Sequence[BlockRange]
) -> DataFrame:
    """Return the DataFrame that reads these parts, one task each. Runs no job."""
    schema = spark_schema(reader.schema)
    if spark not in _registered:
        spark.dataSource.register(type("KeyedSpanSource", (SpanSource,), {"key": _KEY}))
        _registered.add(spark)
    plan: bytes = cloudpickle.dumps((reader, tuple(parts)))  # type: ignore[no-untyped-call]
    sealed = _seal(plan, _KEY)
    return spark.read.format(NAME).schema(schema).option(OPTION, sealed).load()


def _seal(plan: bytes, key: bytes) -> str:
    """Encrypt and sign a plan, which has credentials: Spark may show options in plans and logs."""
    cipher = AES.new(key, AES.MODE_GCM, nonce=secrets.token_bytes(_NONCE_BYTES))
    content, signature = cipher.encrypt_and_digest(plan)
    return base64.b64encode(cipher.nonce + signature + content).decode()


def _unseal(options: MutableMapping[str, str], key: bytes) -> tuple[PartReader, list[BlockRange]]:
    sealed = base64.b64decode(options.get(OPTION, ""))
    nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        cipher = AES.new(key, AES.MODE_GCM, nonce=nonce)
        plan = cipher.decrypt_and_verify(rest[_SIGNATURE_BYTES:], rest[:_SIGNATURE_BYTES])
    except ValueError:
        raise SourceOptionError(
            f"the format {NAME} is for Headwater's own use", use="headwater"
        ) from None
    reader, parts = cloudpickle.loads(plan)
    return reader, parts
