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


def probe(
    client: PortalClient, query: StreamQuery, block_range: BlockRange, samples: int = SAMPLES
) -> list[Density]:
    """Measure how dense a range of final blocks is, by one short request per sample.

    Called on the driver before a range is read in parallel. Each request is closed after the first
    blocks. A sample that fails to bring blocks counts as average; outages are waited out as in any
    reading.
    """
    sections = even_partitions([Density(block_range, 1.0)], samples)
    measured = [_measure(client, query, section) for section in sections]
    known = [value for value in measured if value is not None]
    average = sum(known) / len(known) if known else BLOCK_COST
    return [
        Density(section, max(BLOCK_COST, average if value is None else value))
        for section, value in zip(sections, measured, strict=True)
    ]


def _measure(client: PortalClient, query: StreamQuery, section: BlockRange) -> float | None:
    """Return the bytes per block in the middle of a section; None if there was no answer."""
    middle = section.from_block + block_count(section) // 2
    sample = BlockRange(min(middle, section.to_block or middle), section.to_block)
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
