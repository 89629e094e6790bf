"""How dense a range is: bytes per block, by a few short requests. Runs on the driver."""

from __future__ import annotations

from contextlib import closing

from headwater.core import (
    BLOCK_COST,
    BlockRange,
    Blocks,
    Density,
    RangeEnd,
    block_count,
    even_partitions,
)
from headwater.portal.client import PortalClient
from headwater.portal.reading import StreamQuery

SAMPLES = 8
_SAMPLE_BYTES = 64 * 1024  # what one sample reads, about
_BEGINNING = 10_000  # blocks in which the beginning of a range is measured: a portal scans them


def probe(
    client: PortalClient, query: StreamQuery, block_range: BlockRange, samples: int = SAMPLES
) -> list[Density]:
    """Measure how dense a range of final blocks is, by one short request per sample.

    Called on the driver before a range is read in parallel. Each request is closed after the first
    blocks. A sample that fails to bring blocks counts as average; outages are waited out as in any
    reading.
    """
    sections = even_partitions([Density(block_range, 1.0)], samples)
    measured = [_measure(client, query, _second_half(section)) for section in sections]
    known = [value for value in measured if value is not None]
    average = sum(known) / len(known) if known else BLOCK_COST
    return [
        Density(section, max(BLOCK_COST, average if value is None else value))
        for section, value in zip(sections, measured, strict=True)
    ]


def probe_beginning(client: PortalClient, query: StreamQuery, block_range: BlockRange) -> float:
    """Return the bytes per block at the beginning of a range of final blocks, by one request.

    Called on the driver before the first span, to choose how much of the range to measure. Outages
    are waited out; an answer without blocks counts as empty blocks.
    """
    first, size = block_range.from_block, min(block_count(block_range), _BEGINNING)
    return max(BLOCK_COST, _measure(client, query, BlockRange(first, first + size - 1)) or 0.0)


def _second_half(section: BlockRange) -> BlockRange:
    middle = section.from_block + block_count(section) // 2
    return BlockRange(min(middle, section.to_block or middle), section.to_block)


def _measure(client: PortalClient, query: StreamQuery, sample: BlockRange) -> float | None:
    """Return the bytes per block where a range begins; None if there was no answer."""
    reading = client.read(query, sample, finalized=True, max_bytes=_SAMPLE_BYTES)
    with closing(reading) as answers:
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
