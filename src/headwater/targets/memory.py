"""A target that keeps everything in memory: for tests, and to read what a pipeline would write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headwater.core import Batch, PipeState

Data = TypeVar("Data")


@dataclass(frozen=True, slots=True)
class Committed(Generic[Data]):
    """What is stored: the state, and the batches up to its cursor, oldest first."""

    state: PipeState = PipeState()  # noqa: RUF009 - immutable
    batches: tuple[Batch[Data], ...] = ()


@dataclass(slots=True)
class MemoryStore(Generic[Data]):
    """What survives a crash of the target in front of it, as a database would."""

    committed: Committed[Data] = field(default_factory=Committed)


class MemoryTarget(Generic[Data]):
    """Commits by swapping one reference: all of a batch and its state, or nothing."""

    def __init__(self, store: MemoryStore[Data] | None = None) -> None:
        self.store: MemoryStore[Data] = MemoryStore() if store is None else store

    def bind(self, stream_id: str) -> None:
        """Do nothing: a store holds one stream."""

    def recover(self) -> PipeState:
        """Return the committed state; a swap leaves nothing to repair."""
        return self.store.committed.state

    def stage(self, batch: Batch[Data]) -> Batch[Data]:
        """Hold the batch until it is committed."""
        return batch

    def commit(self, receipts: Sequence[Batch[Data]], state: PipeState) -> None:
        """Add the batches and replace the state."""
        self.store.committed = Committed(state, (*self.store.committed.batches, *receipts))

    def roll_back(self, state: PipeState) -> None:
        """Drop the batches above the cursor and replace the state."""
        number = -1 if state.cursor is None else state.cursor.number
        kept = tuple(
            batch for batch in self.store.committed.batches if batch.headers[-1].number <= number
        )
        self.store.committed = Committed(state, kept)

    def close(self) -> None:
        """Do nothing: the store is the caller's."""
