"""One delivered unit of blocks on its way to a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from headwater.core.answer import Blocks, Span
from headwater.core.chain import DEFAULT_CAP, Chain
from headwater.core.cursor import BlockHeader, Head
from headwater.core.ranges import BlockRange
from headwater.core.state import (
    PipeState,
    believed_head,
    cut_batches,
    final_number,
    hot_cursors,
)

Data = TypeVar("Data")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class Batch(Generic[Data]):
    """Blocks that are committed together, what was made of them, and the state that goes with them.

    `state` is what the target stores together with `data`: its cursor is the last of `headers`.
    `rollback_chain` holds the cursors of this batch's own hot blocks: a part to append to a
    history, not a whole one.
    """

    headers: tuple[BlockHeader, ...]
    head: Head
    state: PipeState
    rollback_chain: Chain
    data: Data

    def with_data(self, data: Other) -> Batch[Other]:
        """Return the same batch with something else made of its blocks."""
        return Batch(self.headers, self.head, self.state, self.rollback_chain, data)


def batches(
    state: PipeState, answer: Blocks | Span, *, cap: int = DEFAULT_CAP
) -> Iterator[Batch[tuple[bytes, ...] | BlockRange]]:
    """Cut an answer into batches, each with the state that follows it; a span is one batch.

    Called by the loop on the driver. The states build on each other, so a batch may only be
    committed after the ones before it. Finality is judged once for the whole answer: a report that
    its last block refutes is not believed at its first.
    """
    head = answer.head
    if isinstance(answer, Span):
        after = state.advance((answer.last,), head, cap=cap)
        yield Batch((answer.last,), head, after, (), answer.block_range)
        return
    headers = answer.headers
    final = final_number(state, headers, head)
    head = believed_head(state, headers, head)
    for part in cut_batches(state, headers, head, cap=cap):
        state = state.advance(headers[part], head, cap=cap)
        yield Batch(
            headers[part], head, state, hot_cursors(headers[part], final), answer.lines[part]
        )
