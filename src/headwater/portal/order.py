"""Are these the blocks that follow? Order, range and parent links of a stream, block by block.

A portal that repeats, reorders or swaps blocks would corrupt every table downstream without a sign,
so each block is checked against the one before it. Pure; used by one reading, on the driver or on
an executor. A block that fails leaves the checker where it was: at the last good block.
"""

from __future__ import annotations

from headwater.core import BlockCursor, BlockHeader, BlockRange
from headwater.errors import BlockLinkError, BlockOrderError


class BlockOrder:
    """Follows a stream from its anchor through its range.

    `after` is the block before the range; one that is not its direct predecessor (ranges may be
    disjoint) bounds nothing and links to nothing. `complete` says that the query asked for every
    block, so a gap is an error. Where numbers are skipped (Solana), parent links show whether a gap
    is one; without any link the number decides, so such a query must select `parentNumber`.
    """

    __slots__ = ("_complete", "_range", "last")

    def __init__(
        self, block_range: BlockRange, after: BlockCursor | None = None, *, complete: bool = False
    ) -> None:
        adjacent = after is not None and after.number + 1 == block_range.from_block
        self.last: BlockCursor | BlockHeader | None = after if adjacent else None
        self._range = block_range
        self._complete = complete

    @property
    def anchor(self) -> BlockCursor | None:
        """The last good block, as a cursor."""
        return self.last.cursor if isinstance(self.last, BlockHeader) else self.last

    @property
    def next_block(self) -> int:
        """The first number that is still to come."""
        return self._range.from_block if self.last is None else self.last.number + 1

    @property
    def finished(self) -> bool:
        """Whether the last block of the range has been seen."""
        return self._range.to_block is not None and self.next_block > self._range.to_block

    @property
    def remaining(self) -> BlockRange:
        """What is still to be asked for; only while not `finished`."""
        return BlockRange(self.next_block, self._range.to_block)

    def accept(self, header: BlockHeader) -> None:
        """Take the next block.

        Raises:
            BlockOrderError: it was there before, comes too late, or was not asked for.
            BlockLinkError: it is no descendant of the block before it, or one is missing.
        """
        last = self.last
        if last is not None and header.number <= last.number:
            kind = "twice" if header.number == last.number else "out of order"
            raise BlockOrderError(
                f"a block arrived {kind}, after block {last.number}", block=header.number
            )
        if header.number not in self._range:
            raise BlockOrderError(
                "a block outside the requested range arrived",
                block=header.number,
                range=self._range,
                after=None if last is None else last.number,
            )
        if last is not None:
            self._check_link(last, header)
        self.last = header

    def _check_link(self, last: BlockCursor | BlockHeader, header: BlockHeader) -> None:
        known = header.parent_hash is not None and last.hash is not None
        same = known and header.parent_hash == last.hash
        foreign = known and not same
        parent = header.parent_number
        if parent is None:
            parent = last.number if same else header.number - 1
        if not last.number <= parent < header.number or (parent == last.number and foreign):
            problem = f"block {header.number} is not a descendant of block {last.number}"
        elif self._complete and parent != last.number:
            problem = f"blocks are missing between {last.number} and {header.number}"
        else:
            return
        raise BlockLinkError(
            problem,
            expected=last.hash,
            parent_hash=header.parent_hash,
            parent_number=header.parent_number,
        )
