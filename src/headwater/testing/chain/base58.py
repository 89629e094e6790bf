"""Base58, the text form of Solana's hashes, keys and instruction data; Python has none.

Digits are converted ten at a time: one division of a big integer per ten characters, so that a
simulated block with thousands of keys renders quickly.
"""

from __future__ import annotations

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

_VALUES = {character: value for value, character in enumerate(ALPHABET)}
_PAIRS = [first + second for first in ALPHABET for second in ALPHABET]
_STEP = 58**10


def encode(data: bytes) -> str:
    """Write bytes as base58; each leading zero byte becomes a leading `1`."""
    body = data.lstrip(b"\0")
    number = int.from_bytes(body, "big")
    groups = []
    while number:
        number, group = divmod(number, _STEP)
        groups.append(_ten_digits(group))
    digits = "".join(reversed(groups)).lstrip("1")
    return "1" * (len(data) - len(body)) + digits


def decode(text: str) -> bytes:
    """Read base58; raise `ValueError` on a character that is not in the alphabet."""
    number = 0
    try:
        for character in text:
            number = number * 58 + _VALUES[character]
    except KeyError as unknown:
        raise ValueError(f"not a base58 character: {unknown}") from None
    zeros = len(text) - len(text.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _ten_digits(value: int) -> str:
    pairs = []
    for _ in range(5):
        value, pair = divmod(value, 3364)
        pairs.append(_PAIRS[pair])
    return "".join(reversed(pairs))
