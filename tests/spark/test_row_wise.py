"""Hot blocks that wait are transformed in one job, if that gives what each alone would give."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from headwater import evm, portal_stream
from headwater.errors import InvalidOptionError
from headwater.pipeline import Committed, Event, Settled
from headwater.spark.frames import Frame
from headwater.spark.row_wise import JoinedFrame, cut_by_block
from headwater.stream.handle import StopRequested
from headwater.targets import duckdb_target
from headwater.testing import simulated_portal
from tests.stream.truth import COLUMNS, transfers

Data = Mapping[str, Any]
NUMBERS = [7, 8, 9, 10]
ROWS = pa.table({"block_number": [7, 7, 9, 9, 9, 10], "k": list("ababca"), "v": [1, 2, 3, 4, 5, 6]})

JOINED: dict[str, Callable[[Data], Data]] = {
    "as it is": lambda data: data,
    "where": lambda data: {"t": data["t"].where("v > 2")},
    "columns": lambda data: {"t": data["t"].select("v", "block_number", F.upper("k").alias("u"))},
    "two results": lambda data: {"a": data["t"].where("v < 3"), "b": data["t"].drop("k")},
    "alias": lambda data: {"t": data["t"].alias("x").where("x.v % 2 = 0")},
    "nothing": lambda data: {},
    "no rows": lambda data: {"t": data["t"].where("v > 99")},
}
ALONE: dict[str, Callable[[Data], Data]] = {
    "group": lambda data: {"t": data["t"].groupBy("k").agg(F.max("block_number"))},
    "group by block": lambda data: {"t": data["t"].groupBy("block_number").count()},
    "distinct": lambda data: {"t": data["t"].dropDuplicates(["k"])},
    "window": lambda data: {
        "t": data["t"].withColumn("n", F.count("*").over(Window.partitionBy("k")))
    },
    "limit": lambda data: {"t": data["t"].limit(2)},
    "join": lambda data: {"t": data["t"].join(data["t"].groupBy("k").count(), "k")},
    "union": lambda data: {"t": data["t"].union(data["t"])},
    "no block": lambda data: {"t": data["t"].select("k")},
    "another block": lambda data: {"t": data["t"].withColumn("block_number", F.lit(9))},
    "a value of all rows": lambda data: {"t": data["t"].withColumn("n", F.lit(data["t"].count()))},
    "a look": lambda data: {"t": data["t"].where(f"v = {data['t'].first()['v']}")},
    "empty or not": lambda data: data if data["t"].isEmpty() else {"t": data["t"].where("v > 1")},
    "an Arrow table": lambda data: {"t": data["t"].toArrow()},
}


def cut(
    transform: Callable[[Data], Data], spark: SparkSession, *, trusted: bool = False
) -> list[dict[str, Frame]] | None:
    given = {"t": JoinedFrame(ROWS, lambda: spark)}
    return cut_by_block(transform(given), given, NUMBERS, lambda: spark, trusted=trusted)


@pytest.mark.parametrize("name", JOINED)
def test_a_transform_of_single_rows_is_cut_into_what_each_block_would_give(
    spark: SparkSession, name: str
) -> None:
    pieces = cut(JOINED[name], spark)
    assert pieces is not None
    for number, piece in zip(NUMBERS, pieces, strict=True):
        block = ROWS.filter(pa.compute.equal(ROWS["block_number"], number))
        alone = JOINED[name]({"t": Frame(block, lambda: spark)})
        expected = {output: one.toArrow().to_pylist() for output, one in alone.items()}
        assert {output: one.toArrow().to_pylist() for output, one in piece.items()} == expected
        assert all(isinstance(one, Frame) for one in piece.values())


@pytest.mark.parametrize("name", ALONE)
def test_a_transform_that_looks_at_several_rows_is_not(spark: SparkSession, name: str) -> None:
    assert cut(ALONE[name], spark) is None


def test_a_subquery_over_the_rows_is_noticed(spark: SparkSession) -> None:
    def above_average(data: Data) -> Data:
        data["t"].createOrReplaceTempView("joined")
        return {"t": spark.sql("SELECT * FROM joined WHERE v > (SELECT avg(v) FROM joined)")}

    assert cut(above_average, spark) is None


def test_a_transform_that_the_user_calls_row_wise_is_cut_by_its_block_number(
    spark: SparkSession,
) -> None:
    pieces = cut(ALONE["an Arrow table"], spark, trusted=True)
    assert pieces is not None
    assert [piece["t"].count() for piece in pieces] == [2, 0, 3, 1]
    assert cut(ALONE["no block"], spark, trusted=True) is None
    moved = pa.table({"block_number": [99]})
    assert cut(lambda data: {"t": moved}, spark, trusted=True) is None


def test_row_wise_is_a_truth_value() -> None:
    stream = portal_stream(
        id="s", portal="http://127.0.0.1:1/x", outputs={"t": evm.events("erc20.Transfer", range=0)}
    )
    with pytest.raises(InvalidOptionError):
        stream.pipe(lambda data: data, row_wise="yes")  # type: ignore[arg-type]


@pytest.mark.guarantee("FORK-2")
@pytest.mark.parametrize("row_wise", [None, False])
def test_forks_into_blocks_that_were_transformed_together_leave_what_the_chain_holds(
    spark: SparkSession, tmp_path: Path, row_wise: bool | None
) -> None:
    calls: list[int] = []
    dice = random.Random(4)

    def small(data: Data) -> Data:
        calls.append(1)
        return {"transfers": data["transfers"].where(F.length("value") < 30)}

    committed: list[int] = []
    with simulated_portal(seed=9, blocks=60, finality_depth=30) as portal:

        def on_event(event: Event) -> None:
            if isinstance(event, Committed):
                committed.append(event.blocks)
            if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
                if len(portal.chain.forks) == 4:
                    raise StopRequested
                portal.fork(dice.randint(2, 14))

        stream = portal_stream(
            id="t",
            portal=portal.url,
            outputs={"transfers": evm.events("erc20.Transfer", range=0)},
            spark=spark,
            poll_interval_s=0.01,
        ).pipe(small, row_wise=row_wise)
        target = duckdb_target(tmp_path / "t.duckdb")
        stream.pipe_to(target, on_event=on_event)
        found = duckdb_target(tmp_path / "t.duckdb").query(
            f"SELECT {COLUMNS} FROM transfers ORDER BY 1, 3"
        )
        truth = transfers(portal.chain, portal.chain.canonical())
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        row for row in truth if len(row[-1]) < 30
    ]
    hot = [blocks for blocks in committed if blocks > 1]
    assert hot, "hot blocks that wait are committed together"
    assert (len(calls) < sum(committed) / 3) == (row_wise is None)
