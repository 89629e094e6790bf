"""What user code is told beside the rows: where the stream stands, and what this batch is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.core import BlockCursor, BlockRange, Chain, Head
from headwater.portal import Clock, Dataset


@dataclass(frozen=True, slots=True)
class StreamState:
    """Where the stream stands with this batch.

    `initial` is the first block of the stream, `last` the last one it will reach as far as is
    known, `current` the cursor of this batch's last block. `rollback_chain` holds this batch's own
    hot blocks: append it to your own chain, never replace it.
    """

    initial: int
    last: int | None
    current: BlockCursor
    ranges: tuple[BlockRange, ...]
    rollback_chain: Chain


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the stream is, and how fast; an estimate is None while it cannot be made.

    `to_block` is None for a stream without an end while the portal has not reported its latest
    block.
    """

    from_block: int
    to_block: int | None
    current: int
    percent: float | None
    blocks_per_s: float | None
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class QueryInfo:
    """What is asked of the portal; `url` never holds credentials."""

    url: str
    hash: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The stream. `head.finalized` never goes backwards, whatever replicas report."""

    dataset: Dataset | None
    head: Head
    state: StreamState
    progress: Progress
    query: QueryInfo


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What was counted while the blocks of a batch were read."""

    bytes_size: int
    rows_count: int
    skipped: Mapping[str, int]
    unlike: Mapping[str, int] = field(default_factory=dict)
    filled: frozenset[str] = frozenset()  # the outputs that have rows


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """This batch. Its counts are of what was decoded, before any transform.

    Near the head they are known at once. In a backfill executors count while they read, so counts
    are known once the batch's rows are written; a callback that asks before has the executors read
    the blocks now, and keep their rows until they are written. `known()` never has anything read:
    it returns None while the counts are not known. `missing` are the blocks just before that the
    portal does not have any more, and that were left out (`missing_blocks="skip"`).
    """

    blocks_count: int
    counts: Callable[[], BatchCounts] = field(repr=False)
    known: Callable[[], BatchCounts | None] = field(default=lambda: None, repr=False)
    missing: tuple[BlockRange, ...] = ()

    @property
    def bytes_size(self) -> int:
        """The bytes of the block lines that were read."""
        return self.counts().bytes_size

    @property
    def rows_count(self) -> int:
        """The rows of all outputs."""
        return self.counts().rows_count

    @property
    def skipped(self) -> Mapping[str, int]:
        """By output, the rows that could not be decoded and were left out (`on_error="skip"`).

        Creations stand under "factory" and the name of their event, in the batch that was read
        next: each of them is a child whose rows are missing.
        """
        return self.counts().skipped


@dataclass(frozen=True, slots=True)
class BatchContext:
    """All that a callback may want to know."""

    id: str
    stream: StreamInfo
    batch: BatchInfo


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """What iteration gives: the rows of each output, and the context."""

    data: Mapping[str, Any]
    ctx: BatchContext


@dataclass(frozen=True, slots=True)
class StartInfo:
    """What a transformer is told once, before the first batch; `current` is None on a first run."""

    id: str
    initial: int | None
    current: BlockCursor | None


WINDOW = 50


class ProgressTracker:
    """Measures blocks per second over the last batches of one run."""

    def __init__(self, clock: Clock) -> None:
        self.last: Progress | None = None
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def reached(self, first: int, current: int, last: int | None) -> Progress:
        """Note that the stream stands at `current`; return how far that is, and keep it."""
        self._samples.append((self._clock.monotonic(), current))
        (began, lowest), (now, highest) = self._samples[0], self._samples[-1]
        speed = (highest - lowest) / (now - began) if now > began and highest > lowest else None
        percent, eta = None, None
        if last is not None and current >= last:
            percent, eta = 100.0, 0.0
        elif last is not None:
            percent = 0.0 if current <= first else 100 * (current - first) / (last - first)
            eta = None if speed is None else (last - current) / speed
        self.last = Progress(first, last, current, percent, speed, eta)
        return self.last

    def went_back(self) -> None:
        """Forget the speed: a rollback would make it negative."""
        self._samples.clear()
