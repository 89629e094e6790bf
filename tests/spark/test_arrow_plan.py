"""Plans in Arrow: what they make of rows is what Spark makes of them, or they are left to Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from headwater.core import BlockRange
from headwater.decode.columns.integers import Integer, integer_field, spark_metadata
from headwater.errors import HeadwaterError, TransformValueError
from headwater.spark import Span, catalyst, read_span
from headwater.spark.arrow_plan import ArrowPlan, in_arrow
from headwater.spark.frames import Frame, SpanFrame, spark_schema, to_arrow
from headwater.spark.plans import TransformPlan
from headwater.spark.versions import arrow_function
from headwater.testing import PortalServer
from tests.spark.conftest import ALL, APPROVAL, LAST, TRANSFER, decoded, requested
from tests.spark.test_spans import persisted, union

Change = Callable[[Any], Any]
C = F.col


def by_sql(rows: Any, query: str) -> Any:
    rows.createOrReplaceTempView("given")
    return rows.sparkSession.sql(query)


UINT = Integer(256)
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("i", pa.int32()),
        pa.field("s", pa.string()),
        pa.field("t", pa.timestamp("us", "UTC")),
        pa.field("d", pa.date32()),
        pa.field("f", pa.float64()),
        pa.field("l", pa.list_(pa.string())),
        integer_field("u", UINT),
    ]
)
ROWS = pa.table(
    {
        "n": [1, None, -5, 2**63 - 1, -(2**63), 2**53 + 1, 7],
        "i": [0, -1, None, 2**31 - 1, -(2**31), 5, 7],
        "s": ["0xab", "", None, "é0x", "\U0001f600x", "0xAB", "~"],
        "t": [datetime(2024, 1, day, day, tzinfo=UTC) for day in range(1, 7)] + [None],
        "d": [date(2024, 1, day) for day in range(1, 7)] + [None],
        "f": [0.0, -0.0, float("nan"), float("inf"), 1e300, None, 0.5],
        "l": [["x"], [], None, ["y", None], ["z"], ["x", "y"], []],
        "u": ["0", "1", None, str(10**38 - 1), str(2**256 - 1), str(2**53 + 1), str(2**63)],
    },
    schema=SCHEMA,
)

TAKEN: dict[str, Change] = {
    "renamed": lambda rows: rows.withColumnRenamed("n", "number").drop("s"),
    "in another order": lambda rows: rows.select(
        "u", "l", "f", C("n").alias("a"), C("n").alias("b")
    ),
    "integers": lambda rows: rows.select(
        C("n").cast("string"), C("i").cast("bigint"), C("i").cast("double"),
        C("n").cast("double").alias("nf"), C("n").cast("decimal(20,1)").alias("nd"),
        C("i").cast("decimal(38,19)").alias("id"), C("i").cast("string").alias("is"),
    ),
    "text of integers": lambda rows: rows.select(C("u").cast("double"), C("u").alias("v")),
    "narrower where it fits": lambda rows: rows.where("n >= -5 and n <= 7").select(
        C("n").cast("tinyint"), C("i")
    ),
    "wide numbers where they fit": lambda rows: rows.where(F.length("u") < 39).select(
        C("u").cast("decimal(38,0)")
    ),
    "text to integers where it fits": lambda rows: rows.where(F.length("u") < 10).select(
        C("u").cast("bigint"), C("u").cast("int").alias("ui")
    ),
    "either": lambda rows: rows.where((C("n") > 1) | C("s").isin("0xab", "zz")),
    "neither": lambda rows: rows.where(~C("s").isin("0xab", "zz")).where(~(C("n") > 1)),
    "beginning": lambda rows: rows.where(C("s").startswith("0x")),
    "end": lambda rows: rows.where(C("s").endswith("x")),
    "inside": lambda rows: rows.where(C("s").contains("") & C("s").contains("x")),
    "order of text": lambda rows: rows.where((C("s") < "0xb") | (C("s") >= "\U0001f600")),
    "times": lambda rows: rows.where(C("t") > F.lit(datetime(2024, 1, 2, tzinfo=UTC))),
    "days": lambda rows: rows.where(C("d") <= F.lit(date(2024, 1, 3))),
    "columns of conditions": lambda rows: rows.select(
        (C("n") > C("i")).alias("more"), C("s").isNull().alias("none"), F.length("s").alias("len"),
        (C("i") == 7).alias("seven"), ((C("n") > 0) & (C("i") > 0)).alias("both"),
    ),
    "literals": lambda rows: rows.where("i > 0").select(
        F.lit("x").alias("x"), F.lit(5).alias("five"), F.lit(True).alias("y"), F.lit(0.5).alias("h")
    ),
    "columns of columns": lambda rows: (
        rows.where("n > 0").select(C("i").alias("j"), "s").where("j < 9")
    ),
    "names": lambda rows: rows.alias("x").where("x.n > 1").hint("broadcast").select("x.s", "x.i"),
    "nothing is left": lambda rows: rows.where("n = 1234"),
    "other metadata": lambda rows: rows.select(C("u").alias("v", metadata={"a": 1})),
    "fractions": lambda rows: rows.select(
        (C("u") / 1e18).alias("a"), (C("i") * 2.5 - C("f")).alias("b"),
        (C("f") + C("n")).alias("c"), (C("f") / -3.0).alias("d"), (C("n") / 10).alias("e"),
    ),
    "cases": lambda rows: rows.select(
        F.when(C("n") > 1, "big").when(C("s") == "", "none").otherwise(C("s")).alias("a"),
        F.when(C("i") > 0, F.lit(1)).otherwise(F.lit(2)).alias("b"),
        F.expr("if(n > 0, i, -7)").alias("c"),
    ),
    "what is there": lambda rows: rows.select(
        F.coalesce("s", "u").alias("a"), F.coalesce("f", F.lit(0.0)).alias("c"),
        F.coalesce(C("i").cast("bigint"), C("n"), F.lit(0)).alias("b"),
    ),
    "joined text": lambda rows: rows.select(
        F.concat("s", F.lit("-"), "u").alias("a"), F.concat(C("n").cast("string"), "s").alias("b")
    ),
    "SQL": lambda rows: by_sql(rows, "SELECT s AS text, i FROM given WHERE n > 0"),
    "piped SQL": lambda rows: by_sql(rows, "FROM given |> WHERE n > 0 |> SELECT s AS text, i"),
    "null": lambda rows: rows.where(C("n").isNull() | C("s").isNotNull()),
}  # fmt: skip
LEFT: dict[str, Change] = {
    "random": lambda rows: rows.select(F.rand(), "n"),
    "random condition": lambda rows: rows.where(F.rand() < 0.5),
    "uuid": lambda rows: rows.select(F.expr("uuid()")),
    "place": lambda rows: rows.select(F.monotonically_increasing_id()),
    "partition": lambda rows: rows.select(F.spark_partition_id()),
    "now": lambda rows: rows.select(F.current_timestamp(), "n"),
    "today": lambda rows: rows.where(C("d") < F.current_date()),
    "sum of integers": lambda rows: rows.select(C("n") + 1),
    "division by a column": lambda rows: rows.select(C("f") / C("i")),
    "division by zero": lambda rows: rows.select(C("f") / 0.0),
    "cast in a case": lambda rows: rows.select(
        F.when(C("n") < 9, C("n").cast("int")).otherwise(F.lit(0))
    ),
    "case without all else": lambda rows: rows.select(F.when(C("n") < 9, C("s"))),
    "group": lambda rows: rows.groupBy("s").count(),
    "distinct": lambda rows: rows.distinct(),
    "limit": lambda rows: rows.limit(1),
    "order": lambda rows: rows.orderBy("n"),
    "window": lambda rows: rows.select(F.expr("row_number() over (order by n)")),
    "union": lambda rows: rows.union(rows),
    "join": lambda rows: rows.join(rows.select("n"), "n"),
    "explode": lambda rows: rows.select(F.explode("l")),
    "sample": lambda rows: rows.sample(0.5, 1),
    "function of Python": lambda rows: rows.select(F.udf(lambda n: n, "long")("n")),
    "batches": lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema),
    "a cast that may fail in a condition": lambda rows: rows.where(C("n").cast("int") > 1),
    "a cast that may fail in a condition above": lambda rows: rows.select(
        C("n").cast("int")
    ).where("n > 1"),
    "a cast that may fail within": lambda rows: rows.select(C("n").cast("int").cast("string")),
    "null instead": lambda rows: rows.select(C("n").try_cast("int")),
    "text of anything": lambda rows: rows.select(C("s").cast("double")),
    "text and number": lambda rows: rows.where(C("s") > 1),
    "text of times": lambda rows: rows.select(C("t").cast("string")),
    "order of fractions": lambda rows: rows.where(C("f") > 0.1),
    "collation": lambda rows: rows.where(F.collate(C("s"), "UTF8_LCASE") == "0xab"),
    "null among others": lambda rows: rows.where(C("n").isin(1, None)),
    "query": lambda rows: rows.where(F.lit(1).isin(1)),
    "case": lambda rows: rows.select(F.upper("s")),
    "no column": lambda rows: rows.select(),
    "struct": lambda rows: rows.select(F.struct("n", "s")),
}  # fmt: skip


def planned(spark: SparkSession, change: Change) -> ArrowPlan | None:
    leaf, number = catalyst.rowless(spark, spark_schema(SCHEMA))
    return in_arrow(catalyst.taken_apart(spark, catalyst.analyzed(change(leaf)), {number: "t"}))


def by_spark(spark: SparkSession, change: Change, rows: pa.Table = ROWS) -> pa.Table:
    return to_arrow(change(Frame(rows, lambda: spark).dataframe))


def assert_same(made: pa.Table, expected: pa.Table) -> None:
    assert made.schema.equals(expected.schema)
    said, expected_said = (list(map(spark_metadata, one.schema)) for one in (made, expected))
    assert said == expected_said
    assert str(made.to_pylist()) == str(expected.to_pylist())  # a NaN is none other


@pytest.mark.parametrize("name", TAKEN)
def test_what_arrow_makes_of_rows_is_what_spark_makes_of_them(
    spark: SparkSession, name: str
) -> None:
    plan = planned(spark, TAKEN[name])
    assert plan is not None
    expected = by_spark(spark, TAKEN[name])
    assert_same(plan.rows(ROWS), expected)
    assert_same(plan.rows(ROWS.slice(0, 0)), expected.slice(0, 0))
    pieces = [plan.rows(batch) for batch in ROWS.to_batches(max_chunksize=2)]
    assert_same(pa.Table.from_batches(pieces), expected)


@pytest.mark.parametrize("name", LEFT)
def test_anything_else_is_left_to_spark(spark: SparkSession, name: str) -> None:
    assert planned(spark, LEFT[name]) is None


def test_casts_that_give_other_values_without_ansi_are_left_to_spark(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert planned(spark, lambda rows: rows.select(C("n").cast("int"))) is None
        assert planned(spark, lambda rows: rows.select(C("u").cast("decimal(38,0)"))) is None
        assert planned(spark, lambda rows: rows.select(C("i").cast("bigint"))) is not None
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize(
    ("column", "kind"),
    [("n", "int"), ("i", "tinyint"), ("u", "decimal(38,0)"), ("u", "bigint"), ("u", "smallint")],
)
def test_a_value_that_does_not_fit_ends_the_plan_as_it_ends_spark(
    spark: SparkSession, column: str, kind: str
) -> None:
    def change(rows: Any) -> Any:
        return rows.select(C(column).cast(kind))

    plan = planned(spark, change)
    assert plan is not None
    with pytest.raises(TransformValueError, match=r"\[E5032\]"):
        plan.rows(ROWS)
    with pytest.raises(PySparkException):
        by_spark(spark, change)


# --- plans that nobody thought of -----------------------------------------------------------------

NUMBERS = ("n", "i")
OPERATORS: dict[str, Callable[[Any, Any], Column]] = {
    "=": lambda one, other: one == other, "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other, ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other, "!=": lambda one, other: one != other,
}  # fmt: skip


def comparisons() -> st.SearchStrategy[Column]:
    numbers = st.one_of(
        st.sampled_from(NUMBERS).map(C),
        st.sampled_from([-5, 0, 7, 2**31 - 1, 2**53, 2**63 - 1]).map(F.lit),
        st.sampled_from(["s", "u"]).map(F.length),
    )
    texts = st.one_of(
        st.sampled_from(["s", "u"]).map(C), st.sampled_from(["", "0x", "1"]).map(F.lit)
    )
    operators = st.sampled_from(list(OPERATORS.values()))
    return st.one_of(
        *(st.builds(lambda f, one, two: f(one, two), operators, of, of) for of in (numbers, texts)),
        st.sampled_from(["n", "s", "l", "u"]).map(lambda name: C(name).isNull()),
        st.lists(st.sampled_from([1, 7, -5]), min_size=1).map(lambda of: C("i").isin(*of)),
        st.sampled_from(["", "x", "0x"]).map(lambda text: C("s").contains(text)),
    )


CONDITIONS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map(lambda one: ~one),
        st.builds(lambda one, two: one & two, inner, inner),
        st.builds(lambda one, two: one | two, inner, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    st.lists(CONDITIONS, min_size=1, max_size=2), st.lists(CONDITIONS, max_size=2), st.booleans()
)
def test_any_plan_that_is_taken_makes_what_spark_makes(
    spark: SparkSession, where: list[Column], columns: list[Column], first: bool
) -> None:
    def change(rows: Any) -> Any:
        made = rows.where(where[0]).select(
            "*", *(one.alias(f"c{at}") for at, one in enumerate(columns))
        )
        for one in where[1:]:
            made = made.where(one)
        return made.withColumnRenamed("s", "text").drop("f") if first else made

    plan = planned(spark, change)
    if plan is not None:
        assert_same(plan.rows(ROWS), by_spark(spark, change))


# --- where the rows are ---------------------------------------------------------------------------


def peers(data: Mapping[str, Any]) -> dict[str, Any]:
    rows = data["transfers"].where(F.length("value") > 1)
    return {
        "transfers": rows.select(
            C("block_number").cast("string").alias("height"),
            C("log_index").cast("int"),
            C("from").alias("sender"),
            C("value").cast("double"),
        )
    }


def span_of(spark: SparkSession, portal: PortalServer, **outputs: Any) -> Span:
    ranges = {name: [BlockRange(0)] for name in outputs}
    return read_span(spark, portal.url, outputs, ranges, union(outputs), ALL, partitions=3)


@pytest.mark.parametrize("several", [False, True])
def test_tasks_that_read_a_span_change_its_rows_and_no_block_is_read_twice(
    spark: SparkSession, portal: PortalServer, several: bool
) -> None:
    outputs = {"transfers": TRANSFER, **({"approvals": APPROVAL} if several else {})}
    ranges = {name: [BlockRange(0)] for name in outputs}
    tables = decoded(portal, outputs, ranges, union(outputs))
    plan = TransformPlan(peers, {"transfers": TRANSFER.schema}, lambda: spark)
    expected = plan.apply({"transfers": tables["transfers"]})["transfers"].toArrow()
    assert str(expected.to_pylist()) == str(
        to_arrow(
            peers({"transfers": Frame(tables["transfers"], lambda: spark).dataframe})["transfers"]
        ).to_pylist()
    )
    with span_of(spark, portal, **outputs) as span:
        portal.ledger.clear()
        made = plan.apply(span.frames)["transfers"]
        assert isinstance(made, SpanFrame)
        assert made.columns == ["height", "log_index", "sender", "value"]
        assert made.toArrow().equals(expected)
        assert made.executor_rows().select(["sender"]).schema.names == ["sender"]
        assert persisted(spark) == int(several), "nothing is kept that has one reader"
        if several:
            frame = span.frames["approvals"].toArrow()
            assert frame.equals(tables["approvals"].cast(frame.schema))
        assert span.report().rows["transfers"] == tables["transfers"].num_rows
        assert requested(portal) == list(range(LAST + 1))
        assert made.where("height = '7'").count() == sum(
            height == "7" for height in expected["height"].to_pylist()
        )
    assert persisted(spark) == 0


CROSSING: dict[str, tuple[list[str] | None, int, Change]] = {
    "columns of an expression": (["from", "value"], 0, lambda rows: rows.select(
        F.upper("from"), F.concat("value", "from").alias("x")
    )),
    "filter first": (["to", "value"], 1, lambda rows: rows.where("length(value) > 20").select(
        F.upper("to"), F.reverse("value")
    )),
    "filter of what is made": (["log_index", "to"], 0, lambda rows: rows.withColumn(
        "x", F.length(F.upper("to")) + C("log_index")
    ).where("x > 43").select("x")),
    "group": (["to", "log_index"], 1, lambda rows: rows.where("log_index > 1").groupBy("to").agg(
        F.max("log_index")
    )),
    "join with a table": (["block_number", "address"], 0, lambda rows: rows.join(
        F.broadcast(rows.sparkSession.createDataFrame([("0x0", 1)], "address string, d int")),
        "address", "left",
    ).select("address", "d", "block_number")),
    "only a condition": (["log_index"], 1, lambda rows: rows.where("log_index > 1").agg(
        F.count(F.lit(1))
    )),
    "all columns": (None, 0, lambda rows: rows.withColumn("x", F.upper("to"))),
    "with itself": (None, 0, lambda rows: rows.select("to").distinct().join(rows, "to")),
    "twice": (None, 0, lambda rows: rows.where("log_index > 1").select("to").union(
        rows.where("log_index < 2").select("from")
    )),
    "nothing can come": (None, 0, lambda rows: rows.where("1 = 0").select(F.upper("to"))),
    "function of Python": (["log_index", "value"], 1, lambda rows: rows.where(
        "log_index > 1"
    ).select(arrow_function(pa.compute.utf8_upper, "string")("value"))),
    "place after a filter": (["log_index", "to"], 1, lambda rows: rows.where(
        "log_index > 1"
    ).select("to", F.monotonically_increasing_id().alias("i"))),
}  # fmt: skip


@pytest.mark.parametrize("name", CROSSING)
def test_only_columns_and_rows_that_a_plan_uses_reach_spark(
    spark: SparkSession, portal: PortalServer, name: str
) -> None:
    columns, conditions, change = CROSSING[name]
    plan = TransformPlan(
        lambda data: {"t": change(data["transfers"])}, {"transfers": TRANSFER.schema}, lambda: spark
    )
    with span_of(spark, portal, transfers=TRANSFER) as span:
        expected = change(span.frames["transfers"].dataframe).toArrow()
        made = plan.apply(span.frames)["t"].toArrow()
        before = plan._before_spark("t", span.frames)
    assert made.schema.equals(expected.schema)
    assert sorted(map(str, made.to_pylist())) == sorted(map(str, expected.to_pylist()))
    assert expected.num_rows > 0 or name == "nothing can come"
    names = TRANSFER.schema.names
    if before is None or len(before.places) == len(names):
        assert columns is None
    else:
        assert columns is not None
        assert {names[place] for place in before.places} == set(columns)
        assert len(before.conditions) == conditions


def test_a_value_that_does_not_fit_is_told_by_its_code_from_executors(
    spark: SparkSession, portal: PortalServer
) -> None:
    def narrow(data: Mapping[str, Any]) -> dict[str, Any]:
        return {"transfers": data["transfers"].select(C("value").cast("smallint"))}

    plan = TransformPlan(narrow, {"transfers": TRANSFER.schema}, lambda: spark)
    span = span_of(spark, portal, transfers=TRANSFER)
    with pytest.raises(HeadwaterError, match=r"\[E5032\]"):
        plan.apply(span.frames)["transfers"].toArrow()


def test_hot_blocks_that_wait_are_cut_by_a_column_that_nobody_sees(spark: SparkSession) -> None:
    def change(data: Mapping[str, Any]) -> dict[str, Any]:
        return {"t": data["t"].where("n > 0").select(C("i").cast("string").alias("_block"))}

    plan = TransformPlan(change, {"t": SCHEMA}, lambda: spark)

    def refused() -> SparkSession:
        raise AssertionError("a job was wanted")

    plan._provider = refused
    blocks = [ROWS.slice(start, 2) for start in (0, 2, 4)]
    together = plan.apply_together([{"t": block} for block in blocks])
    assert together is not None
    for block, made in zip(blocks, together, strict=True):
        alone = plan.apply({"t": block})["t"].toArrow()
        assert made["t"].toArrow().equals(alone)
        assert alone.column_names == ["_block"]
