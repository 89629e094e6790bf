"""Swaps of all pools that a factory creates, those of pools made in the same block included."""

from headwater import duckdb_target, evm, portal_stream
from headwater.testing import simulated_portal

with simulated_portal(seed=7, blocks=200) as portal:
    pools = evm.factory(
        portal.chain.population.factory,
        "uniswap_v2.PairCreated",
        child="pair",
        columns=["token0", "token1"],
        start=0,
    )
    swaps = evm.events("uniswap_v2.Swap", contracts=pools, range=(0, 150))
    target = duckdb_target("swaps.duckdb")
    portal_stream(id="swaps", portal=portal.url, outputs={"swaps": swaps}).pipe_to(target)
    count = "SELECT count(*) AS swaps, count(DISTINCT address) AS pools FROM swaps"
    print(target.query(count).to_pylist()[0])
