"""How large a span of a backfill is, and how it is cut into parts: by measured and learned density.

A block of today holds a thousand times the logs of a block of 2015, so equal numbers of blocks are
very unequal work. A few samples tell how dense a range is; the bytes and rows of spans that were
read tell how far the samples are off. A span gets as many blocks as take some seconds, but never
more than its limits of bytes and rows let in. An estimate that is wrong makes a span or a part
longer, never a row wrong. Pure: measuring and timing are the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from headwater.core.ranges import BlockRange
from headwater.errors import InvalidOptionError, InvalidRangeError

BLOCK_COST = 16.0  # bytes that a block counts at least: one that holds nothing is still looked at
BYTES_PER_SECOND = 24 << 20  # of block lines: what executors are believed to do until one was timed
BYTES_PER_ROW = 100  # of block lines: what a row is believed to take until a span was counted
CLEAR_S = 1.0  # what took as long tells how quick executors are; a shorter time may be chance


@dataclass(frozen=True, slots=True)
class Density:
    """How many bytes a block has on average, within a range that has an end."""

    blocks: BlockRange
    bytes_per_block: float

    @property
    def total(self) -> float:
        """The estimated bytes of all its blocks."""
        return block_count(self.blocks) * self.bytes_per_block


@dataclass(frozen=True, slots=True)
class SpanLimits:
    """The limits of a span: blocks, bytes of block lines, rows; and how long it may take.

    Bytes and rows are estimated before a span is read, so they are limits on average.
    """

    blocks: int = 500_000
    bytes: int = 2 << 30
    rows: int = 5_000_000
    seconds: float = 10.0

    def __post_init__(self) -> None:
        for name, limit in (("blocks", self.blocks), ("bytes", self.bytes), ("rows", self.rows)):
            if type(limit) is not int or limit < 1:
                raise InvalidOptionError(
                    f"the limit of {name} of a span is a whole number from 1", got=repr(limit)
                )
        if type(self.seconds) not in (int, float) or not self.seconds > 0:
            raise InvalidOptionError(
                "the seconds of a span are a number above 0", got=repr(self.seconds)
            )


class SpanSize:
    """How many blocks the next span gets. `first` is what the user wants the first one to have.

    `blocks` is what time alone allows; 0 until anything is known of it. Without a `first`, the
    first span is sized by what the driver has read before it, or else by its bytes: as many as a
    slow machine reads in time.
    """

    def __init__(self, first: int | None, limits: SpanLimits) -> None:
        self.blocks = first or 0
        self._limits = limits
        self._kept = first is not None  # the first one, paying for the warm-up, shrinks no other
        self._believed = False
        self._bytes_per_estimate = 1.0
        self._rows_per_byte = 0.0

    def begin(self, bytes_per_block: float) -> None:
        """Size the first span by the density of its beginning, for nothing was timed yet."""
        room = self._believed_room() / max(bytes_per_block, BLOCK_COST)
        self.blocks = max(1, int(min(room, self._limits.blocks)))
        self._believed = True

    def took(self, seconds: float, blocks: int) -> None:
        """Learn how long a span of so many blocks took: shrink at once, grow as is safe.

        What was too quick to tell grows at most fourfold. A first span that the user has sized
        never shrinks the next: it also pays for the warm-up of executors.
        """
        if seconds > 0:
            least = blocks if self._kept else 1
            self.blocks = max(least, self._in_time(seconds, blocks))
        self._kept = self._believed = False

    def read_before(self, seconds: float, blocks: int) -> None:
        """Learn how quickly the driver read so many blocks: executors are not slower.

        So the first span is as long as a span should take, and not a trial.
        """
        if self.blocks and seconds > 0:
            self.blocks = max(self.blocks, self._in_time(seconds, blocks))
        elif seconds >= CLEAR_S:
            self.blocks = max(1, self._in_time(seconds, blocks))

    def _in_time(self, seconds: float, blocks: int) -> int:
        """Return how many blocks the next span may have, given the time that the last one took."""
        ideal = int(min(blocks * self._limits.seconds / seconds, self._limits.blocks))
        return ideal if seconds >= CLEAR_S else min(ideal, 4 * blocks)

    def _believed_room(self) -> float:
        """Return the bytes of a span before one was timed and counted."""
        limits = self._limits
        most = min(limits.bytes, limits.rows * BYTES_PER_ROW)
        return min(most, limits.seconds * BYTES_PER_SECOND)

    def held(self, estimate: float, size: int, rows: int) -> None:
        """Learn what a span held whose bytes were estimated."""
        if estimate > 0 and size > 0:
            self._bytes_per_estimate = size / estimate
            self._rows_per_byte = rows / size

    def fitting(self, densities: Sequence[Density]) -> int:
        """Return how many blocks of a measured range a span may have: one at least."""
        room = float(self._believed_room() if self._believed else self._limits.bytes)
        if self._rows_per_byte > 0:
            room = min(room, self._limits.rows / self._rows_per_byte)
        room /= self._bytes_per_estimate
        blocks = 0
        for density in densities:
            if density.total > room:
                return max(1, blocks + int(room / density.bytes_per_block))
            room -= density.total
            blocks += block_count(density.blocks)
        return max(1, blocks)


def block_count(block_range: BlockRange) -> int:
    """Count the numbers of a range; `InvalidRangeError` if it has no end."""
    if block_range.to_block is None:
        raise InvalidRangeError("a range that is read in parallel needs an end", range=block_range)
    return block_range.to_block - block_range.from_block + 1


def up_to(densities: Sequence[Density], last: int) -> list[Density]:
    """Return the densities of the blocks up to a number."""
    cut = []
    for density in densities:
        first, size = density.blocks.from_block, block_count(density.blocks)
        if first <= last:
            cut.append(replace(density, blocks=BlockRange(first, min(first + size - 1, last))))
    return cut


def even_partitions(densities: Sequence[Density], count: int) -> list[BlockRange]:
    """Cut the blocks of adjacent densities into `count` ranges of even estimated bytes.

    Together the ranges are exactly the blocks of the densities, in order. Each holds a block at
    least, so there are fewer ranges where there are fewer blocks. None exceeds its even share by
    more than one block.

    Raises:
        InvalidOptionError: `count` is below 1.
        InvalidRangeError: the densities do not touch, or one has no end.
    """
    if count < 1:
        raise InvalidOptionError("partitions must be at least 1", got=count)
    first, last = _check_adjacent(densities)
    count = min(count, last - first + 1)
    total = sum(
        (_weight(density) * block_count(density.blocks) for density in densities), Fraction(0)
    )
    cuts = [first]
    for index, cut in enumerate(_cuts(densities, total, count), start=1):
        cuts.append(min(max(cut, cuts[-1] + 1), last + 1 - (count - index)))
    return [
        BlockRange(start, end - 1) for start, end in zip(cuts, [*cuts[1:], last + 1], strict=True)
    ]


def _check_adjacent(densities: Sequence[Density]) -> tuple[int, int]:
    if not densities:
        raise InvalidRangeError("there is no range to cut")
    following = densities[0].blocks.from_block
    for density in densities:
        if density.blocks.from_block != following:
            raise InvalidRangeError("densities must follow each other", at=following)
        following += block_count(density.blocks)
    return densities[0].blocks.from_block, following - 1


def _weight(density: Density) -> Fraction:
    """Return the weight of a block: exact, so that sums do not depend on their order."""
    return Fraction(max(density.bytes_per_block, BLOCK_COST))


def _cuts(densities: Sequence[Density], total: Fraction, count: int) -> Iterator[int]:
    """Yield where parts 1 to count - 1 begin, if parts could be empty: after their even share."""
    before, index = Fraction(0), 0
    for part in range(1, count):
        goal = total * part / count
        while before + _weight(densities[index]) * block_count(densities[index].blocks) < goal:
            before += _weight(densities[index]) * block_count(densities[index].blocks)
            index += 1
        inside = (goal - before) / _weight(densities[index])
        yield densities[index].blocks.from_block + math.ceil(inside)
