"""THE LOOP: recover, read, transform, stage, commit; on a fork, roll back.

It folds what a source says into `PipeState`. Every decision is made in `core`; every effect is a
call of the source or the target. It runs on the driver, in one thread. A crash anywhere is
recovered by running it again: `target.recover()` returns a committed state, and all that follows
is derived from it. Reading may run ahead of it: batches are staged until a flush rule is met, and a
fork discards what is only staged before anything is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Generic, Protocol, TypeVar

from headwater.core import (
    DEFAULT_CAP,
    Answer,
    AtHead,
    Batch,
    BlockCursor,
    BlockRange,
    Blocks,
    Dropped,
    FlushRules,
    Fork,
    ForkResolution,
    ForkRule,
    Pending,
    PipeState,
    RangeEnd,
    Span,
    batches,
    is_behind,
    resolve_fork,
)
from headwater.core.event import (
    Committed,
    Discarded,
    Event,
    Recovered,
    RolledBack,
    Settled,
    Staged,
    Waited,
)
from headwater.targets.contract import Target

__all__ = [
    "Answers",
    "Committed",
    "Discarded",
    "Event",
    "ForkPolicy",
    "Pipeline",
    "Raw",
    "Recovered",
    "RolledBack",
    "Said",
    "Settled",
    "Source",
    "Staged",
    "Waited",
    "follow_history",
]

Data = TypeVar("Data")
Receipt = TypeVar("Receipt")
Raw = tuple[bytes, ...] | BlockRange


Said = Answer | Span | Dropped
Answers = Generator[Said, None, None]


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
    target, so that a signal can wait for its end. `prepare` is called before the target recovers,
    `finish` when all is read and committed, before the target is closed. `flush` says when to
    commit, by the clock `now` and by what `count_rows` counts.
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
        finish: Callable[[PipeState], None] = lambda state: None,
        flush: FlushRules = FlushRules(),  # noqa: B008 - immutable
        now: Callable[[], float] = lambda: 0.0,
        count_rows: Callable[[Batch[Data]], int] = lambda batch: 0,
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
        self._finish = finish
        self._flush_rules = flush
        self._now = now
        self._count_rows = count_rows
        self._state = self._ahead = PipeState()  # what is committed; with what is staged
        self._staged: list[Receipt] = []
        self._pending = Pending()
        self._waits = 0

    def run(self) -> None:
        """Run until the range is read; without an end, for ever."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[Event]:
        """Run, yielding after each step that changed the target or waited for the portal."""
        with closing(self._target):
            self._prepare()
            self._rest(self._target.recover())
            yield Recovered(self._state)
            while (answers := self._source.read(self._ahead)) is not None:
                with closing(answers):
                    for answer in answers:
                        yield from self._fold(answer)
                        if isinstance(answer, Fork | RangeEnd):
                            break
            yield from self._flush()
            self._finish(self._state)

    def _fold(self, answer: Said) -> Iterator[Event]:
        """Do what an answer calls for, and move to the state that follows."""
        match answer:
            case Blocks() | Span():
                for batch in batches(self._ahead, answer, cap=self._history_cap):
                    final = batch.state.is_final(batch.headers[-1].number)
                    if self._flush_rules.comes_first(self._pending, final=final):
                        yield from self._flush()
                    yield self._take(batch, final=final)
            case AtHead(head, confirmed):
                self._settle(self._ahead.settle(head, confirmed=confirmed))
                yield Settled(self._state)
                if self._flush_rules.is_due(self._pending, self._now(), at_head=True):
                    yield from self._flush()
            case Fork(previous_blocks):
                yield self._resolve(previous_blocks)
            case Dropped(orphaned, blocks):
                yield Discarded(self._state, orphaned, blocks)
            case RangeEnd():
                yield from self._flush()

    def _take(self, batch: Batch[Raw], *, final: bool) -> Event:
        """Stage a batch; commit if a rule says so. The first of all is the ground to fall back to.

        A batch that is not committed costs nothing to lose: a restart reads it again.
        """
        with self._unbroken():
            made, blocks = self._transform(batch), _count(batch)
            self._staged.append(self._target.stage(made))
            self._ahead, self._waits = batch.state, 0
            rows, now = self._count_rows(made), self._now()
            self._pending = self._pending.add(blocks, rows, now=now, final=final)
            if self._state.cursor is None or self._flush_rules.is_due(self._pending, now):
                return self._commit()
        return Staged(self._state, batch.headers[-1].cursor, blocks)

    def _flush(self) -> Iterator[Event]:
        """Commit what is pending, if anything is."""
        if self._staged:
            with self._unbroken():
                committed = self._commit()
            yield committed

    def _commit(self) -> Event:
        """Make what is staged visible, whole, together with its state."""
        blocks = self._pending.blocks
        self._target.commit(self._staged, self._ahead)
        self._rest(self._ahead)
        return Committed(self._state, blocks)

    def _settle(self, settled: PipeState) -> None:
        """Store finality if it moved; with staged batches it is stored when they are."""
        self._waits = 0
        if settled != self._ahead and not self._staged:
            with self._unbroken():
                self._target.commit((), settled)
                self._state = settled
        self._ahead = settled

    def _resolve(self, previous_blocks: Sequence[BlockCursor]) -> Event:
        """Wait for a replica that is behind; otherwise undo, the target first, then user code.

        What is only staged is discarded, and the committed state asks again before it is undone.
        """
        patient = self._waits < self._patience
        if self._staged:
            behind = patient and is_behind(self._ahead, previous_blocks)
            return self._wait() if behind else self._discard()
        orphaned = self._state.cursor
        found, safe = self._fork_policy(self._state, previous_blocks, patient=patient)
        if found.rule is ForkRule.WAIT:
            return self._wait()
        assert orphaned is not None, "nothing committed, nothing orphaned"
        with self._unbroken():
            self._target.roll_back(safe)
            self._rest(safe)
            self._on_fork(safe)
        return RolledBack(safe, orphaned, found)

    def _wait(self) -> Event:
        """Give a replica time."""
        self._waits += 1
        self._pause()
        return Waited(self._state)

    def _discard(self) -> Event:
        """Drop what is staged, which nobody has seen but user code."""
        orphaned, blocks = self._ahead.cursor, self._pending.blocks
        assert orphaned is not None, "a staged batch ends in a block"
        with self._unbroken():
            self._rest(self._state)
            self._on_fork(self._state)
        return Discarded(self._state, orphaned, blocks)

    def _rest(self, state: PipeState) -> None:
        """Stand at a committed state, with nothing staged."""
        self._state = self._ahead = state
        self._staged, self._pending, self._waits = [], Pending(), 0


def _count(batch: Batch[Raw]) -> int:
    """Return how many blocks a batch covers."""
    span = batch.data
    if isinstance(span, BlockRange) and span.to_block is not None:
        return span.to_block - span.from_block + 1
    return len(batch.headers)
