"""Factories in history on executors and at the head on the driver: the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater import evm, portal_stream
from headwater.pipeline import Committed, Event, Settled
from headwater.portal.transport import Request
from headwater.stream import StopRequested, factory_index
from headwater.targets import duckdb_target
from headwater.testing import PortalServer, simulated_portal
from headwater.testing.chain.content.evm_scenes import SWAP
from tests.stream import pool_truth as truth

BLOCKS = 320


class Bodies:
    """The bodies of all requests for blocks, as the portal got them."""

    def __init__(self, portal: PortalServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[dict[str, Any]] = []
        respond = portal.sim.respond

        def noted(request: Request, *args: Any, **options: Any) -> Any:
            if request.method == "POST":
                self.seen.append(json.loads(request.body or b"{}"))
            return respond(request, *args, **options)

        monkeypatch.setattr(portal.sim, "respond", noted)

    def addresses(self) -> list[int]:
        """How many addresses each filter for swaps named; 0 where it asked by topic."""
        filters = [one for body in self.seen for one in body.get("logs", [])]
        return [len(one.get("address", [])) for one in filters if SWAP in one["topic0"]]


@pytest.fixture(scope="module")
def pools() -> Iterator[PortalServer]:
    with simulated_portal(
        seed=9, blocks=BLOCKS, finality_depth=12, content=truth.SETTINGS, blocks_per_answer=80
    ) as portal:
        yield portal


@pytest.fixture
def bodies(pools: PortalServer, monkeypatch: pytest.MonkeyPatch) -> Bodies:
    return Bodies(pools, monkeypatch)


def run(
    portal: PortalServer, path: Path, spark: SparkSession, *, far: int, first: int = 0
) -> list[Event]:
    """Run to the head and stop there."""
    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
            raise StopRequested

    def swaps(factory: evm.Factory) -> evm.EventsOutput:
        return evm.events(truth.SWAP_EVENT, contracts=factory, range=first)

    portal_stream(
        id="pools",
        portal=portal.url,
        outputs={
            "swaps": swaps(truth.pools_of(portal.chain)),
            "launched": swaps(truth.launched_of(portal.chain)),
            "united": evm.union(
                *truth.united_of(portal.chain, first).parts,
                evm.events("erc20.Approval", range=first),
            ),
        },
        spark=spark,
        far=far,
        first_span=100,
        poll_interval_s=0.01,
    ).pipe_to(duckdb_target(path), on_event=on_event)
    return events


def rows_of(path: Path, name: str, columns: str = "*") -> list[tuple[Any, ...]]:
    found = duckdb_target(path).query(f"SELECT {columns} FROM {name} ORDER BY 1, 3")
    return [tuple(row.values()) for row in found.to_pylist()]


@pytest.mark.guarantee("FACTORY-1")
def test_history_and_head_give_the_same_rows_and_both_equal_the_model(
    pools: PortalServer,
    bodies: Bodies,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Children are asked for by address while they are few, and by topic beyond that."""
    run(pools, tmp_path / "blocks.duckdb", spark, far=10**9)
    assert set(bodies.addresses()) == {0}
    for limit in (factory_index.MAX_ADDRESSES, 20):
        monkeypatch.setattr(factory_index, "MAX_ADDRESSES", limit)
        bodies.seen.clear()
        spans = tmp_path / f"spans_{limit}.duckdb"
        events = run(pools, spans, spark, far=50)
        asked = bodies.addresses()
        assert (max(asked) > 20) == (limit > 20), "by address where there is room for all"
        assert max(one.blocks for one in events if isinstance(one, Committed)) >= 100
        compare(pools, spans, tmp_path / "blocks.duckdb")


def compare(pools: PortalServer, spans: Path, blocks: Path) -> None:
    """Compare what spans and single blocks have given with each other, and with the model."""
    for name, nested in (("swaps", False), ("launched", True)):
        wanted = truth.swaps_of(pools.chain, pools.chain.canonical(), nested=nested)
        assert rows_of(spans, name, truth.COLUMNS) == wanted
        assert rows_of(blocks, name) == rows_of(spans, name)
    united = rows_of(spans, "united")
    assert rows_of(blocks, "united") == united
    model = truth.Model(pools.chain, nested=True)
    model.swaps(pools.chain.canonical())
    swaps = rows_of(spans, "swaps", truth.COLUMNS)
    children = "united WHERE event NOT LIKE 'Approval%'"
    found = [row[:4] for row in rows_of(spans, children, truth.COLUMNS)]
    assert found == sorted([*(row[:4] for row in swaps), *model.creations])
    assert len(united) > len(found) > len(swaps), "approvals are anyone's"
    stored = "factory, address, block_number, log_index"
    assert rows_of(spans, "headwater_factory_children", stored)[1:]


def test_a_stream_that_begins_late_reads_the_creations_before_it_in_parallel(
    pools: PortalServer, bodies: Bodies, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "late.duckdb"
    run(pools, path, spark, far=50, first=200)
    wanted = truth.Model(pools.chain).swaps(pools.chain.canonical(), first=200)
    assert rows_of(path, "swaps", truth.COLUMNS) == wanted
    before = [
        body for body in bodies.seen if body["toBlock" if "toBlock" in body else "fromBlock"] < 200
    ]
    assert sum("logs" in body for body in before) > 4, "creations were read in several parts"
    assert all(SWAP not in one["topic0"] for body in before for one in body.get("logs", []))
