"""Chance that is decided in advance: the same parts always draw the same values.

Only operations whose results Python promises to keep between versions are used, so a seed means
the same chain everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


class Draw:
    """A stream of values that follows from the parts it is made of."""

    __slots__ = ("_bits", "_fraction")

    def __init__(self, *parts: str | int) -> None:
        digest = blake2b("/".join(map(str, parts)).encode(), digest_size=16).digest()
        random = Random(int.from_bytes(digest, "big"))
        self._bits, self._fraction = random.getrandbits, random.random

    def below(self, limit: int) -> int:
        """Draw an integer from 0 up to, but not including, `limit`; for small limits."""
        return int(self._fraction() * limit)

    def pick(self, items: Sequence[Item]) -> Item:
        """Draw one of the items."""
        return items[int(self._fraction() * len(items))]

    def chance(self, share: float) -> bool:
        """Draw true in `share` of the cases."""
        return self._fraction() < share

    def count(self, average: float) -> int:
        """Draw a number of things, from none to twice the average."""
        return int(self._fraction() * (2 * average + 1)) if average else 0

    def bits(self, width: int) -> int:
        """Draw an integer of at most `width` bits."""
        return self._bits(width)

    def octets(self, size: int) -> bytes:
        """Draw `size` bytes."""
        return self._bits(8 * size).to_bytes(size, "big") if size else b""

    def hex(self, size: int) -> str:
        """Draw `size` bytes as `0x` and hex digits."""
        return "0x" + self.octets(size).hex()
