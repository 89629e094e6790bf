"""Events of a contract of your own: from its ABI, or as Solidity writes them."""

from headwater import duckdb_target, evm, portal_stream
from headwater.testing import simulated_portal

ABI = """[{"type": "event", "name": "Approval", "anonymous": false, "inputs": [
  {"name": "owner", "type": "address", "indexed": true},
  {"name": "spender", "type": "address", "indexed": true},
  {"name": "value", "type": "uint256", "indexed": false}]}]"""

with simulated_portal(seed=7, blocks=120) as portal:  # or "https://portal.sqd.dev/datasets/…"
    contract = portal.chain.population.tokens[0]
    outputs = {
        "approvals": evm.events(
            evm.abi(ABI).event("Approval"), contracts=[contract], range=(0, 119)
        ),
        "transfers": evm.events(
            "Transfer(address indexed from, address indexed to, uint256 value)",
            contracts=[contract],
            range=(0, 119),
        ),
    }
    target = duckdb_target("contract.duckdb")
    portal_stream(id="contract", portal=portal.url, outputs=outputs).pipe_to(target)
    for table in outputs:
        found = target.query(f"SELECT count(*) AS n, count(DISTINCT address) AS c FROM {table}")
        print(table, found.to_pylist()[0])
