"""Token transfers in DuckDB: the shortest pipeline."""

from headwater import duckdb_target, evm, portal_stream
from headwater.testing import simulated_portal

with simulated_portal(seed=7, blocks=300) as portal:  # or "https://portal.sqd.dev/datasets/…"
    stream = portal_stream(
        id="transfers",
        portal=portal.url,
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, 299))},
    )
    target = duckdb_target("transfers.duckdb")
    stream.pipe_to(target)
    top = "SELECT address, count(*) AS n FROM transfers GROUP BY ALL ORDER BY n DESC LIMIT 3"
    for row in target.query(top).to_pylist():
        print(row["address"], row["n"])
