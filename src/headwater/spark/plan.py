"""How to cut a range of blocks so that every task has the same amount of work.

A block of today holds a thousand times the logs of a block of 2015, so equal numbers of blocks are
very unequal work: the last task would run alone for most of the time. A few short requests measure
how dense the range is, and the cuts follow the estimated bytes. An estimate that is wrong makes a
task longer, never a row wrong.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction

from headwater.core import Answer, BlockRange, Blocks, RangeEnd
from headwater.errors import InvalidOptionError, InvalidRangeError
from headwater.portal import PortalClient, StreamQuery

SAMPLES = 8
PROBE_BYTES = 64 * 1024  # the `max_bytes` of a client that probes: what one sample reads, about
BLOCK_COST = 16.0  # bytes that a block counts at least: one that holds nothing is still looked at

_TASKS_PER_CORE = 4
_SMALL_TASK = 1 << 20
_LARGE_TASK = 64 << 20
_UNKNOWN = 10_000.0  # bytes of a block that nobody has looked at


@dataclass(frozen=True, slots=True)
class Density:
    """How many bytes a block has on average, within a range that has an end."""

    blocks: BlockRange
    bytes_per_block: float

    @property
    def total(self) -> float:
        """The estimated bytes of all its blocks."""
        return block_count(self.blocks) * self.bytes_per_block


def block_count(block_range: BlockRange) -> int:
    """Count the numbers of a range; `InvalidRangeError` if it has no end."""
    if block_range.to_block is None:
        raise InvalidRangeError("a range that is read in parallel needs an end", range=block_range)
    return block_range.to_block - block_range.from_block + 1


def plan_parts(
    client: PortalClient,
    query: StreamQuery,
    block_range: BlockRange,
    *,
    partitions: int | None,
    cores: int,
    samples: int = SAMPLES,
) -> list[BlockRange]:
    """Return the parts that tasks will read: measure the range, choose how many, cut evenly.

    Called on the driver, once per range. Without `samples`, or for one part, nothing is asked and
    all blocks count as equal.
    """
    if samples > 0 and min(block_count(block_range), partitions or 2) > 1:
        densities = probe(client, query, block_range, samples)
    else:
        densities = [Density(block_range, _UNKNOWN)]
    count = partition_count(densities, cores) if partitions is None else partitions
    return even_partitions(densities, count)


def even_partitions(densities: Sequence[Density], count: int) -> list[BlockRange]:
    """Cut the blocks of adjacent densities into `count` ranges of even estimated bytes.

    Pure. Together the ranges are exactly the blocks of the densities, in order. Each holds a block
    at least, so there are fewer ranges where there are fewer blocks. None exceeds its even share by
    more than one block.

    Raises:
        InvalidOptionError: `count` is below 1.
        InvalidRangeError: the densities do not touch, or one has no end.
    """
    if count < 1:
        raise InvalidOptionError("partitions must be at least 1", got=count)
    first, last = _check_adjacent(densities)
    count = min(count, last - first + 1)
    total = sum((_weight(one) * block_count(one.blocks) for one in densities), Fraction(0))
    cuts = [first]
    for index, cut in enumerate(_cuts(densities, total, count), start=1):
        cuts.append(min(max(cut, cuts[-1] + 1), last + 1 - (count - index)))
    return [
        BlockRange(start, end - 1) for start, end in zip(cuts, [*cuts[1:], last + 1], strict=True)
    ]


def partition_count(densities: Sequence[Density], cores: int) -> int:
    """Return into how many parts to cut, if the user does not say.

    Four per core keep all cores busy to the end; but no task is so small that starting it costs
    more than running it, or so large that repeating it hurts.
    """
    total = sum(one.total for one in densities)
    wanted = min(_TASKS_PER_CORE * cores, math.ceil(total / _SMALL_TASK))
    return max(1, wanted, math.ceil(total / _LARGE_TASK))


def probe(
    client: PortalClient, query: StreamQuery, block_range: BlockRange, samples: int
) -> list[Density]:
    """Measure how dense a range of final blocks is, by one short request per sample.

    Called on the driver before a range is read in parallel. Each request is closed after the first
    blocks, so the client should have a small `max_bytes` (`PROBE_BYTES`). A sample that fails to
    bring blocks counts as average; outages are waited out as in any reading.
    """
    sections = _sections(block_range, samples)
    measured = [_measure(client, query, section) for section in sections]
    known = [value for value in measured if value is not None]
    average = sum(known) / len(known) if known else BLOCK_COST
    return [
        Density(section, max(BLOCK_COST, average if value is None else value))
        for section, value in zip(sections, measured, strict=True)
    ]


def _sections(block_range: BlockRange, samples: int) -> list[BlockRange]:
    """Cut into as many sections as samples, by numbers."""
    return even_partitions([Density(block_range, 1.0)], samples)


def _measure(client: PortalClient, query: StreamQuery, section: BlockRange) -> float | None:
    """Return the bytes per block in the middle of a section; None if there was no answer."""
    middle = section.from_block + block_count(section) // 2
    sample = BlockRange(min(middle, section.to_block or middle), section.to_block)
    with closing(_as_generator(client.read(query, sample, finalized=True))) as answers:
        for answer in answers:
            match answer:
                case Blocks(headers, lines):
                    seen = headers[-1].number - sample.from_block + 1
                    return sum(map(len, lines)) / seen
                case RangeEnd():
                    return 0.0
                case _:
                    return None
    return None


def _as_generator(iterator: Iterator[Answer]) -> Generator[Answer, None, None]:
    yield from iterator


def _check_adjacent(densities: Sequence[Density]) -> tuple[int, int]:
    if not densities:
        raise InvalidRangeError("there is no range to cut")
    following = densities[0].blocks.from_block
    for one in densities:
        if one.blocks.from_block != following:
            raise InvalidRangeError("densities must follow each other", at=following)
        following += block_count(one.blocks)
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
