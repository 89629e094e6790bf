"""While a target's jobs run, batches end by their rows; settings are as before afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from headwater.spark.executors import DataFrameRows, _batches_by_count, map_in_arrow

# workers cannot import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

N = pa.schema([("n", pa.int64())])
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def sizes(batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"n": pa.array([batch.num_rows], pa.int64())})


def failing(batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise ValueError("as told")
    yield from ()


def settings(spark: SparkSession) -> tuple[str | None, str | None]:
    known = spark.conf.getAll
    return known.get(BYTES), known.get(ROWS)


def as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return batches


def test_arrow_needs_no_pandas(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests have it, for Spark Connect; who installs headwater has none."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    frame = spark.createDataFrame(pa.table({"n": [1, 2, 3]}))
    assert map_in_arrow(frame, as_they_are, N).toArrow()["n"].to_pylist() == [1, 2, 3]


def test_batches_end_by_their_rows(spark: SparkSession) -> None:
    assert settings(spark) == (None, None)
    found = DataFrameRows(spark.range(0, 9000, 1, 1)).run(sizes, N)
    assert found["n"].to_pylist() == [4000, 4000, 1000]
    assert settings(spark) == (None, None)


def test_a_job_that_fails_leaves_the_settings(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="as told"):
        DataFrameRows(spark.range(1)).run(failing, N)
    assert settings(spark) == (None, None)


def test_what_somebody_has_set_is_kept(spark: SparkSession) -> None:
    spark.conf.set(ROWS, "300")
    try:
        found = DataFrameRows(spark.range(0, 700, 1, 1)).run(sizes, N)
        assert found["n"].to_pylist() == [300, 300, 100]
        assert settings(spark) == (None, "300")
        spark.conf.set(BYTES, "1kb")
        with _batches_by_count(spark):
            assert settings(spark) == ("1kb", "300")
        assert settings(spark) == ("1kb", "300")
    finally:
        spark.conf.unset(ROWS)
        spark.conf.unset(BYTES)


def test_jobs_that_overlap_put_the_settings_back_once(spark: SparkSession) -> None:
    one, other = _batches_by_count(spark), _batches_by_count(spark)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert settings(spark) != (None, None), "the other still runs"
    other.__exit__(None, None, None)
    assert settings(spark) == (None, None)


class Ended:
    """A session whose settings cannot be put back."""

    getAll: ClassVar[dict[str, str]] = {}  # noqa: N815 - Spark's name

    @property
    def conf(self) -> Ended:
        return self

    def get(self, name: str) -> str:
        return "10000"

    def set(self, name: str, value: object) -> None:
        """Take it."""

    def unset(self, name: str) -> None:
        raise RuntimeError("the session has ended")


def test_settings_that_cannot_be_put_back_are_said_unless_something_else_is() -> None:
    with pytest.raises(RuntimeError, match="has ended"), _batches_by_count(Ended()):
        pass
    with pytest.raises(ValueError, match="came first"), _batches_by_count(Ended()):
        raise ValueError("came first")
