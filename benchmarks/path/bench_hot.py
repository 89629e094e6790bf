"""Hot blocks on the whole path: a fresh process into a durable PostgreSQL, by the default path.

    python benchmarks/path/bench_hot.py [none|select|filter|join|udf] [blocks]

A program as a user writes it, without a transform or with one of `program.WORKS`, (a) catches up
through 120 hot blocks, (b) follows single blocks at the head, (c) gets 120 blocks at once, (d)
undoes a fork of 100 blocks and converges. Times are the program's own: (a) from the first request
to the commit of the head; (b) and (c) from the moment the portal has the blocks; (d) from the
moment the fork is known. The portal holds a request for a block that does not exist until it does,
as SQD's portal does (up to 5 s), so nothing is waited for between two polls. It renders all blocks
before they exist for the program, as a portal does on a machine of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median, quantiles

from program import WORKS

from headwater import Committed, Event, evm, portal_stream
from headwater.core import BlockRange
from headwater.pipeline import Recovered, RolledBack
from headwater.portal import PortalClient
from headwater.query import EvmQuery
from headwater.targets import postgres_target
from headwater.targets.postgres import table
from headwater.testing import ChainSim, ContentSettings, PortalServer, PortalSim
from headwater.testing.portal.dataset import SimTransport, VirtualClock
from headwater.testing.servers import postgres_server

HOT, DEPTH = 120, 100
HELD_S, BLOCK_S = 5.0, 0.1  # of a request without news; between two blocks at the head
DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
OUTPUT = evm.events("erc20.Transfer", range=0)


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
        what = kinds.get(type(event))
        if what is not None and event.state.cursor is not None:
            said(what, time.time(), event.state.cursor.number)
        elif what is not None:
            said(what, time.time())

    stream = portal_stream(id="hot", portal=portal, outputs={"transfers": OUTPUT})
    if (transform := WORKS[kind]) is not None:
        stream = stream.pipe(transform)
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


def render(sim: PortalSim, first: int) -> None:
    """Have the simulator render the blocks from this one on, so that serving them costs a copy."""
    query = OUTPUT.query
    assert isinstance(query, EvmQuery)
    with PortalClient(SimTransport(sim, VirtualClock())) as client:
        for _ in client.read(query, BlockRange(first, sim.chain.head.number)):
            pass


def serve(sim: PortalSim, change: Callable[[], object], first: int) -> float:
    """Change the chain from this block on; return when the change could be seen."""
    with sim.chain.lock:
        change()
        render(sim, first)
    return time.time()


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) > 1 else "none"
    singles = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    chain = ChainSim(3, content=ContentSettings(transactions_per_block=100))
    chain.grow(HOT)
    chain.finalize(0)
    sim = PortalSim(chain, no_content_delay=HELD_S)
    with postgres_server(settings=DURABLE) as dsn, PortalServer(sim) as portal:
        render(sim, 0)
        started = time.time()
        running = Program(kind, portal.url, dsn)
        began = running.until("recovered")
        caught_up = running.until("committed", chain.head.number)
        print(f"{kind}: {HOT} hot blocks in {caught_up - began:.2f} s, "
              f"{caught_up - started:.2f} s after the process began")  # fmt: skip
        took = []
        for _ in range(singles):
            time.sleep(BLOCK_S)
            served = serve(sim, chain.extend, chain.head.number + 1)
            took.append(1000 * (running.until("committed", chain.head.number) - served))
        warm = took[len(took) // 5 :]
        print(f"{kind}: a block at the head p50 {median(warm):.1f} ms, "
              f"p95 {quantiles(warm, n=20)[18]:.1f} ms")  # fmt: skip
        time.sleep(BLOCK_S)
        served = serve(sim, lambda: chain.extend(HOT), chain.head.number + 1)
        caught_up = running.until("committed", chain.head.number)
        print(f"{kind}: {HOT} more hot blocks at once in {caught_up - served:.2f} s")
        time.sleep(BLOCK_S)
        serve(sim, lambda: chain.fork(DEPTH), chain.head.number - DEPTH + 1)
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
