"""Values that a target cannot hold, where executors write the rows: what tasks did is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.core import Batch, BlockCursor, BlockHeader, Head
from headwater.targets import Delivery
from headwater.targets.clickhouse import clickhouse_target
from headwater.targets.delta import delta_target
from headwater.targets.delta.target import DeltaAdmin
from headwater.targets.postgres import postgres_target
from tests.targets import clickhouse_places, postgres_places

ROWS, PARTS, BAD = 4000, 4, 4


def test_what_tasks_did_to_values_is_counted_by_the_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "lake"
    targets: dict[str, Any] = {
        "postgres": postgres_target(postgres_places.database(), unrepresentable="skip"),
        "clickhouse": clickhouse_target(clickhouse_places.database(), unrepresentable="skip"),
        "delta": delta_target(path, unrepresentable="skip"),
    }
    is_bad = F.col("id") % (ROWS // BAD) == 7
    far = F.timestamp_micros(F.when(is_bad, -(2**59)).otherwise(F.col("id")))
    frame = spark.range(0, ROWS, 1, PARTS).select(
        F.lit(1).cast("bigint").alias("block_number"),
        F.col("id").alias("log_index"),
        F.when(is_bad, F.concat(F.lit("a"), F.char(F.lit(0)))).otherwise("b").alias("note"),
        far.alias("at"),
    )
    head, header = Head(BlockCursor(1, "h1")), BlockHeader(1, "h1", "h0", 0, 1)
    for name, target in targets.items():
        target.bind("s")
        state = target.recover().advance([header], head)
        target.commit([Batch((header,), head, state, (), Delivery({"log": frame}))], state)
        wrong = 2 * BAD if name == "postgres" else BAD  # only there the character 0 has no place
        assert (target.altered.values, target.altered.rows) == (wrong, BAD), name
        if name == "delta":
            found = DeltaAdmin(str(path), None, "sync").read_blocks("s", "log", 1, 1).rows.num_rows
        else:
            found = target.query("SELECT count(*) AS n FROM log")["n"][0].as_py()
        assert found == ROWS - BAD, name
        target.close()
