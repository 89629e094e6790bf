"""Executors insert into ClickHouse in parallel, exactly once, whatever becomes of their tasks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import ClickHouseTableError
from headwater.targets.clickhouse import (
    ClickHouseClient,
    ClickHouseSettings,
    clickhouse_target,
    store,
    table,
    transfer,
)
from tests.spark.whole_stream import fill_through_forks
from tests.stream.truth import COLUMNS, transfers
from tests.targets.clickhouse_places import Stream, database

# workers cannot import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

ROWS, PARTS = 4000, 4
LOG = table("log", order_by=["n"], types={"value": "UInt256", "sender": "FixedString(20)"})


@pytest.fixture
def url() -> str:
    return database()


def numbers(spark: SparkSession, rows: int = ROWS) -> DataFrame:
    wide = F.concat(F.lit("1"), F.lpad(F.col("id").cast("string"), 70, "0"))
    return spark.range(0, rows, 1, PARTS).select(
        (F.col("id") % 9 + 1).alias("block_number"),
        F.col("id").alias("n"),
        wide.alias("value"),
        F.concat(F.lit("0x"), F.lpad(F.hex("id"), 40, "0")).alias("sender"),
        F.timestamp_seconds("id").alias("at"),
    )


def started(url: str, *tables: Any, **settings: Any) -> Stream:
    target = clickhouse_target(
        url,
        tables=tables or (LOG,),
        on_data=lambda store, data: [store.insert("log", one) for one in data.values()],
        unrepresentable=settings.pop("unrepresentable", "replace"),
        settings=ClickHouseSettings(id="s", **settings),
    )
    return Stream(target, url)


def check(s: Stream, rows: int = ROWS) -> None:
    """All rows are there once, also by their signs, and each is right."""
    got = s.rows(
        "SELECT count() AS total, uniqExact(n) AS d, countIf(value = toUInt256(concat('1', "
        "leftPad(toString(n), 70, '0'))) AND sender = unhex(leftPad(hex(n), 40, '0')) "
        "AND toUnixTimestamp(at) = n) AS right FROM log_live"
    )
    assert got == [{"total": rows, "d": rows, "right": rows}]
    assert s.rows("SELECT sum(sign) AS n FROM log") == [{"n": rows}]


def test_executors_insert_in_parallel(spark: SparkSession, url: str) -> None:
    s = started(url)
    statements: list[str] = []
    s.target.on_statement = statements.append
    s.block(9, {"rows": numbers(spark)}, final=9)
    check(s)
    assert not any("FORMAT ArrowStream" in one and "log" in one for one in statements), (
        "the driver has sent no rows"
    )
    parts = "SELECT count() AS n FROM system.parts WHERE table = 'log' AND database = "
    assert s.rows(f"{parts}'{s.client.database}' AND level = 0") == [{"n": PARTS}]
    s.target.close()


def test_rows_of_hot_blocks_go_through_the_driver_and_are_undone(
    spark: SparkSession, url: str
) -> None:
    s = started(url)
    s.block(8, {"rows": numbers(spark).where("block_number <= 8")}, final=8)
    before = s.rows("SELECT count() AS n FROM log_live")
    s.block(9, {"rows": numbers(spark).where("block_number = 9")}, final=8)
    check(s)
    s.fork(8)
    assert s.rows("SELECT count() AS n FROM log_live") == before
    s.target.close()


class Dies:
    """Does what `Writer` does; the first worker is killed after so many rows of its batches."""

    def __init__(self, real: Any, marker: Path, *, after: bool) -> None:
        self.real = real
        self.marker = marker
        self.after = after

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.real, name)

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        if self.after:
            receipts = list(self.real(batches, part))
            self.die()
            yield from receipts
        elif self.marker.exists():  # another order of rows, as after a shuffle
            whole = pa.Table.from_batches(list(batches))
            turned = whole.take(pa.array(range(whole.num_rows - 1, -1, -1)))
            yield from self.real(turned.to_batches(), part)
        else:
            yield from self.real(self.dying(batches), part)

    def dying(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 700)
            self.die()
            yield batch.slice(700)

    def die(self) -> None:
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("after", "insert_rows"),
    [(False, 300), (True, 300), (True, 10**5), (False, 10**5)],
)
def test_a_worker_that_is_killed_leaves_nothing_that_counts_twice(
    spark: SparkSession,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
    insert_rows: int,
) -> None:
    """kill -9 between the inserts of a task, and after its last one, before Spark hears of it.

    The second attempt has its rows in another order. Where a task inserts several pieces, the batch
    is written again; where it inserts one, the server knows it.
    """
    marker, real = tmp_path / "killed", transfer.Writer
    monkeypatch.setattr(store, "Writer", lambda *args: Dies(real(*args), marker, after=after))
    s = started(url, insert_rows=insert_rows)
    s.block(9, {"rows": numbers(spark)}, final=9)
    assert marker.exists()
    check(s)
    rounds = s.rows("SELECT uniqExact(splitByChar('/', token)[2]) AS n FROM sync__attempts")
    assert rounds == [{"n": 2 if insert_rows == 300 else 0}]
    s.target.close()


def test_an_error_of_a_task_keeps_its_code_and_leaves_nothing(
    spark: SparkSession, url: str
) -> None:
    s = started(url, unrepresentable="stop")
    wrong = numbers(spark, 100).withColumn("value", F.lit("1.5")).coalesce(1)
    with pytest.raises(ClickHouseTableError, match="does not fit its column"):
        s.block(9, {"rows": wrong}, final=9)
    s.block(9, {"rows": numbers(spark)}, final=9)
    check(s)
    s.target.close()


def test_a_stream_goes_from_history_to_the_head_and_through_forks(
    spark: SparkSession, url: str
) -> None:
    """CASE-20: executors up to the seam, block by block after it, compared with the chain."""
    target = clickhouse_target(
        url,
        tables=[table("transfers", types={"value": "UInt256"})],
    )
    chain = fill_through_forks(spark, target)
    expected = transfers(chain, chain.canonical())
    client = ClickHouseClient(url)
    shown = COLUMNS.replace("value", "toString(value) AS value")
    found = client.query(f"SELECT {shown} FROM transfers_live ORDER BY 1, 3").to_pylist()
    assert [tuple(row.values()) for row in found] == expected
    client.close()
