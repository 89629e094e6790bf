"""A stream beside other work: a handle to watch and stop it, and its metrics over HTTP."""

from urllib.request import urlopen

from headwater import duckdb_target, evm, portal_stream
from headwater.dashboard import serve
from headwater.testing import live_portal

portal = live_portal(seed=7, blocks=100, interval=0.1)
outputs = {"transfers": evm.events("erc20.Transfer", range=0)}
stream = portal_stream(id="beside", portal=portal.url, outputs=outputs)
page = serve(0)  # a free port; stream.start(target, dashboard=9090) does the same

handle = stream.start(duckdb_target("beside.duckdb"))
while handle.record.state.number < 105:  # your own work
    if handle.await_termination(0.1):
        break
with urlopen(f"{page.url.rstrip('/')}/metrics", timeout=30) as answer:
    lines = answer.read().decode().splitlines()
print(next(line for line in lines if line.startswith('headwater_cursor_block{id="beside"}')))
handle.stop()
print("active:", handle.is_active)
