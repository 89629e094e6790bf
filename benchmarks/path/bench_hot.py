"""Hot blocks on the whole path: a fresh process into a durable PostgreSQL, by the default path.

    python benchmarks/path/bench_hot.py [none|spark] [blocks]

A program as a user writes it, without a transform or with a narrow one on Spark, (a) catches up
through 120 hot blocks, (b) follows single blocks at the head, (c) undoes a fork of 100 blocks and
converges. Times are the program's own: (a) from the first request to the commit of the head, of
blocks that the simulator has rendered before; (b) from the moment a block exists; (c) from the
moment the fork is known. The simulator renders the blocks of (b) and (c) when they are asked for,
which is part of the time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from statistics import median, quantiles
from typing import Any

from headwater import Committed, Event, evm, portal_stream
from headwater.core import BlockRange
from headwater.pipeline import Recovered, RolledBack, Settled
from headwater.portal import PortalClient
from headwater.query import EvmQuery
from headwater.targets import postgres_target
from headwater.targets.postgres import table
from headwater.testing import ChainSim, ContentSettings, PortalServer, PortalSim
from headwater.testing.servers import postgres_server

HOT, DEPTH, POLL_S = 120, 100, 0.01
DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
OUTPUT = evm.events("erc20.Transfer", range=0)


def large(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"transfers": data["transfers"].where("length(value) > 3")}


def program(kind: str, portal: str, dsn: str) -> None:
    """Follow the head; print what happened and when, a line of JSON each."""

    def said(what: str, at: float, number: int = -1) -> None:
        print(json.dumps({"what": what, "at": at, "number": number}), flush=True)

    target = postgres_target(
        dsn,
        tables=[table("transfers", key=["block_number", "log_index"])],
        on_before_rollback=lambda tx, cursor: said("forked", time.time()),
    )

    def on_event(event: Event) -> None:
        kinds = {Recovered: "recovered", Committed: "committed", RolledBack: "gone"}
        what = "settled" if isinstance(event, Settled) else kinds.get(type(event))
        if what is not None and event.state.cursor is not None:
            said(what, time.time(), event.state.cursor.number)
        elif what is not None:
            said(what, time.time())

    stream = portal_stream(
        id="hot", portal=portal, outputs={"transfers": OUTPUT}, poll_interval_s=POLL_S
    )
    if kind == "spark":
        stream = stream.pipe(large)
    stream.pipe_to(target, on_event=on_event)


class Program:
    """The program in a process of its own, and what it says."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "program", *arguments], stdout=subprocess.PIPE, text=True
        )

    def until(self, what: str, number: int = -1) -> float:
        """Return when something happened, with that block if it is given."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if said["what"] == what and number in (-1, said["number"]):
                return float(said["at"])
        raise SystemExit("the program has ended")


def render(portal: PortalServer) -> None:
    """Have the simulator render its blocks, so that serving them costs a copy."""
    query = OUTPUT.query
    assert isinstance(query, EvmQuery)
    with PortalClient(portal.url) as client:
        for _ in client.read(query, BlockRange(0, portal.chain.head.number)):
            pass


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) > 1 else "none"
    singles = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    chain = ChainSim(3, content=ContentSettings(transactions_per_block=100))
    chain.grow(HOT)
    chain.finalize(0)
    with postgres_server(settings=DURABLE) as dsn, PortalServer(PortalSim(chain)) as portal:
        render(portal)
        started = time.time()
        running = Program(kind, portal.url, dsn)
        began = running.until("recovered")
        caught_up = running.until("committed", chain.head.number)
        print(f"{kind}: {HOT} hot blocks in {caught_up - began:.2f} s, "
              f"{caught_up - started:.2f} s after the process began")  # fmt: skip
        took = []
        for _ in range(singles):
            running.until("settled", chain.head.number)
            portal.extend(1)
            served = time.time()
            took.append(1000 * (running.until("committed", chain.head.number) - served))
        warm = took[len(took) // 5 :]
        print(f"{kind}: a block at the head p50 {median(warm):.1f} ms, "
              f"p95 {quantiles(warm, n=20)[18]:.1f} ms")  # fmt: skip
        running.until("settled", chain.head.number)
        portal.fork(DEPTH)
        forked = running.until("forked")
        gone = running.until("gone")
        converged = running.until("committed", chain.head.number)
        print(f"{kind}: a fork of {DEPTH} blocks: gone after {gone - forked:.2f} s, "
              f"converged after {converged - forked:.2f} s")  # fmt: skip
        running.process.kill()
        running.process.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["program"]:
        program(*sys.argv[2:])
    else:
        main()
