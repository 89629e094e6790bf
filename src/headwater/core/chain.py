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
    """Keep `number >= finalized`: the finalized cursor stays, as the anchor of the deepest fork."""
    if finalized is None:
        return chain
    return tuple(cursor for cursor in chain if cursor.number >= finalized.number)


def cap(chain: Chain, limit: int, finalized: BlockCursor | None) -> Chain:
    """Bound the chain to its newest `limit` entries, but never lose the finalized cursor."""
    if len(chain) <= limit:
        return chain
    newest = chain[len(chain) - limit :]
    return newest if finalized is None else (chain[0], *newest[1:])


def newest_at_or_below(chain: Chain, number: int) -> BlockCursor | None:
    """Return the newest entry at or below a number, if there is one."""
    return next((cursor for cursor in reversed(chain) if cursor.number <= number), None)


def lookup(cursors: Iterable[BlockCursor], number: int) -> BlockCursor | None:
    """Return the cursor of that number, if there is one."""
    return next((cursor for cursor in cursors if cursor.number == number), None)
