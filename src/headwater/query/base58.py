"""Reads and writes base58, one text at a time: keys of Solana, addresses of Bitcoin and Tron.

Whole columns of it are converted by `headwater.decode.columns.bytes_text`.
"""

from __future__ import annotations

import hashlib

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

_VALUES = {character: value for value, character in enumerate(ALPHABET)}
_PAIRS = [first + second for first in ALPHABET for second in ALPHABET]
_STEP = 58**10  # digits are written ten at a time: one division of a big integer for all of them
_CHECKSUM = 4


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


def decode_with_checksum(text: str) -> bytes:
    """Read base58 that ends with four bytes of a hash; raise `ValueError` if they are wrong."""
    raw = decode(text)
    content, checksum = raw[:-_CHECKSUM], raw[-_CHECKSUM:]
    twice = hashlib.sha256(hashlib.sha256(content).digest()).digest()
    if not content or twice[:_CHECKSUM] != checksum:
        raise ValueError("the checksum is wrong")
    return content


def _ten_digits(value: int) -> str:
    pairs = []
    for _ in range(5):
        value, pair = divmod(value, len(_PAIRS))
        pairs.append(_PAIRS[pair])
    return "".join(reversed(pairs))
