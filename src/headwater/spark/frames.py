"""Rows of a batch that become a Spark DataFrame only if user code treats them as one.

A Spark job costs 50 ms and more however few its rows; at the head that is most of a batch's time. A
`Frame` answers what it can from its Arrow table (`toArrow`, `count`, `schema`) and hands everything
else to a DataFrame that it makes at the first such call. In a backfill, rows that enter the JVM and
leave it again cost more than their decoding: a `SpanFrame` is written by the tasks that read it,
unless it is used as a DataFrame before. So user code written for DataFrames works unchanged, and
batches that are not transformed reach their target without Spark's SQL engine.

Spark's own `createDataFrame` puts some thirty questions to the JVM, and its own `toArrow` starts a
job to fetch rows that are in memory already: together half of the time of a block at the head.
`from_arrow` and `to_arrow` call the same parts of Spark without what is not needed. Where a plan is
not done by the optimizer, on another version of Spark, or with encrypted files, Spark's own way is
taken. Runs on the driver, in any thread.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark
from pyspark.sql.classic.dataframe import DataFrame as Classic
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.decode.columns.integers import spark_metadata
from headwater.errors import ColumnTypeError
from headwater.spark.catalyst import activate, jvm_class, jvm_object
from headwater.spark.versions import DRIVER_ROWS, OURS, collect, is_connect

if TYPE_CHECKING:
    from headwater.spark.arrow_plan import ArrowPlan
    from headwater.spark.executors import ExecutorRows, RowChange
    from headwater.spark.spans import Span

_PLAIN: dict[pa.DataType, type[spark.DataType]] = {
    pa.bool_(): spark.BooleanType,
    pa.int8(): spark.ByteType,
    pa.int16(): spark.ShortType,
    pa.int32(): spark.IntegerType,
    pa.int64(): spark.LongType,
    pa.float32(): spark.FloatType,
    pa.float64(): spark.DoubleType,
    pa.string(): spark.StringType,
    pa.binary(): spark.BinaryType,
    pa.date32(): spark.DateType,
    pa.timestamp("us", tz="UTC"): spark.TimestampType,
    pa.timestamp("us"): spark.TimestampNTZType,
}


def spark_schema(schema: pa.Schema) -> spark.StructType:
    """Return the Spark schema that holds these columns. Pure; no session is needed.

    What is inside of a column may be null there, whatever Arrow says: Spark cannot collect a
    struct that is null if its members must not be.

    Raises:
        ColumnTypeError: a column has a type that Spark lacks.
    """
    return spark.StructType(
        [_field(field, field.name, nullable=field.nullable) for field in schema]
    )


def _field(field: pa.Field, path: str, *, nullable: bool = True) -> spark.StructField:
    kind = _type(field.type, path)
    return spark.StructField(field.name, kind, nullable, spark_metadata(field))


def _type(arrow: pa.DataType, path: str) -> spark.DataType:
    if arrow in _PLAIN:
        return _PLAIN[arrow]()
    if pa.types.is_decimal128(arrow):
        return spark.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow):
        return spark.ArrayType(_type(arrow.value_type, f"{path}[]"))
    if pa.types.is_struct(arrow):
        return spark.StructType([_field(field, f"{path}.{field.name}") for field in arrow])
    raise ColumnTypeError("Spark has no such type", column=path, type=str(arrow))


def loose_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns as a data source hands them to Spark: what is inside may be null."""
    return pa.schema([field.with_type(_loose(field.type)) for field in schema])


def _loose(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_list(arrow):
        item = arrow.value_field
        return pa.list_(item.with_type(_loose(item.type)).with_nullable(True))
    if pa.types.is_struct(arrow):
        return pa.struct(
            [field.with_type(_loose(field.type)).with_nullable(True) for field in arrow]
        )
    return arrow


SparkProvider = Callable[[], SparkSession]


_LOOKED_FOR = ("__", "_ipython_", "_repr_")
_SHOWN = 20  # rows in a notebook


class LikeDataFrame:
    """Does as a DataFrame does, for all that it does not answer itself.

    Everything a DataFrame has can be called; transformations return real DataFrames.
    """

    __slots__ = ()

    arrow_schema: pa.Schema  # the columns, in Arrow

    @property
    def dataframe(self) -> DataFrame:
        """The rows as a DataFrame."""
        raise NotImplementedError

    @property
    def columns(self) -> list[str]:
        """The names of the columns; no Spark job."""
        return list(self.arrow_schema.names)

    @property
    def schema(self) -> StructType:
        """The columns as Spark types; no Spark job.

        Raises:
            ColumnTypeError: Spark has no such type.
        """
        return spark_schema(self.arrow_schema)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_LOOKED_FOR) or name in type(self).__slots__:
            raise AttributeError(name)  # copying, pickling and notebooks look, and need none
        return getattr(self.dataframe, name)

    def __getitem__(self, item: Any) -> Any:
        return self.dataframe[item]


class Frame(LikeDataFrame):
    """One output of a batch near the head: rows on the driver. Immutable, like a DataFrame."""

    __slots__ = ("_dataframe", "_spark_provider", "_table", "arrow_schema")

    def __init__(self, table: pa.Table, spark_provider: SparkProvider) -> None:
        self._table = table
        self.arrow_schema = table.schema
        self._spark_provider = spark_provider
        self._dataframe: DataFrame | None = None

    def toArrow(self) -> pa.Table:  # noqa: N802 - a method of DataFrame
        """Return the rows as they were decoded; no Spark job, also after other methods ran."""
        return self._table

    def count(self) -> int:
        """Count the rows; no Spark job."""
        return int(self._table.num_rows)

    def isEmpty(self) -> bool:  # noqa: N802 - a method of DataFrame
        """Tell whether there is no row; no Spark job."""
        return self.count() == 0

    def above(self, column: str, number: int) -> Frame:
        """Return the rows whose value is above a number; no Spark job."""
        rows = self._table.filter(pc.field(column) > number)
        return Frame(rows, self._spark_provider)

    @property
    def dataframe(self) -> DataFrame:
        """The rows as a DataFrame, made at the first use and kept.

        Raises:
            ColumnTypeError: a column has a type that Spark would change or refuse.
        """
        if self._dataframe is None:
            schema = self.schema  # before the session is asked for: it may be expensive to make
            self._dataframe = from_arrow(self._spark_provider(), self._table, schema)
        return self._dataframe

    def __repr__(self) -> str:
        names = ", ".join(f"{field.name}: {field.type}" for field in self.arrow_schema)
        return f"Frame[{self._table.num_rows} rows; {names}]"

    def _repr_html_(self) -> str:
        """Show the first rows in a notebook; no Spark job."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        first = self._table.slice(0, _SHOWN)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(str(value))}</td>' for value in row.values())}</tr>"
            for row in first.to_pylist()
        )
        count = f"<p>{self._table.num_rows:,} rows, {first.num_rows} shown</p>"
        return f"<table><tr>{head}</tr>{rows}</table>{count}"


class SpanFrame(LikeDataFrame):
    """One output of a span: rows that executors read. Immutable, like a DataFrame.

    Used as a DataFrame, the span is read first, compared whole and kept by Spark until its batch is
    committed. Given to a target as it is, its rows are read by the tasks that write them, which
    also do what plans say of them as far as Arrow can.
    """

    __slots__ = ("_change", "_name", "_span", "arrow_schema")

    def __init__(self, span: Span, name: str, change: RowChange) -> None:
        self._span = span
        self._name = name
        self._change = change
        self.arrow_schema = change.schema

    def changed(self, plan: ArrowPlan) -> SpanFrame:
        """Return what a plan makes of it."""
        return SpanFrame(self._span, self._name, self._change.then(plan))

    def executor_rows(self) -> ExecutorRows:
        """Return the rows where they lie, for targets."""
        return self._span.executor_rows(self._name, self._change)

    def toArrow(self) -> pa.Table:  # noqa: N802 - a method of DataFrame
        """Collect the rows on the driver, all of them; `BlockLinkError` if parts do not fit."""
        batches = list(self.executor_rows().pieces())
        rows = pa.Table.from_batches(batches, None if batches else self.arrow_schema)
        return rows.cast(self.arrow_schema)

    @property
    def dataframe(self) -> DataFrame:
        """The rows as a DataFrame over what Spark keeps of the span; reads it if nothing has."""
        return self._span.dataframe(self._name, self._change)

    def __repr__(self) -> str:
        names = ", ".join(f"{field.name}: {field.type}" for field in self.arrow_schema)
        return f"SpanFrame[{names}]"


def frames(tables: Mapping[str, pa.Table], spark_provider: SparkProvider) -> dict[str, Frame]:
    """Wrap the tables of a batch, by output. Called by the loop on the driver, once per batch.

    `spark_provider` is called only when a frame is first used as a DataFrame, so a pipeline without
    transforms needs no session and no Java at the head.
    """
    return {name: Frame(table, spark_provider) for name, table in tables.items()}


def as_frames(made: Mapping[str, Any], spark_provider: SparkProvider) -> dict[str, Any]:
    """Return what a transform made as what callbacks are given: all of it does as a DataFrame.

    DataFrames and frames stay as they are. What has no more than its rows, as an Arrow table has,
    is wrapped.
    """
    return {name: _as_frame(output, spark_provider) for name, output in made.items()}


def _as_frame(output: Any, spark_provider: SparkProvider) -> Any:
    if isinstance(output, pa.RecordBatch):
        output = pa.Table.from_batches([output])
    kind = type(output)
    if not isinstance(output, pa.Table):
        is_spark = isinstance(output, LikeDataFrame) or kind.__module__.startswith("pyspark.sql.")
        if is_spark or not hasattr(kind, "toArrow"):  # what is no frame the target refuses
            return output
        output = output.toArrow()
    return Frame(output, spark_provider)


# --- DataFrames of few rows, without a Spark job --------------------------------------------------


_ROWS = 100_000  # of a record batch
_LOCAL = "LocalTableScan"  # what a plan is called that has nothing left to compute
_PACKAGE = "org.apache.spark.sql.execution.arrow."


def from_arrow(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Return a DataFrame of a table; `schema` is that of `spark_schema`.

    Spark takes an empty batch for the end of a stream, so the rows are written as one; 4.0 wants a
    batch also where there is no row.
    """
    table = table.combine_chunks() if table.num_rows else table.schema.empty_table()
    if not _can(session):
        return session.createDataFrame(table, schema)
    inner: Any = session
    activate(session)
    utils = jvm_class(inner._jvm, "org.apache.spark.sql.api.python.PythonSQLUtils")
    rows = table.cast(to_arrow_schema(schema, timezone="UTC"))
    with _file(session) as path:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
            writer.write_table(rows)
        read = utils.readArrowStreamFromFile(path)
    frame = Classic(utils.toDataFrame(read, schema.json(), inner._jsparkSession), session)
    frame._schema = schema
    return frame


def to_arrow(frame: DataFrame) -> pa.Table:
    """Collect a DataFrame on the driver; its columns say what they hold, whatever Spark does.

    The result of a filter or a projection of `from_arrow` is there without a job.
    """
    session = frame.sparkSession
    plan = _local_plan(frame)
    if plan is None:
        return collect(frame)
    inner: Any = frame
    jvm, schema = inner.sparkSession._jvm, plan.schema()
    batches = jvm_object(jvm, f"{_PACKAGE}ArrowConverters").toBatchIterator(
        plan.rows().iterator(), schema, _ROWS, "UTC", True, False, None
    )
    with _file(session) as path:
        file = jvm_class(jvm, "java.io.FileOutputStream")(path)
        try:
            writer = jvm_class(jvm, f"{_PACKAGE}ArrowBatchStreamWriter")(
                schema, file, "UTC", True, False
            )
            writer.writeBatches(batches)
            writer.end()
        finally:
            file.close()
        with pa.OSFile(path, "rb") as written:
            return pa.ipc.open_stream(written).read_all()


def are_few(frame: DataFrame) -> bool:
    """Tell whether the rows of a DataFrame are in the driver's JVM, and one batch of them at most.

    Executors have nothing to do for them, and Python workers need not start.
    """
    plan = _local_plan(frame)
    return plan is not None and plan.rows().size() <= _ROWS


def _local_plan(frame: Any) -> Any:
    """Return the plan of a DataFrame that has nothing left to compute; None if there is work."""
    if not _can(frame.sparkSession):
        return None
    plan = frame._jdf.queryExecution().executedPlan()
    return plan if plan.nodeName() == _LOCAL else None


def _can(session: Any) -> bool:
    """Tell whether the parts of Spark that are used here are those that it has."""
    if OURS != DRIVER_ROWS or is_connect(session):
        return False
    return not session.sparkContext._encryption_enabled


@contextmanager
def _file(session: Any) -> Iterator[str]:
    """Yield the path of a file among Spark's own, for as long as rows pass through it."""
    descriptor, path = tempfile.mkstemp(dir=session.sparkContext._temp_dir)
    os.close(descriptor)
    try:
        yield path
    finally:
        Path(path).unlink(missing_ok=True)
