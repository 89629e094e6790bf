"""A window of blocks that moves on while executors read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater import SpanLimits, StopRequested, evm, portal_stream
from headwater.core import BlockRange
from headwater.errors import MissingBlocksError
from headwater.pipeline import Committed, Event
from headwater.stream.extensions import MISSING, missing_ranges
from headwater.targets import clickhouse_target, duckdb_target, postgres_target
from headwater.targets.admin import open_admin
from headwater.testing import PortalServer, simulated_portal
from tests.stream.truth import COLUMNS, transfers
from tests.targets import clickhouse_places, postgres_places

OLDEST = 150
Make = Callable[[str], Any]


def run(spark: SparkSession, portal: PortalServer, target: Any, **options: Any) -> None:
    """Read to the head; the window moves once the first span is committed, and the next planned."""

    def on_event(event: Event) -> None:
        if isinstance(event, Committed):
            portal.sim.drop_below(OLDEST)
            if event.state.number >= portal.chain.head.number:
                raise StopRequested

    stream = portal_stream(
        id="s", portal=portal.url, spark=spark, far=20, first_span=50, spans=SpanLimits(blocks=50),
        poll_interval_s=0.01, outputs={"transfers": evm.events("erc20.Transfer", range=0)},
        **options,
    )  # fmt: skip
    stream.pipe_to(target, on_event=on_event, progress=False)


@pytest.mark.parametrize(
    ("database", "make"),
    [
        (None, duckdb_target),
        (postgres_places.database, postgres_target),
        (clickhouse_places.database, clickhouse_target),
    ],
    ids=["duckdb", "postgres", "clickhouse"],
)
@pytest.mark.parametrize("how", ["skip", "error"])
def test_a_window_that_overtakes_a_span_is_counted_or_an_error(
    how: Any, database: Callable[[], str] | None, make: Make, spark: SparkSession, tmp_path: Path
) -> None:
    place = database() if database else str(tmp_path / "a.duckdb")
    with simulated_portal(
        seed=7, blocks=260, blocks_per_answer=10, surface="hotblocks", finality_depth=20
    ) as portal:
        if how == "error":
            with pytest.raises(MissingBlocksError, match=r"E3010.*oldest=150") as raised:
                run(spark, portal, make(place))
            stands_at = open_admin(place).streams()[0].state.cursor
            assert raised.value.facts["oldest"] == OLDEST
            assert raised.value.facts["cursor"] == stands_at is not None
        else:
            run(spark, portal, make(place), missing_blocks="skip")
        admin = open_admin(place)
        last = admin.streams()[0].state.number
        gaps: tuple[BlockRange, ...] = ()
        if how == "skip":
            gaps = missing_ranges(admin.read_side_table("s", MISSING))
            assert gaps == (BlockRange(50, OLDEST - 1),)
            assert last == portal.chain.head.number
        blocks = portal.chain.canonical(0, last)
        wanted = [one for one in blocks if not any(one.number in gap for gap in gaps)]
        name = "transfers_live" if make is clickhouse_target else "transfers"
        rows = make(place).query(f"SELECT {COLUMNS} FROM {name} ORDER BY 1, 3").to_pylist()
        assert len(rows) == len(transfers(portal.chain, wanted)) > 0
        numbers = [row["block_number"] for row in rows]
        assert numbers == sorted(one[0] for one in transfers(portal.chain, wanted))
