"""All that a portal can say: `Blocks`, `Fork`, `AtHead`, `RangeEnd`.

The client turns HTTP into these four; the loop folds them into `PipeState`. Far behind the head a
source may give the loop a `Span` instead of blocks, and tell it of blocks that it `Dropped`.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core.cursor import BlockCursor, BlockHeader, Head
from headwater.core.ranges import BlockRange


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks in ascending order, checked and linked: their headers and their raw NDJSON lines.

    `lines[i]` is the line of `headers[i]`, without its newline. Decoders read the lines; nobody
    else needs to.
    """

    headers: tuple[BlockHeader, ...]
    lines: tuple[bytes, ...]
    head: Head


@dataclass(frozen=True, slots=True)
class Fork:
    """Our anchor is not on the portal's chain; here is a sample of it, in no particular order."""

    previous_blocks: tuple[BlockCursor, ...]


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

    `last` is the header of its last block, which becomes the cursor.
    """

    block_range: BlockRange
    last: BlockHeader
    head: Head


@dataclass(frozen=True, slots=True)
class Dropped:
    """Not said by a portal: a fork took blocks that were held back, up to `orphaned`."""

    orphaned: BlockCursor
    blocks: int


Answer = Blocks | Fork | AtHead | RangeEnd
