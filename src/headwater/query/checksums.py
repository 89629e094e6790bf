"""Addresses that carry a checksum: base58 with four bytes of a hash, and bech32.

A mistyped address would match nothing for ever, so it is found before anything is sent.
"""

from __future__ import annotations

import hashlib

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58 = {digit: index for index, digit in enumerate(_ALPHABET)}
_BECH32 = {digit: index for index, digit in enumerate("qpzry9x8gf2tvdw0s3jn54khce6mua7l")}
_GENERATORS = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CONSTANTS = (1, 0x2BC830A3)  # of bech32, and of bech32m since taproot
_CHECKSUM = 4


def decode_base58(text: str) -> bytes | None:
    """Return the bytes of base58 text, or None if it is none. A leading "1" is a zero byte."""
    number = 0
    for digit in text:
        if digit not in _BASE58:
            return None
        number = number * 58 + _BASE58[digit]
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def decode_base58_check(text: str) -> bytes | None:
    """Return what base58 text holds before its checksum, or None if that is wrong."""
    raw = decode_base58(text)
    if raw is None or len(raw) <= _CHECKSUM:
        return None
    content, checksum = raw[:-_CHECKSUM], raw[-_CHECKSUM:]
    twice = hashlib.sha256(hashlib.sha256(content).digest()).digest()
    return content if twice[:_CHECKSUM] == checksum else None


def is_bech32(text: str) -> bool:
    """Whether text is a bech32 or bech32m address in lower case with the right checksum."""
    human, _, data = text.rpartition("1")
    if not human or len(data) < 6 or len(text) > 90 or any(one not in _BECH32 for one in data):
        return False
    expanded = [ord(one) >> 5 for one in human] + [0] + [ord(one) & 31 for one in human]
    return _remainder([*expanded, *(_BECH32[one] for one in data)]) in _CONSTANTS


def _remainder(values: list[int]) -> int:
    total = 1
    for value in values:
        top = total >> 25
        total = (total & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(_GENERATORS):
            total ^= generator if top >> bit & 1 else 0
    return total
