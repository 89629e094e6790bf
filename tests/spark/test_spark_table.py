"""Tables of Spark's catalogs as a target: what is refused where there is no jar, and rows.

Iceberg and Delta need jars for the version of Spark: `HEADWATER_LAKE_JARS` names a folder with
them (see `test_lake_connectors.py`). Then `spark_table_suite.py` is run in a process of its own.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from headwater.core import BlockCursor, BlockHeader, Head, PipeState
from headwater.errors import (
    InvalidOptionError,
    LakeSchemaError,
    SparkTableError,
    StoredStateError,
    UndeclaredLakeTableError,
)
from headwater.spark.catalog_tables import CatalogTables
from headwater.targets import spark_table_target
from headwater.targets.spark_table.tables import Name, Record, at_mark, fold, literal
from headwater.testing.conformance.model import Rig, log

VERSION = ".".join(pyspark.__version__.split(".")[:2])
JARS = Path(os.environ.get("HEADWATER_LAKE_JARS", "/nonexistent"))
NEEDED = {
    "iceberg": (f"iceberg-spark-runtime-{VERSION}_*.jar", "sqlite-jdbc-*.jar"),
    "delta": (f"delta-spark_{VERSION}_*.jar", "delta-storage-*.jar", "antlr4-runtime-*.jar"),
}
QUIET = ("ResourceWarning", "DeprecationWarning", "FutureWarning", "UserWarning")
SUITE = Path(__file__).with_name("spark_table_suite.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_tables_of_a_users_session_keep_all_promises(kind: str) -> None:
    jars = [next(iter(sorted(JARS.glob(name))[-1:]), None) for name in NEEDED[kind]]
    if None in jars:
        pytest.skip(f"HEADWATER_LAKE_JARS names no {kind} connector for Spark {VERSION}")
    quiet = [f"-Wignore::{one}" for one in (*QUIET, "pytest.PytestUnraisableExceptionWarning")]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-q", *quiet, "-p", "no:cacheprovider", str(SUITE)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={
            **os.environ,
            "HEADWATER_LAKE_FILES": ",".join(map(str, jars)),
            "HEADWATER_LAKE_KIND": kind,
        },
    )
    assert ran.returncode == 0, ran.stdout[-8000:]


# --- what is refused at the start -----------------------------------------------------------------


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    """A schema in Spark's own catalog, with a table and a view that keep no promise."""
    spark.sql("CREATE SCHEMA plain_tables")
    spark.sql("CREATE TABLE plain_tables.files (block_number BIGINT, value STRING) USING parquet")
    spark.sql("CREATE VIEW plain_tables.seen AS SELECT 1L AS block_number")
    yield "spark_catalog.plain_tables"
    spark.sql("DROP SCHEMA plain_tables CASCADE")


@pytest.mark.parametrize("name", ["files", "seen"])
def test_tables_without_commits_are_refused_before_anything_is_written(
    spark: SparkSession, schema: str, name: str
) -> None:
    target = spark_table_target(f"{schema}.{name}", spark=spark, create="delta")
    target.bind("one")
    with pytest.raises(SparkTableError, match=r"E2625.*Iceberg and Delta tables alone"):
        target.recover()
    target.close()
    assert spark.table(f"{schema}.files").isEmpty()
    assert "headwater" not in str(spark.sql(f"SHOW TBLPROPERTIES {schema}.files").collect())


def test_a_missing_table_is_refused_unless_it_is_to_be_created(
    spark: SparkSession, schema: str
) -> None:
    missing = f"{schema}.none"
    with pytest.raises(SparkTableError, match="there is no such table"):
        spark_table_target(missing, spark=spark).recover()
    target = spark_table_target(missing, spark=spark, create="iceberg")
    target.bind("one")
    assert target.recover() == PipeState()
    with pytest.raises(SparkTableError, match="cannot be created"):  # there is no jar
        Rig(target, lambda name: [], []).block(1, log(1, "a"))
    assert not spark.catalog.tableExists(missing)


def test_outputs_without_a_table_are_refused(spark: SparkSession, schema: str) -> None:
    target = spark_table_target({"other": f"{schema}.none"}, spark=spark, create="delta")
    target.bind("one")
    target.recover()
    with pytest.raises(UndeclaredLakeTableError, match="outputs=log"):
        Rig(target, lambda name: [], []).block(1, log(1, "a"))


@pytest.mark.parametrize(
    ("table", "create"),
    [
        ("schema.table", None),
        ("a..b", None),
        ("a.b.c d", None),
        ({}, None),
        ({"x": "a.b.c", "y": "a.b.c"}, None),
        ("a.b.c", "parquet"),
    ],
)
def test_what_names_no_table_is_refused(table: object, create: str | None) -> None:
    with pytest.raises(InvalidOptionError):
        spark_table_target(table, create=create)  # type: ignore[arg-type]


def test_names_and_texts_keep_their_quotes() -> None:
    name = Name.parse("unity.`my schema`.`a``b.c`")
    assert name.parts == ("unity", "my schema", "a`b.c")
    assert str(name) == "`unity`.`my schema`.`a``b.c`"
    assert name.within == "`my schema`.`a``b.c`"
    assert literal("it's \\ here") == "'it\\'s \\\\ here'"


# --- rows -----------------------------------------------------------------------------------------

HELD = "block_number BIGINT, count BIGINT, amount DECIMAL(20,0), chain STRING, more STRING"


def fitted(spark: SparkSession, rows: pa.Table) -> pa.Table:
    tables = CatalogTables(spark)
    columns = spark.createDataFrame([], HELD).schema
    frame = tables.fitted("t", tables.frame(rows), columns, ("block_number", 4, 6), ["chain"])
    return frame.toArrow()


def rows(**columns: object) -> pa.Table:
    return pa.table({"block_number": pa.array([5, 6], pa.int64()), **columns})


def test_rows_get_the_columns_of_the_table_and_types_only_become_wider(spark: SparkSession) -> None:
    counts = pa.array([1, None], pa.int32())
    found = fitted(spark, rows(count=counts, chain=["a", None]))
    assert found.to_pydict() == {
        "block_number": [5, 6],
        "count": [1, None],
        "amount": [None, None],
        "chain": ["a", None],
        "more": [None, None],
    }
    for wrong in (
        rows(new=["a", "b"]),
        rows(count=["1", "2"]),
        rows(count=[1.0, 2.0]),
        rows(amount=pa.array([1, 2], pa.decimal128(38, 0))),
        pa.table({"count": [1]}),
    ):
        with pytest.raises(LakeSchemaError, match="E2602"):
            fitted(spark, wrong)


@pytest.mark.parametrize("number", [4, 7, None])
def test_a_row_of_a_block_that_is_not_of_its_batch_is_refused(
    spark: SparkSession, number: int | None
) -> None:
    wrong = pa.table({"block_number": pa.array([5, number], pa.int64())})
    with pytest.raises(Exception, match=r"E2602.*outside of its batch"):
        fitted(spark, wrong)


def test_an_empty_text_in_a_partition_of_delta_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"E2602.*empty text"):
        fitted(spark, rows(chain=["a", ""]))


def test_a_frame_of_another_session_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SparkTableError, match="two sessions"):
        CatalogTables(spark).frame(spark.newSession().range(1))


# --- records --------------------------------------------------------------------------------------


def histories(seed: int, steps: int) -> list[tuple[Record, PipeState]]:
    """Return the records of a stream that goes on and back, newest first, with their states."""
    chance = random.Random(seed)
    state, made = PipeState(), []
    whole = Record("one", 1, 0, "w", state)
    for _ in range(steps):
        points = state.landing_points()
        if chance.random() < 0.2 and points:
            state = state.rewind(chance.choice(points))
        else:
            number = state.number + chance.choice((1, 1, 3))
            name = f"{chance.choice('ab')}{number}"
            parent = None if state.cursor is None else state.cursor.hash
            head = Head(BlockCursor(max(number - chance.choice((4, 70)), 0), "a0"))
            header = BlockHeader(number, name, parent or "0", state.number, number)
            state = state.advance([header], head, cap=chance.choice((30, 1000)))
        record = whole.next(state)
        whole = Record("one", 1, record.number, "w", state, config=whole.config)
        made.append((record, state))
    return made[::-1]


@pytest.mark.parametrize("seed", range(12))
def test_the_state_is_read_from_records_that_hold_what_is_new(seed: int) -> None:
    found = histories(seed, 150)
    texts = [record.to_properties() for record, _ in found]
    for place, (_, state) in enumerate(found):
        held = [Record.from_properties(one) for one in texts[place:]]
        newest = fold(one for one in held if one is not None)
        assert newest is not None
        assert newest.state == state
        assert newest.is_whole
    short = sum(not record.is_whole for record, _ in found)
    assert 20 < short < 150


def test_where_records_have_expired_the_state_goes_back_less_far() -> None:
    found = histories(3, 150)
    place = next(n for n, (record, _) in enumerate(found) if record.number % 64 == 40)
    _, state = found[place]
    newest = fold([record for record, _ in found[place : place + 5]])
    assert newest is not None
    assert (newest.state.cursor, newest.state.finalized) == (state.cursor, state.finalized)
    assert set(newest.state.rollback_chain) <= set(state.rollback_chain)
    assert newest.state.landing_points()[0] in state.landing_points()


def test_what_is_final_before_a_commit_counts_whether_it_was_let_in_or_not() -> None:
    (_, before), (newest, _) = histories(5, 90)[1], histories(5, 90)[0]
    assert newest.at_final().state == at_mark(before)


def test_a_record_that_cannot_be_read_is_refused() -> None:
    said = Record("one", 1, 0, "w", PipeState()).to_properties()
    del said["headwater.epoch"]
    with pytest.raises(StoredStateError):
        Record.from_properties(said)
    assert Record.from_properties({"operation": "append"}) is None
