"""Streams of every network, at the head, through forks: the table is what the chain says."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from headwater import StopRequested, portal_stream, solana
from headwater.pipeline import Event, RolledBack, Settled
from headwater.targets import duckdb_target
from headwater.testing import Network, PortalServer, simulated_portal
from tests.stream.networks import SAMPLES, truth

FORKS = (1, 4, 9)


def held(path: Path, network: Network) -> list[tuple[Any, ...]]:
    columns = f"block_number, block_hash, timestamp, {SAMPLES[network].columns}"
    rows = [
        tuple(row.values())
        for row in duckdb_target(path).query(f"SELECT {columns} FROM items").to_pylist()
    ]
    utc = [(*row[:2], row[2] and row[2].astimezone(UTC), *row[3:]) for row in rows]
    return sorted(utc, key=repr)


def follow(portal: PortalServer, path: Path) -> list[Event]:
    """Run to the head, fork there several times, and stop when the last fork is followed."""
    events: list[Event] = []
    left = list(FORKS)

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
            if left:
                portal.fork(left.pop(0))
                portal.finalize(portal.chain.head.number - 12)
            else:
                raise StopRequested

    portal_stream(
        id="items",
        portal=portal.url,
        outputs={"items": SAMPLES[portal.chain.network].make(0)},
        far=10**9,
        poll_interval_s=0.01,
    ).pipe_to(duckdb_target(path), on_event=on_event)
    return events


@pytest.mark.parametrize("network", list(Network))
def test_a_stream_of_any_network_follows_forks(network: Network, tmp_path: Path) -> None:
    path = tmp_path / "chain.duckdb"
    with simulated_portal(seed=5, blocks=40, finality_depth=15, network=network) as portal:
        events = follow(portal, path)
        expected = truth(portal.chain)
    assert sum(isinstance(event, RolledBack) for event in events) == len(FORKS)
    assert len(expected) > 20
    assert held(path, network) == expected


@pytest.mark.parametrize("entity", ["instructions", "transactions"])
def test_rows_that_only_a_bloom_filter_takes_for_others_are_left_out(
    entity: str, tmp_path: Path
) -> None:
    """A portal asks a bloom filter which items mention an account: it sends some that do not."""

    def read(portal: PortalServer, name: str, **keys: Any) -> list[dict[str, Any]]:
        target = duckdb_target(tmp_path / f"{name}.duckdb")
        make = solana.instructions_raw if entity == "instructions" else solana.transactions
        outputs = {"items": make(range=(0, 30), **keys)}
        stream = portal_stream(id="items", portal=portal.url, outputs=outputs, far=10**9)
        stream.pipe_to(target, progress=False)
        rows: list[dict[str, Any]] = target.query("SELECT * FROM items ORDER BY ALL").to_pylist()
        target.close()
        return rows

    list_name = "accounts" if entity == "instructions" else "account_keys"
    with simulated_portal(seed=5, blocks=40, network=Network.SOLANA) as portal:
        rows = read(portal, "all")
        account = rows[len(rows) // 2][list_name][-1]
        found = read(portal, "found", mentions_account=[account])
    assert found == [row for row in rows if account in row[list_name]]
    assert 0 < len(found) < len(rows)
