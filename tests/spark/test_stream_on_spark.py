"""The same pipeline in history and at the head, on real Spark, through kills and forks."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater import PortalLimits, StopRequested, create_target, evm, portal_stream
from headwater.errors import MalformedLineError
from headwater.pipeline import Committed, Event, RolledBack, Settled
from headwater.stream.owned import Read
from headwater.stream.view import describe
from headwater.targets import duckdb_target
from headwater.testing import Asked, ContentSettings, DropAfter, GarbageLine, simulated_portal
from headwater.testing.chain.content.evm import SYNTHETIC
from tests.shared import HANG_S
from tests.spark.whole_stream import run_to_head
from tests.stream.truth import COLUMNS, transfers
from tests.traffic import Traffic

ROOT = Path(__file__).parents[2]
Frames = Mapping[str, DataFrame]


def shorter(data: Frames) -> Frames:
    """Keep transfers of less than 30 digits, and mark them, with Spark's own functions."""
    small = data["transfers"].where(F.length("value") < 30)
    return {"transfers": small.withColumn("digits", F.length("value"))}


def rows_of(path: Path, columns: str = COLUMNS) -> list[tuple[Any, ...]]:
    found = duckdb_target(path).query(f"SELECT {columns} FROM transfers ORDER BY 1, 3")
    return [tuple(row.values()) for row in found.to_pylist()]


def test_history_and_head_give_the_same_rows_and_both_equal_the_chain(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spans on executors, then block by block, against block by block alone; with forks."""
    content = ContentSettings(synthetic_log_share=0.2)
    with simulated_portal(seed=5, blocks=420, finality_depth=12, content=content) as portal:
        spans, blocks = (duckdb_target(tmp_path / f"{name}.duckdb") for name in ("spans", "blocks"))
        events = run_to_head(portal, spans, spark, forks=2, transform=shorter)
        assert max(event.blocks for event in events if isinstance(event, Committed)) > 100
        assert sum(isinstance(event, RolledBack) for event in events) == 2
        run_to_head(portal, blocks, spark, far=10**9, transform=shorter)
        expected = [
            row for row in transfers(portal.chain, portal.chain.canonical()) if len(row[6]) < 30
        ]
        assert SYNTHETIC in {row[2] for row in expected}
        assert rows_of(tmp_path / "spans.duckdb") == expected
        assert rows_of(tmp_path / "blocks.duckdb") == expected
        assert rows_of(tmp_path / "spans.duckdb", "*") == rows_of(tmp_path / "blocks.duckdb", "*")
        for name in ("spans", "blocks"):  # a transform that keeps a column keeps what it holds
            kinds = rows_of(tmp_path / f"{name}.duckdb", "block_number, typeof(value), log_index")
            assert {kind for _, kind, _ in kinds} == {"BIGNUM"}


def test_several_outputs_are_fetched_once_and_keep_their_own_ranges(
    spark: SparkSession, tmp_path: Path
) -> None:
    with simulated_portal(seed=6, blocks=300, finality_depth=10) as portal:
        token = portal.chain.population.tokens[0]
        portal_stream(
            id="two",
            portal=portal.url,
            outputs={
                "transfers": evm.events("erc20.Transfer", range=(0, 280)),
                "picked": evm.events("erc20.Transfer", contracts=[token], range=(100, 200)),
            },
            spark=spark,
            far=20,
        ).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
        every = transfers(portal.chain, portal.chain.canonical(0, 280))
        assert rows_of(tmp_path / "a.duckdb") == every
        picked = duckdb_target(tmp_path / "a.duckdb").query(
            f"SELECT {COLUMNS} FROM picked WHERE typeof(value) = 'BIGNUM' ORDER BY 1,3"
        )
        assert [tuple(row.values()) for row in picked.to_pylist()] == [
            row for row in every if row[3] == token and 100 <= row[0] <= 200
        ]


def test_rows_that_a_caller_reads_after_the_commit_are_counted(spark: SparkSession) -> None:
    """Who owns the target reads a span when it is handed out: after its commit."""
    delivered: list[int] = []

    def write(read: Read) -> None:
        delivered.extend(batch.data["transfers"].toArrow().num_rows for batch in read())

    with simulated_portal(seed=6, blocks=300, finality_depth=10) as portal:
        stream = portal_stream(
            id="counted",
            portal=portal.url,
            outputs={"transfers": evm.events("erc20.Transfer", range=(0, 280))},
            spark=spark,
            far=20,
        )
        handle = stream.start(create_target(write=write))
        assert handle.await_termination()
        assert sum(delivered) == len(transfers(portal.chain, portal.chain.canonical(0, 280)))
        assert f"{sum(delivered):,} rows in this run" in describe(handle.record)


def test_an_error_of_a_task_is_the_coded_error_it_was_and_nothing_is_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with simulated_portal(seed=9, blocks=200, finality_depth=10) as portal:
        portal.sim.faults.add(
            GarbageLine(at=0),
            times=None,
            where=lambda asked: asked.from_block == 0 and (asked.to_block or 999) < 200,
        )
        with pytest.raises(MalformedLineError, match=r"^\[E3003\]"):
            portal_stream(
                id="bad",
                portal=portal.url,
                outputs={"transfers": evm.events("erc20.Transfer", range=(0, 150))},
                spark=spark,
                far=20,
                first_span=150,
            ).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
        assert duckdb_target(tmp_path / "a.duckdb").query("SELECT * FROM sync").num_rows == 0


CHILD = """
import sys
from headwater.spark import local_session
from tests.spark.test_stream_on_spark import follow

url, path, far, head = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
follow(url, path, far, head, local_session() if far < head else None)
"""


def follow(url: str, path: Path | str, far: int, head: int, spark: SparkSession | None) -> None:
    """Fill `transfers` to a block, and stop there."""

    def on_event(event: Event) -> None:
        cursor = event.state.cursor
        if isinstance(event, Settled) and cursor is not None and cursor.number == head:
            raise StopRequested

    portal_stream(
        id="transfers",
        portal=url,
        outputs={"transfers": evm.events("erc20.Transfer", range=0)},
        spark=spark,
        far=far,
        first_span=60,
        poll_interval_s=0.01,
    ).pipe_to(duckdb_target(path), on_event=on_event)


@pytest.mark.guarantee("STATE-2")
@pytest.mark.parametrize(("far", "kill_at"), [(30, 12), *((10**9, at) for at in [4, 11, 19, 27])])
def test_a_driver_that_is_killed_goes_on_as_if_nothing_had_happened(
    far: int, kill_at: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """kill -9 when its n-th request arrives: at the head, and in the middle of history on Spark."""
    path = tmp_path / "a.duckdb"
    with simulated_portal(
        seed=8, blocks=150, finality_depth=10, blocks_per_answer=(3, 6)
    ) as portal:
        head = portal.chain.head.number
        driver = subprocess.Popen(
            [sys.executable, "-c", CHILD, portal.url, str(path), str(far), str(head)], cwd=ROOT
        )

        def strike(asked: Asked) -> bool:
            if asked.sequence == kill_at:
                driver.kill()
            return False

        portal.sim.faults.add(DropAfter(), times=None, where=strike)
        assert driver.wait(HANG_S) == -signal.SIGKILL
        portal.sim.faults.clear()
        if far > 150:
            portal.fork(4)  # what the killed driver had committed near the head may be orphaned
        head = portal.chain.head.number
        spark = request.getfixturevalue("spark") if far < head else None
        follow(portal.url, path, far, head, spark)
        assert rows_of(path) == transfers(portal.chain, portal.chain.canonical())


def test_executors_and_driver_together_stay_within_one_request(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks at once, the plan of the next span beside them, then the head."""
    traffic = Traffic(monkeypatch, hold_s=0.01)
    with simulated_portal(seed=5, blocks=320, finality_depth=12, blocks_per_answer=20) as portal:
        portal_stream(
            id="transfers",
            portal=portal.url,
            outputs={"transfers": evm.events("erc20.Transfer", range=(0, 315))},
            spark=spark,
            far=50,
            first_span=100,
            limits=PortalLimits(requests=1),
        ).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
        expected = transfers(portal.chain, portal.chain.canonical(0, 315))
    assert rows_of(tmp_path / "a.duckdb") == expected
    assert traffic.most == 1
