"""A frame is a DataFrame for whoever uses it as one, and costs nothing for who does not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.decode.columns.integers import spark_metadata
from headwater.errors import ColumnTypeError
from headwater.spark import Frame, frames, spark_schema
from headwater.spark.frames import from_arrow, to_arrow
from headwater.targets.frames import executor_rows

WHEN = datetime(2024, 3, 10, 7, 30, 0, 123456, tzinfo=UTC)  # an hour that New York skips in 2024
UTC_STAMP = pa.timestamp("us", tz="UTC")
STRUCT = pa.struct([("a", pa.string()), ("when", UTC_STAMP)])
ROWS = pa.table(
    {
        "number": pa.array([1, 2**63 - 1, None], pa.int64()),
        "small": pa.array([-(2**31), 0, None], pa.int32()),
        "when": pa.array([WHEN, datetime(1970, 1, 1, tzinfo=UTC), None], UTC_STAMP),
        "data": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "text": pa.array(["0xé", "", None], pa.string()),
        "amount": pa.array([Decimal(10**38 - 1), Decimal(-1), None], pa.decimal128(38, 0)),
        "flag": pa.array([True, False, None], pa.bool_()),
        "list": pa.array([[b"a", None], [], None], pa.list_(pa.binary())),
        "nested": pa.array([[{"a": "x", "when": WHEN}], [None], None], pa.list_(STRUCT)),
    }
)


@pytest.fixture
def jobs(spark: SparkSession) -> Callable[[], int]:
    """Count the jobs that ran since the fixture was made."""
    context: Any = spark.sparkContext
    scheduler = context._jsc.sc().dagScheduler()
    before = scheduler.nextJobId()
    return lambda: int(scheduler.nextJobId() - before)


def never() -> SparkSession:
    raise AssertionError("nobody should ask for a session")


def test_an_untouched_frame_needs_no_session_and_no_job(jobs: Callable[[], int]) -> None:
    frame = Frame(ROWS, never)
    assert frame.toArrow() is ROWS
    assert (frame.count(), frame.isEmpty(), frame.columns) == (3, False, ROWS.column_names)
    assert frame.schema == spark_schema(ROWS.schema)
    assert "number: int64" in repr(frame)
    assert jobs() == 0


def test_the_job_counter_of_these_tests_counts(
    spark: SparkSession, jobs: Callable[[], int]
) -> None:
    spark.range(3).write.format("noop").mode("overwrite").save()
    assert jobs() == 1


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
def test_every_decoded_type_passes_through_spark_unchanged(spark: SparkSession, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = Frame(ROWS, lambda: spark)
        back = frame.select("*").toArrow()
        assert back.cast(ROWS.schema).equals(ROWS)
        assert frame.dataframe.schema == frame.schema
        micros = frame.selectExpr("unix_micros(when)", "unix_micros(nested[0].when)").first()
        expected = ROWS["when"].cast(pa.int64())[0].as_py()
        assert tuple(micros) == (expected, expected)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_dataframe_methods_give_dataframes(spark: SparkSession) -> None:
    frame = Frame(ROWS, lambda: spark)
    assert isinstance(frame.where(F.col("number") > 1), DataFrame)
    assert frame.where(F.col("number") > 1).count() == 1
    assert frame.filter(frame.number == 1).union(frame.filter(frame["number"] == 1)).count() == 2
    assert frame.where("number = 1").union(frame).count() == 4  # a frame as an argument
    assert frame.toArrow() is ROWS


def test_the_dataframe_is_made_once(spark: SparkSession) -> None:
    asked = []
    frame = Frame(ROWS, lambda: asked.append(1) or spark)  # type: ignore[func-returns-value]
    frame.select("number")
    frame.select("data")
    assert asked == [1]


def test_an_empty_frame_keeps_its_columns(spark: SparkSession) -> None:
    frame = Frame(ROWS.slice(0, 0), lambda: spark)
    assert frame.isEmpty()
    assert frame.select("number", "nested").toArrow().num_rows == 0


def test_copying_a_frame_does_not_make_a_dataframe() -> None:
    assert copy.copy(Frame(ROWS, never)).toArrow() is ROWS


def test_an_unknown_method_is_an_attribute_error(spark: SparkSession) -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = Frame(ROWS, lambda: spark).no_such_thing


@pytest.mark.parametrize(
    "kind", [pa.uint64(), pa.timestamp("ns", tz="UTC"), pa.decimal256(76, 0), pa.large_string()]
)
def test_a_type_that_spark_would_change_is_refused(kind: pa.DataType) -> None:
    table = pa.table({"deep": pa.array([], pa.list_(pa.struct([("inner", kind)])))})
    with pytest.raises(ColumnTypeError, match=r"\[E5005\].*deep\[\]\.inner"):
        _ = Frame(table, never).dataframe


def test_frames_wrap_the_tables_of_a_batch() -> None:
    made = frames({"a": ROWS, "b": ROWS.slice(1)}, never)
    assert {name: frame.count() for name, frame in made.items()} == {"a": 3, "b": 2}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("where", ["number > 0", "number < 0", "text is not null"])
def test_rows_that_the_driver_holds_enter_and_leave_spark_without_a_job(
    spark: SparkSession, jobs: Callable[[], int], where: str, zone: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        schema = spark_schema(ROWS.schema)
        schema.fields[0].metadata = {"headwater.integer": "uint256"}
        made = from_arrow(spark, ROWS, schema).where(where).withColumnRenamed("flag", "sign")
        found = to_arrow(made)
        assert jobs() == 0
        own = spark.createDataFrame(ROWS, schema).where(where).withColumnRenamed("flag", "sign")
        theirs = own.toArrow()
        assert jobs() > 0
        assert found.equals(theirs)
        assert found.schema.equals(theirs.schema)
        assert [*map(spark_metadata, found.schema)] == [*map(spark_metadata, theirs.schema)]
        assert spark_metadata(found.schema.field(0)) == {"headwater.integer": "uint256"}
        assert SparkSession.getActiveSession() is spark
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_what_the_optimizer_does_not_compute_is_collected_by_a_job(
    spark: SparkSession, jobs: Callable[[], int]
) -> None:
    made = from_arrow(spark, ROWS, spark_schema(ROWS.schema))
    counted = to_arrow(made.groupBy("flag").count())
    assert sorted(counted["count"].to_pylist()) == [1, 1, 1]
    assert jobs() > 0


def test_rows_leave_no_file_behind_whatever_happens(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    before = set(Path(context._temp_dir).iterdir())
    to_arrow(from_arrow(spark, ROWS, spark_schema(ROWS.schema)))
    with pytest.raises(pa.ArrowInvalid):
        from_arrow(spark, pa.table({"a": ["x"]}), spark_schema(pa.schema({"a": pa.int64()})))
    made = from_arrow(spark, ROWS, spark_schema(ROWS.schema))
    with pytest.raises(PySparkException):
        to_arrow(made.selectExpr("assert_true(number = 1)"))
    assert set(Path(context._temp_dir).iterdir()) == before


def test_a_struct_that_is_null_can_be_collected_again(spark: SparkSession) -> None:
    """Its members must not be null, where it is there: Substreams messages are like that."""
    party = pa.struct([pa.field("name", pa.string(), False)])
    rows = [{"party": None, "parties": None}, {"party": {"name": "a"}, "parties": [{"name": "b"}]}]
    table = pa.Table.from_pylist(rows, pa.schema([("party", party), ("parties", pa.list_(party))]))
    assert Frame(table, lambda: spark).select("*").toArrow().to_pylist() == rows


def test_few_rows_that_the_driver_has_are_left_to_it(spark: SparkSession) -> None:
    """Python workers take a second to start: too long for a block that a transform filtered."""
    table = pa.table({"block_number": [1, 2, 3], "value": ["1", "22", "333"]})
    frame = from_arrow(spark, table, spark_schema(table.schema)).where("length(value) > 1")
    assert executor_rows(frame) is None
    assert to_arrow(frame)["block_number"].to_pylist() == [2, 3]
    assert executor_rows(frame.groupBy("value").count()) is not None
    assert executor_rows(spark.range(3)) is not None


def test_rows_behind_empty_pieces_are_not_lost(spark: SparkSession) -> None:
    """Of several blocks, the first may hold nothing; Spark would take that for the end."""
    table = pa.table({"block_number": [1, 2, 3]})
    pieces = [table.slice(0, 0), table.slice(0, 1), table.slice(1, 0), table.slice(1)]
    made = from_arrow(spark, pa.concat_tables(pieces), spark_schema(table.schema))
    assert to_arrow(made) == table
    assert made.count() == 3
