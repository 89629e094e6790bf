"""What has happened so far: written by the pipeline's events, read by the view and the picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic

from headwater.core import BlockCursor
from headwater.pipeline import Committed, Event, RolledBack


class Stage(Enum):
    """What the demo is doing."""

    STARTING = "starting Spark"
    BACKFILL = "reading past blocks"
    FOLLOWING = "following the head"
    CHECKING = "checking"


@dataclass(frozen=True, slots=True)
class Undone:
    """One fork as the pipeline met it: the blocks from `first` to `last` were undone."""

    first: int
    last: int
    rows: Mapping[str, int]

    @property
    def depth(self) -> int:
        """How many blocks were replaced."""
        return self.last - self.first + 1


@dataclass(slots=True)
class Story:
    """Where the pipeline stands, and how it got there.

    `goal` is the last block of the backfill. `held` are the hot blocks in the tables, ascending;
    `orphaned` the ones that were undone, fork by fork, each with the block below them first.
    """

    tables: tuple[str, ...]
    goal: int = 0
    stage: Stage = Stage.STARTING
    cursor: BlockCursor | None = None
    finalized: BlockCursor | None = None
    head: int | None = None
    rows: dict[str, int] = field(default_factory=dict)
    forks: list[Undone] = field(default_factory=list)
    held: list[BlockCursor] = field(default_factory=list)
    orphaned: list[list[BlockCursor]] = field(default_factory=list)
    blocks_read: int = 0
    blocks_replayed: int = 0
    backfill_began: float = 0.0
    backfill_took: float = 0.0
    _highest: int = -1
    _moved: float = 0.0
    _warm: tuple[float, int] | None = None

    @property
    def total_rows(self) -> int:
        """The rows of all tables."""
        return sum(self.rows.values())

    @property
    def undone_blocks(self) -> int:
        """How many blocks were rolled back, all forks together."""
        return sum(fork.depth for fork in self.forks)

    @property
    def lag(self) -> int | None:
        """How many blocks the tables are behind the head."""
        if self.head is None or self.cursor is None:
            return None
        return max(0, self.head - self.cursor.number)

    @property
    def is_at_goal(self) -> bool:
        """Whether the backfill has reached its last block."""
        return self.cursor is not None and self.cursor.number >= self.goal

    def backfilled(self) -> tuple[int, int]:
        """How many blocks of the backfill are read, and how many there are."""
        done = 0 if self.cursor is None else min(self.cursor.number, self.goal) + 1
        return done, self.goal + 1

    def seconds_left(self) -> float | None:
        """Estimate when the backfill ends; None while nothing is known.

        The first batch is not counted: it pays for warming up.
        """
        done, total = self.backfilled()
        if not self._warm or done <= self._warm[1]:
            return None
        since, first = self._warm
        return (self._moved - since) / (done - first) * (total - done)

    def begin_backfill(self) -> None:
        """Start the clock of the backfill."""
        self.stage = Stage.BACKFILL
        self.backfill_began = monotonic()

    def begin_following(self) -> None:
        """Stop it."""
        self.stage = Stage.FOLLOWING
        self.backfill_took = monotonic() - self.backfill_began

    def tell(self, event: Event, rows: Mapping[str, int]) -> Undone | None:
        """Take in an event and the rows that the tables have after it; return a fork if it is one.

        A filtered stream names only blocks that hold something, so blocks are counted by how far
        the cursor moved.
        """
        before, self.cursor, self.finalized = self.cursor, event.state.cursor, event.state.finalized
        was, self.rows = self.rows, dict(rows)
        if isinstance(event, Committed) and self.cursor is not None:
            first = self.cursor.number if before is None else before.number + 1
            self._took(first, self.cursor)
        if isinstance(event, RolledBack) and self.cursor is not None:
            lost = {name: was.get(name, 0) - count for name, count in rows.items()}
            fork = Undone(self.cursor.number + 1, event.orphaned.number, lost)
            self.forks.append(fork)
            self._lost(self.cursor)
            return fork
        return None

    def _took(self, first: int, last: BlockCursor) -> None:
        if self.stage is Stage.BACKFILL and not self.blocks_read:
            first = 0
        self.blocks_read += last.number - first + 1
        self.blocks_replayed += max(0, min(last.number, self._highest) - first + 1)
        self._highest = max(self._highest, last.number)
        self._moved = monotonic()
        if self._warm is None:
            self._warm = self._moved, self.backfilled()[0]
        if last.number > self.goal - 20:
            self.held.append(last)

    def _lost(self, safe: BlockCursor) -> None:
        gone = [block for block in self.held if block.number > safe.number]
        self.held = [block for block in self.held if block.number <= safe.number]
        self.orphaned.append([safe, *gone])


def describe_fork(fork: Undone, number: int) -> str:
    """Tell of a fork in one sentence."""
    blocks = f"block {fork.first:,}" if fork.depth == 1 else f"blocks {fork.first:,}-{fork.last:,}"
    were = "was" if fork.depth == 1 else "were"
    rows = ", ".join(f"{name} {count:,}" for name, count in fork.rows.items())
    return f"fork {number}, {fork.depth} deep: {blocks} {were} replaced; rows undone: {rows}"


def describe_backfill(story: Story) -> str:
    """Tell how the backfill went."""
    rows = ", ".join(f"{name} {count:,}" for name, count in story.rows.items())
    done, _ = story.backfilled()
    seconds = story.backfill_took
    return f"{done:,} blocks in {seconds:.1f} s ({done / seconds:,.0f} per second); rows: {rows}"


def facts_of(story: Story, seconds: float) -> list[tuple[str, str]]:
    """Return the figures of the summary, each with its name."""
    forks = "none while we watched"
    if story.forks:
        depths = ", ".join(str(fork.depth) for fork in story.forks)
        forks = f"{len(story.forks)} (depths {depths})"
    rows = ", ".join(f"{name} {story.rows.get(name, 0):,}" for name in story.tables)
    return [
        ("blocks read", f"{story.blocks_read:,}"),
        ("rows held", f"{story.total_rows:,} ({rows})"),
        ("forks survived", forks),
        ("blocks undone", f"{story.undone_blocks:,}; {story.blocks_replayed:,} read again"),
        ("time", f"{seconds:.0f} s"),
    ]
