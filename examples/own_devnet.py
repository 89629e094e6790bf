"""A node of your own as the source: the tables follow it through a fork."""

from headwater import Committed, RolledBack, StopRequested, duckdb_target, evm, portal_stream
from headwater.testing import simulated_portal


def watch(event):
    if isinstance(event, RolledBack):
        print(f"the node went from block {event.orphaned.number} to {event.state.cursor.number}")
    if isinstance(event, Committed) and event.state.cursor.number == chain.chain.head.number:
        if chain.chain.forks:
            raise StopRequested
        chain.fork(depth=2, length=3)


with simulated_portal(seed=7, blocks=60) as chain:  # it speaks JSON-RPC, as anvil and geth do
    stream = portal_stream(
        id="devnet",
        portal=chain.node_url,  # yours: "rpc+http://localhost:8545"
        outputs={"transfers": evm.events("erc20.Transfer", range=0)},
    )
    target = duckdb_target("devnet.duckdb")
    stream.pipe_to(target, on_event=watch)
    hashes = set(target.query("FROM transfers")["block_hash"].to_pylist())
    assert hashes <= {block.hash for block in chain.chain.canonical()}
    print(f"{len(hashes)} blocks have transfers, and the node knows all of them")
