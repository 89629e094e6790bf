"""Real streaming queries on a chain that forks: aggregates, joins, triggers, and killed drivers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own spelling
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent
from pyspark.sql.streaming.query import StreamingQuery

from headwater import ChangelogMetrics, duckdb_target, foreach_batch
from headwater.spark import register
from headwater.spark.streaming import collapse, retractable
from headwater.testing import ContentSettings, PortalServer, simulated_portal
from headwater.testing.chain.content import content_of
from tests.sampling import every
from tests.shared import HANG_S
from tests.spark.streaming.micro_batches import canonical
from tests.spark.test_signals_on_spark import descendants
from tests.stream.truth import transfers

ROOT = Path(__file__).parents[3]
CONTENT = ContentSettings(transactions_per_block=1.5, transfers_per_transaction=1)


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=7, blocks=40, finality_depth=15, content=CONTENT) as portal:
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


Held = dict[str, tuple[int, int, float, int]]


@pytest.mark.guarantee("STREAM-5")
def test_streaming_aggregates_equal_the_chain_through_forks_and_restarts(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    """In update and in complete mode, side by side: most of a micro-batch is waiting."""
    held: dict[str, Held] = {"update": {}, "complete": {}}

    def begin(mode: str) -> StreamingQuery:
        def each(rows: DataFrame, batch_id: int) -> None:
            found = {row["to"]: tuple(row)[1:] for row in rows.collect()}
            held[mode] = found if mode == "complete" else {**held[mode], **found}

        amount = F.col("value").cast("decimal(38,0)")
        grouped = (
            changelog(spark, portal, tmp_path / mode / "journal")
            .groupBy("to")
            .agg(
                retractable.sum(amount).alias("received"),
                retractable.count().alias("transfers"),
                retractable.avg(F.col("log_index")).alias("mean"),
                retractable.count_distinct("from").alias("senders"),
            )
        )
        return start(grouped, tmp_path / mode, each, mode)

    queries = {mode: begin(mode) for mode in held}
    try:
        for step in range(3):
            for mode, query in queries.items():
                query.processAllAvailable()
                check_aggregates(held[mode], portal)
            if step == 1:
                for query in queries.values():
                    query.stop()
                portal.fork(3)  # while the queries are down
                queries = {mode: begin(mode) for mode in held}
            elif not step:
                portal.extend(2)
                portal.fork(4)
                portal.finalize(portal.chain.head.number - 15)
        source = progress(queries["update"])
        assert source["endOffset"]["forks"] >= 2
        assert source["endOffset"]["finalized"] == final_number(portal)
        assert source["latestOffset"]["number"] == portal.chain.head.number
        assert source["latestOffset"]["lag"] == 0
        assert (
            source["latestOffset"]["journal_bytes"] > source["latestOffset"]["journal_blocks"] > 5
        )
    finally:
        for query in queries.values():
            query.stop()


def check_metrics(query: StreamingQuery, end: dict[str, Any], latest: dict[str, Any]) -> None:
    """A listener puts what Spark says of a query into the registry."""
    assert latest["journal_bytes"] > latest["journal_blocks"] > 5
    registry = CollectorRegistry()
    listener = ChangelogMetrics(registry)
    assert query.lastProgress is not None
    listener.onQueryProgress(QueryProgressEvent(query.lastProgress))

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"headwater_{name}", {"id": str(query.id)})

    assert value("cursor_block") == value("head_block") == end["number"]
    assert value("finalized_block") == end["finalized"]
    assert (value("lag_blocks"), value("forks_total"), value("running")) == (0, 0, 1)
    assert value("journal_bytes") == latest["journal_bytes"]
    assert value("journal_blocks") == latest["journal_blocks"]
    listener.onQueryTerminated(QueryTerminatedEvent(UUID(query.id), UUID(query.runId), None, None))
    assert value("running") == 0


def check_aggregates(held: Held, portal: PortalServer) -> None:
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
    frame = changelog(spark, portal, tmp_path / "journal", maxBlocksPerTrigger="20")

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
    assert (ends["number"], ends["forks"]) == (39, 0)
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


def test_a_portal_that_holds_answers_back_keeps_no_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A trigger ends without a block; a query that was stopped leaves its journal to the next."""
    with simulated_portal(
        seed=7, blocks=30, finality_depth=25, content=CONTENT, no_content_delay=3600
    ) as portal:
        for _ in range(2):
            query = start(
                changelog(spark, portal, tmp_path / "journal"), tmp_path, lambda rows, _: None
            )
            try:
                query.processAllAvailable()
                assert progress(query)["endOffset"]["number"] == portal.chain.head.number
            finally:
                query.stop()
            portal.extend(1)


def netted(frame: DataFrame) -> list[tuple[int, str, int]]:
    return sorted(
        (row[0], row[1], row[2])
        for row in frame.select("block_number", "block_hash", "log_index").collect()
    )


def test_joins_net_to_the_join_of_what_is_left(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    """With a static frame the sign is kept, inner and left; of two streams, inner, the product."""
    approvals = changelog(spark, portal, tmp_path / "right", "Approval").select(
        F.col("block_hash").alias("other_hash"),
        F.col("log_index").alias("other_index"),
        F.col("address").alias("other_address"),
        F.col("_sign").alias("other_sign"),
    )
    both = changelog(spark, portal, tmp_path / "left").join(
        approvals, F.col("address") == F.col("other_address")
    )
    tokens = portal.chain.population.tokens[:2]  # the others have no name
    names = spark.createDataFrame(
        [(token, f"token {index}") for index, token in enumerate(tokens)],
        "address string, name string",
    )
    named = changelog(spark, portal, tmp_path / "journal").join(names, "address", "left")
    pairs: Counter[tuple[Any, ...]] = Counter()
    static: Counter[tuple[Any, ...]] = Counter()

    def add_pairs(rows: DataFrame, batch_id: int) -> None:
        for row in rows.collect():
            key = row["block_hash"], row["log_index"], row["other_hash"], row["other_index"]
            pairs[key] += row["_sign"] * row["other_sign"]

    def add_static(rows: DataFrame, batch_id: int) -> None:
        for row in rows.collect():
            static[row["block_hash"], row["log_index"], row["name"]] += row["_sign"]

    queries = [start(both, tmp_path / "pairs", add_pairs)]
    try:
        queries.append(start(named, tmp_path / "static", add_static))
        for step in range(3):
            for query in queries:
                query.processAllAvailable()
            if step < 2:
                portal.extend(2)
                portal.fork(8 + step)
    finally:
        for query in queries:
            query.stop()
    for found in (pairs, static):
        assert set(found.values()) == {0, 1}
    assert {key for key, count in pairs.items() if count} == expected_pairs(portal)
    rows = transfers(portal.chain, portal.chain.canonical())
    known = {token: f"token {index}" for index, token in enumerate(tokens)}
    left = {key for key, count in static.items() if count}
    assert left == {(row[1], row[2], known.get(row[3])) for row in rows}
    assert {name for _, _, name in left} == {None, *known.values()}


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


def test_an_outer_join_of_two_changelogs_is_exact_only_once_the_sides_are_netted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What the guide says of it. The changelogs are files: what matters is Spark's own join."""
    sides = {
        "left": [[("a", 100, 1)], [("b", 105, 1), ("c", 105, 1)], [("c", 105, -1), ("y", 200, 1)]],
        "right": [[("a", 100, 1)], [("a", 100, -1)], [("z", 200, 1)]],
    }
    frames = []
    for side, files in sides.items():
        folder = tmp_path / side
        for index, rows in enumerate([*files, [("end", 400, 1)], [("end", 600, 1)]]):
            at = [datetime.fromtimestamp(second, UTC) for _, second, _ in rows]
            keys, _, signs = zip(*rows, strict=True)
            table = pa.table({"key": keys, "at": at, "_sign": pa.array(signs, pa.int8())})
            (folder / str(index)).mkdir(parents=True)
            pq.write_table(table, folder / str(index) / "rows.parquet")
            os.utime(folder / str(index) / "rows.parquet", (1000 + index, 1000 + index))
        frame = (
            spark.readStream.schema("key string, at timestamp, _sign tinyint")
            .option("maxFilesPerTrigger", 1)
            .option("recursiveFileLookup", "true")
            .parquet(str(folder))
            .withWatermark("at", "10 seconds")
        )
        frames.append(frame.select(*(F.col(name).alias(f"{side}{name}") for name in frame.columns)))
    left, right = frames
    inside = F.col("rightat").between(
        F.col("leftat"), F.col("leftat") + F.expr("interval 5 seconds")
    )
    joined = left.join(right, (F.col("leftkey") == F.col("rightkey")) & inside, "leftOuter")
    found: Counter[tuple[str, str | None]] = Counter()

    def add(rows: DataFrame, batch_id: int) -> None:
        for row in rows.collect():
            found[row["leftkey"], row["rightkey"]] += row["left_sign"] * (row["right_sign"] or 1)

    query = (
        joined.writeStream.foreachBatch(add)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert found["a", "a"] == 0, "a partner that went is taken back"
    assert found["b", None] == 1
    assert found["c", None] == 0, "a row that went is taken back, with a partner or without"
    assert ("a", None) not in found, "exact would be 1: its partner went, and Spark does not say so"
    stored = [
        spark.read.option("recursiveFileLookup", "true")
        .parquet(str(tmp_path / side))
        .groupBy("key")
        .agg(retractable.count().alias("left"))
        .where("left > 0 AND key IN ('a', 'b', 'c')")
        .select(F.col("key").alias(side))
        for side in sides
    ]
    exact = stored[0].join(stored[1], F.col("left") == F.col("right"), "left")
    assert {tuple(row) for row in exact.collect()} == {("a", None), ("b", None)}


DRIVER = """
import sys, threading
from pathlib import Path
from headwater import duckdb_target, foreach_batch
from headwater.spark import local_session, register
portal, folder, dies, most = sys.argv[1:]
spark = local_session("driver", **{"spark.master": "local[2]"})
register(spark)

def begin(name, write):
    frame = (spark.readStream.format("headwater")
        .options(portal=portal, event="erc20.Transfer", journal=f"{folder}/{name}/journal",
                 far="10", maxBlocksPerTrigger=most).load())
    return write(frame.writeStream.option("checkpointLocation", f"{folder}/{name}/checkpoint"))

into_target = foreach_batch(duckdb_target(f"{folder}/chain.duckdb", tables=["transfers"],
    on_data=lambda tx, data: tx.insert("transfers", data["rows"])), id="s")
def each(rows, batch_id):
    into_target(rows, batch_id)
    if batch_id == int(dies):  # the target has committed, Spark has not
        Path(folder, "dies").touch()
        threading.Event().wait()

begin("files", lambda writer: writer.format("parquet").start(f"{folder}/rows"))
begin("target", lambda writer: writer.foreachBatch(each).start()).awaitTermination()
"""


class Driver:
    """A driver in a process of its own, with a query into files and one into a target.

    `dies` is the micro-batch of the latter that it is to be killed in, `most` how many blocks one
    has.
    """

    def __init__(self, portal: PortalServer, folder: Path, dies: int, most: int) -> None:
        self._log, self._dies = folder / "driver.log", folder / "dies"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, portal.url, str(folder), str(dies), str(most)],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT / "src"),
                    "PYSPARK_PYTHON": sys.executable,
                },
                stderr=log,
            )
        self._deadline = time.monotonic() + HANG_S

    def goes_on(self) -> bool:
        """Wait a moment; tell whether the driver has not reached the point where it is to die."""
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        assert time.monotonic() < self._deadline
        time.sleep(0.005)
        return not self._dies.exists()

    def kill(self) -> None:
        """End it at once, with Spark's Java process, which is in a group of its own."""
        for pid in (*descendants(self._process.pid), self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._dies.unlink(missing_ok=True)


def check_after_kills(spark: SparkSession, portal: PortalServer, folder: Path) -> None:
    """Let both queries end at the head, in this process, and compare what they have written."""
    into_target = foreach_batch(
        duckdb_target(
            str(folder / "chain.duckdb"),
            tables=["transfers"],
            on_data=lambda tx, data: tx.insert("transfers", data["rows"]),
        ),
        id="s",
    )
    for name in ("files", "target"):
        frame = changelog(spark, portal, folder / name / "journal")
        writer = frame.writeStream.trigger(availableNow=True).option(
            "checkpointLocation", str(folder / name / "checkpoint")
        )
        if name == "files":
            query = writer.format("parquet").start(str(folder / "rows"))
        else:
            query = writer.foreachBatch(into_target).start()
        query.awaitTermination()
        assert progress(query)["endOffset"]["hash"] == portal.chain.head.hash
        hot = [one for one in portal.chain.canonical() if one.number > final_number(portal)]
        assert len(list((folder / name / "journal").glob("*.arrow"))) <= len(hot) + 3
    into_target.close()
    stored = spark.read.parquet(str(folder / "rows"))
    assert netted(collapse(stored)) == canonical(portal)
    counts = stored.groupBy("_row_id", "_commit_version").count().where("count > 1")
    assert counts.isEmpty(), "a change was written twice"
    columns = "block_number, block_hash, log_index"
    held = duckdb_target(str(folder / "chain.duckdb")).query(f"SELECT {columns} FROM transfers")
    assert sorted(tuple(row.values()) for row in held.to_pylist()) == canonical(portal)


def final_number(portal: PortalServer) -> int:
    return -1 if portal.chain.finalized is None else portal.chain.finalized.number


@pytest.mark.guarantee("STREAM-4")
@pytest.mark.guarantee("STREAM-5")
def test_a_killed_driver_loses_nothing_and_writes_nothing_twice(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    """kill -9 between the target's commit and Spark's, of another query anywhere; then a fork."""
    driver = Driver(portal, tmp_path, dies=4, most=8)
    try:
        while driver.goes_on():
            pass
    finally:
        driver.kill()
    logs = tmp_path / "target" / "checkpoint"
    assert (logs / "offsets" / "4").exists()
    assert not (logs / "commits" / "4").exists()
    offset = json.loads((logs / "offsets" / "4").read_text().splitlines()[-1])
    assert offset["number"] > final_number(portal), "hot blocks, which the fork takes back"
    portal.fork(3)
    check_after_kills(spark, portal, tmp_path)


KILL_SEEDS = every(4).seeds(range(4))
POINTS = ("journal/*.arrow", "checkpoint/offsets/[0-9]*", "checkpoint/commits/[0-9]*")
"""What a query writes: hot blocks before it plans them, what it plans, what it has done."""


class Watch:
    """Counts the files that appear in a folder, also those that are removed soon."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        self._before = set(folder.glob(pattern))
        self._seen: set[Path] = set()

    def count(self) -> int:
        self._seen.update(self._folder.glob(self._pattern))
        return len(self._seen - self._before)


@pytest.mark.guarantee("STREAM-5")
@pytest.mark.parametrize("seed", KILL_SEEDS)
def test_drivers_killed_at_random_points(
    spark: SparkSession, portal: PortalServer, tmp_path: Path, seed: int
) -> None:
    """Several kill -9 in a row, each at the n-th file that a query writes; the chain forks."""
    dice = Random(f"kills {seed}")
    for _ in range(5):
        point = dice.choice([f"{name}/{one}" for name in ("files", "target") for one in POINTS])
        reached, number = Watch(tmp_path, point), dice.randint(1, 6)
        planned, lived = Watch(tmp_path, "files/checkpoint/offsets/[0-9]*"), 0
        driver = Driver(portal, tmp_path, dice.choice([-1, -1, dice.randrange(40)]), most=3)
        try:
            while reached.count() < number and driver.goes_on():
                if planned.count() > lived:  # the chain goes on as the driver does
                    lived = planned.count()
                    portal.extend(2)
                    if dice.random() < 0.3:
                        portal.fork(dice.randint(1, 4))
        finally:
            driver.kill()
        portal.extend(4)
        portal.fork(dice.randint(1, 4))
        portal.finalize(portal.chain.head.number - 12)
    check_after_kills(spark, portal, tmp_path)


def test_a_stream_without_a_journal_says_what_it_needs(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    register(spark)
    options = {"portal": portal.url, "event": "erc20.Transfer"}
    with pytest.raises(PySparkException, match=r"E5002.*go with readStream"):
        spark.read.format("headwater").options(**options, final_only="true").load().count()
    frame = spark.readStream.format("headwater").options(**options).load()
    with pytest.raises(PySparkException) as caught:
        start(frame, tmp_path, lambda rows, batch_id: None).processAllAvailable()
    assert "[E5002] readStream needs the option journal" in str(caught.value).splitlines()[0]


def test_a_query_whose_journal_is_gone_says_so_in_the_first_line(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    register(spark)
    options = {"portal": portal.url, "event": "erc20.Transfer", "journal": str(tmp_path / "j")}
    frame = spark.readStream.format("headwater").options(**options).load()
    query = start(frame, tmp_path, lambda rows, batch_id: None)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    shutil.rmtree(tmp_path / "j")
    with pytest.raises(PySparkException) as caught:
        start(frame, tmp_path, lambda rows, batch_id: None).processAllAvailable()
    assert "[E5012] no segment of the journal ends where" in str(caught.value).splitlines()[0]
