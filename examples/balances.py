"""Balances that stay exact through forks: an aggregate of transfers."""

from headwater import Committed, StopRequested, aggregate, duckdb_target, evm, portal_stream
from headwater.testing import simulated_portal

came = aggregate(
    "balances",
    source="transfers",
    keys={"token": "address", "owner": "to"},
    add={"amount": "value", "received": 1},
)
went = aggregate(
    "balances",
    source="transfers",
    keys={"token": "address", "owner": "from"},
    sub={"amount": "value"},
)


def watch(event):
    if isinstance(event, Committed) and event.state.cursor.number == portal.chain.head.number:
        if portal.chain.forks:
            raise StopRequested
        portal.fork(depth=5, length=7)


with simulated_portal(seed=7, blocks=80) as portal:
    outputs = {"transfers": evm.events("erc20.Transfer", range=0)}
    stream = portal_stream(id="balances", portal=portal.url, outputs=outputs)
    target = duckdb_target("balances.duckdb", aggregates=[came, went])
    stream.pipe_to(target, on_event=watch)
    total = target.query("SELECT sum(amount) AS n FROM balances")["n"][0].as_py()
    assert total == "0", "what came somewhere went from somewhere else"
    print("all balances together:", total)
