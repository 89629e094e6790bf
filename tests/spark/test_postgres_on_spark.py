"""Executors load PostgreSQL in parallel, exactly once, whatever becomes of their tasks."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import InvalidOptionError, PostgresTableError, RelayError
from headwater.spark.executors import map_in_arrow
from headwater.spark.relay import Relay
from headwater.targets.postgres import (
    PostgresSettings,
    Tx,
    postgres_target,
    staging,
    table,
)
from tests.spark.whole_stream import fill_through_forks
from tests.stream.truth import COLUMNS, transfers
from tests.targets.postgres_places import Stream, database

# workers cannot import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

ROWS, PARTS = 4000, 4
TABLES = "SELECT tablename AS t FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
SCHEMA = pa.schema(
    [
        ("block_number", pa.int64()),
        ("n", pa.int64()),
        ("value", pa.string()),
        ("sender", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
LOG = table("log", append_only=True, types={"value": "numeric(78,0)", "sender": "bytea"})


@pytest.fixture
def dsn() -> str:
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


def started(dsn: str, do: Any, *tables: Any, **settings: Any) -> Stream:
    target = postgres_target(
        dsn,
        tables=tables or (LOG,),
        on_data=lambda tx, data: do(tx, data) if data else None,
        unrepresentable=settings.pop("unrepresentable", "replace"),
        settings=PostgresSettings(id="s", **settings),
    )
    return Stream(target, dsn)


def check(s: Stream, rows: int = ROWS, name: str = "log") -> None:
    got = s.rows(
        f"SELECT count(*) AS n, count(DISTINCT n) AS d, sum(value - 10::numeric ^ 70)::text AS v, "
        f"count(*) FILTER (WHERE sender = decode(lpad(upper(to_hex(n)), 40, '0'), 'hex') "
        f"AND at = to_timestamp(n)) AS right FROM {name}"
    )[0]
    assert (got["n"], got["d"], got["right"]) == (rows, rows, rows)
    assert int(float(got["v"])) == rows * (rows - 1) // 2


def test_executors_encode_and_the_driver_publishes(spark: SparkSession, dsn: str) -> None:
    calls: list[int] = []

    def write(tx: Tx, data: Mapping[str, DataFrame]) -> None:
        calls.append(1)
        tx.insert("log", data["rows"])
        tx.upsert("keyed", data["rows"].where("n < 100"))
        tx.delete("keyed", data["rows"].where("n < 50").select("n"))

    types = {"value": "numeric(78,0)", "sender": "bytea"}
    s = started(dsn, write, LOG, table("keyed", key=["n"], types=types))
    copied: list[str] = []
    s.target.on_statement = lambda sql: copied.append(sql) if sql.startswith("COPY") else None
    s.block(9, {"rows": numbers(spark)}, final=9)
    assert len(calls) == 1, "nothing had to be tried again"
    assert len(copied) == 3
    check(s)
    assert s.rows("SELECT count(*) AS n, min(n) AS low FROM keyed") == [{"n": 50, "low": 50}]
    s.target.close()


def test_frames_between_statements_are_seen_in_order(spark: SparkSession, dsn: str) -> None:
    counts: list[int] = []

    def write(tx: Tx, data: Mapping[str, DataFrame]) -> None:
        tx.insert("log", data["rows"].where("n < 1000"))
        counts.append(tx.query("SELECT count(*) AS n FROM log").to_pylist()[0]["n"])
        tx.insert("log", data["rows"].where("n >= 1000"))
        counts.append(tx.query("SELECT count(*) AS n FROM log").to_pylist()[0]["n"])

    s = started(dsn, write)
    s.block(9, {"rows": numbers(spark)}, final=9)
    assert counts == [1000, ROWS]
    check(s)
    s.target.close()


def test_rows_of_hot_blocks_go_through_the_driver_and_are_undone(
    spark: SparkSession, dsn: str
) -> None:
    s = started(dsn, lambda tx, data: tx.insert("log", data["rows"]))
    s.block(8, {"rows": numbers(spark).where("block_number <= 8")}, final=8)
    before = s.rows("SELECT count(*) AS n FROM log")
    s.block(9, {"rows": numbers(spark).where("block_number = 9")}, final=8)
    check(s)
    s.fork(8)
    assert s.rows("SELECT count(*) AS n FROM log") == before
    s.target.close()


class FailsOnce:
    """Rows whose first attempt to be computed fails after some of them were handed on."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if not self.marker.exists():
                self.marker.touch()
                raise OSError("the first attempt fails")
            yield batch.slice(half)


def test_a_task_that_is_tried_again_counts_once(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    s = started(dsn, lambda tx, data: tx.insert("log", data["rows"]))
    rows = numbers(spark)
    failing = map_in_arrow(rows, FailsOnce(tmp_path / "failed"), SCHEMA)
    s.block(9, {"rows": failing}, final=9)
    assert (tmp_path / "failed").exists()
    check(s)
    s.target.close()


class Killed:
    """Does what `RowSender` does, but the worker is killed once: while it sends, or after it."""

    def __init__(self, sender: Any, marker: Path, *, after: bool) -> None:
        self.sender = sender
        self.marker = marker
        self.after = after

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        receipts = list(self.sender(batches if self.after else self.dying(batches), part))
        if self.after:
            self.die()
        yield from receipts

    def dying(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 100)
            self.die()
            yield batch.slice(100)

    def die(self) -> None:
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("after", [False, True])
def test_a_worker_that_is_killed_leaves_nothing_that_counts(
    spark: SparkSession, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """kill -9 while rows are sent, and when all are but Spark has not heard of it."""
    marker, real, keep = tmp_path / "killed", staging.RowSender, Relay.keep
    complete: list[int] = []

    def noted(relay: Relay, attempt: int, file: Any) -> None:
        complete.append(attempt)
        keep(relay, attempt, file)

    monkeypatch.setattr(Relay, "keep", noted)
    monkeypatch.setattr(
        staging, "RowSender", lambda *args: Killed(real(*args), marker, after=after)
    )
    s = started(dsn, lambda tx, data: tx.insert("log", data["rows"]))
    s.block(9, {"rows": numbers(spark)}, final=9)
    assert marker.exists()
    assert len(complete) == PARTS + after, "what was sent and not counted was there"
    check(s)
    s.target.close()


def test_a_value_that_does_not_fit_is_a_coded_error_and_leaves_nothing(
    spark: SparkSession, dsn: str
) -> None:
    s = started(dsn, lambda tx, data: tx.insert("log", data["rows"]), unrepresentable="stop")
    wrong = numbers(spark, 100).withColumn("value", F.lit("1.5")).coalesce(1)
    with pytest.raises(PostgresTableError, match="does not fit its column"):
        s.block(9, {"rows": wrong}, final=9)
    s.block(9, {"rows": numbers(spark)}, final=9)
    check(s)
    s.target.close()


def test_a_conflict_costs_no_second_computation(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    """What executors have sent is kept until the commit."""
    tries: list[int] = []

    def write(tx: Tx, data: Mapping[str, DataFrame]) -> None:
        tx.insert("log", data["rows"])
        tries.append(1)
        if len(tries) < 3:
            tx.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$")

    s = started(dsn, write)
    s.block(9, {"rows": map_in_arrow(numbers(spark), Counted(tmp_path), SCHEMA)}, final=9)
    assert len(tries) == 3
    assert len(list(tmp_path.iterdir())) == PARTS
    check(s)
    s.target.close()


class Counted:
    """Rows that leave a file each time one of their partitions is computed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (self.folder / os.urandom(8).hex()).touch()
        yield from batches


def test_a_run_that_died_leaves_nothing(spark: SparkSession, dsn: str) -> None:
    class Died(BaseException):
        pass

    s = started(dsn, lambda tx, data: tx.insert("log", data["rows"]))
    before = s.rows(TABLES)

    def die(sql: str) -> None:
        if sql.startswith('INSERT INTO "public"."sync" '):  # the state: everything before is done
            raise Died

    s.target.on_statement = die
    with pytest.raises(Died):
        s.block(9, {"rows": numbers(spark, 100)}, final=9)
    assert s.rows(TABLES) == before
    s.target.close()
    s = started(dsn, lambda tx, data: tx.insert("log", data["rows"]))
    s.block(9, {"rows": numbers(spark)}, final=9)
    check(s)
    s.target.close()


def test_a_port_that_is_taken_or_closed_is_a_coded_error(
    spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        s = started(
            dsn,
            lambda tx, data: tx.insert("log", data["rows"]),
            relay_port=taken.getsockname()[1],
        )
        with pytest.raises(InvalidOptionError, match="relay_port must be free"):
            s.block(9, {"rows": numbers(spark, 10)}, final=9)
        s.target.close()
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    monkeypatch.setattr(Relay, "port", closed)
    s = started(dsn, lambda tx, data: tx.insert("log", data["rows"]))
    with pytest.raises(RelayError, match="cannot reach the driver"):
        s.block(9, {"rows": numbers(spark, 10).coalesce(1)}, final=9)
    s.target.close()


@pytest.mark.parametrize("defer_indexes", [False, True])
def test_a_stream_goes_from_history_to_the_head_and_through_forks(
    spark: SparkSession, dsn: str, defer_indexes: bool
) -> None:
    """CASE-20: executors up to the seam, block by block after it, compared with the chain."""
    target = postgres_target(
        dsn,
        tables=[table("transfers", append_only=True), table("seen", key=["token"])],
        on_data=write_transfers,
        settings=PostgresSettings(defer_indexes=defer_indexes),
    )
    chain = fill_through_forks(spark, target)
    expected = transfers(chain, chain.canonical())
    found = target.query(f"SELECT {COLUMNS} FROM transfers ORDER BY 1, 3").to_pylist()
    assert [tuple(row.values()) for row in found] == expected
    counts = target.query("SELECT token, n::int AS n FROM seen ORDER BY 1").to_pylist()
    by_token: dict[str, int] = {}
    for row in expected:
        by_token[row[3]] = by_token.get(row[3], 0) + 1
    assert [(one["token"], one["n"]) for one in counts] == sorted(by_token.items())
    assert target.query("SELECT count(*) AS n FROM pg_indexes WHERE tablename = 'transfers'")[
        "n"
    ].to_pylist() == [1]


def write_transfers(tx: Tx, data: Mapping[str, Any], ctx: Any) -> None:
    tx.insert("transfers", data["transfers"])
    tx.execute("CREATE TABLE IF NOT EXISTS seen (token text PRIMARY KEY, n bigint)")
    tx.execute(
        "INSERT INTO seen SELECT address, count(*) FROM transfers WHERE block_number > "
        "coalesce((SELECT max(current_number) FROM sync WHERE id = 'transfers'), -1) "
        "GROUP BY 1 ON CONFLICT (token) DO UPDATE SET n = seen.n + excluded.n"
    )
