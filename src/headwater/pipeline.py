"""THE LOOP: recover, read, transform, stage, commit; on a fork, roll back.

It folds the portal's four answers into `PipeState`. Every decision is made in `core`; every effect
is a call of the source or the target. It runs on the driver, in one thread. A crash anywhere is
recovered by running it again: `target.recover()` returns a committed state, and all that follows
is derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headwater.core import (
    DEFAULT_CAP,
    Answer,
    AtHead,
    Batch,
    BlockCursor,
    Blocks,
    Fork,
    ForkResolution,
    ForkRule,
    PipeState,
    RangeEnd,
    batches,
    resolve_fork,
)
from headwater.targets.base import Target

Data = TypeVar("Data")
Receipt = TypeVar("Receipt")
Lines = tuple[bytes, ...]


class Source(Protocol):
    """Where blocks come from."""

    def read(self, state: PipeState) -> Iterator[Answer] | None:
        """Read what follows this state; None when nothing is left to read."""
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


class Pipeline(Generic[Data, Receipt]):
    """One source, one target, and what is done to the blocks in between.

    `patience` bounds how often in a row a replica that is merely behind is waited for; `pause` is
    called each time. `history_cap` bounds the rollback chain.
    """

    def __init__(
        self,
        source: Source,
        target: Target[Data, Receipt],
        transform: Callable[[Batch[Lines]], Batch[Data]],
        *,
        pause: Callable[[], None],
        patience: int = 5,
        history_cap: int = DEFAULT_CAP,
    ) -> None:
        self._source = source
        self._target = target
        self._transform = transform
        self._pause = pause
        self._patience = patience
        self._history_cap = history_cap

    def run(self) -> None:
        """Run until the range is read; without an end, for ever."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[Event]:
        """Run, yielding after each step that changed the target or waited for the portal."""
        with closing(self._target):
            state = self._target.recover()
            yield Recovered(state)
            waits = 0
            while (answers := self._source.read(state)) is not None:
                for answer in answers:
                    match answer:
                        case Blocks():
                            for batch in batches(state, answer, cap=self._history_cap):
                                receipt = self._target.stage(self._transform(batch))
                                self._target.commit([receipt], batch.state)
                                state, waits = batch.state, 0
                                yield Committed(state, len(batch.headers))
                        case AtHead(head, confirmed):
                            settled, waits = state.settle(head, confirmed=confirmed), 0
                            if settled != state:
                                self._target.commit((), settled)
                                state = settled
                            yield Settled(state)
                        case Fork(previous_blocks):
                            patient = waits < self._patience
                            resolution = resolve_fork(state, previous_blocks, patient=patient)
                            if resolution.rule is ForkRule.WAIT:
                                waits += 1
                                self._pause()
                                yield Waited(state)
                                break
                            orphaned, waits = state.cursor, 0
                            state = state.rewind(resolution.safe_cursor)
                            self._target.roll_back(state)
                            assert orphaned is not None, "resolve_fork refuses an empty state"
                            yield RolledBack(state, orphaned, resolution)
                            break
                        case RangeEnd():
                            break
