"""Checks and decodes hex digits, many at a time.

All functions run on whole buffers with numpy; none loops over rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

_STEP = 1 << 18  # bytes looked at in one go, so that intermediate results stay in the cache


def hex_mask(text: Bytes) -> npt.NDArray[np.bool_]:
    """Return for each byte whether it is one of 0-9 and a-f."""
    shifted = text - np.uint8(ord("0"))
    valid: npt.NDArray[np.bool_] = shifted < 10
    shifted -= np.uint8(ord("a") - ord("0"))
    valid |= shifted < 6
    return valid


def is_lower_hex(text: Bytes) -> bool:
    """Whether all bytes are hex digits; they are looked at in slices."""
    return count_digits(text) == len(text)


def count_digits(text: Bytes) -> int:
    """Return how many bytes are hex digits; they are looked at in slices."""
    return sum(
        int(np.count_nonzero(hex_mask(text[first : first + _STEP])))
        for first in range(0, len(text), _STEP)
    )


def numbers_of(digits: Words) -> Words:
    """Return the 32-bit number that eight hex digits stand for, for each word of text."""
    packed = _nibbles(digits)
    for shift, mask in ((4, 0x00FF00FF_00FF00FF), (8, 0x0000FFFF_0000FFFF), (16, 0xFFFFFFFF)):
        right = packed >> np.uint64(2 * shift)
        packed <<= np.uint64(shift)
        packed |= right
        packed &= np.uint64(mask)
    return packed


def _nibbles(digits: Words) -> Words:
    """Turn eight hex digits, packed in each word, into eight nibbles. `hex_mask` must hold."""
    letters = digits >> np.uint64(6)
    letters &= np.uint64(0x01010101_01010101)
    letters *= np.uint64(9)
    letters += digits & np.uint64(0x0F0F0F0F_0F0F0F0F)
    return letters


def bytes_of(digits: Bytes) -> Bytes:
    """Return the bytes that hex digits stand for. Their count must be even, `hex_mask` must hold.

    Rows of different lengths may lie one behind the other: each takes half its room in the result.
    """
    padded = np.zeros(-(-len(digits) // 8) * 8, np.uint8)
    padded[: len(digits)] = digits
    packed = _nibbles(padded.view("<u8"))
    packed = ((packed << np.uint64(4)) | (packed >> np.uint64(8))) & np.uint64(0x00FF00FF_00FF00FF)
    packed = (packed | (packed >> np.uint64(8))) & np.uint64(0x0000FFFF_0000FFFF)
    packed = packed | (packed >> np.uint64(16))
    return packed.astype("<u4").view(np.uint8)[: len(digits) // 2]
