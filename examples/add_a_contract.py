"""A second contract, added later: its past is read, the first one goes on, sums count both."""

from headwater import aggregate, duckdb_target, evm, portal_stream
from headwater.testing import simulated_portal

BALANCE = {"keys": {"token": "address", "holder": "to"}, "add": {"received": "value"}}

with simulated_portal(seed=7, blocks=200) as portal:
    old, new = portal.chain.population.tokens[:2]

    def run(last, **contracts):
        outputs = {
            name: evm.events("erc20.Transfer", contracts=[contract], range=(0, last))
            for name, contract in contracts.items()
        }
        target = duckdb_target(
            "added.duckdb",
            aggregates=[aggregate(f"{name}_received", source=name, **BALANCE) for name in outputs],
        )
        stream = portal_stream(
            id="tokens", portal=portal.url, outputs=outputs, on_config_change="evolve"
        )
        stream.pipe_to(target, progress=False)
        return target

    run(120, first=old).close()
    target = run(199, first=old, second=new)  # the same id, one output more
    for name in ("first", "second"):
        rows = target.query(f"SELECT min(block_number) AS since, count(*) AS n FROM {name}")
        print(name, rows.to_pylist()[0])
    both = "FROM first_received UNION ALL FROM second_received"
    print(target.query(f"SELECT count(DISTINCT token) AS tokens FROM ({both})").to_pylist()[0])
