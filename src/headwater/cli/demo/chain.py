"""The demo's chain: it grows by the clock and forks by a plan, so that a run can be repeated.

A fork is worth showing only if there is something to undo. So each waits until the pipeline holds
the blocks that are about to be replaced; only the waiting depends on the machine, never the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from threading import Event, Thread

from headwater.testing import ChainSim

FINALITY_DEPTH = 12
DEEPEST = 7


def plan_forks(seed: int, steps: int) -> dict[int, int]:
    """Return at which steps the chain forks, and how deep: three times or more, no two alike."""
    dice = Random(f"demo {seed}")
    count = min(DEEPEST, max(3, steps // 8))
    depths = dice.sample(range(1, DEEPEST + 1), count)
    window = max(1, steps // count)
    return {
        index * window + dice.randrange(window // 2, window): depth
        for index, depth in enumerate(depths)
    }


class DemoChain:
    """Moves a chain on a thread of its own, one block higher each step; `finished` tells the end.

    `holds_head` is asked before a fork: whether the reader has all blocks. The fork waits for it,
    however slow the machine is.
    """

    def __init__(
        self,
        chain: ChainSim,
        plan: Mapping[int, int],
        *,
        steps: int,
        interval: float,
        holds_head: Callable[[], bool],
    ) -> None:
        self.chain = chain
        self.finished = Event()
        self._plan = plan
        self._steps = steps
        self._interval = interval
        self._holds_head = holds_head
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="headwater-demo-chain", daemon=True)

    def start(self) -> None:
        """Start moving; a second call changes nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def __enter__(self) -> DemoChain:
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        for step in range(self._steps):
            if self._stopping.wait(self._interval):
                return
            depth = self._plan.get(step)
            if depth is not None:
                self._wait_for_reader()
            self._move(depth)
        self.finished.set()

    def _move(self, depth: int | None) -> None:
        """Add a block, or replace the newest by one more; finality follows."""
        with self.chain.lock:
            if depth is None:
                self.chain.grow(1)
            else:
                self.chain.fork(depth)
            self.chain.finalize(max(self.chain.head.number - FINALITY_DEPTH, 0))

    def _wait_for_reader(self) -> None:
        while not self._holds_head() and not self._stopping.wait(0.02):
            pass
