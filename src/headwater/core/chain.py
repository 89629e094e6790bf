"""The rollback chain: the committed cursors that a fork may send us back to.

A chain is an ascending tuple of batch boundaries, oldest first; its last entry is the committed
cursor. Gaps are normal: a filtered stream does not deliver every block, and Solana skips slots.
"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.core.cursor import BlockCursor

Chain = tuple[BlockCursor, ...]

DEFAULT_CAP = 1000


def append(chain: Chain, cursor: BlockCursor) -> Chain:
    """Add a committed boundary; entries it replaces (same number or above) are dropped first."""
    return (*truncate(chain, cursor.number - 1), cursor)


def truncate(chain: Chain, number: int) -> Chain:
    """Keep what lies at or below `number`."""
    return tuple(cursor for cursor in chain if cursor.number <= number)


def prune(chain: Chain, finalized: BlockCursor | None) -> Chain:
    """Drop what finality makes useless: keep `number >= finalized`, and the anchor.

    The anchor is the newest entry at or below the finalized block. A filtered stream may not have
    been given the finalized block itself; the anchor then proves that the finalized block lies
    between two committed boundaries, hence that landing on it is safe.
    """
    if finalized is None:
        return chain
    below = sum(1 for cursor in chain if cursor.number <= finalized.number)
    return chain[max(below - 1, 0) :]


def cap(chain: Chain, limit: int, finalized: BlockCursor | None) -> Chain:
    """Bound the chain to its newest `limit` entries, but never lose the anchor of finality."""
    if len(chain) <= limit:
        return chain
    newest = chain[len(chain) - limit :]
    if finalized is not None and chain[0].number <= finalized.number < newest[0].number:
        return (chain[0], *newest[1:])
    return newest


def lookup(cursors: Iterable[BlockCursor], number: int) -> BlockCursor | None:
    """Return the cursor of that number, if there is one."""
    return next((cursor for cursor in cursors if cursor.number == number), None)
