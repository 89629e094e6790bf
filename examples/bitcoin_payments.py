"""Outputs of Bitcoin transactions; amounts are satoshis."""

from headwater import bitcoin, duckdb_target, portal_stream
from headwater.testing import Network, simulated_portal

with simulated_portal(seed=7, blocks=80, network=Network.BITCOIN) as portal:
    outputs = {"paid": bitcoin.outputs(range=(0, 79))}
    stream = portal_stream(id="paid", portal=portal.url, outputs=outputs)
    target = duckdb_target("paid.duckdb")
    stream.pipe_to(target)
    total = "SELECT count(*) AS outputs, sum(value)::BIGINT AS satoshis FROM paid"
    print(target.query(total).to_pylist()[0])
