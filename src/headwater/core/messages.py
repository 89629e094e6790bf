"""The messages between the parts of a stream: answers, batches and events.

A portal can say four things: `Blocks`, `Fork`, `AtHead`, `RangeEnd`. The client turns HTTP into
these; the loop folds them into `PipeState`. A Substreams endpoint says `Undo` instead of `Fork`.
Far behind the head a source may give the loop a `Span` instead of blocks, and tell it of blocks
that it `Dropped`. A `Batch` is one unit of blocks on its
way to a target. An `Event` follows each step of the loop; its `state` is always the committed one,
so a listener never hears of data that a crash could take back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headwater.core.cursor import BlockCursor, BlockHeader, Head
from headwater.core.fork import ForkResolution
from headwater.core.ranges import BlockRange
from headwater.core.spans import Density, block_count
from headwater.core.state import (
    DEFAULT_CAP,
    Chain,
    PipeState,
    believed_head,
    cut_batches,
    final_number,
    hot_cursors,
)

# --- answers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks in ascending order, checked and linked: their headers and their raw NDJSON lines.

    `lines[i]` is the line of `headers[i]`, without its newline; of a Substreams module, what it
    made of that block. Only decoders read the lines, all else at most their length.
    """

    headers: tuple[BlockHeader, ...]
    lines: tuple[Any, ...]
    head: Head


@dataclass(frozen=True, slots=True)
class Fork:
    """Our anchor is not on the portal's chain; here is a sample of it, in no particular order."""

    previous_blocks: tuple[BlockCursor, ...]


@dataclass(frozen=True, slots=True)
class Undo:
    """Everything above this block is off the chain: a Substreams endpoint names it by itself."""

    last_valid: BlockCursor


@dataclass(frozen=True, slots=True)
class AtHead:
    """Nothing new. The head may still have moved finality.

    `confirmed` tells that the portal compared our anchor and found it on its chain, as it does
    before an empty 200; a 204 may come without any comparison.
    """

    head: Head
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class RangeEnd:
    """The last block of the range was delivered; there is nothing more to ask for."""

    head: Head


@dataclass(frozen=True, slots=True)
class Span:
    """Not said by a portal: a stretch of final blocks that executors are to fetch by themselves.

    `last` is the header of its last block, which becomes the cursor; `densities` is what was
    measured of its blocks.
    """

    block_range: BlockRange
    last: BlockHeader
    head: Head
    densities: tuple[Density, ...] = ()

    @property
    def blocks(self) -> int:
        """How many numbers it covers."""
        return block_count(self.block_range)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Not said by a portal: a fork took blocks that were held back, up to `orphaned`."""

    orphaned: BlockCursor
    blocks: int


Answer = Blocks | Fork | Undo | AtHead | RangeEnd


# --- batches --------------------------------------------------------------------------------------

Data = TypeVar("Data")
Other = TypeVar("Other")
Raw = tuple[Any, ...] | Span  # what a batch is made of: the lines of its blocks, or a span


@dataclass(frozen=True, slots=True)
class Batch(Generic[Data]):
    """Blocks that are committed together, what was made of them, and the state that goes with them.

    `state` is what the target stores together with `data`: its cursor is the last of `headers`.
    `rollback_chain` holds the cursors of this batch's own hot blocks: a part to append to a
    chain, not a whole one.
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
) -> Iterator[Batch[Raw]]:
    """Cut an answer into batches, each with the state that follows it; a span is one batch.

    Called by the loop on the driver. The states build on each other, so a batch may only be
    committed after the ones before it. Finality is judged once for the whole answer: a report that
    its last block refutes is not believed at its first.
    """
    head = answer.head
    if isinstance(answer, Span):
        after = state.advance((answer.last,), head, cap=cap)
        yield Batch((answer.last,), head, after, (), answer)
        return
    headers = answer.headers
    final = final_number(state, headers, head)
    head = believed_head(state, headers, head)
    for part in cut_batches(state, headers, head, cap=cap):
        state = state.advance(headers[part], head, cap=cap)
        yield Batch(
            headers[part], head, state, hot_cursors(headers[part], final), answer.lines[part]
        )


HOT_BLOCKS, HOT_BYTES = 128, 16 << 20  # of hot blocks that are transformed and committed together


def hot_groups(
    several: Iterable[Batch[Raw]], *, blocks: int = HOT_BLOCKS, size: int = HOT_BYTES
) -> Iterator[list[Batch[Raw]]]:
    """Gather the hot batches of one answer, up to limits; any other batch comes alone.

    Each stays a batch with a state of its own, so that a fork can go back to any of them.
    """
    group: list[Batch[Raw]] = []
    room = 0
    for batch in several:
        hot = bool(batch.rollback_chain)
        grows = 0 if isinstance(batch.data, Span) else sum(map(len, batch.data))
        if group and not (hot and len(group) < blocks and grows <= room):
            yield group
            group = []
        room = (room if group else size) - grows
        group.append(batch)
        if not hot:
            yield group
            group = []
    if group:
        yield group


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovered:
    """The loop starts from a committed state."""

    state: PipeState


@dataclass(frozen=True, slots=True)
class Buffered:
    """A batch, up to `cursor`, waits to be committed together with others."""

    state: PipeState
    cursor: BlockCursor
    blocks: int


@dataclass(frozen=True, slots=True)
class Committed:
    """One batch or several became visible, in one step."""

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
    """A replica is behind, or contradicts finality; it was given time and nothing was changed."""

    state: PipeState


@dataclass(frozen=True, slots=True)
class Discarded:
    """A fork took blocks that were not committed yet, from `orphaned` down: nothing to undo."""

    state: PipeState
    orphaned: BlockCursor
    blocks: int


Event = Recovered | Buffered | Committed | Settled | RolledBack | Waited | Discarded
Listener = Callable[[Event], None]
