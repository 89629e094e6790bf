"""How long a block takes from the portal into DuckDB, at the head, and where the time goes.

    .venv/bin/python benchmarks/bench_head.py [blocks] [portal | hotblocks]

The chain grows by one block when the last one has been committed; the clock runs from the moment
the portal can serve it until its transaction is done. Once without user code (no Spark job), once
with a transform on Spark. The limit is a p50 of 150 ms, transform included.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from headwater import StopRequested, evm, portal_stream
from headwater.pipeline import Committed, Event, Settled
from headwater.spark import local_session, warm_up
from headwater.targets import duckdb_target
from headwater.testing import ChainSim, ContentSettings, PortalServer, PortalSim

LIMIT_MS = 150.0
Transform = Callable[[Mapping[str, Any]], Mapping[str, Any]]
POLL_S = 0.02


def large(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"transfers": data["transfers"].where("length(value) > 3")}


class Clockwork:
    """Grows the chain when the last block is in, and notes how long it took."""

    def __init__(self, portal: PortalServer, blocks: int) -> None:
        self.portal = portal
        self.left = blocks
        self.took: list[float] = []
        self._available = 0.0
        self._waiting_for: int | None = None

    def __call__(self, event: Event) -> None:
        number = None if event.state.cursor is None else event.state.cursor.number
        if isinstance(event, Committed) and number == self._waiting_for:
            self.took.append(1000 * (time.perf_counter() - self._available))
        if isinstance(event, Settled):
            if self.left == 0:
                raise StopRequested
            self.left -= 1
            self.portal.extend(1)
            self._available = time.perf_counter()
            self._waiting_for = self.portal.chain.head.number


class TimedTarget:
    """Passes every call on, and notes what commits cost."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.took: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def commit(self, *arguments: Any) -> None:
        started = time.perf_counter()
        self._target.commit(*arguments)
        self.took.append(1000 * (time.perf_counter() - started))


def measure(blocks: int, surface: str, transform: Transform | None) -> tuple[list[float], float]:
    """Return what each block took, and the median of its commit."""
    chain = ChainSim(3, content=ContentSettings(transactions_per_block=60))
    chain.grow(40)
    sim = PortalSim(chain, surface=surface)
    with tempfile.TemporaryDirectory() as folder, PortalServer(sim) as portal:
        clockwork = Clockwork(portal, blocks)
        target = TimedTarget(duckdb_target(Path(folder) / "head.duckdb"))
        stream = portal_stream(
            id="head",
            portal=portal.url,
            outputs={"transfers": evm.events("erc20.Transfer", range="latest")},
            spark=local_session(),
            poll_interval_s=POLL_S,
        )
        if transform is not None:
            stream = stream.pipe(transform)
        stream.pipe_to(target, on_event=clockwork)
    warm = len(clockwork.took) // 5  # the first ones warm the paths up
    return clockwork.took[warm:], median(target.took[warm:])


def main() -> int:
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    surface = sys.argv[2] if len(sys.argv) > 2 else "portal"
    warm_up(local_session())
    worst = 0.0
    print(
        f"{blocks} blocks of about 120 transfers, one at a time; poll every {POLL_S * 1000:.0f} ms"
    )
    for name, transform in (("no transform", None), ("transform on Spark", large)):
        took, commit = measure(blocks, surface, transform)
        p50, p95 = median(took), quantiles(took, n=20)[-1]
        worst = max(worst, p50)
        print(f"  {name:<20} p50 {p50:6.1f} ms   p95 {p95:6.1f} ms   ({len(took)} blocks)")
        print(f"    {p50 - commit:6.1f} ms  ask (waiting for the next poll), parse, decode")
        print(f"    {commit:6.1f} ms  commit: run the transform, write rows, state and undo data")
    print(f"  limit: p50 of {LIMIT_MS:.0f} ms; {'kept' if worst <= LIMIT_MS else 'BROKEN'}")
    return 0 if worst <= LIMIT_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
