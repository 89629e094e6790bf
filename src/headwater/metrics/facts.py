"""Parts of a stream's record: facts of batches, its recent past, values as people read them.

Made on the driver by the run of a stream and by its record; read by the page, the endpoint and the
progress view. All lists are bounded, and nothing of it is stored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headwater.core import BlockCursor, Head
from headwater.core.messages import RolledBack

BLOCKS = 200
FORKS = 50
SAMPLES = 600
SAMPLE_S = 1.0
SPEED_S = 60.0
_EXACT = 2**53  # the largest integer that a browser keeps


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a batch: `unlike` logs by output, `filled` outputs that have rows."""

    rows: int = 0
    bytes: int = 0
    skipped: int = 0
    unlike: Mapping[str, int] = field(default_factory=dict)
    filled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """A transformed batch, as far as it is known when it is committed.

    `counts` returns None while executors have not read the batch.
    `tables` are the Arrow tables of a batch near the head, for a preview.
    """

    blocks: int
    last: BlockCursor
    first: int
    to_block: int | None
    percent: float | None
    blocks_per_s: float | None
    eta_s: float | None
    counts: Callable[[], Counts | None] = lambda: None
    tables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlockSeen:
    """A batch that was committed, by its last block; `orphaned` once a fork has undone it."""

    number: int
    hash: str | None
    timestamp: int | None
    rows: int | None
    at: float
    orphaned: bool = False
    blocks: int = 1


@dataclass(frozen=True, slots=True)
class ForkSeen:
    """A fork that undid committed blocks. It is healed once the stream is as far as before."""

    at: float
    orphaned: str
    safe: str
    depth: int
    rule: str
    rows_undone: int
    seconds: float
    reached: int
    healed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One point of the curves: where the stream stood at a time, and what it had done so far."""

    at: float
    cursor: int
    head: int | None
    blocks: int
    rows: int


def newest(head: Head, unknown: int | None = None) -> int | None:
    """Return the highest block that a head names."""
    known = [cursor.number for cursor in (head.latest, head.finalized) if cursor is not None]
    return max(known, default=unknown)


def cursor_facts(cursor: BlockCursor | None) -> dict[str, Any] | None:
    """Return a cursor as JSON can hold it."""
    return None if cursor is None else asdict(cursor)


def block_seconds(timestamp: int) -> float:
    """Return a block's time in seconds; some networks count milliseconds."""
    return timestamp / 1000 if timestamp > 100_000_000_000 else float(timestamp)


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it and a browser reads it: exact integers, hex for bytes."""
    match value:
        case bytes():
            return f"0x{value.hex()}"
        case float() if not math.isfinite(value):
            return str(value)
        case int() if abs(value) > _EXACT:
            return str(value)
        case list():
            return [plain(item) for item in value]
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case _:
            return value


def in_words(count: int, name: str) -> str:
    """Return a count with its noun: `1 block`, `2 blocks`."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


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
