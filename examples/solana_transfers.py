"""Instructions of a Solana program: SPL token transfers, top-level and inner."""

from headwater import duckdb_target, portal_stream, solana
from headwater.testing import Network, simulated_portal

with simulated_portal(seed=7, blocks=80, network=Network.SOLANA) as portal:
    outputs = {"transfers": solana.instructions("spl_token.transfer", range=(0, 80))}
    stream = portal_stream(id="spl", portal=portal.url, outputs=outputs)
    target = duckdb_target("spl.duckdb")
    stream.pipe_to(target)
    most = "SELECT authority, count(*) AS n FROM transfers GROUP BY ALL ORDER BY n DESC LIMIT 3"
    for row in target.query(most).to_pylist():
        print(row["authority"], row["n"])
