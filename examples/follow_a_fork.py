"""What happens to rows when the chain forks: they go, and those of the new branch come."""

from headwater import Committed, RolledBack, StopRequested, duckdb_target, evm, portal_stream
from headwater.testing import simulated_portal


def watch(event):
    if isinstance(event, RolledBack):
        print(f"fork: block {event.orphaned.number} back to {event.state.cursor.number}")
    if isinstance(event, Committed) and event.state.cursor.number == portal.chain.head.number:
        if len(portal.chain.forks) == 3:
            raise StopRequested
        portal.fork(depth=1 + len(portal.chain.forks), length=4)


with simulated_portal(seed=7, blocks=60) as portal:
    transfers = evm.events("erc20.Transfer", range=0)
    stream = portal_stream(id="forks", portal=portal.url, outputs={"transfers": transfers})
    target = duckdb_target("forks.duckdb")
    stream.pipe_to(target, on_event=watch)
    stored = set(target.query("FROM transfers")["block_hash"].to_pylist())
    canonical = {block.hash for block in portal.chain.canonical()}
    assert stored <= canonical
    print(f"{len(stored)} blocks have transfers, and all of them are canonical")
