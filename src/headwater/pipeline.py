"""THE LOOP: recover, read, transform, stage, commit; on a fork, roll back.

It folds what a source says into `PipeState`. Every decision is made in `core`; every effect is a
call of the source or the target. It runs on the driver, in one thread. A crash anywhere is
recovered by running it again: `target.recover()` returns a committed state, and all that follows
is derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headwater.core import (
    DEFAULT_CAP,
    Answer,
    AtHead,
    Batch,
    BlockCursor,
    BlockRange,
    Blocks,
    Fork,
    ForkResolution,
    ForkRule,
    PipeState,
    RangeEnd,
    Span,
    batches,
    resolve_fork,
)
from headwater.targets.base import Target

Data = TypeVar("Data")
Receipt = TypeVar("Receipt")
Raw = tuple[bytes, ...] | BlockRange


Answers = Generator[Answer | Span, None, None]


class Source(Protocol):
    """Where blocks come from."""

    def read(self, state: PipeState) -> Answers | None:
        """Read what follows this state, as far as one reading goes; None when all is read."""
        ...


class ForkPolicy(Protocol):
    """Who decides where a fork sends us."""

    def __call__(
        self, state: PipeState, previous_blocks: Sequence[BlockCursor], *, patient: bool
    ) -> tuple[ForkResolution, PipeState]:
        """Return the decision and the state it leads to; raise a coded error if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Recovered:
    """The loop starts from a committed state."""

    state: PipeState


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch became visible."""

    state: PipeState
    blocks: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing new arrived; finality may have moved."""

    state: PipeState


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A fork was undone, from `orphaned` down to the state's cursor."""

    state: PipeState
    orphaned: BlockCursor
    resolution: ForkResolution


@dataclass(frozen=True, slots=True)
class Waited:
    """A replica is behind; it was given time instead of data being undone."""

    state: PipeState


Event = Recovered | Committed | Settled | RolledBack | Waited


def follow_history(
    state: PipeState, previous_blocks: Sequence[BlockCursor], *, patient: bool
) -> tuple[ForkResolution, PipeState]:
    """Decide a fork from the stored rollback chain."""
    resolution = resolve_fork(state, previous_blocks, patient=patient)
    return resolution, state.rewind(resolution.safe_cursor)


class Pipeline(Generic[Data, Receipt]):
    """One source, one target, and what is done to the blocks in between.

    `patience` bounds how often in a row a replica that is merely behind is waited for; `pause` is
    called each time. `history_cap` bounds the rollback chain. `on_fork` is called with the state
    that a rollback has committed, before reading resumes. `unbroken` surrounds each change of the
    target, so that a signal can wait for its end. `prepare` is called before the target recovers.
    """

    def __init__(
        self,
        source: Source,
        target: Target[Data, Receipt],
        transform: Callable[[Batch[Raw]], Batch[Data]],
        *,
        pause: Callable[[], None],
        patience: int = 5,
        history_cap: int = DEFAULT_CAP,
        fork_policy: ForkPolicy = follow_history,
        on_fork: Callable[[PipeState], None] = lambda state: None,
        unbroken: Callable[[], AbstractContextManager[object]] = nullcontext,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._target = target
        self._transform = transform
        self._pause = pause
        self._patience = patience
        self._history_cap = history_cap
        self._fork_policy = fork_policy
        self._on_fork = on_fork
        self._unbroken = unbroken
        self._prepare = prepare
        self._state = PipeState()
        self._waits = 0

    def run(self) -> None:
        """Run until the range is read; without an end, for ever."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[Event]:
        """Run, yielding after each step that changed the target or waited for the portal."""
        with closing(self._target):
            self._prepare()
            self._state = self._target.recover()
            yield Recovered(self._state)
            while (answers := self._source.read(self._state)) is not None:
                with closing(answers):
                    for answer in answers:
                        yield from self._fold(answer)
                        if isinstance(answer, Fork | RangeEnd):
                            break

    def _fold(self, answer: Answer | Span) -> Iterator[Event]:
        """Do what an answer calls for, and move to the state that follows."""
        match answer:
            case Blocks() | Span():
                for batch in batches(self._state, answer, cap=self._history_cap):
                    self._commit(batch)
                    yield Committed(self._state, _count(batch))
            case AtHead(head, confirmed):
                self._settle(self._state.settle(head, confirmed=confirmed))
                yield Settled(self._state)
            case Fork(previous_blocks):
                yield self._resolve(previous_blocks)
            case RangeEnd():
                pass

    def _commit(self, batch: Batch[Raw]) -> None:
        """Make a batch visible, whole, together with its state."""
        with self._unbroken():
            receipt = self._target.stage(self._transform(batch))
            self._target.commit([receipt], batch.state)
            self._state, self._waits = batch.state, 0

    def _settle(self, settled: PipeState) -> None:
        """Store finality if it moved."""
        self._waits = 0
        if settled != self._state:
            with self._unbroken():
                self._target.commit((), settled)
                self._state = settled

    def _resolve(self, previous_blocks: Sequence[BlockCursor]) -> Event:
        """Wait for a replica that is behind; otherwise undo, the target first, then user code."""
        orphaned, patient = self._state.cursor, self._waits < self._patience
        found, safe = self._fork_policy(self._state, previous_blocks, patient=patient)
        if found.rule is ForkRule.WAIT:
            self._waits += 1
            self._pause()
            return Waited(self._state)
        assert orphaned is not None, "nothing committed, nothing orphaned"
        with self._unbroken():
            self._target.roll_back(safe)
            self._state, self._waits = safe, 0
            self._on_fork(safe)
        return RolledBack(safe, orphaned, found)


def _count(batch: Batch[Raw]) -> int:
    """Return how many blocks a batch covers."""
    span = batch.data
    if isinstance(span, BlockRange) and span.to_block is not None:
        return span.to_block - span.from_block + 1
    return len(batch.headers)
