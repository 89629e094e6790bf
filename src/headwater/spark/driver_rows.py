"""DataFrames of few rows, made and collected without a Spark job: what a block at the head needs.

Spark keeps a small Arrow table as rows of the driver's JVM, and its optimizer applies filters and
projections to them right there. Its own `createDataFrame` puts some thirty questions to the JVM
before that, and its own `toArrow` starts a job to fetch rows that are in memory already: together
that is half of the time of such a block. Here the same parts of Spark are called, without what is
not needed. Where a plan is not done by the optimizer, on another version of Spark, or with
encrypted files, Spark's own way is taken. Runs on the driver, in any thread.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as Classic
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.spark.catalyst import activate, jvm_class, jvm_object
from headwater.spark.versions import DRIVER_ROWS, OURS, collect, is_connect

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
    made = Classic(utils.toDataFrame(read, schema.json(), inner._jsparkSession), session)
    made._schema = schema
    return made


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
    return OURS == DRIVER_ROWS and not is_connect(session) and not _encrypts(session)


def _encrypts(session: Any) -> bool:
    return bool(session.sparkContext._encryption_enabled)


@contextmanager
def _file(session: Any) -> Iterator[str]:
    """Yield the path of a file among Spark's own, for as long as rows pass through it."""
    descriptor, path = tempfile.mkstemp(dir=session.sparkContext._temp_dir)
    os.close(descriptor)
    try:
        yield path
    finally:
        Path(path).unlink(missing_ok=True)
