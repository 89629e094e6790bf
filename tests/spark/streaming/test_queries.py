"""Real streaming queries on a chain that forks: aggregates, joins, triggers, and killed drivers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own spelling
from pyspark.sql.streaming.query import StreamingQuery

from headwater.spark import register
from headwater.spark.streaming import collapse, retractable
from headwater.testing import ContentSettings, PortalServer, simulated_portal
from headwater.testing.chain.content import content_of
from tests.stream.truth import transfers

ROOT = Path(__file__).parents[3]
CONTENT = ContentSettings(transactions_per_block=1.5, transfers_per_transaction=1)


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=7, blocks=60, finality_depth=20, content=CONTENT) as portal:
        yield portal


def changelog(
    spark: SparkSession,
    portal: PortalServer,
    journal: Path,
    event: str = "Transfer",
    **options: str,
) -> DataFrame:
    register(spark)
    return (
        spark.readStream.format("headwater")
        .options(portal=portal.url, event=f"erc20.{event}", journal=str(journal), far="10")
        .options(**options)
        .load()
    )


def start(
    frame: DataFrame, folder: Path, each: Callable[[DataFrame, int], None], mode: str = "append"
) -> StreamingQuery:
    return (
        frame.writeStream.foreachBatch(each)
        .outputMode(mode)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def progress(query: StreamingQuery) -> dict[str, Any]:
    assert query.lastProgress is not None
    found: dict[str, Any] = json.loads(query.lastProgress.json)["sources"][0]
    return found


def move(portal: PortalServer, step: int) -> None:
    """Let the chain grow, fork and finalize."""
    portal.extend(2)
    if step % 2:
        portal.fork(1 + step)
    portal.finalize(portal.chain.head.number - 15)


@pytest.mark.guarantee("STREAM-5")
@pytest.mark.parametrize("mode", ["update", "complete"])
def test_streaming_aggregates_equal_the_chain_through_forks_and_restarts(
    spark: SparkSession, portal: PortalServer, tmp_path: Path, mode: str
) -> None:
    frame = changelog(spark, portal, tmp_path / "journal")
    amount = F.col("value").cast("decimal(38,0)")
    grouped = frame.groupBy("to").agg(
        retractable.sum(amount).alias("received"),
        retractable.count().alias("transfers"),
        retractable.avg(F.col("log_index")).alias("mean"),
        retractable.count_distinct("from").alias("senders"),
    )
    held: dict[str, tuple[int, int, float, int]] = {}

    def each(rows: DataFrame, batch_id: int) -> None:
        if mode == "complete":
            held.clear()
        for row in rows.collect():
            held[row["to"]] = (
                int(row["received"]), row["transfers"], row["mean"], row["senders"],
            )  # fmt: skip

    query = start(grouped, tmp_path, each, mode)
    try:
        for step in range(5):
            query.processAllAvailable()
            check_aggregates(held, portal)
            move(portal, step)
            if step == 2:
                query.stop()
                portal.fork(3)  # while the query is down
                query = start(grouped, tmp_path, each, mode)
        query.processAllAvailable()
        check_aggregates(held, portal)
        source = progress(query)
        assert source["endOffset"]["forks"] >= 2
        assert source["latestOffset"]["number"] == portal.chain.head.number
        assert source["latestOffset"]["lag"] == 0
    finally:
        query.stop()


def check_aggregates(held: dict[str, tuple[int, int, float, int]], portal: PortalServer) -> None:
    rows: dict[str, list[tuple[int, int, str]]] = {}
    for _, _, index, _, sender, receiver, value in transfers(
        portal.chain, portal.chain.canonical()
    ):
        rows.setdefault(receiver, []).append((int(value), index, sender))
    expected: dict[str, Any] = {
        receiver: (
            sum(value for value, _, _ in found),
            len(found),
            pytest.approx(sum(index for _, index, _ in found) / len(found)),
            len({sender for _, _, sender in found}),
        )
        for receiver, found in rows.items()
    }
    assert {key: one for key, one in held.items() if one[1]} == expected
    assert all(one[0] == 0 and one[3] == 0 for one in held.values() if not one[1])


def test_available_now_ends_at_the_head_of_its_start_and_collapse_nets_what_was_stored(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    frame = changelog(spark, portal, tmp_path / "journal", maxBlocksPerTrigger="25")

    def run() -> StreamingQuery:
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        query.awaitTermination()
        return query

    ends = progress(run())["endOffset"]
    assert (ends["number"], ends["forks"]) == (59, 0)
    portal.fork(6)
    portal.extend(3)
    ends = progress(run())["endOffset"]
    assert (ends["number"], ends["forks"]) == (portal.chain.head.number, 1)
    stored = spark.read.parquet(str(tmp_path / "rows"))
    kinds = {row[0] for row in stored.select("_change_type").distinct().collect()}
    assert kinds == {"insert", "delete"}
    assert netted(collapse(stored)) == canonical(portal)
    left = {
        row[0]
        for row in stored.groupBy("_row_id")
        .agg(F.sum("_sign"))
        .select(F.col("sum(_sign)"))
        .collect()
    }
    assert left <= {0, 1}


def netted(frame: DataFrame) -> list[tuple[int, str, int]]:
    return sorted(
        (row[0], row[1], row[2])
        for row in frame.select("block_number", "block_hash", "log_index").collect()
    )


def canonical(portal: PortalServer) -> list[tuple[int, str, int]]:
    rows = transfers(portal.chain, portal.chain.canonical())
    return sorted((number, block_hash, index) for number, block_hash, index, *_ in rows)


def test_joins_net_to_the_join_of_what_is_left(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    """Inner joins: with a static frame the sign is kept, of two streams it is the product."""
    both = changelog(spark, portal, tmp_path / "left")
    approvals = changelog(spark, portal, tmp_path / "right", "Approval").select(
        F.col("block_hash").alias("other_hash"),
        F.col("log_index").alias("other_index"),
        F.col("address").alias("other_address"),
        F.col("_sign").alias("other_sign"),
    )
    names = spark.createDataFrame(
        [(token, f"token {index}") for index, token in enumerate(portal.chain.population.tokens)],
        "address string, name string",
    )
    with_stream = both.join(
        approvals,
        F.col("address") == F.col("other_address"),
    )
    static: Counter[tuple[Any, ...]] = Counter()
    pairs: Counter[tuple[Any, ...]] = Counter()

    def add_static(rows: DataFrame, batch_id: int) -> None:
        for row in rows.collect():
            static[row["block_hash"], row["log_index"], row["name"]] += row["_sign"]

    def add_pairs(rows: DataFrame, batch_id: int) -> None:
        for row in rows.collect():
            key = row["block_hash"], row["log_index"], row["other_hash"], row["other_index"]
            pairs[key] += row["_sign"] * row["other_sign"]

    query = start(with_stream, tmp_path / "stream", add_pairs)
    try:
        for step in range(4):
            query.processAllAvailable()
            move(portal, step)
        query.processAllAvailable()
    finally:
        query.stop()
    assert set(pairs.values()) <= {0, 1}
    assert {key for key, count in pairs.items() if count} == expected_pairs(portal)
    again = changelog(spark, portal, tmp_path / "static-journal").join(names, "address")
    query = start(again, tmp_path / "static", add_static)
    try:
        query.processAllAvailable()
        portal.fork(4)
        query.processAllAvailable()
    finally:
        query.stop()
    batch = spark.read.format("headwater").options(portal=portal.url, event="erc20.Transfer")
    named = {
        (row["block_hash"], row["log_index"], row["name"])
        for row in batch.load().join(names, "address").collect()
    }
    left = {key for key, count in static.items() if count}
    assert set(static.values()) <= {0, 1}
    final = portal.chain.finalized
    assert final is not None
    assert named == {key for key in left if portal.chain.block(key[0]).number <= final.number}
    known = set(portal.chain.population.tokens)
    rows = transfers(portal.chain, portal.chain.canonical())
    assert {key[:2] for key in left} == {row[1:3] for row in rows if row[3] in known}


APPROVAL = "0x8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925"


def expected_pairs(portal: PortalServer) -> set[tuple[str, int, str, int]]:
    """Every transfer of the chain with every approval of the same token."""
    blocks = portal.chain.canonical()
    approvals = [
        (log["address"], block.hash, log["logIndex"])
        for block in blocks
        for log in content_of(portal.chain, block).rows("logs")
        if log["topics"][:1] == [APPROVAL] and len(log["topics"]) == 3
    ]
    found = {
        (block_hash, index, other_hash, other_index)
        for _, block_hash, index, token, *_ in transfers(portal.chain, blocks)
        for other_token, other_hash, other_index in approvals
        if token == other_token
    }
    assert found
    return found


DRIVER = """
import sys
from headwater.spark import local_session, register
portal, folder = sys.argv[1:]
spark = local_session("driver", **{"spark.master": "local[2]"})
register(spark)
query = (spark.readStream.format("headwater")
    .options(portal=portal, event="erc20.Transfer", journal=f"{folder}/journal", far="10",
             maxBlocksPerTrigger="3").load()
    .writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    .start(f"{folder}/rows"))
query.awaitTermination()
"""


@pytest.mark.guarantee("STREAM-5")
def test_a_killed_driver_loses_nothing_and_writes_nothing_twice(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    """kill -9 of the driver in the middle of its work, and a fork while it is down."""
    running = subprocess.Popen(
        [sys.executable, "-c", DRIVER, portal.url, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while len(list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))) < 9:
            portal.extend(1)
            assert running.poll() is None, running.stderr and running.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    portal.fork(3)
    frame = changelog(spark, portal, tmp_path / "journal", maxBlocksPerTrigger="3")
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    query.awaitTermination()
    stored = spark.read.parquet(str(tmp_path / "rows"))
    assert netted(collapse(stored)) == canonical(portal)
    counts = stored.groupBy("_row_id", "_commit_version").count().where("count > 1")
    assert counts.isEmpty(), "a change was written twice"


def test_a_stream_without_a_journal_says_what_it_needs(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    register(spark)
    options = {"portal": portal.url, "event": "erc20.Transfer"}
    with pytest.raises(PySparkException, match=r"E5002.*go with readStream"):
        spark.read.format("headwater").options(**options, final_only="true").load().count()
    frame = spark.readStream.format("headwater").options(**options).load()
    with pytest.raises(PySparkException, match=r"E5002.*readStream needs the option journal"):
        start(frame, tmp_path, lambda rows, batch_id: None).processAllAvailable()
