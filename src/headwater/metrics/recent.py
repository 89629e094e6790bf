"""The recent past of one stream: its last blocks, its last forks, and samples of where it stood.

The page draws them. All lists are bounded, and nothing of them is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from headwater.core.messages import RolledBack
from headwater.metrics.facts import BatchFacts, BlockSeen, ForkSeen, Sample

BLOCKS = 200
FORKS = 50
SAMPLES = 600
SAMPLE_S = 1.0
SPEED_S = 60.0


class RecentPast:
    """Remembers what a record is told. The record's lock guards it; `wall` stands for the time."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._blocks: deque[BlockSeen] = deque(maxlen=BLOCKS)
        self._forks: deque[ForkSeen] = deque(maxlen=FORKS)
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    @property
    def last_fork(self) -> ForkSeen | None:
        """The newest fork."""
        return self._forks[-1] if self._forks else None

    def committed(self, facts: BatchFacts, rows: int | None) -> None:
        """Remember a batch; its rows may be unknown."""
        last, now = facts.last, self._wall()
        self._blocks.append(
            BlockSeen(last.number, last.hash, last.timestamp, rows, now, blocks=facts.blocks)
        )

    def reached(self, number: int) -> None:
        """Note that the stream is as far again as before its last forks."""
        now = self._wall()
        for at, fork in enumerate(self._forks):
            if fork.healed_s is None and number >= fork.reached:
                self._forks[at] = replace(fork, healed_s=now - fork.at)

    def rolled_back(self, event: RolledBack, seconds: float) -> ForkSeen:
        """Mark the blocks that a fork took; return what is remembered of the fork."""
        safe, orphaned = event.state.cursor, event.orphaned
        lowest = -1 if safe is None else safe.number
        undone = 0
        for at, block in enumerate(self._blocks):
            if block.number > lowest and not block.orphaned:
                undone += block.rows or 0
                self._blocks[at] = replace(block, orphaned=True)
        depth, rule = orphaned.number - lowest, event.resolution.rule.value
        fork = ForkSeen(
            self._wall(), str(orphaned), str(safe), depth, rule, undone, seconds, orphaned.number
        )
        self._forks.append(fork)
        return fork

    def sample(self, cursor: int, head: int | None, blocks: int, rows: int) -> None:
        """Add a point to the curves; the newest one moves on until a second is full."""
        now = self._wall()
        if len(self._samples) > 1 and now - self._samples[-2].at < SAMPLE_S:
            self._samples.pop()
        self._samples.append(Sample(now, cursor, head, blocks, rows))

    def speed(self) -> tuple[float, float]:
        """Return blocks and rows per second over the last minute of samples."""
        since = self._wall() - SPEED_S
        recent = [sample for sample in self._samples if sample.at >= since]
        if len(recent) < 2 or recent[-1].at <= recent[0].at:
            return 0.0, 0.0
        first, last = recent[0], recent[-1]
        seconds = last.at - first.at
        return (last.blocks - first.blocks) / seconds, (last.rows - first.rows) / seconds

    def snapshot(self) -> dict[str, list[dict[str, Any]]]:
        """Return all of it as JSON can hold it."""
        return {
            "recent_blocks": [asdict(block) for block in self._blocks],
            "recent_forks": [asdict(fork) for fork in self._forks],
            "samples": [asdict(sample) for sample in self._samples],
        }
