"""Streams that read a list of sources: portals and nodes of one chain, which come and go."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import generate_latest
from pyspark.sql import SparkSession

from headwater import evm
from headwater.errors import NetworkError
from headwater.metrics.instruments import REGISTRY
from headwater.pipeline import Event
from headwater.portal import RetryPolicy, Sources, Timeouts
from headwater.stream.verification import verify
from headwater.targets import duckdb_target
from headwater.testing import PortalServer, simulated_portal
from headwater.testing.faults import DropBeforeHeaders, StallBeforeHeaders
from tests.node.test_node_streams import MovesTheChain, rows_of, stream_of
from tests.shared import HANG_S
from tests.stream.truth import COLUMNS, transfers

SECRETS = ("hunter22", "a-secret-key", "topsecret")


@contextmanager
def servers(count: int, seed: int = 5, **options: Any) -> Iterator[list[PortalServer]]:
    """Serve one chain by several portals, each with a node beside it."""
    with ExitStack() as stack:
        first = stack.enter_context(simulated_portal(seed=seed, **options))
        others = [
            stack.enter_context(simulated_portal(seed=seed + place, chain=first.chain))
            for place in range(1, count)
        ]
        yield [first, *others]


def go_away(server: PortalServer, *, silently: bool = False) -> None:
    """Have a portal and its node answer nothing any more."""
    fault = StallBeforeHeaders() if silently else DropBeforeHeaders()
    server.sim.faults.add(fault, times=None, probability=1.0)
    server.node.quirks.fault_share, server.node.quirks.faults = 1.0, ("bad gateway",)


def come_back(server: PortalServer) -> None:
    """Have them answer again."""
    server.sim.faults.clear()
    server.node.quirks.fault_share = 0.0


class Turns(MovesTheChain):
    """Moves the chain, and takes another server away each time."""

    def __init__(self, portals: list[PortalServer], seed: int, moves: int) -> None:
        super().__init__(portals[0], seed, moves)
        self.portals = portals
        self.turns = Random(f"turns {seed}")

    def __call__(self, event: Event) -> None:
        for server in self.portals:
            come_back(server)
        cursor = event.state.cursor
        if cursor is not None and cursor.number > self.portal.chain.head.number:
            self.portal.chain.extend(2)  # a portal tells of a fork once a block follows the cursor
        super().__call__(event)
        if self.moves:
            go_away(self.turns.choice(self.portals))


@pytest.mark.guarantee("SOURCE-1")
@pytest.mark.parametrize("seed", range(2))
def test_portals_and_a_node_that_come_and_go_leave_the_rows_of_the_chain(
    tmp_path: Path, seed: int
) -> None:
    with servers(3, seed, blocks=40, finality_depth=15) as portals:
        addresses = [portals[0].url, portals[1].node_url, portals[2].url]
        turns = Turns(portals, seed, moves=25)
        stream_of(portals[0], portal=Sources(addresses, prove_s=0.01, probe_s=0.01)).pipe_to(
            duckdb_target(tmp_path / "a.duckdb"), on_event=turns
        )
        expected = transfers(portals[0].chain, portals[0].chain.canonical())
        assert rows_of(tmp_path / "a.duckdb") == sorted(expected)
        assert turns.forks > 3
        asked = [sum(one.from_block is not None for one in server.ledger) for server in portals]
        assert asked[0] > 1
        assert asked[2] > 1
        assert portals[1].node.calls["eth_getLogs"] > 1


@pytest.mark.guarantee("SOURCE-1")
def test_executors_read_from_a_source_that_works(tmp_path: Path, spark: SparkSession) -> None:
    with servers(2, 6, blocks=400, finality_depth=10) as portals:
        go_away(portals[0])
        stream = stream_of(
            portals[1],
            (0, 380),
            portal=[portals[0].url, portals[1].node_url],
            far=50,
            first_span=200,
            spark=spark,
        )
        stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"))
        expected = transfers(portals[0].chain, portals[0].chain.canonical(0, 380))
        assert rows_of(tmp_path / "a.duckdb") == sorted(expected)
        assert verify(stream, str(tmp_path / "a.duckdb")).is_equal


def test_the_data_source_takes_several_addresses(spark: SparkSession) -> None:
    with servers(2, 6, blocks=120, finality_depth=10) as portals:
        go_away(portals[0])
        options = {"event": "erc20.Transfer", "from_block": "0", "to_block": "100"}
        several = f"{portals[0].url} {portals[1].url}"
        frame = spark.read.format("headwater").options(portal=several, **options).load()
        rows = frame.selectExpr(*COLUMNS.replace('"', "`").split(", ")).collect()
        expected = transfers(portals[0].chain, portals[0].chain.canonical(0, 100))
        assert sorted(tuple(row) for row in rows) == sorted(expected)


@pytest.mark.guarantee("SOURCE-3")
@pytest.mark.parametrize("silently", [False, True])
def test_a_stop_ends_the_wait_for_sources_that_are_all_away(tmp_path: Path, silently: bool) -> None:
    limits = Timeouts(headers_s=HANG_S, chunk_s=HANG_S) if silently else Timeouts()
    with servers(2, blocks=30, finality_depth=10) as portals:
        stream = stream_of(
            portals[0],
            portal=Sources([one.url for one in portals], probe_s=0.01),
            retry=RetryPolicy(schedule_s=(0.01, HANG_S) if not silently else (0.01,)),
            timeouts=limits,
        )
        handle = stream.start(duckdb_target(tmp_path / "a.duckdb"))
        while handle.record.state.number < portals[0].chain.head.number:
            assert handle.is_active
        for server in portals:
            go_away(server, silently=silently)
        asked = len(portals[0].ledger)
        portals[0].chain.extend(1)
        while (len(portals[0].ledger) == asked) if silently else (handle.record.trouble is None):
            assert handle.is_active
        if not silently:
            assert handle.record.trouble == "none of the sources answers, asking again"
            assert {one["verdict"] for one in handle.record.snapshot()["sources"]} == {"failing"}
        handle.stop()
        assert handle.exception() is None
        for server in portals:
            come_back(server)
        again = stream.start(duckdb_target(tmp_path / "a.duckdb"))
        while again.record.state.number < portals[0].chain.head.number:
            assert again.is_active
        again.stop()
        expected = transfers(portals[0].chain, portals[0].chain.canonical())
        assert rows_of(tmp_path / "a.duckdb") == sorted(expected)


@pytest.mark.guarantee("SOURCE-2")
def test_nodes_of_different_networks_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with servers(2, blocks=30) as portals:
        portals[1].node.quirks.chain_id = 137
        stream = stream_of(portals[0], portal=[one.node_url for one in portals])
        with pytest.raises(NetworkError, match=r"different networks.*chain id 137, not 1"):
            stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"))
        assert portals[0].node.calls["eth_getLogs"] == portals[1].node.calls["eth_getLogs"] == 0


def test_what_a_node_cannot_answer_is_read_from_a_portal(tmp_path: Path) -> None:
    with servers(2, blocks=60, finality_depth=10) as portals:
        traces = {"creations": evm.traces(type=["create"], range=(0, 40))}
        for name, portal in {
            "list": [portals[0].node_url, portals[1].url],
            "one": portals[1].url,
        }.items():
            stream = stream_of(portals[0], portal=portal, outputs=traces)
            stream.pipe_to(duckdb_target(tmp_path / f"{name}.duckdb"))
        rows = [rows_of(tmp_path / f"{one}.duckdb", "creations", "*") for one in ("list", "one")]
        assert rows[0] == rows[1]
        assert rows[0]


def test_no_secret_of_a_list_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with servers(2, blocks=30, finality_depth=10) as portals:
        away = f"{portals[0].url.replace('//', '//ann:hunter22@')}?key=topsecret"
        go_away(portals[0])
        stream = stream_of(portals[1], (0, 19), portal=[away, portals[1].node_url])
        handle = stream.start(duckdb_target(tmp_path / "a.duckdb"))
        assert handle.await_termination(HANG_S)
        shown = handle.record.snapshot()
        texts = [
            repr(stream), stream.address, json.dumps(shown, default=str), caplog.text,
            generate_latest(REGISTRY).decode(),
        ]  # fmt: skip
    assert [one["in_use"] for one in shown["sources"]] == [False, True]
    assert 'headwater_source_in_use{id="transfers",source="2 rpc+http' in texts[-1]
    assert 'headwater_source_changes_total{id="transfers"}' in texts[-1]
    assert "source_changed" in caplog.text
    for text in texts:
        assert not [secret for secret in SECRETS if secret in text]
