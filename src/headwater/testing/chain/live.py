"""A chain that grows and forks by itself: for demonstrations, and for tests of the head."""

from __future__ import annotations

from random import Random
from threading import Event, Thread

from headwater.errors import InvalidOptionError
from headwater.testing.chain.tree import ChainSim, ForkRecord


class LiveChain:
    """Grows a chain on a thread: a block each `interval` seconds, now and then a fork.

    A step forks with probability `fork_rate`; its depth is 1, or deeper with odds that halve for
    each block, and stays above finality, which follows the head `finality_depth` numbers behind.
    """

    def __init__(
        self,
        chain: ChainSim,
        *,
        seed: int = 0,
        interval: float = 1.0,
        finality_depth: int = 20,
        fork_rate: float = 0.05,
    ) -> None:
        if interval <= 0 or finality_depth < 0 or not 0 <= fork_rate <= 1:
            raise InvalidOptionError(
                "interval must be above 0, finality_depth 0 or more, fork_rate within 0 and 1",
                interval=interval,
                finality_depth=finality_depth,
                fork_rate=fork_rate,
            )
        self.chain = chain
        self._dice = Random(f"live {seed}")
        self._interval = interval
        self._finality_depth = finality_depth
        self._fork_rate = fork_rate
        self._stopping = Event()
        self._running = Event()
        self._running.set()
        self._thread: Thread | None = None

    @property
    def paused(self) -> bool:
        """Tell whether the chain stands still."""
        return not self._running.is_set()

    def step(self) -> ForkRecord | None:
        """Add a block or fork, then finalize; return the fork if there was one."""
        with self.chain.lock:
            forked = None
            room = self._replaceable()
            if self._dice.random() < self._fork_rate and room > 0:
                self.chain.fork(min(self._depth(), room))
                forked = self.chain.forks[-1]
            else:
                self.chain.grow(1)
            self.chain.finalize_behind(self._finality_depth)
            return forked

    def pause(self) -> None:
        """Let the chain stand still."""
        self._running.clear()

    def resume(self) -> None:
        """Let it move again."""
        self._running.set()

    def start(self) -> LiveChain:
        """Start moving."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = Thread(target=self._run, name="headwater-live-chain", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Stop for good and wait until the thread has ended."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> LiveChain:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            if self._running.is_set():
                self.step()

    def _depth(self) -> int:
        depth = 1
        while self._dice.random() < 0.5:
            depth += 1
        return depth

    def _replaceable(self) -> int:
        """Return how many of the newest blocks a fork may replace."""
        floor = self.chain.finalized or self.chain.at_or_below(self.chain.start_block)
        return 0 if floor is None else self.chain.head.height - floor.height
