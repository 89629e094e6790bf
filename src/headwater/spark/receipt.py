"""What a task says of its reading, in the one row that it adds to its own.

Spark gives a Python data source no other way back to the driver: accumulators do not reach it. A
receipt is data, so it shares the fate of the rows it speaks of: a task that is tried again writes
the same one, and one that failed has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pyarrow as pa

from headwater.core import BlockCursor, BlockHeader, BlockRange
from headwater.decode import Decoded
from headwater.errors import BlockLinkError
from headwater.portal import BlockOrder

COLUMN = pa.field("__headwater_receipt", pa.string())


@dataclass(slots=True)
class Receipt:
    """What one task has read. Filled on an executor, read on the driver."""

    part: int
    blocks: int = 0
    bytes_read: int = 0
    first: BlockHeader | None = None
    last: BlockHeader | None = None
    rows: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)

    def add(self, headers: Sequence[BlockHeader], lines: Sequence[bytes]) -> None:
        """Count the blocks of one answer."""
        self.blocks += len(headers)
        self.bytes_read += sum(map(len, lines))
        self.first = self.first or headers[0]
        self.last = headers[-1]

    def count(self, decoded: Decoded) -> None:
        """Count the rows of outputs, and those that they left out."""
        _add(self.rows, {name: table.num_rows for name, table in decoded.tables.items()})
        _add(self.skipped, decoded.skipped)

    def to_text(self) -> str:
        """Return the text that goes into the row."""
        return msgspec.json.encode(self).decode()


@dataclass(frozen=True, slots=True)
class SpanReport:
    """What all tasks of a span have read.

    `blocks` counts the blocks that arrived (of those without a match, only some do), `bytes_read`
    their size. `cursor` is the last of them: the place to go on from. `rows` counts the rows of
    each output, `skipped` those that could not be decoded, where the output skips such.
    """

    blocks: int
    bytes_read: int
    cursor: BlockCursor | None
    rows: dict[str, int]
    skipped: dict[str, int]


def sum_receipts(
    texts: Iterable[str], parts: Sequence[BlockRange], *, complete: bool
) -> SpanReport:
    """Add up receipts. Runs on the driver, when a job has ended.

    Parts were read apart, so this is where their seams are checked: the first block of each must
    descend from the last block of the one before. `complete` says that every block was asked for.

    Raises:
        BlockLinkError: two neighbouring parts are not of one chain, or one is missing.
    """
    by_part = {one.part: one for one in map(msgspec.json.Decoder(Receipt).decode, texts)}
    missing = [index for index in range(len(parts)) if index not in by_part]
    if missing:
        raise BlockLinkError(
            "tasks have ended without a receipt",
            parts=", ".join(str(parts[index]) for index in missing[:3]),
        )
    ordered = [by_part[index] for index in range(len(parts))]
    filled = [one for one in ordered if one.first is not None and one.last is not None]
    for lower, upper in pairwise(filled):
        _check_seam(lower, upper, parts[upper.part], complete=complete)
    rows: dict[str, int] = {}
    skipped: dict[str, int] = {}
    for one in ordered:
        _add(rows, one.rows)
        _add(skipped, one.skipped)
    last = filled[-1].last if filled else None
    return SpanReport(
        blocks=sum(one.blocks for one in ordered),
        bytes_read=sum(one.bytes_read for one in ordered),
        cursor=None if last is None else last.cursor,
        rows=rows,
        skipped=skipped,
    )


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


def _check_seam(lower: Receipt, upper: Receipt, part: BlockRange, *, complete: bool) -> None:
    assert lower.last is not None, "only parts that hold blocks are compared"
    assert upper.first is not None, "only parts that hold blocks are compared"
    between = BlockRange(lower.last.number + 1, part.to_block)
    BlockOrder(between, lower.last.cursor, complete=complete).accept(upper.first)
