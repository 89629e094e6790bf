"""Formats integers of up to 256 bits as exact decimal text, a column at a time.

A number comes as 32-bit limbs, most significant first, one array per limb. Each limb's weight is
known in groups of eight decimal digits, so the groups of a number are sums of products that stay
below 2^64, and one pass of carries. A group becomes its eight characters inside one 64-bit word.
Most amounts on chain are below 2^96, so only the others are computed with all their limbs.

No step loops over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Limbs = Sequence[npt.NDArray[np.uint64]]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Text = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]

SMALL_LIMBS = 3

_STEP = 1 << 14  # rows converted at once: intermediate results stay in the cache
_LIMB_BITS = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_GROUP = 10**8
_GROUP_DIGITS = 8
_ASCII = np.uint64(0x30303030_30303030)
_LAST_BYTE = np.uint64(1 << 56)
_MAX_OFFSET = 2**31 - 1


def format_integers(limbs: Limbs, negative: Mask | None = None) -> pa.StringArray:
    """Return the decimal text of each number.

    `limbs` are magnitudes, `negative` marks those that get a minus sign (zero must not be marked).
    """
    top = np.zeros(len(limbs[0]), np.uint64)
    for limb in limbs[:-SMALL_LIMBS]:
        top |= limb
    wide = np.flatnonzero(top)
    return format_mixed(limbs[-SMALL_LIMBS:], wide, [limb[wide] for limb in limbs], negative)


def format_mixed(
    small: Limbs, wide: Rows, limbs: Limbs, negative: Mask | None = None
) -> pa.StringArray:
    """Return the decimal text of numbers of which only the rows in `wide` need all limbs.

    `small` holds the low limbs of every row; those of wide rows are formatted too and not used,
    which costs less than leaving them out. Called by `integers`.
    """
    parts = [_format_rows(small, negative)]
    if not len(wide):
        return _cut(parts, None)
    rows = len(small[0])
    places = np.arange(rows, dtype=np.int64)
    places[wide] = rows + np.arange(len(wide))
    return _cut([*parts, _format_rows(limbs, None if negative is None else negative[wide])], places)


def negate(limbs: Limbs, negative: Mask) -> list[Words]:
    """Return magnitudes of two's complement numbers: where marked, invert the bits and add one."""
    flip = np.where(negative, _LOW, np.uint64(0))
    carry = negative.astype(np.uint64)
    result: list[Words] = []
    for limb in reversed(limbs):
        total = (limb ^ flip) + carry
        carry = total >> _LIMB_BITS
        result.append(total & _LOW)
    return result[::-1]


def _format_rows(limbs: Limbs, negative: Mask | None) -> Text:
    """Return a matrix of right-aligned text, and where in its row each text begins."""
    rows, weights = len(limbs[0]), _weights(len(limbs))
    text = np.empty((rows, len(weights)), np.uint64)
    begins = np.empty(rows, np.int64)
    for first in range(0, rows, _STEP):
        part = slice(first, first + _STEP)
        _write_groups([limb[part] for limb in limbs], weights, text[part])
        _write_digits(text[part])
        begins[part] = _find_begins(text[part])
        text[part] += _ASCII
    characters = text.view(np.uint8)
    if negative is not None:
        marked = np.flatnonzero(negative)
        begins[marked] -= 1  # there is room: the first group is never full
        characters[marked, begins[marked]] = ord("-")
    return characters, begins


@cache
def _weights(limbs: int) -> tuple[tuple[int, ...], ...]:
    """Return for each group of digits, most significant first, what each limb adds to it."""
    groups = -(-len(str(2 ** (32 * limbs) - 1)) // _GROUP_DIGITS)
    return tuple(
        tuple(2 ** (32 * (limbs - 1 - limb)) // _GROUP**group % _GROUP for limb in range(limbs))
        for group in reversed(range(groups))
    )


def _write_groups(limbs: Limbs, weights: tuple[tuple[int, ...], ...], groups: Words) -> None:
    """Write groups of eight digits. A sum is below 8 * 2^32 * 10^8 + carry < 2^63."""
    carry = np.zeros(len(limbs[0]), np.uint64)
    for at in reversed(range(len(weights))):
        total = carry
        for limb, weight in zip(limbs, weights[at], strict=True):
            if weight:
                total = total + (limb * np.uint64(weight) if weight > 1 else limb)
        carry = total // np.uint64(_GROUP)
        np.subtract(total, carry * np.uint64(_GROUP), out=groups[:, at])


def _write_digits(groups: Words) -> None:
    """Replace each group by its digits, the first in the lowest byte: 4+4, 2+2+2+2, 1+1+…"""
    high = groups // np.uint64(10_000)
    rest = high * np.uint64(10_000)
    for shift, factor, bits, mask, base in (
        (32, 10_486, 20, 0x0000007F_0000007F, 100),
        (16, 103, 10, 0x000F000F_000F000F, 10),
        (8, 0, 0, 0, 0),
    ):
        np.subtract(groups, rest, out=groups)
        groups <<= np.uint64(shift)
        groups |= high
        if factor:
            np.multiply(groups, np.uint64(factor), out=high)
            high >>= np.uint64(bits)
            high &= np.uint64(mask)
            np.multiply(high, np.uint64(base), out=rest)


def _find_begins(digits: Words) -> npt.NDArray[np.int64]:
    """Return the place of the first digit that is not zero; of the last one if all are.

    In the first group that is not zero, it is the lowest byte that is not: its lowest bit is found
    in the exponent of that bit's value as a float.
    """
    present = digits != 0
    present[:, -1] = True
    first = present.argmax(axis=1)
    leading = digits[np.arange(len(digits)), first] | _LAST_BYTE
    lowest = leading & (~leading + np.uint64(1))
    exponents = (lowest.astype(np.float64).view(np.int64) >> 52) - 1023
    begins: npt.NDArray[np.int64] = _GROUP_DIGITS * first + (exponents >> 3)
    return begins


def _cut(parts: list[Text], places: Rows | None) -> pa.StringArray:
    """Cut the texts out of their matrices; `places` says which of all texts each row is.

    Text and padding alternate in one array without any copy; selecting the texts copies them once.
    """
    rows = sum(len(begins) for _, begins in parts)
    size = sum(characters.size for characters, _ in parts)
    fits = size <= _MAX_OFFSET
    offsets = np.empty(2 * rows + 1, np.int32 if fits else np.int64)
    offsets[0] = first = done = 0
    for characters, begins in parts:
        width, count = characters.shape[1], len(begins)
        starts = first + width * np.arange(count, dtype=np.int64)
        offsets[2 * done + 1 : 2 * (done + count) : 2] = starts + begins
        offsets[2 * done + 2 : 2 * (done + count) + 1 : 2] = starts + width
        first, done = first + width * count, done + count
    buffers = [characters.reshape(-1) for characters, _ in parts]
    text = buffers[0] if len(buffers) == 1 else np.concatenate(buffers)
    both = pa.Array.from_buffers(
        pa.string() if fits else pa.large_string(),
        2 * rows,
        [None, pa.py_buffer(offsets), pa.py_buffer(text)],
    )
    chosen = np.arange(rows, dtype=np.int64) if places is None else places
    cut = both.take(pa.array(2 * chosen + 1))
    return cut if fits else cut.cast(pa.string())
