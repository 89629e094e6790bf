"""What differs between versions of Spark; `make compat` runs this on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader

from headwater import PortalLimits, evm, portal_stream
from headwater.decode import decode_outputs
from headwater.errors import ConnectSessionError, SparkVersionError
from headwater.spark import register
from headwater.spark import versions as those
from headwater.spark.startup import SparkOfRun
from headwater.spark.streaming.source import LEAST_SPARK
from headwater.targets import duckdb_target, parquet_target
from headwater.testing import PortalServer
from tests.spark.conftest import ALL, TRANSFER, lines


@dataclass
class Session:
    """As much of a session as is looked at before it is used."""

    version: str


@pytest.mark.parametrize(
    ("version", "words"), [("3.5.9", "needs Spark 4.0"), ("9.9.0", "another version")]
)
def test_a_session_of_another_spark_is_refused_when_a_stream_begins(
    version: str, words: str
) -> None:
    with pytest.raises(SparkVersionError, match=words):
        SparkOfRun(Session(version))  # type: ignore[arg-type]


def test_limits_over_spark_connect_are_refused_when_a_stream_begins(tmp_path: Path) -> None:
    remote = type("SparkSession", (Session,), {"__module__": "pyspark.sql.connect.session"})
    stream = portal_stream(
        id="a",
        portal="http://127.0.0.1:1",
        outputs={"t": TRANSFER},
        spark=remote(pyspark.__version__),
        limits=PortalLimits(requests=2),
    )
    with pytest.raises(ConnectSessionError, match="Spark Connect"):
        stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"))


def test_columns_that_spark_does_not_describe_are_described_here(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark before 4.2 leaves out of Arrow is put back."""
    marked = spark.range(2).withMetadata("id", {"headwater.integer": "uint256"})
    kept = those.collect(marked).schema.field("id").metadata
    assert kept[b"SPARK::metadata::json"] == b'{"headwater.integer":"uint256"}'.replace(b":", b": ")
    monkeypatch.setattr(those, "OURS", (4, 0))
    assert those.collect(marked).schema.field("id").metadata == kept


def test_functions_of_columns_work_where_spark_calls_them_for_each_row(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwater.spark.numbers import uint256_add

    monkeypatch.setattr(those, "OURS", (4, 0))
    large = str(2**255)
    frame = spark.createDataFrame([("1", large), (None, "1")], "a string, b string")
    sums = [row[0] for row in frame.select(uint256_add("a", "b")).collect()]
    assert sums == [str(2**255 + 1), None]


def test_a_changelog_begins_or_is_refused_with_the_version_that_it_needs(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    register(spark)
    options = {"portal": portal.url, "event": "erc20.Transfer", "final_only": "true"}
    options |= {"from_block": "0", "to_block": "50"}
    changes = spark.readStream.format("headwater").options(**options).load()
    writer = changes.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    if those.OURS < LEAST_SPARK:
        with pytest.raises(PySparkException, match=r"needs Spark 4\.2"):
            writer.trigger(availableNow=True).start().awaitTermination(120)
        return
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sum(one.numInputRows for one in query.recentProgress) > 0


def test_spark_reads_the_files_of_a_parquet_folder(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    """Written by a backfill, read by Spark itself: every row, and the block it is of."""
    end = ALL.to_block
    assert end is not None
    portal_stream(
        id="a",
        portal=portal.url,
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, end))},
        spark=spark,
        far=50,
    ).pipe_to(parquet_target(tmp_path, tables=["transfers"]))
    read = spark.read.parquet(str(tmp_path / "transfers"))
    found = {
        row["block_number"]: row["count"] for row in read.groupBy("block_number").count().collect()
    }
    expected: dict[int, int] = {}
    rows = decode_outputs({"t": TRANSFER}, lines(portal, TRANSFER.query), {"t": (ALL,)}).tables["t"]
    for number in rows["block_number"].to_pylist():
        expected[number] = expected.get(number, 0) + 1
    assert found == expected


def test_spark_gives_a_filter_of_one_scan_to_another(spark: SparkSession) -> None:
    """Why filters are options (decision 0018). Where this fails, Spark is mended: take filters."""
    if those.OURS < (4, 1):
        return  # there a Python source is told of no filter

    class Hundred(DataSource):
        @classmethod
        def name(cls) -> str:
            return "headwater_test_hundred"

        def schema(self) -> str:
            return "b long"

        def reader(self, schema: object) -> DataSourceReader:
            class Reader(DataSourceReader):
                least = 0

                def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802
                    for one in filters:
                        if type(one).__name__ == "GreaterThanOrEqual":
                            self.least = one.value
                        elif type(one).__name__ != "IsNotNull":
                            yield one

                def read(self, partition: object) -> Iterator[tuple[int]]:
                    return ((each,) for each in range(self.least, 100))

            return Reader()

    conf = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(conf, "true")
    try:
        spark.dataSource.register(Hundred)
        numbers = spark.read.format("headwater_test_hundred").load()
        assert numbers.where("b >= 90").count() == 10
        assert numbers.count() == 10, "100 by right"
        assert numbers.where("b >= 95").union(numbers.where("b >= 90")).count() != 15
    finally:
        spark.conf.unset(conf)
