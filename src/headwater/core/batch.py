"""One delivered unit of blocks on its way to a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from headwater.core.answer import Blocks
from headwater.core.chain import DEFAULT_CAP, Chain
from headwater.core.cursor import BlockHeader, Head
from headwater.core.state import PipeState, cut_batches, hot_cursors

Data = TypeVar("Data")


@dataclass(frozen=True, slots=True)
class Batch(Generic[Data]):
    """Blocks that are committed together, what was made of them, and the state that goes with them.

    `state` is what the target stores together with `data`: its cursor is the last of `headers`.
    """

    headers: tuple[BlockHeader, ...]
    head: Head
    state: PipeState
    data: Data

    @property
    def rollback_chain(self) -> Chain:
        """The cursors of this batch's own hot blocks: a part to append, not a whole history."""
        return hot_cursors(self.headers, self.state.finalized)


def batches(
    state: PipeState, answer: Blocks, *, cap: int = DEFAULT_CAP
) -> Iterator[Batch[tuple[bytes, ...]]]:
    """Cut an answer into batches of block lines, each with the state that follows it.

    Called by the loop on the driver. The states build on each other, so a batch may only be
    committed after the ones before it.
    """
    for part in cut_batches(state, answer.headers, answer.head, cap=cap):
        state = state.advance(answer.headers[part], answer.head, cap=cap)
        yield Batch(answer.headers[part], answer.head, state, answer.lines[part])
