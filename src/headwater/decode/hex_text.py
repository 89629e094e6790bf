"""Hex digits, many at a time: is it hex, and which bytes does it stand for.

All functions run on whole buffers with numpy; none loops over rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

_STEP = 1 << 18  # bytes looked at in one go, so that intermediate results stay in the cache
_NIBBLES, _LETTER = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_NINE, _SIX, _FOUR, _EIGHT = np.uint64(9), np.uint64(6), np.uint64(4), np.uint64(8)
_SIXTEEN, _THIRTY_TWO = np.uint64(16), np.uint64(32)
_PAIRS, _QUADS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_LOW = np.uint64(0xFFFFFFFF)


def hex_mask(text: Bytes) -> npt.NDArray[np.bool_]:
    """Return for each byte whether it is one of 0-9 and a-f."""
    digit: npt.NDArray[np.bool_] = (text - np.uint8(48)) < 10
    return digit | ((text - np.uint8(97)) < 6)


def is_lower_hex(text: Bytes) -> bool:
    """Whether all bytes are hex digits; rows of a matrix are looked at in slices."""
    step = max(1, _STEP // max(1, text[:1].size))
    return all(
        bool(hex_mask(text[first : first + step]).all()) for first in range(0, len(text), step)
    )


def nibbles(digits: Words) -> Words:
    """Turn eight hex digits, packed in each word, into eight nibbles. `hex_mask` must hold."""
    return (digits & _NIBBLES) + _NINE * ((digits >> _SIX) & _LETTER)


def numbers_of(digits: Words) -> Words:
    """Return the 32-bit number that eight hex digits stand for, for each word of text."""
    packed = nibbles(digits)
    packed = ((packed << _FOUR) | (packed >> _EIGHT)) & _PAIRS
    packed = ((packed << _EIGHT) | (packed >> _SIXTEEN)) & _QUADS
    return ((packed << _SIXTEEN) | (packed >> _THIRTY_TWO)) & _LOW


def bytes_of(digits: Bytes) -> Bytes:
    """Return the bytes that hex digits stand for. Their count must be even, `hex_mask` must hold.

    Rows of different lengths may lie one behind the other: each takes half its room in the result.
    """
    padded = np.zeros(-(-len(digits) // 8) * 8, np.uint8)
    padded[: len(digits)] = digits
    packed = nibbles(padded.view("<u8"))
    packed = ((packed << _FOUR) | (packed >> _EIGHT)) & _PAIRS
    packed = (packed | (packed >> _EIGHT)) & _QUADS
    packed = (packed | (packed >> _SIXTEEN)) & _LOW
    return packed.astype("<u4").view(np.uint8)[: len(digits) // 2]
