"""Flush rules of history and tables from DataFrames, on real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater import Flush, SpanLimits, evm, portal_stream
from headwater.pipeline import Buffered, Committed, Event
from headwater.targets import duckdb_target
from headwater.targets.admin import open_admin
from headwater.targets.schema_file import tables_of
from headwater.testing import PortalServer, simulated_portal
from tests.spark.test_stream_on_spark import rows_of
from tests.stream.truth import transfers


def run(portal: PortalServer, path: Path, spark: SparkSession, **options: Any) -> list[Event]:
    events: list[Event] = []
    portal_stream(
        id="transfers",
        portal=portal.url,
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, 279))},
        spark=spark,
        far=50,
        first_span=60,
        spans=SpanLimits(blocks=60),
        **options,
    ).pipe_to(duckdb_target(path), on_event=events.append)
    return events


def persisted(spark: SparkSession) -> int:
    context: Any = spark.sparkContext._jsc
    return len(context.getPersistentRDDs())


@pytest.mark.guarantee("FLUSH-2")
@pytest.mark.parametrize("rule", [Flush(blocks=120), Flush(rows=400), None])
def test_spans_of_history_are_committed_together(
    spark: SparkSession, tmp_path: Path, rule: Flush | None
) -> None:
    with simulated_portal(seed=5, blocks=300, finality_depth=12) as portal:
        events = run(portal, tmp_path / "a.duckdb", spark, flush_backfill=rule)
        assert rows_of(tmp_path / "a.duckdb") == transfers(
            portal.chain, portal.chain.canonical(0, 279)
        )
    commits = [event.blocks for event in events if isinstance(event, Committed)]
    buffered = sum(isinstance(event, Buffered) for event in events)
    if rule is None:
        assert buffered == 0
        assert commits[:4] == [60] * 4
    else:
        assert buffered > 0
        assert commits[0] == 60, "the first batch of all is committed at once"
        assert max(commits) >= 120
    assert persisted(spark) == 0, "what spans kept on executors is released"


def test_a_table_gets_the_columns_of_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 1L AS block_number, 'x' AS owner, CAST(1 AS DECIMAL(38,0)) AS value")
    place = open_admin(str(tmp_path / "a.duckdb"))
    assert "owners" in place.setup(tables_of(owners=frame))
    found = duckdb_target(tmp_path / "a.duckdb").query("SELECT * FROM owners")
    assert found.schema.names == ["block_number", "owner", "value"]
    assert found.num_rows == 0
