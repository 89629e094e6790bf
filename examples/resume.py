"""Stopping and going on: the cursor is stored with the rows."""

from headwater import Committed, StopRequested, duckdb_target, evm, portal_stream
from headwater.testing import simulated_portal


def stop_early(event):  # after the first commit
    if isinstance(event, Committed):
        raise StopRequested


with simulated_portal(seed=7, blocks=100) as portal:
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 99))}
    stream = portal_stream(id="resumed", portal=portal.url, outputs=outputs)
    last = "SELECT max(block_number) AS n, count(*) AS rows FROM transfers"
    for listener in (stop_early, None, None):
        target = duckdb_target("resumed.duckdb")
        stream.pipe_to(target, on_event=listener)
        print(target.query(last).to_pylist()[0])
