"""What versions of Spark lack, and what is done about it: the one place that asks for a version.

Headwater runs on Spark 4.0 and newer. What an older one lacks is made up for here, or refused with
a coded error before any work begins; docs/compatibility.md lists both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas import functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.decode.columns.integers import with_spark_metadata
from headwater.errors import SparkVersionError

LEAST = (4, 0)
ARROW_FUNCTIONS = (4, 1)  # functions of users that are given Arrow columns
ARROW_METADATA = (4, 2)  # metadata of columns in `toArrow` and in what Python workers are given
DRIVER_ROWS = (4, 3)  # inner parts of Spark as `driver_rows` knows them: this version, no other

ArrowFunction = Callable[..., pa.Array]


def parse_version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    first, second = text.split(".")[:2]
    return int(first), int(second)


OURS = parse_version(pyspark.__version__)


def check_session(spark: Any) -> None:
    """Refuse a session that cannot serve a stream. Called before anything is read or written.

    Raises:
        SparkVersionError: its Spark is too old, or another one than this process has.
    """
    found = parse_version(spark.version)
    if found < LEAST:
        raise SparkVersionError("Headwater needs Spark 4.0 or newer", found=spark.version)
    if found != OURS:
        raise SparkVersionError(
            "the session runs another version of Spark than this process has of pyspark",
            session=spark.version,
            pyspark=pyspark.__version__,
        )


def is_connect(session_or_frame: object) -> bool:
    """Tell whether this is of Spark Connect, whose driver is another process."""
    return type(session_or_frame).__module__.startswith("pyspark.sql.connect")


def parallelism(session: Any) -> int:
    """Return how many tasks a session runs at once, as Spark cuts work by default."""
    if not is_connect(session):
        return int(session.sparkContext.defaultParallelism)
    parts = session.range(10_000).select(F.spark_partition_id().alias("part"))
    return int(parts.agg(F.max("part")).first()[0]) + 1


def collect(frame: DataFrame) -> pa.Table:
    """Collect a DataFrame by a job; its columns say what they hold, whatever Spark does."""
    table = frame.toArrow()
    return table.cast(described(table.schema, frame))


def described(schema: pa.Schema, frame: DataFrame) -> pa.Schema:
    """Return the columns of a DataFrame in Arrow with the metadata that Spark has of them."""
    if OURS >= ARROW_METADATA and not is_connect(frame):
        return schema
    known = zip(schema, frame.schema, strict=True)
    return pa.schema([with_spark_metadata(field, of.metadata) for field, of in known])


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return columns of Spark in Arrow, with times in UTC and the metadata that Spark has."""
    zoned: dict[str, Any] = (
        {"timezone": "UTC"} if OURS >= ARROW_METADATA else {}
    )  # before, it is UTC by itself
    known = zip(to_arrow_schema(schema, **zoned), schema.fields, strict=True)
    return pa.schema([with_spark_metadata(field, of.metadata) for field, of in known])


def arrow_function(function: ArrowFunction, kind: str) -> Callable[..., Column]:
    """Return a function of Arrow columns as one of Spark's; before 4.1, called for each row."""
    if OURS >= ARROW_FUNCTIONS:
        arrow_udf: Callable[..., Callable[..., Column]] = functions.arrow_udf
        return arrow_udf(function, kind)

    def one_row(*values: str | None) -> str | None:
        found: str | None = function(*(pa.array([one], pa.string()) for one in values))[0].as_py()
        return found

    return F.udf(one_row, kind, useArrow=False)
