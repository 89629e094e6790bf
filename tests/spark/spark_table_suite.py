"""What `spark_table_target` promises, on Iceberg or Delta with Spark's own connector.

Run by `test_spark_table.py` in a process of its own, where there are jars: a session takes them
when its JVM starts. `HEADWATER_LAKE_FILES` are the jars, `HEADWATER_LAKE_KIND` is the format.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from headwater.errors import LakeForeignWriteError, LakeWriterError, StateMissingError
from headwater.targets.spark_table import SparkTableTarget, spark_table_target
from headwater.testing.conformance import Crash, TargetConformance
from headwater.testing.conformance.model import LOG, Change, Rig, frame_of, log
from tests.sampling import every, visit
from tests.spark.whole_stream import fill_through_forks
from tests.stream.truth import transfers

KIND = os.environ.get("HEADWATER_LAKE_KIND", "")
CATALOG = {"iceberg": "ice", "delta": "spark_catalog"}.get(KIND, "")
_numbers = itertools.count()


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as a user configures it: Delta in Spark's catalog, Iceberg in one of SQLite."""
    folder = tmp_path_factory.mktemp("catalogs")
    iceberg = "org.apache.iceberg.spark"
    settings = {
        "spark.jars": os.environ["HEADWATER_LAKE_FILES"],
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.warehouse.dir": f"{folder}/tables",
    }
    if KIND == "iceberg":
        settings |= {
            "spark.sql.extensions": f"{iceberg}.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.ice": f"{iceberg}.SparkCatalog",
            "spark.sql.catalog.ice.type": "jdbc",
            "spark.sql.catalog.ice.uri": f"jdbc:sqlite:{folder}/catalog.db",
            "spark.sql.catalog.ice.jdbc.schema-version": "V1",  # V0 cannot tell what is missing
            "spark.sql.catalog.ice.warehouse": f"{folder}/tables",
        }
    else:
        settings |= {
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.chain")
    yield spark
    spark.stop()


class TestPromises(TargetConformance):
    """What every target promises."""

    upserts = deletes = keyless = False
    shares = exclusive = False  # a table has one stream; a second writer takes over
    keeps_config = True
    sample = every(9)
    walks, walk_steps = 2, 14

    @pytest.fixture(autouse=True)
    def _session(self, session: SparkSession) -> None:
        self.spark = session
        self.fresh()

    def fresh(self) -> None:
        self.table = f"{CATALOG}.chain.log_{next(_numbers)}"

    def make_target(self, stream_id: str) -> SparkTableTarget:
        target = spark_table_target(self.table, spark=self.spark, create=KIND)
        target.bind(stream_id)
        return target

    def read_rows(self, table: str) -> list[dict[str, Any]]:
        return read(self.spark, self.table)

    def watch_io(self, target: SparkTableTarget, hook: Callable[[], None]) -> None:
        target.on_statement = lambda statement: hook()


def read(spark: SparkSession, table: str) -> list[dict[str, Any]]:
    try:
        rows = [row.asDict() for row in spark.table(table).collect()]
    except AnalysisException as error:
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
            raise
        return []
    return sorted(rows, key=lambda row: str([*row.values()]))


class Stream:
    """A stream with some tables, and its model."""

    def __init__(self, spark: SparkSession, tables: dict[str, str] | None = None) -> None:
        self.spark = spark
        self.tables = tables or {LOG: f"{CATALOG}.chain.more_{next(_numbers)}"}
        self.rig = self.start()

    def start(self, *, recover: bool = True) -> Rig:
        target = spark_table_target(self.tables, spark=self.spark, create=KIND)
        target.bind("one")
        if recover:
            target.recover()
        return Rig(target, lambda name: read(self.spark, self.tables[name]), [LOG])

    def again(self, *, back: bool = False) -> None:
        """Start the process again; it must find what was committed, or a rollback that counts."""
        model, self.rig = copy.deepcopy(self.rig.model), self.start()
        self.rig.model = model
        state = self.rig.target.recover()
        if back and state != model.state:
            model.roll_back(model.state.rewind(model.state.landing_points()[0]))
        assert state == model.state
        self.rig.check()

    def blocks(self, first: int, last: int, branch: str = "a", final: int = -1) -> None:
        for number in range(first, last + 1):
            self.rig.block(number, *changes(number, branch), branch=branch, final=final)

    def maintain(self, *statements: str) -> None:
        for table in self.tables.values():
            for one in statements:
                within = table.partition(".")[2]
                self.spark.sql(one.format(table=table, within=within, catalog=CATALOG)).collect()


def changes(number: int, branch: str) -> list[Change]:
    return [log(number, f"{branch}{number}", number)]


@pytest.fixture
def stream(session: SparkSession) -> Stream:
    return Stream(session)


# --- two writers ----------------------------------------------------------------------------------


def test_a_writer_that_was_replaced_changes_nothing(stream: Stream) -> None:
    stream.blocks(1, 3, final=1)
    old = stream.rig
    stream.again()
    stream.blocks(4, 4, "b", final=1)
    for call in (
        lambda: old.block(4, *changes(4, "a"), final=1),
        lambda: old.roll_back(2),
        lambda: old.target.recover(),
    ):
        with pytest.raises(LakeWriterError, match="E2603"):
            call()
    stream.rig.check()
    stream.again()


@pytest.mark.parametrize("call", ["recover", "block", "roll back"])
def test_a_writer_paused_before_any_statement_changes_nothing_once_another_has_begun(
    session: SparkSession, call: str
) -> None:
    """Two tables, so that a start is overtaken between them, too."""

    def pause_at(point: int) -> int | None:
        name = f"{CATALOG}.chain.pause_{next(_numbers)}"
        stream = Stream(session, {LOG: name, "other": f"{name}_b"})
        commit_both(stream, 1, "a")
        commit_both(stream, 2, "a")
        paused = stream.start(recover=call != "recover")
        paused.model = copy.deepcopy(stream.rig.model)
        target: Any = paused.target
        steps = itertools.count()

        def pause(statement: str) -> None:
            if next(steps) == point:
                target.on_statement = None
                stream.again(back=call == "roll back")
                commit_both(stream, stream.rig.state.number + 1, "b")

        target.on_statement = pause
        try:
            if call == "recover":
                target.recover()
            elif call == "block":
                commit_both(stream, 3, "a", paused)
            else:
                paused.roll_back(1)
        except LakeWriterError:
            pass
        else:
            if target.on_statement is not None:
                return next(steps)
            assert call == "recover", "a writer that was replaced has committed"
            stream.again()  # it has looked since, and was the newest start
        stream.rig.check()
        assert read(session, f"{name}_b") == read(session, name)
        commit_both(stream, stream.rig.state.number + 1, "b")
        stream.rig.check()
        return None

    assert visit(9, pause_at)


def commit_both(stream: Stream, number: int, branch: str, rig: Rig | None = None) -> None:
    """Commit a block with the same rows in two tables."""
    rig = rig or stream.rig
    (change,) = changes(number, branch)
    real = rig.prepare

    def both(batch: Any) -> Any:
        made = real(batch)
        frames = {**made.data.data, "other": frame_of(change)}
        return made.with_data(type(made.data)(frames, made.data.ctx))

    rig.prepare = both  # type: ignore[method-assign]
    try:
        rig.block(number, change, branch=branch, final=1)
    finally:
        rig.prepare = real  # type: ignore[method-assign]


# --- several tables -------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["block", "roll back"])
def test_several_tables_end_in_one_block_wherever_the_stream_dies(
    session: SparkSession, call: str
) -> None:
    def die_at(point: int) -> int | None:
        name = f"{CATALOG}.chain.die_{next(_numbers)}"
        stream = Stream(session, {LOG: name, "other": f"{name}_b"})
        for number in (1, 2, 3):
            commit_both(stream, number, "a")
        steps = itertools.count()

        def die(statement: str) -> None:
            if next(steps) >= point:
                raise Crash(statement)

        target: Any = stream.rig.target
        target.on_statement = die
        before, safe = (
            stream.rig.state,
            stream.rig.state.rewind(
                next(one for one in stream.rig.state.landing_points() if one.number == 2)
            ),
        )
        try:
            commit_both(stream, 4, "a") if call == "block" else stream.rig.roll_back(2)
        except Crash:
            died = True
        else:
            died = False
        rig = stream.start()
        state = rig.target.recover()
        assert state in (before, safe, stream.rig.state) or state.number == 4
        found = read(session, name)
        assert found == read(session, f"{name}_b")
        assert {row["block_number"] for row in found} == set(range(1, state.number + 1))
        return None if died else next(steps)

    assert visit(6, die_at)


def test_a_table_of_several_that_is_gone_is_refused(session: SparkSession) -> None:
    name = f"{CATALOG}.chain.gone_{next(_numbers)}"
    stream = Stream(session, {LOG: name, "other": f"{name}_b"})
    commit_both(stream, 1, "a")
    session.sql(f"DROP TABLE {name}_b")
    with pytest.raises(StateMissingError):
        stream.start()
    stream.rig.check()


# --- others ---------------------------------------------------------------------------------------

REWRITE = {
    "iceberg": (
        "CALL {catalog}.system.rewrite_data_files(table => '{within}', "
        "options => map('rewrite-all', 'true'))",
        "CALL {catalog}.system.rewrite_manifests('{within}')",
    ),
    "delta": ("OPTIMIZE {table}",),
}
EXPIRE = {
    "iceberg": (
        "CALL {catalog}.system.expire_snapshots(table => '{within}', retain_last => 1, "
        "older_than => TIMESTAMP '2999-01-01')",
    ),
    "delta": (
        "ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')",
        "VACUUM {table}",
    ),
}


def test_forks_are_exact_where_others_have_rewritten_the_files_of_hot_blocks(
    stream: Stream,
) -> None:
    stream.blocks(1, 4, final=1)
    stream.maintain(*REWRITE[KIND])
    stream.blocks(5, 6, final=1)
    stream.maintain(*REWRITE[KIND])
    stream.rig.roll_back(3)
    stream.rig.check()
    stream.blocks(4, 5, "b", final=1)
    stream.maintain(*REWRITE[KIND])
    stream.again()
    stream.rig.roll_back(4)
    stream.rig.check()


def test_a_stream_goes_on_where_its_commits_have_expired(stream: Stream) -> None:
    stream.blocks(1, 6, final=4)
    stream.again()
    stream.blocks(7, 8, final=4)
    for _ in range(2):
        stream.maintain(*REWRITE[KIND], *EXPIRE[KIND])
    if KIND == "delta":
        forget_log(stream)
    rig = stream.start()
    state = rig.target.recover()
    assert state.number in (4, 8)
    assert state.finalized == stream.rig.state.finalized
    found = sorted(row["block_number"] for row in rig._read_rows(LOG))
    assert found == [one for one in range(1, state.number + 1) for _ in range(2)]
    rig.target.roll_back(state.rewind(state.landing_points()[0]))


def forget_log(stream: Stream) -> None:
    """Delete the entries of a log below its newest checkpoint, as its retention does."""
    for table in stream.tables.values():
        stream.maintain("OPTIMIZE {table}")
        (detail,) = stream.spark.sql(f"DESCRIBE DETAIL {table}").collect()
        log_folder = Path(detail["location"].removeprefix("file:")) / "_delta_log"
        newest = max(log_folder.glob("*.checkpoint*.parquet")).name.partition(".")[0]
        for entry in log_folder.glob("*.json"):
            if entry.stem < newest:
                entry.unlink()
    stream.spark.sql("CLEAR CACHE")


def test_rows_of_others_are_refused(stream: Stream) -> None:
    stream.blocks(1, 2, final=1)
    stream.maintain("INSERT INTO {table} VALUES (2, 9, 'foreign')")
    with pytest.raises(LakeForeignWriteError, match="E2604"):
        stream.blocks(3, 3, final=1)
    with pytest.raises(LakeForeignWriteError, match="E2604"):
        stream.start()


def test_a_table_with_rows_or_of_another_stream_is_refused(session: SparkSession) -> None:
    table = f"{CATALOG}.chain.own_{next(_numbers)}"
    session.sql(f"CREATE TABLE {table} (block_number BIGINT, value STRING) USING {KIND}")
    spark_table_target(table, spark=session, id="one").recover()
    with pytest.raises(LakeForeignWriteError, match="another stream"):
        spark_table_target(table, spark=session, id="two").recover()
    filled = f"{table}_b"
    session.sql(f"CREATE TABLE {filled} USING {KIND} AS SELECT 1L AS block_number")
    with pytest.raises(LakeForeignWriteError, match="rows of no stream"):
        spark_table_target(filled, spark=session).recover()
    assert read(session, filled) == [{"block_number": 1}]


# --- a whole stream -------------------------------------------------------------------------------


def test_a_backfill_and_forks_leave_what_the_chain_says(session: SparkSession) -> None:
    table = f"{CATALOG}.chain.transfers_{next(_numbers)}"
    chain = fill_through_forks(session, spark_table_target(table, spark=session, create=KIND))
    names = ["block_number", "block_hash", "log_index", "address", "from", "to", "value"]
    found = [tuple(row[name] for name in names) for row in read(session, table)]
    assert sorted(found) == transfers(chain, chain.canonical(0))
