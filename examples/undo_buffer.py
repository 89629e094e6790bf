"""Holding back the newest blocks: a fork among them never reaches the target."""

from headwater import (
    Committed,
    Discarded,
    RolledBack,
    StopRequested,
    duckdb_target,
    evm,
    portal_stream,
)
from headwater.testing import simulated_portal

seen = []


def watch(event):
    if isinstance(event, Discarded | RolledBack):
        seen.append(type(event).__name__)
    if isinstance(event, Committed) and event.state.cursor.number >= 54 and not portal.chain.forks:
        portal.fork(depth=3, length=8)
    if isinstance(event, Committed) and event.state.cursor.number >= 59:
        raise StopRequested


with simulated_portal(seed=7, blocks=60) as portal:
    outputs = {"transfers": evm.events("erc20.Transfer", range=0)}
    stream = portal_stream(id="held", portal=portal.url, outputs=outputs, undo_buffer=5)
    stream.pipe_to(duckdb_target("held.duckdb"), on_event=watch)
    print("the fork was", seen)
