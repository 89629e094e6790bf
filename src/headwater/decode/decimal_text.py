"""Exact decimal text of integers up to 256 bits, a column at a time.

A number comes as 32-bit limbs, most significant first, one array per limb. Long division by 10^8
gives groups of eight digits; a group becomes its eight characters inside one 64-bit word. Most
amounts on chain are below 2^96, so rows with three limbs are divided apart from the wide ones.

About 20 times as fast as Python's `str(int)`, and no loop over rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Limbs = Sequence[npt.NDArray[np.uint64]]
Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

_STEP = 1 << 14  # rows converted at once: intermediate results stay in the cache
_LIMB_BITS = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)
_GROUP = 10**8
_GROUP_DIGITS = 8
SMALL_LIMBS = 3
_MINUS = ord("-")


def format_integers(limbs: Limbs, negative: Mask | None = None) -> pa.StringArray:
    """Return the decimal text of each number.

    `limbs` are magnitudes, `negative` marks those that get a minus sign (zero must not be marked).
    """
    top = np.zeros(len(limbs[0]), np.uint64)
    for limb in limbs[:-SMALL_LIMBS]:
        top |= limb
    wide = np.flatnonzero(top)
    return format_mixed(
        limbs[-SMALL_LIMBS:],
        negative,
        wide,
        [limb[wide] for limb in limbs],
        None if negative is None else negative[wide],
    )


def format_mixed(
    small: Limbs,
    small_negative: Mask | None,
    wide: Rows,
    limbs: Limbs,
    negative: Mask | None,
) -> pa.StringArray:
    """Return the decimal text of numbers of which only the rows in `wide` need all limbs.

    `small` holds the low limbs of every row; those of wide rows are formatted too and not used,
    which costs less than leaving them out. Called by `integers`.
    """
    parts = [_format_rows(small, small_negative)]
    if not len(wide):
        return _assemble(parts, None)
    rows = len(small[0])
    places = np.arange(rows, dtype=np.int64)
    places[wide] = rows + np.arange(len(wide))
    return _assemble([*parts, _format_rows(limbs, negative)], places)


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


Text = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def _format_rows(limbs: Limbs, negative: Mask | None) -> Text:
    """Return a matrix of right-aligned text, and where in its row each text begins."""
    rows, groups = len(limbs[0]), _count_groups(len(limbs))
    text = np.empty((rows, groups), np.uint64)
    begins = np.empty(rows, np.int64)
    for first in range(0, rows, _STEP):
        part = slice(first, first + _STEP)
        divided = _divide([limb[part] for limb in limbs])
        for at, group in enumerate(divided):
            text[part, at] = _digits(group)
        begins[part] = groups * _GROUP_DIGITS - _lengths(divided)
    characters = text.view(np.uint8)
    if negative is not None:
        marked = np.flatnonzero(negative)
        begins[marked] -= 1  # there is room: a group is never full of leading digits
        characters[marked, begins[marked]] = _MINUS
    return characters, begins


def _count_groups(limbs: int) -> int:
    return -(-len(str(2 ** (32 * limbs) - 1)) // _GROUP_DIGITS)


def _divide(limbs: list[Words]) -> list[Words]:
    """Return groups of eight decimal digits, most significant first."""
    bound = 2 ** (32 * len(limbs)) - 1
    groups: list[Words] = []
    while bound >= 2**64:
        quotients = [limbs[0] // np.uint64(_GROUP)]
        remainder = limbs[0] - quotients[0] * np.uint64(_GROUP)
        for limb in limbs[1:]:
            current = (remainder << _LIMB_BITS) | limb
            quotient = current // np.uint64(_GROUP)
            remainder = current - quotient * np.uint64(_GROUP)
            quotients.append(quotient)
        groups.append(remainder)
        bound //= _GROUP
        limbs = quotients[len(quotients) - -(-bound.bit_length() // 32) :]
    rest = limbs[0]
    for limb in limbs[1:]:
        rest = (rest << _LIMB_BITS) | limb
    while bound >= _GROUP:
        quotient = rest // np.uint64(_GROUP)
        groups.append(rest - quotient * np.uint64(_GROUP))
        rest = quotient
        bound //= _GROUP
    groups.append(rest)
    return groups[::-1]


def _digits(group: Words) -> Words:
    """Return eight characters in each word, the first in the lowest byte: 4+4, 2+2+2+2, 1+1+…"""
    high = group // np.uint64(10_000)
    word = high | ((group - high * np.uint64(10_000)) << np.uint64(32))
    high = ((word * np.uint64(10_486)) >> np.uint64(20)) & np.uint64(0x0000007F_0000007F)
    word = high | ((word - high * np.uint64(100)) << np.uint64(16))
    high = ((word * np.uint64(103)) >> np.uint64(10)) & np.uint64(0x000F000F_000F000F)
    word = high | ((word - high * np.uint64(10)) << np.uint64(8))
    text: Words = word + np.uint64(0x30303030_30303030)
    return text


def _lengths(groups: list[Words]) -> npt.NDArray[np.int64]:
    """Return how many digits each number has, at least one."""
    leading, below = groups[-1], np.zeros(len(groups[-1]), np.int64)
    for at, group in enumerate(reversed(groups[:-1]), start=1):
        present = group != 0
        leading = np.where(present, group, leading)
        below = np.where(present, np.int64(at * _GROUP_DIGITS), below)
    below += 1
    for power in range(1, _GROUP_DIGITS):
        below += leading >= np.uint64(10**power)
    return below


def _assemble(parts: list[Text], places: npt.NDArray[np.int64] | None) -> pa.StringArray:
    """Cut the texts out of their matrices; `places` says which of all texts each row is.

    Text and padding alternate in one array without any copy; selecting the texts copies them once.
    """
    rows = sum(len(begins) for _, begins in parts)
    offsets = np.empty(2 * rows + 1, np.int64)
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
        pa.large_string(), 2 * rows, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )
    chosen = np.arange(rows, dtype=np.int64) if places is None else places
    return both.take(pa.array(2 * chosen + 1)).cast(pa.string())
