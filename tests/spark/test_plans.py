"""Transforms as plans: captured without rows, applied to a batch, or to hot blocks by one job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from headwater import evm, portal_stream
from headwater.errors import ColumnTypeError, TransformActionError, TransformPlanError
from headwater.pipeline import Committed, Event, Settled
from headwater.runtime import StopRequested
from headwater.spark.frames import Frame
from headwater.spark.plans import TransformPlan
from headwater.spark.versions import arrow_function
from headwater.stream import Stream
from headwater.stream.user_code import Step, Transforms
from headwater.targets import duckdb_target
from headwater.testing import simulated_portal
from tests.stream.truth import COLUMNS, transfers

Data = Mapping[str, Any]
BLOCKS = [7, 8, 9]
ROWS = pa.table(
    {
        "block_number": pa.array([7, 7, 9, 9, 9, 10], pa.int64()),
        "k": list("ababca"),
        "v": pa.array([1, 2, 3, 4, 5, 6], pa.int64()),
        "l": [["x", "y"], [], None, ["z"], ["x", "z"], ["y"]],
    }
)
NAMES = pa.table({"k": ["a", "b", "b"], "name": ["one", "two", "three"]})


@pytest.fixture(scope="module")
def names(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(NAMES)


def upper(column: str) -> Column:
    return arrow_function(pa.compute.utf8_upper, "string")(column)


def by_sql(data: Data) -> Data:
    rows = data["t"]
    rows.createOrReplaceTempView("given")
    return {"t": rows.sparkSession.sql("SELECT v + 1 AS w, k AS _block FROM given WHERE v > 2")}


def above_average(data: Data) -> Data:
    data["t"].createOrReplaceTempView("given")
    sql = data["t"].sparkSession.sql
    return {"t": sql("SELECT * FROM given WHERE v > (SELECT avg(v) FROM given)")}


def with_query(data: Data) -> Data:
    data["t"].createOrReplaceTempView("given")
    sql = "WITH x AS (SELECT k, max(v) AS v FROM given GROUP BY k) SELECT x.k, y.v FROM x, x AS y"
    return {"t": data["t"].sparkSession.sql(sql)}


Transform = Callable[[Data, DataFrame], Data]
SHARED: dict[str, Transform] = {
    "as it is": lambda data, names: data,
    "another name": lambda data, names: {"u": data["t"]},
    "where": lambda data, names: {"t": data["t"].where("v > 2")},
    "no block": lambda data, names: {"t": data["t"].select("v", F.upper("k").alias("u"))},
    "block as text": lambda data, names: {
        "t": data["t"].withColumn("block_number", F.col("block_number").cast("string"))
    },
    "renamed": lambda data, names: {"t": data["t"].withColumnRenamed("block_number", "height")},
    "another block": lambda data, names: {"t": data["t"].withColumn("block_number", F.lit(9))},
    "two results": lambda data, names: {"a": data["t"].where("v < 3"), "b": data["t"].drop("k")},
    "one as it is": lambda data, names: {"a": data["t"].where("v < 3"), "b": data["t"]},
    "sorted": lambda data, names: {"t": data["t"].hint("x").orderBy("v").repartition(2, "k")},
    "alias": lambda data, names: {"t": data["t"].alias("x").where("x.v % 2 = 0").select("x.v")},
    "function of Python": lambda data, names: {"t": data["t"].select(upper("k").alias("u"))},
    "lists": lambda data, names: {"t": data["t"].select("k", F.explode_outer("l"))},
    "join with a table": lambda data, names: {"t": data["t"].join(names, "k", "left").drop("v")},
    "table first": lambda data, names: {"t": names.join(data["t"], "k", "right")},
    "not in a table": lambda data, names: {"t": data["t"].join(names, "k", "left_anti")},
    "SQL": lambda data, names: by_sql(data),
    "nothing": lambda data, names: {},
    "no rows": lambda data, names: {"t": data["t"].where("v > 99")},
}
ALONE: dict[str, tuple[str, Transform]] = {
    "group": ("Aggregate", lambda data, names: {"t": data["t"].groupBy("k").agg(F.max("v"))}),
    "distinct": ("Deduplicate", lambda data, names: {"t": data["t"].select("k").distinct()}),
    "window": (
        "Window",
        lambda data, names: {
            "t": data["t"].withColumn("n", F.count("*").over(Window.partitionBy("k")))
        },
    ),
    "limit": ("GlobalLimit", lambda data, names: {"t": data["t"].orderBy("v").limit(2)}),
    "join": (
        "Join INNER",
        lambda data, names: {"t": data["t"].join(data["t"].groupBy("k").count(), "k")},
    ),
    "what a table has more": (
        "Join FULL OUTER",
        lambda data, names: {"t": data["t"].join(names, "k", "full").drop("v")},
    ),
    "all of a table": (
        "Join RIGHT OUTER",
        lambda data, names: {"t": data["t"].join(names, "k", "right")},
    ),
    "batches of Python": (
        "MapInPandas",
        lambda data, names: {
            "t": data["t"].mapInPandas(
                lambda frames: (frame[["v"]].max().to_frame().T for frame in frames), "v long"
            )
        },
    ),
    "a query with names": ("WithCTE", lambda data, names: with_query(data)),
    "a table": (
        "another table",
        lambda data, names: {"t": data["t"].where("v < 3"), "names": names},
    ),
    "place": (
        "monotonically_increasing_id",
        lambda data, names: {"t": data["t"].select(F.monotonically_increasing_id().alias("i"))},
    ),
}
ACTIONS: dict[str, Callable[[Any], object]] = {
    "count": lambda frame: frame.count(),
    "Arrow": lambda frame: frame.toArrow(),
    "empty": lambda frame: frame.isEmpty(),
    "count of some": lambda frame: frame.where("v > 2").count(),
    "largest": lambda frame: frame.groupBy().max("v").first(),
    "collect": lambda frame: frame.select("v").collect(),
    "Arrow of some": lambda frame: frame.where("v > 2").toArrow(),
    "rdd": lambda frame: frame.rdd.count(),
    "each": lambda frame: frame.foreach(print),
    "cache": lambda frame: frame.cache().where("v > 2"),
    "values of pivot": lambda frame: frame.groupBy("k").pivot("v").count(),
    "quantile": lambda frame: frame.approxQuantile("v", [0.5], 0.1),
    "write": lambda frame: frame.write.format("noop").mode("append").save(),
    "scalar": lambda frame: frame.where(F.col("v") > frame.select(F.max("v")).scalar()),
    "query": lambda frame: above_average({"t": frame}),
}


WHERE = r"asked=\w+ at test_plans.py:\d+|asked=(count|toArrow|isEmpty)\)"


def block(number: int) -> pa.Table:
    return ROWS.filter(pa.compute.equal(ROWS["block_number"], number))


def rows_of(made: Data) -> dict[str, list[str]]:
    """Rows by output, in an order of their own: joins keep none."""
    return {name: sorted(map(str, frame.toArrow().to_pylist())) for name, frame in made.items()}


def captured(
    spark: SparkSession, transform: Transform, names: DataFrame, schema: pa.Schema = ROWS.schema
) -> TransformPlan:
    return TransformPlan(lambda data: transform(data, names), {"t": schema}, lambda: spark)


@pytest.mark.parametrize("name", SHARED)
def test_hot_blocks_share_a_job_where_each_row_is_made_of_one(
    spark: SparkSession, names: DataFrame, name: str
) -> None:
    plan = captured(spark, SHARED[name], names)
    assert plan.mixes is None
    together = plan.apply_together([{"t": block(number)} for number in BLOCKS])
    assert together is not None
    for number, made in zip(BLOCKS, together, strict=True):
        given = {"t": Frame(block(number), lambda: spark)}
        expected = SHARED[name](given, names)
        assert rows_of(made) == rows_of(expected)
        assert list(made) == list(expected)
        for output, frame in expected.items():
            assert made[output].columns == frame.columns
            assert made[output].schema == frame.schema
    alone = plan.apply(given)
    assert rows_of(alone) == rows_of(expected)
    assert list(alone) == list(expected)


@pytest.mark.parametrize("name", ALONE)
def test_what_makes_a_row_of_several_is_named_and_applied_to_each_block(
    spark: SparkSession, names: DataFrame, name: str
) -> None:
    operator, transform = ALONE[name]
    plan = captured(spark, transform, names)
    assert plan.mixes is not None
    assert operator in plan.mixes[1]
    assert plan.apply_together([{"t": block(number)} for number in BLOCKS]) is None
    for number in (8, 9):
        given = {"t": Frame(block(number), lambda: spark)}
        assert rows_of(plan.apply(given)) == rows_of(transform(given, names))


class RunningSum:
    """A table function that adds up what it was given."""

    def __init__(self) -> None:
        self.sum = 0

    def eval(self, value: int) -> Iterator[tuple[int]]:
        self.sum += value
        yield (self.sum,)


RUNNING_SUM: Any = F.udtf(RunningSum, returnType="n bigint")


def sql(data: Data, query: str) -> DataFrame:
    data["t"].createOrReplaceTempView("given")
    frame: DataFrame = data["t"].sparkSession.sql(query)
    return frame


MIXING: dict[str, tuple[str, Callable[[Data, DataFrame], DataFrame]]] = {
    "table function": ("LateralJoin", lambda data, names: data["t"].lateralJoin(
        RUNNING_SUM(F.col("v").outer())
    )),
    "lateral query": ("LateralJoin", lambda data, names: sql(
        data, "SELECT * FROM given, LATERAL (SELECT given.v + id FROM range(3))"
    )),
    "query of another table": ("subquery", lambda data, names: sql(
        data, "SELECT * FROM given WHERE v IN (SELECT id FROM range(3))"
    )),
    "sample": ("Sample", lambda data, names: data["t"].sample(0.5, 3)),
    "sample by key": ("rand", lambda data, names: data["t"].sampleBy("k", {"a": 0.5}, 3)),
    "random": ("rand", lambda data, names: data["t"].withColumn("r", F.rand())),
    "uuid": ("uuid", lambda data, names: data["t"].withColumn("r", F.expr("uuid()"))),
    "shuffled": ("shuffle", lambda data, names: data["t"].select(F.shuffle("l"))),
    "file": ("input_file", lambda data, names: data["t"].select(F.input_file_name())),
    "partition": ("SPARK_PARTITION_ID", lambda data, names: data["t"].select(
        F.spark_partition_id()
    )),
    "function that is not deterministic": ("Project with", lambda data, names: data["t"].select(
        F.udf(lambda v: v, "long").asNondeterministic()("v")
    )),
    "offset": ("Offset", lambda data, names: data["t"].offset(1)),
    "sorted and limited": ("GlobalLimit", lambda data, names: sql(
        data, "SELECT * FROM given ORDER BY v LIMIT 3"
    )),
    "union": ("Union", lambda data, names: data["t"].union(data["t"])),
    "union with a table": ("Union", lambda data, names: data["t"].select("k").union(
        names.select("k")
    )),
    "intersect": ("Intersect", lambda data, names: data["t"].intersect(data["t"])),
    "except": ("Except", lambda data, names: data["t"].exceptAll(data["t"].where("v > 1"))),
    "distinct by key": ("Deduplicate", lambda data, names: data["t"].dropDuplicates(["k"])),
    "rollup": ("Aggregate", lambda data, names: data["t"].rollup("k").count()),
    "pivot": ("Aggregate", lambda data, names: data["t"].groupBy("k").pivot("v", [1]).count()),
    "unpivot": ("Expand", lambda data, names: data["t"].unpivot(["k"], ["v"], "n", "x")),
    "observed": ("CollectMetrics", lambda data, names: data["t"].observe("m", F.count("v"))),
    "groups of Python": ("FlatMapGroups", lambda data, names: data["t"].groupBy("k").applyInPandas(
        lambda rows: rows, "block_number long, k string, v long, l array<string>"
    )),
    "semi join of a table": ("Join LEFT SEMI", lambda data, names: names.join(
        data["t"], "k", "left_semi"
    )),
    "join with itself": ("Join INNER", lambda data, names: data["t"].alias("x").join(
        data["t"].alias("y"), F.col("x.v") == F.col("y.v")
    )),
}  # fmt: skip


@pytest.mark.guarantee("FORK-2")
@pytest.mark.parametrize("name", MIXING)
def test_no_operator_that_may_look_at_several_rows_is_taken_for_row_by_row(
    spark: SparkSession, names: DataFrame, name: str
) -> None:
    operator, transform = MIXING[name]
    plan = captured(spark, lambda data, names: {"t": transform(data, names)}, names)
    assert plan.mixes is not None
    assert operator in plan.mixes[1]
    assert plan.apply_together([{"t": block(number)} for number in BLOCKS]) is None


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_plan_cannot_look_at_rows(spark: SparkSession, name: str) -> None:
    def looks(data: Data) -> Data:
        ACTIONS[name](data["t"])
        return data

    with pytest.raises(TransformActionError, match=rf"E5030.*({WHERE}).*pipe_batches"):
        TransformPlan(looks, {"t": ROWS.schema}, lambda: spark)
    spark.catalog.dropTempView("given")


def test_a_plan_is_made_of_the_frames_that_it_is_given(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    for wrong in (ROWS, "t", stream):
        with pytest.raises(TransformPlanError, match="E5031"):
            TransformPlan(lambda data: {"t": wrong}, {"t": ROWS.schema}, lambda: spark)  # noqa: B023


def test_errors_of_user_code_stay_what_they_are(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="streaming") as found:
        TransformPlan(
            lambda data: {"t": data["t"].select("streaming")}, {"t": ROWS.schema}, lambda: spark
        )
    assert not isinstance(found.value, TransformActionError)


def test_what_is_passed_on_needs_no_spark() -> None:
    def asked() -> SparkSession:
        raise AssertionError("Spark was asked for")

    schema = pa.schema({"block_number": pa.int64(), "wide": pa.uint64()})
    rows = pa.table({"block_number": [1], "wide": [1 << 63]}, schema=schema)
    plan = TransformPlan(lambda data: {"u": data["t"], "columns": data["t"]}, {"t": schema}, asked)
    given = Frame(rows, asked)
    assert plan.apply({"t": given})["u"] is given
    together = plan.apply_together([{"t": rows}, {"t": rows.slice(1)}])
    assert [frames["u"].count() for frames in together or ()] == [1, 0]
    with pytest.raises(TransformActionError):
        TransformPlan(lambda data: {"t": data["t"].toArrow()}, {"t": schema}, asked)
    with pytest.raises(ColumnTypeError):
        TransformPlan(lambda data: {"t": data["t"].where("wide > 1")}, {"t": schema}, asked)


def test_a_plan_may_begin_with_columns_before_spark_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SparkContext._active_spark_context
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)

    def started() -> SparkSession:
        monkeypatch.setattr(SparkContext, "_active_spark_context", context)
        return spark

    def large(data: Data) -> Data:
        is_large = F.col("v") > 2
        return {"t": data["t"].where(is_large)}

    plan = TransformPlan(large, {"t": ROWS.schema}, started)
    assert plan.apply({"t": ROWS})["t"].toArrow().equals(ROWS.slice(2))


def test_random_values_are_drawn_anew_for_each_batch(spark: SparkSession) -> None:
    def tagged(data: Data) -> Data:
        return {"t": data["t"].select(F.expr("uuid()").alias("id"))}

    transforms = Transforms("s", [Step(tagged, is_plan=True)], lambda: spark)
    given = {"t": Frame(block(7), lambda: spark)}
    drawn = [transforms(given, None)["t"].toArrow()["id"].to_pylist() for _ in range(2)]
    assert len({*drawn[0], *drawn[1]}) == 4


def test_a_type_that_arrow_has_no_frame_for_is_made_block_by_block(spark: SparkSession) -> None:
    plan = TransformPlan(
        lambda data: {"t": data["t"].select(F.create_map("k", "v").alias("m"))},
        {"t": ROWS.schema},
        lambda: spark,
    )
    assert plan.apply_together([{"t": block(7)}, {"t": block(9)}]) is None
    assert plan.mixes is not None
    assert plan.apply({"t": Frame(block(7), lambda: spark)})["t"].count() == 2


def test_rows_that_executors_hold_are_transformed_by_the_same_plan(spark: SparkSession) -> None:
    plan = captured(spark, ALONE["join"][1], spark.createDataFrame(NAMES))
    held = spark.createDataFrame(ROWS).repartition(3)
    assert rows_of(plan.apply({"t": held})) == rows_of(ALONE["join"][1]({"t": held}, held))


# --- whole streams --------------------------------------------------------------------------------


def counted(data: Data) -> Data:
    rows = data["transfers"]
    count, top = rows.where("log_index >= 0").count(), rows.groupBy().max("log_index").first()[0]
    return {"transfers": rows.withColumn("n", F.lit(count)).withColumn("top", F.lit(top))}


HOT = 15


class Played:
    """A chain of 30 blocks, half of them hot, that forks when the stream has reached its head."""

    def __init__(self, path: Path, spark: SparkSession, forks: tuple[int, ...]) -> None:
        self.path, self.committed = path, list[int]()
        self._spark, self._forks = spark, iter(forks)

    def run(self, define: Callable[[Stream], Stream]) -> None:
        with simulated_portal(seed=9, blocks=30, finality_depth=15) as portal:

            def on_event(event: Event) -> None:
                if isinstance(event, Committed):
                    self.committed.append(event.blocks)
                if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
                    depth = next(self._forks, None)
                    if depth is None:
                        raise StopRequested
                    portal.fork(depth)

            stream = portal_stream(
                id="t",
                portal=portal.url,
                outputs={"transfers": evm.events("erc20.Transfer", range=0)},
                spark=self._spark,
                poll_interval_s=0.01,
            )
            define(stream).pipe_to(duckdb_target(self.path), on_event=on_event, progress=False)
            self.truth = transfers(portal.chain, portal.chain.canonical())

    def rows(self, columns: str = COLUMNS) -> list[tuple[Any, ...]]:
        found = duckdb_target(self.path).query(f"SELECT {columns} FROM transfers ORDER BY 1, 3")
        return [tuple(row.values()) for row in found.to_pylist()]

    @property
    def shared_a_commit(self) -> bool:
        return any(blocks > 1 for blocks in self.committed)


@pytest.mark.guarantee("FORK-2")
def test_what_is_looked_at_is_of_one_block_before_and_after_a_fork(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = Played(tmp_path / "t.duckdb", spark, (6,))
    played.run(lambda stream: stream.pipe_batches(counted))
    assert played.shared_a_commit, "hot blocks that wait are committed together"
    truth: dict[int, list[int]] = {}
    for row in played.truth:
        truth.setdefault(row[0], []).append(row[2])
    hot = [row for row in played.rows("block_number, n, log_index, top") if row[0] > HOT]
    assert {(row[0], row[1], row[3]) for row in hot} == {
        (number, len(logs), max(logs)) for number, logs in truth.items() if number > HOT
    }


def test_a_transform_that_looks_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = Played(tmp_path / "t.duckdb", spark, ())
    with pytest.raises(TransformActionError, match=r"E5030.*pipe_batches"):
        played.run(lambda stream: stream.pipe(counted))
    assert not played.committed


@pytest.mark.guarantee("FORK-2")
def test_a_plan_is_called_once_however_many_blocks_and_forks_there_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    calls: list[str] = []

    def small(data: Data) -> Data:
        calls.append("small")
        return {"transfers": data["transfers"].where(F.length("value") < 30)}

    def renamed(data: Data) -> Data:
        calls.append("renamed")
        number = F.col("block_number").cast("string").alias("height")
        return {"transfers": data["transfers"].select(number, "*")}

    played = Played(tmp_path / "t.duckdb", spark, (3, 6, 4))
    played.run(lambda stream: stream.pipe(small).pipe(renamed))
    assert played.rows() == [row for row in played.truth if len(row[-1]) < 30]
    assert played.shared_a_commit
    assert calls == ["small", "renamed"]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "headwater.stream")
    return lambda: [
        record.getMessage() for record in caplog.records if "transform.by_block" in record.msg
    ]


@pytest.mark.guarantee("FORK-2")
def test_what_keeps_blocks_from_sharing_a_job_is_said_once(
    spark: SparkSession, tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    def numbered(data: Data) -> Data:
        rows, block = data["transfers"], Window.partitionBy("address")
        return {"transfers": rows.withColumn("n", F.count("*").over(block))}

    played = Played(tmp_path / "t.duckdb", spark, (6,))
    played.run(lambda stream: stream.pipe(numbered))
    (line,) = lines()
    assert "output=transfers operator=Window" in line
    truth: dict[tuple[int, str], int] = {}
    for row in played.truth:
        truth[row[0], row[3]] = truth.get((row[0], row[3]), 0) + 1
    hot = [row for row in played.rows("block_number, n, log_index, address") if row[0] > HOT]
    assert hot
    assert all(truth[row[0], row[3]] == row[1] for row in hot)


def test_batches_between_plans_are_called_each_time(spark: SparkSession) -> None:
    calls: list[str] = []

    def kept(data: Data) -> Data:
        calls.append("kept")
        return {"u": data["t"].where("v > 1")}

    def numbered(data: Data, ctx: object) -> Data:
        calls.append("numbered")
        return {"u": data["u"].withColumn("n", F.lit(data["u"].count()))}

    def renamed(data: Data) -> Data:
        calls.append("renamed")
        return {"t": data["u"].withColumnRenamed("n", "rows")}

    steps = [Step(kept, is_plan=True), Step(numbered), Step(renamed, is_plan=True)]
    transforms = Transforms("s", steps, lambda: spark)
    assert not transforms.may_share
    assert transforms.together([{"t": block(7)}, {"t": block(9)}]) is None
    for number, rows in ((7, [1]), (9, [3, 3, 3])):
        made = transforms({"t": Frame(block(number), lambda: spark)}, None)
        assert made["t"].toArrow()["rows"].to_pylist() == rows
    assert calls == ["kept", "numbered", "renamed", "numbered"]


def test_the_earlier_forms_of_pipe_still_run_and_say_what_follows_them() -> None:
    stream = portal_stream(
        id="s", portal="http://127.0.0.1:1/x", outputs={"t": evm.events("erc20.Transfer", range=0)}
    )
    with pytest.deprecated_call(match="pipe_batches"):
        assert not stream.pipe(lambda data, ctx: data).steps[0].is_plan
    with pytest.deprecated_call(match="row_wise"):
        assert stream.pipe(lambda data: data, row_wise=False).steps[0].is_plan
