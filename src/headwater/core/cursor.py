"""Positions on the chain: a committed block, a delivered block, the head as the portal reports it.

All are immutable values that pickle; they are made on the driver and on executors alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

UNKNOWN_HASH = "unknown"  # of a final block that a source names by its number alone
_HEX = re.compile(r"0[xX][0-9a-fA-F]*|[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class BlockCursor:
    """A block or slot, inclusive: reading resumes at `number + 1`.

    Two cursors are equal when number *and* hash are; the timestamp (seconds) is only carried along.
    Hashes in hex are kept in lower case, whatever a portal, a stored state or a user wrote.
    A cursor without a hash cannot serve as an anchor, so the next request detects no fork.
    """

    number: int
    hash: str | None = None
    timestamp: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash", normal_hash(self.hash))

    def __str__(self) -> str:
        return f"{self.number}#{short_hash(self.hash)}"


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The header of one delivered block, with the links that let its order be checked."""

    number: int
    hash: str
    parent_hash: str | None = None
    parent_number: int | None = None
    timestamp: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash", normal_hash(self.hash))
        object.__setattr__(self, "parent_hash", normal_hash(self.parent_hash))

    @property
    def cursor(self) -> BlockCursor:
        """The position of this block."""
        return BlockCursor(self.number, self.hash, self.timestamp)


@dataclass(frozen=True, slots=True)
class Head:
    """The newest blocks in one answer of a portal; replicas differ, so values may go backwards."""

    finalized: BlockCursor | None = None
    latest: BlockCursor | None = None


def normal_hash(block_hash: str | None) -> str | None:
    """Return the one spelling in which hashes are compared: hex in lower case, all else as it is.

    Base58, in which case tells, has no zero and no hash of 64 characters.
    """
    if block_hash is None or block_hash.islower():
        return block_hash
    return block_hash.lower() if _HEX.fullmatch(block_hash) else block_hash


def short_hash(block_hash: str | None) -> str:
    """Return enough of a hash to recognise it in a log line."""
    if block_hash is None:
        return "?"
    return block_hash if len(block_hash) <= 12 else f"{block_hash[:8]}…"
