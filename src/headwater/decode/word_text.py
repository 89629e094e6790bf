"""The form in which 32-byte words are kept: text, eight hex digits to a 64-bit integer."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

DIGITS = 64  # hex digits in a word
PARTS = 8  # integers that hold them
PART_BITS = 32  # what eight digits stand for

WordText: TypeAlias = npt.NDArray[np.uint64]
"""A matrix of `PARTS` columns, one row per word; all digits are known to be lower-case hex."""


def part_text(digits: bytes) -> np.uint64:
    """Return eight digits as the integer that holds them."""
    return np.uint64(int.from_bytes(digits, "little"))


ZEROS = part_text(b"00000000")
ONE = part_text(b"00000001")
ONES = part_text(b"ffffffff")  # minus one, in two's complement
