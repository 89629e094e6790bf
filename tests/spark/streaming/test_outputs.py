"""Changelogs of all that the source reads: calls, raw tables of every network, raw queries."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from headwater.core import BlockRange
from headwater.spark.streaming.source import load_stream
from headwater.testing import ChainSim, Network, PortalSim
from tests.spark.streaming.micro_batches import Killed, Query, limits, plain

CASES = {
    "calls": (Network.EVM, {"call": "transfer(address to, uint256 value)"}),
    "traces": (Network.EVM, {"call": "transfer(address to, uint256 value)", "source": "traces"}),
    "evm": (Network.EVM, {"table": "evm.transactions"}),
    "solana": (Network.SOLANA, {"table": "solana.rewards"}),
    "bitcoin": (Network.BITCOIN, {"table": "bitcoin.outputs"}),
    "tron": (Network.TRON, {"table": "tron.contract_calls"}),
    "hyperliquid": (Network.HYPERLIQUID, {"table": "hyperliquid.fills"}),
    "substrate": (Network.SUBSTRATE, {"table": "substrate.events"}),
    "raw": (Network.EVM, {"query": json.dumps({"type": "evm", "includeAllBlocks": True})}),
}


@pytest.mark.guarantee("STREAM-1")
@pytest.mark.parametrize("case", CASES)
def test_a_changelog_nets_to_what_the_batch_source_reads(case: str, tmp_path: Path) -> None:
    network, options = CASES[case]
    chain = ChainSim(5, network=network)
    chain.grow(24)
    chain.finalize(chain.canonical()[12].number)
    loaded = load_stream({"portal": "http://127.0.0.1:1/datasets/x", "journal": "/j", **options})
    with Query(
        PortalSim(chain, seed=5),
        tmp_path,
        dice=Random(case),
        limits=limits(),
        row_maker=loaded.row_maker,
        asked=loaded.query,
    ) as query:
        query.kill_rate = 0.05
        for step in range(40):
            try:
                query.trigger()
            except Killed:
                query.kill()
            if step % 8 == 7:
                chain.extend(1)
                chain.fork(3)
        query.kill_rate = 0
        while query.trigger() or query.ends[-1]["hash"] != chain.head.hash:
            pass
        assert query.ends[-1]["forks"] >= 3
        number = query.ends[-1]["number"]
        chain.finalize(number)
        expected = [*query.final_rows(loaded.row_maker, BlockRange(0, number))]
        assert expected
        found = [plain(row) for row in query.net().values()]
        assert sorted(map(str, found)) == sorted(map(str, expected))
