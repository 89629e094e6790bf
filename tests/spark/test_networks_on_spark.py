"""Every network through Spark: history on executors, then the head; and the data source."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater import StopRequested, portal_stream
from headwater.pipeline import Event, RolledBack, Settled
from headwater.targets import duckdb_target
from headwater.testing import Network, simulated_portal
from tests.stream.networks import SAMPLES, truth
from tests.stream.test_networks import held

OTHERS = [Network.BITCOIN, Network.TRON, Network.HYPERLIQUID, Network.SUBSTRATE]
SOURCES = {
    Network.BITCOIN: ("bitcoin.outputs", {"script_pub_key_type": ["pubkeyhash"]}),
    Network.TRON: ("tron.contract_calls", {"sighash": ["a9059cbb"]}),
    Network.HYPERLIQUID: ("hyperliquid.fills", {"fee_token": ["USDC"]}),
    Network.SUBSTRATE: ("substrate.evm_logs", {}),
}


@pytest.mark.parametrize("network", OTHERS)
def test_history_on_executors_and_the_head_give_one_table(
    spark: SparkSession, network: Network, tmp_path: Path
) -> None:
    path, events = tmp_path / "chain.duckdb", list[Event]()
    with simulated_portal(seed=5, blocks=120, finality_depth=15, network=network) as portal:

        def on_event(event: Event) -> None:
            events.append(event)
            if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
                if portal.chain.forks:
                    raise StopRequested
                portal.fork(5)

        portal_stream(
            id="items",
            portal=portal.url,
            outputs={"items": SAMPLES[network].make(0)},
            spark=spark,
            far=20,
            first_span=60,
            poll_interval_s=0.01,
        ).pipe_to(duckdb_target(path), on_event=on_event)
        routes = {one.route for one in portal.ledger.stream_requests()}
        assert routes == {"stream", "finalized-stream"}, "not both ways of reading were taken"
        assert any(isinstance(event, RolledBack) for event in events)
        assert held(path, network) == truth(portal.chain)


@pytest.mark.parametrize("network", OTHERS)
def test_the_data_source_reads_the_tables_of_every_network(
    spark: SparkSession, network: Network
) -> None:
    table, filters = SOURCES[network]
    with simulated_portal(seed=5, blocks=60, finality_depth=10, network=network) as portal:
        data = (
            spark.read.format("headwater")
            .options(portal=portal.url, table=table, filters=json.dumps(filters), partitions="3")
            .load()
        )
        wanted = [one.strip() for one in SAMPLES[network].columns.split(",")]
        found = data.select("block_number", "block_hash", "timestamp", *wanted).toArrow()
        rows = [tuple(row.values()) for row in found.to_pylist()]
        utc = [(*row[:2], row[2] and row[2].astimezone(UTC), *row[3:]) for row in rows]
        assert sorted(utc, key=repr) == truth(portal.chain, 49)
