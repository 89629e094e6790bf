"""df.write and df.writeStream of format("headwater"): any feed of changes into any target, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own spelling

from headwater.errors import MicroBatchTargetError, SourceOptionError
from headwater.spark import register
from headwater.spark.options import Options, Use
from headwater.spark.streaming import retractable
from headwater.spark.streaming.source import LEAST_SPARK
from headwater.spark.streaming.writer import WritePlan, plan_write
from headwater.spark.versions import OURS
from headwater.stream.writers import fold, open_target
from headwater.targets import duckdb_target, postgres_target
from headwater.testing import ContentSettings, PortalServer, simulated_portal
from tests.spark.streaming.micro_batches import canonical
from tests.stream.truth import transfers
from tests.targets.postgres_places import database

NEEDS_CHANGELOG = pytest.mark.skipif(OURS < LEAST_SPARK, reason="a changelog needs Spark 4.2")
NEEDS_STREAM_WRITER = pytest.mark.skipif(OURS < (4, 1), reason="writeStream needs Spark 4.1")
CONTENT = ContentSettings(transactions_per_block=1.5, transfers_per_transaction=1)
ACCOUNTS = "who string, balance long, _change_type string, _commit_version long"
HELD = "block_number, block_hash, log_index"


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=7, blocks=40, finality_depth=15, content=CONTENT) as portal:
        yield portal


def feed(*changes: tuple[str, int, str, int]) -> pa.Table:
    """Return rows as Delta's change feed has them."""
    names = ["who", "balance", "_change_type", "_commit_version"]
    return pa.Table.from_pylist([dict(zip(names, one, strict=True)) for one in changes])


def both(rows: pa.Table, *keys: str) -> tuple[list[Any], list[Any]]:
    gone, kept = fold(rows, keys)
    return gone.to_pylist(), kept.to_pylist()


# --- what a feed of changes comes to --------------------------------------------------------------


def test_the_last_change_to_a_key_counts() -> None:
    gone, kept = both(
        feed(
            ("ann", 1, "insert", 1),
            ("bob", 5, "insert", 1),
            ("ann", 1, "update_preimage", 2),
            ("ann", 2, "update_postimage", 2),
            ("bob", 5, "delete", 3),
            ("eve", 9, "insert", 3),
        ),
        "who",
    )
    assert gone == [{"who": "bob"}]
    assert kept == [{"who": "ann", "balance": 2}, {"who": "eve", "balance": 9}]


def test_a_key_that_is_updated_itself_goes() -> None:
    changes = (("ann", 1, "update_preimage", 2), ("anna", 1, "update_postimage", 2))
    gone, kept = both(feed(*changes), "who")
    assert (gone, [row["who"] for row in kept]) == ([{"who": "ann"}], ["anna"])


def test_a_row_that_goes_and_comes_in_one_commit_is_there() -> None:
    """As Iceberg says it: in capitals, ordered by another column."""
    rows = feed(("ann", 2, "INSERT", 4), ("ann", 1, "DELETE", 4))
    rows = rows.rename_columns(["who", "balance", "_change_type", "_change_ordinal"])
    assert both(rows, "who") == ([], [{"who": "ann", "balance": 2}])


def test_rows_without_a_type_are_upserted() -> None:
    rows = pa.table({"who": ["ann"], "balance": [1]})
    assert both(rows, "who") == ([], [{"who": "ann", "balance": 1}])


def test_what_cannot_be_known_is_refused() -> None:
    with pytest.raises(SourceOptionError, match=r"E5002.*insert, delete or update.*merge"):
        fold(feed(("ann", 1, "merge", 1)), ("who",))
    twice = feed(("ann", 1, "insert", 1), ("ann", 2, "insert", 2)).drop_columns("_commit_version")
    with pytest.raises(SourceOptionError, match="in which order"):
        fold(twice, ("who",))


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give one of target, targetEnv, targetUrl"),
        ({"target": "x.duckdb"}, "dbtable is missing"),
        ({"target": "x.duckdb", "dbtable": "t", "keys": "nobody"}, "keys names columns"),
        ({"target": "x.duckdb", "dbtable": "t", "event": "x"}, "'event' of write: it goes with"),
        ({"target": "x.duckdb", "dbtabel": "t"}, "did you mean dbtable?"),
    ],
)
def test_options_of_a_writer_are_checked(
    spark: SparkSession, options: dict[str, str], words: str
) -> None:
    schema = spark.range(1).schema
    with pytest.raises(SourceOptionError, match=r"\[E5002\]") as caught:
        plan_write(Options(options, Use.WRITE), schema, replaces=False)
    assert words in str(caught.value)


def plan(target: str, **more: Any) -> WritePlan:
    keys = more.pop("keys", ())
    return WritePlan(target, None, None, "t", "t", keys, None, pa.schema([]), **more)


def test_a_target_that_goes_by_blocks_takes_blocks_alone() -> None:
    with pytest.raises(MicroBatchTargetError, match=r"E5036.*target=clickhouse"):
        open_target(plan("http://127.0.0.1:1/x", keys=("who",)), in_blocks=False)


# --- a DataFrame that is written once -------------------------------------------------------------


def write(frame: DataFrame, target: str, **options: str) -> None:
    register(frame.sparkSession)
    given = {"target": target, "dbtable": "accounts", **options}
    frame.write.format("headwater").mode("append").options(**given).save()


@pytest.mark.parametrize("staged", [False, True])
def test_rows_are_added_by_each_write(spark: SparkSession, tmp_path: Path, *, staged: bool) -> None:
    target, folder = tmp_path / "chain.duckdb", tmp_path / "staged"
    options = {"staging": str(folder)} if staged else {}
    wide = F.lit(str(2**200)).alias("wide", metadata={"headwater.integer": "uint256"})
    for first in (0, 100):
        rows = spark.range(first, first + 100, 1, 4)
        write(rows.select("id", F.lit(9).alias("block_number"), wide), str(target), **options)
    held = duckdb_target(target).query("SELECT id, wide FROM accounts ORDER BY id")
    assert held["id"].to_pylist() == list(range(200))
    assert {int(one) for one in held["wide"].to_pylist()} == {2**200}
    assert not list(folder.glob("*.arrow")), "what was staged is removed"


@pytest.mark.guarantee("STREAM-7")
def test_a_write_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "chain.duckdb"
    write(spark.range(3).toDF("id"), str(target))
    failing = spark.range(0, 100, 1, 4).select(
        F.when(F.col("id") < 99, F.col("id")).otherwise(F.raise_error(F.lit("no"))).alias("id")
    )
    with pytest.raises(PySparkException):
        write(failing, str(target))
    with pytest.raises(PySparkException, match=r"\[E5002\].*never replaced"):
        spark.range(3).write.format("headwater").mode("overwrite").options(
            target=str(target), dbtable="accounts"
        ).save()
    assert len(duckdb_target(target).query("SELECT id FROM accounts")) == 3


@pytest.mark.parametrize("kind", ["duckdb", "postgres", "iceberg", "delta"])
def test_a_feed_by_key_reaches_each_target(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    place = database() if kind == "postgres" else str(tmp_path / f"chain.{kind}")
    options = {"targetFormat": kind} if kind in ("iceberg", "delta") else {}
    first = [("ann", 1, "insert", 1), ("bob", 5, "insert", 1), ("eve", 7, "insert", 1)]
    then = [("ann", 2, "update_postimage", 2), ("bob", 5, "delete", 2), ("joe", 3, "insert", 2)]
    for changes in (first, then):
        write(spark.createDataFrame(changes, ACCOUNTS), place, keys="who", **options)
    assert accounts(kind, place) == [("ann", 2), ("eve", 7), ("joe", 3)]


def accounts(kind: str, place: str) -> list[tuple[str, int]]:
    """Return what a target holds."""
    if kind == "iceberg":
        (table,) = Path(place).rglob("catalog.db")
        catalog = load_catalog(type="sql", uri=f"sqlite:///{table}", name="headwater")
        rows = catalog.load_table("default.accounts").scan().to_arrow()
    elif kind == "delta":
        rows = pa.table(DeltaTable(f"{place}/accounts").to_pyarrow_table())
    else:
        target = duckdb_target(place) if kind == "duckdb" else postgres_target(place)
        rows = target.query("SELECT who, balance FROM accounts")
    return sorted((row["who"], row["balance"]) for row in rows.to_pylist())


# --- queries --------------------------------------------------------------------------------------


def run(frame: DataFrame, folder: Path, target: str, mode: str = "append", **options: str) -> None:
    """Write what there is now."""
    register(frame.sparkSession)
    query = (
        frame.writeStream.format("headwater")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .options(target=target, **options)
        .trigger(availableNow=True)
        .outputMode(mode)
        .start()
    )
    query.awaitTermination()


def forget_last(folder: Path) -> None:
    """Let Spark forget its last commit, as the end of the process just before it does."""
    commits = folder / "checkpoint" / "commits"
    last = max(int(one.name) for one in commits.iterdir() if one.name.isdecimal())
    for one in (commits / str(last), commits / f".{last}.crc"):
        one.unlink(missing_ok=True)


@NEEDS_CHANGELOG
@pytest.mark.guarantee("STREAM-7")
def test_a_changelog_goes_through_forks_replays_and_restarts_into_a_target(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    register(spark)
    target = str(tmp_path / "chain.duckdb")

    def changes() -> DataFrame:
        options = {"event": "erc20.Transfer", "journal": str(tmp_path / "journal"), "far": "10"}
        return spark.readStream.format("headwater").options(portal=portal.url, **options).load()

    for _ in range(3):
        run(changes(), tmp_path, target, dbtable="transfers")
        held = duckdb_target(target).query(f"SELECT {HELD} FROM transfers").to_pylist()
        assert sorted(tuple(row.values()) for row in held) == canonical(portal)
        forget_last(tmp_path)
        portal.fork(4)
        portal.extend(3)


@NEEDS_STREAM_WRITER
@pytest.mark.guarantee("STREAM-7")
def test_a_feed_of_others_is_written_once_however_often_it_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two commits of a Delta table as its change feed has them, one in each micro-batch."""
    (tmp_path / "feed").mkdir()
    target = database()
    changes = spark.readStream.schema(ACCOUNTS).option("maxFilesPerTrigger", 1)
    first = feed(("ann", 1, "insert", 1), ("bob", 5, "insert", 1))
    then = feed(
        ("ann", 1, "update_preimage", 2), ("ann", 2, "update_postimage", 2), ("bob", 5, "delete", 2)
    )
    for number, rows in enumerate((first, then)):
        pq.write_table(rows, tmp_path / "feed" / f"{number}.parquet")
        for _ in range(2):
            frame = changes.parquet(str(tmp_path / "feed"))
            run(frame, tmp_path, target, dbtable="accounts", keys="who")
            forget_last(tmp_path)
    assert accounts("postgres", target) == [("ann", 2)]
    (tmp_path / "again").mkdir()
    frame = changes.parquet(str(tmp_path / "feed"))
    with pytest.raises(PySparkException, match=r"E5016"):
        run(frame, tmp_path / "again", target, dbtable="accounts", keys="who")


@NEEDS_CHANGELOG
def test_sums_that_deletes_take_back_reach_a_table_through_a_fork(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    """Groups by key, without a function of the user's: in complete mode, as Spark has no other."""
    register(spark)
    target = str(tmp_path / "chain.duckdb")
    for _ in range(2):
        options = {"event": "erc20.Transfer", "journal": str(tmp_path / "journal")}
        changes = spark.readStream.format("headwater").options(portal=portal.url, **options).load()
        counts = changes.groupBy("to").agg(retractable.count().alias("n"))
        options = {"target": target, "dbtable": "received", "keys": "to"}
        run(counts, tmp_path, mode="complete", **options)
        held = duckdb_target(target).query('SELECT "to", n FROM received WHERE n > 0')
        rows = transfers(portal.chain, portal.chain.canonical())
        assert dict(zip(*held.to_pydict().values(), strict=True)) == Counter(
            receiver for *_, receiver, _ in rows
        )
        portal.fork(4)
        portal.extend(3)


def test_a_password_in_the_address_of_a_target_is_warned_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, address = spark.range(1).schema, "postgresql://ann:s3cret@127.0.0.1/x"
    monkeypatch.setenv("A_TARGET", address)
    given = Options({"targetEnv": "A_TARGET", "dbtable": "t"}, Use.WRITE)
    assert plan_write(given, schema, replaces=False).address == address
    assert "s3cret" not in repr(plan_write(given, schema, replaces=False))
    assert not caplog.messages
    plan_write(Options({"target": address, "dbtable": "t"}, Use.WRITE), schema, replaces=False)
    assert "name it by targetEnv" in caplog.text
    assert "s3cret" not in caplog.text
    gone = Options({"targetEnv": "NO_SUCH_TARGET", "dbtable": "t"}, Use.WRITE)
    with pytest.raises(SourceOptionError, match="lacks the variable"):
        _ = plan_write(gone, schema, replaces=False).address


@NEEDS_STREAM_WRITER
def test_rows_without_keys_are_added_once_however_often_they_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    target = str(tmp_path / "chain.duckdb")
    for number in range(2):
        pq.write_table(pa.table({"id": [number]}), tmp_path / "rows" / f"{number}.parquet")
        for _ in range(2):
            frame = spark.readStream.schema("id long").parquet(str(tmp_path / "rows"))
            run(frame, tmp_path, target, dbtable="numbers")
            forget_last(tmp_path)
    held = duckdb_target(target).query("SELECT id FROM numbers ORDER BY id")
    assert held["id"].to_pylist() == [0, 1]


def test_writers_say_which_spark_they_need(spark: SparkSession, tmp_path: Path) -> None:
    """`make compat` asks older ones."""
    if OURS >= (4, 1):
        return
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows" / "0.parquet")
    frame = spark.readStream.schema("id long").parquet(str(tmp_path / "rows"))
    with pytest.raises(PySparkException, match=r"E5002.*Spark 4\.1"):
        run(frame, tmp_path, str(tmp_path / "x.duckdb"), dbtable="numbers")
