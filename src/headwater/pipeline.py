"""THE LOOP: recover, read, transform, commit; on a fork, roll back.

It folds what a source says into `PipeState`. Every decision is made in `core`; every effect is a
call of the source, the target or the host. It runs on the driver, in one thread. A crash anywhere
is recovered by running it again: `target.recover()` returns a committed state, and all that follows
is derived from it. Reading may run ahead of the target: batches wait until a flush rule is met, and
a fork discards those that wait before anything is undone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Generic, Protocol, TypeVar

from headwater.core import (
    DEFAULT_CAP,
    Answer,
    AtHead,
    Batch,
    BlockCursor,
    Blocks,
    Dropped,
    FlushRules,
    Fork,
    ForkResolution,
    ForkRule,
    Pending,
    PipeState,
    RangeEnd,
    Raw,
    Span,
    Undo,
    batches,
    descend,
    hot_groups,
    is_stale,
    resolve_fork,
    resolve_undo,
)
from headwater.core.messages import (
    HOT_BLOCKS,
    Buffered,
    Committed,
    Discarded,
    Event,
    Recovered,
    RolledBack,
    Settled,
    Waited,
)
from headwater.errors import MissingBlocksError
from headwater.targets.contract import Target, prepared

__all__ = [
    "Answers",
    "Buffered",
    "Committed",
    "Discarded",
    "Event",
    "Host",
    "Pipeline",
    "Raw",
    "Recovered",
    "RolledBack",
    "Said",
    "Settled",
    "Source",
    "Waited",
]

Data = TypeVar("Data")
Said = Answer | Span | Dropped
Answers = Generator[Said, None, None]


class Source(Protocol):
    """Where blocks come from."""

    def open(self, state: PipeState) -> None:
        """Get ready to read after the recovered state. Called once, before the first `read`."""
        ...

    def read(self, state: PipeState) -> Answers | None:
        """Read what follows this state, as far as one reading goes; None when all is read."""
        ...


class Host(Protocol[Data]):
    """What the loop runs in: it transforms batches, decides forks, waits and keeps the time.

    A stream is the host of its loop. A class that derives from this one has to say what
    `transform` and `pause` do; the rest does nothing unless it is overridden.
    """

    def transform(self, batch: Batch[Raw]) -> Batch[Data]:
        """Return the batch with the rows that were made of it. The same batch gives the same."""
        ...

    def transform_all(self, several: Sequence[Batch[Raw]]) -> Iterable[Batch[Data]]:
        """Yield hot batches that arrived together, each with the rows that were made of it."""
        return map(self.transform, several)

    def pause(self) -> None:
        """Wait a little, for a replica that is behind or on another branch; then ask any."""
        ...

    def before_recover(self) -> None:
        """Prepare the target. Called once, before it recovers."""
        return

    def now(self) -> float:
        """Return the time in seconds, by which flushes are due."""
        return 0.0

    def count_rows(self, batch: Batch[Data]) -> int:
        """Count the rows of a transformed batch, by which flushes are due."""
        return 0

    def resolve_fork(
        self, state: PipeState, previous_blocks: Sequence[BlockCursor], *, patient: bool
    ) -> tuple[ForkResolution, PipeState]:
        """Return where a fork goes back to, and the state it leads to; or raise a coded error."""
        resolution = resolve_fork(state, previous_blocks, patient=patient)
        return resolution, state.rewind(resolution.safe_cursor)

    def resolve_undo(
        self, state: PipeState, last_valid: BlockCursor
    ) -> tuple[ForkResolution, PipeState] | None:
        """Return where an undo signal goes back to; None if nothing is to be undone."""
        resolution = resolve_undo(state, last_valid)
        return None if resolution is None else (resolution, state.rewind(resolution.safe_cursor))

    def after_rollback(self, state: PipeState) -> None:
        """Roll back what user code keeps. Called once the target stands at this state again."""
        return

    def leaves_out(self) -> bool:
        """Tell whether blocks that executors no longer found are passed over by the next reading.

        Their span was handed out while the portal had them.
        """
        return False

    def finish(self, state: PipeState) -> None:
        """End the work: all is read and committed, and the target is still open."""
        return

    def uninterrupted(self) -> AbstractContextManager[object]:
        """Return what surrounds each change of the target, so that a signal waits for its end."""
        return nullcontext()


class Pipeline(Generic[Data]):
    """One source, one target, and the host that says what happens in between.

    `flush` says when to commit. `patience` bounds how often in a row a replica that is behind, or
    contradicts finality, is waited for. `rollback_cap` bounds the rollback chain.
    """

    def __init__(
        self,
        source: Source,
        target: Target[Data],
        host: Host[Data],
        *,
        flush: FlushRules = FlushRules(),  # noqa: B008 - immutable
        patience: int = 5,
        rollback_cap: int = DEFAULT_CAP,
    ) -> None:
        self._source = source
        self._target = target
        self._host = host
        self._flush_rules = flush
        self._patience = patience
        self._rollback_cap = rollback_cap
        self._state = self._ahead = PipeState()  # what is committed; with what waits
        self._waiting: list[Batch[Data]] = []
        self._pending = Pending()
        self._waits = 0
        self._descents = 0  # in a row, without a block of the portal's that we hold

    def steps(self) -> Generator[Event, None, None]:
        """Run, yielding after each step that changed the target or waited for the portal.

        Who takes the events drives the loop: it does nothing until the next one is asked for.
        """
        with closing(self._target):
            self._host.before_recover()
            self._stand_at(self._target.recover().capped(self._rollback_cap))
            self._source.open(self._state)
            yield Recovered(self._state)
            while (answers := self._source.read(self._ahead)) is not None:
                with closing(answers):
                    for answer in answers:
                        try:
                            yield from self._follow(answer)
                        except MissingBlocksError as error:
                            if not self._host.leaves_out():  # executors do not know the cursor
                                error.facts["cursor"] = self._state.cursor
                                raise
                            self._begin_anew()
                            break
                        if isinstance(answer, Fork | Undo | RangeEnd):
                            break
            yield from self._flush()
            if (finish := self._target.capabilities.finish) is not None:
                with self._host.uninterrupted():
                    finish()
            self._host.finish(self._state)

    def _follow(self, answer: Said) -> Iterator[Event]:
        """Do what an answer calls for, and move to the state that follows."""
        match answer:
            case Blocks() | Span():
                limit = HOT_BLOCKS if self._flush_rules.live.at_once else 1
                made = batches(self._ahead, answer, cap=self._rollback_cap)
                for several in hot_groups(made, blocks=limit):
                    final = several[0].state.is_final(several[0].headers[-1].number)
                    if self._flush_rules.comes_first(self._pending, final=final):
                        yield from self._flush()
                    yield from self._take(several, final=final)
            case AtHead(head, confirmed):
                cap = self._rollback_cap
                self._settle(self._ahead.settle(head, confirmed=confirmed, cap=cap))
                yield Settled(self._state)
                if self._flush_rules.is_due(self._pending, self._host.now(), at_head=True):
                    yield from self._flush()
            case Fork(previous_blocks):
                yield self._resolve(previous_blocks)
            case Undo(last_valid):
                yield from self._undo(last_valid)
            case Dropped(orphaned, blocks):
                yield Discarded(self._state, orphaned, blocks)
            case RangeEnd():
                yield from self._flush()

    def _begin_anew(self) -> None:
        """Stand at what is committed. What was written beyond is removed, as at a start."""
        with self._host.uninterrupted():
            self._stand_at(self._target.recover().capped(self._rollback_cap))
            self._host.after_rollback(self._state)

    def _take(self, several: Sequence[Batch[Raw]], *, final: bool) -> Iterator[Event]:
        """Transform batches; commit if a rule says so, and always the first of a stream.

        Hot blocks that arrived together are committed together. If one of them cannot be
        transformed, those before it are committed, and then the error is raised. A batch that is
        not committed costs nothing to lose: a restart reads it again.
        """
        failure: Exception | None = None
        with self._host.uninterrupted():
            taken, now = 0, 0.0
            try:
                for raw, batch in zip(several, self._host.transform_all(several), strict=True):
                    self._waiting.append(prepared(self._target, batch))
                    self._ahead, self._waits, self._descents = batch.state, 0, 0
                    taken, rows, now = _count(raw), self._host.count_rows(batch), self._host.now()
                    self._pending = self._pending.add(taken, rows, now=now, final=final)
            except Exception as error:
                if not taken:
                    raise
                failure = error
            if self._state.cursor is None or self._flush_rules.is_due(self._pending, now):
                event = self._commit()
            else:
                assert self._ahead.cursor is not None, "a batch that waits ends in a block"
                event = Buffered(self._state, self._ahead.cursor, taken)
        yield event
        if failure is not None:
            raise failure

    def _flush(self) -> Iterator[Event]:
        """Commit what waits, if anything does."""
        if self._waiting:
            with self._host.uninterrupted():
                committed = self._commit()
            yield committed

    def _commit(self) -> Event:
        """Make the batches that wait visible, whole, together with their state."""
        blocks = self._pending.blocks
        self._target.commit(self._waiting, self._ahead)
        self._stand_at(self._ahead)
        return Committed(self._state, blocks)

    def _settle(self, settled: PipeState) -> None:
        """Store finality if it moved; while batches wait it is stored with them."""
        self._waits = self._descents = 0
        if settled != self._ahead and not self._waiting:
            with self._host.uninterrupted():
                self._target.commit((), settled)
                self._state = settled
        self._ahead = settled

    def _resolve(self, previous_blocks: Sequence[BlockCursor]) -> Event:
        """Wait for a replica that is stale; otherwise undo, the target first, then user code.

        Batches that wait are discarded, and the committed state asks again before it is undone.
        """
        patient = self._waits < self._patience
        if self._waiting:
            stale = patient and is_stale(self._ahead, previous_blocks)
            return self._wait() if stale else self._discard()
        resolution, safe = self._host.resolve_fork(self._state, previous_blocks, patient=patient)
        if resolution.rule is ForkRule.WAIT:
            return self._wait()
        lower = descend(self._state, resolution, self._descents)
        if lower != resolution:
            resolution, safe = lower, self._state.rewind(lower.safe_cursor)
        self._descents += resolution.rule is ForkRule.DESCEND
        return self._roll_back(safe, resolution)

    def _undo(self, last_valid: BlockCursor) -> Iterator[Event]:
        """Undo what lies above a block that the source names; what is not held changes nothing.

        Whether it can be undone is known before anything changes. Batches that wait are discarded
        first, also those below the block: they are read again.
        """
        if last_valid.number > self._ahead.number or last_valid == self._ahead.cursor:
            return
        resolution = self._host.resolve_undo(self._state, last_valid)
        if self._waiting:
            yield self._discard()
        if resolution is not None:
            yield self._roll_back(resolution[1], resolution[0])

    def _roll_back(self, safe: PipeState, found: ForkResolution) -> Event:
        """Undo what was committed above a state: the target first, then user code."""
        orphaned = self._state.cursor
        assert orphaned is not None, "nothing committed, nothing orphaned"
        with self._host.uninterrupted():
            self._target.roll_back(safe)
            self._stand_at(safe)
            self._host.after_rollback(safe)
        return RolledBack(safe, orphaned, found)

    def _wait(self) -> Event:
        """Give a replica time."""
        self._waits += 1
        self._host.pause()
        return Waited(self._state)

    def _discard(self) -> Event:
        """Drop the batches that wait; only user code has seen them."""
        orphaned, blocks = self._ahead.cursor, self._pending.blocks
        assert orphaned is not None, "a batch that waits ends in a block"
        with self._host.uninterrupted():
            self._stand_at(self._state)
            self._host.after_rollback(self._state)
        return Discarded(self._state, orphaned, blocks)

    def _stand_at(self, state: PipeState) -> None:
        """Stand at a committed state, with no batch waiting."""
        self._state = self._ahead = state
        self._waiting, self._pending, self._waits = [], Pending(), 0


def _count(batch: Batch[Raw]) -> int:
    """Return how many blocks a batch covers."""
    return batch.data.blocks if isinstance(batch.data, Span) else len(batch.headers)
