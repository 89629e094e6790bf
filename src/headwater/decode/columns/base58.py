"""Converts base58 of many values at once: Solana's keys, hashes and instruction data.

A text is a number of base 58, so its bytes are a sum of digits with known weights. Texts of one
length are converted together: digits times a matrix of weights, which gives limbs of 40 bits that
are exact in a double, then one pass of carries. The other direction is the same with other bases.
No step loops over rows; a batch has few lengths, because the instructions of a program do.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decode.columns.buffers import Bytes, column_of, offsets_of, text_parts
from headwater.decode.columns.malformed import Rows, refuse

ALPHABET = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

Weights = npt.NDArray[np.float64]

_GROUP = 58**6  # 512 bytes times this are exact in a double
NO_DIGIT = 255
_SHORT = 128  # digits of which a sum with weights of 40 bits is below 2^53, so exact in a double
_MAX_MATRIX = 1 << 12  # longer texts, which no transaction can hold, are converted one by one
_STEP = 1 << 14  # rows converted at once: intermediate results stay in the cache


def _digit_table() -> Bytes:
    table = np.full(256, NO_DIGIT, np.uint8)
    table[np.frombuffer(ALPHABET, np.uint8)] = np.arange(58)
    return table


DIGITS_OF_BASE58 = _digit_table()
_PAIRS = np.array(
    [[ALPHABET[first], ALPHABET[second]] for first in range(58) for second in range(58)], np.uint8
)


def decode_base58(column: pa.StringArray, owners: Rows, where: str = "data") -> pa.BinaryArray:
    """Return the bytes of base58 texts; no value is null. Runs wherever outputs decode.

    Raises:
        MalformedRowsError: some texts have a character that is no digit.
    """
    rows = len(column)
    starts, ends, text = text_parts(column)
    lengths = ends - starts
    digits = DIGITS_OF_BASE58[text]
    bad = np.flatnonzero(digits == NO_DIGIT)
    if len(bad):
        wrong = np.zeros(rows, bool)
        wrong[np.searchsorted(ends, bad, side="right")] = True
        refuse(wrong, f"{where} is not base58", owners)
    sizes = np.zeros(rows, np.int64)
    parts: list[tuple[Rows, Bytes, Rows]] = []
    for length in np.unique(lengths):
        if length == 0:
            continue
        same = np.flatnonzero(lengths == length)
        for first in range(0, len(same), _STEP):
            some = same[first : first + _STEP]
            raw, begins = _to_bytes(_rows(digits, starts[some], int(length)))
            sizes[some] = length - begins
            parts.append((some, raw, begins))
    return _gather(sizes, parts, pa.binary())


def encode_base58(values: Bytes) -> pa.StringArray:
    """Return the base58 text of each row of a matrix of bytes, such as public keys."""
    rows = len(values)
    sizes = np.zeros(rows, np.int64)
    parts: list[tuple[Rows, Bytes, Rows]] = []
    for first in range(0, rows, _STEP):
        some = np.arange(first, min(first + _STEP, rows))
        text, begins = _to_text(values[some])
        sizes[some] = text.shape[1] - begins
        parts.append((some, text, begins))
    return _gather(sizes, parts, pa.string())


def _rows(values: Bytes, starts: Rows, length: int) -> Bytes:
    """Return so many bytes from each position on, as a matrix."""
    every = len(values) - length + 1
    windows = np.ndarray((every,), f"V{length}", values.data, strides=(1,))
    return windows[starts].view(np.uint8).reshape(len(starts), length)


@cache
def _weights(groups: int, base: int, target: int) -> Weights:
    """Return what each group, the most significant first, adds to each limb of the other base."""
    limbs = 1
    while target**limbs < base**groups:
        limbs += 1
    rows = []
    for group in reversed(range(groups)):
        value, row = base**group, []
        for _ in range(limbs):
            value, limb = divmod(value, target)
            row.append(limb)
        rows.append(row[::-1])
    return np.array(rows, np.float64)


def _multiply(groups: Weights, weights: Weights, target: int) -> npt.NDArray[np.int64]:
    """Return limbs of the target base, carried through; sums are exact in doubles."""
    limbs = np.ascontiguousarray((groups @ weights).T.astype(np.int64))
    for at in range(len(limbs) - 1, 0, -1):
        carry = limbs[at] // target
        limbs[at] -= carry * target
        limbs[at - 1] += carry
    return np.ascontiguousarray(limbs.T)


def _to_bytes(digits: Bytes) -> tuple[Bytes, Rows]:
    """Return bytes, right-aligned in rows as long as the digits, and where each value begins."""
    rows, length = digits.shape
    if length > _MAX_MATRIX:
        return _to_bytes_slowly(digits)
    size = 5 if length <= _SHORT else 4
    target = 1 << 8 * size
    limbs = _multiply(digits.astype(np.float64), _weights(length, 58, target), target)
    octets = limbs.astype(">u8").view(np.uint8).reshape(rows, -1, 8)[:, :, 8 - size :]
    flat = octets.reshape(rows, -1)
    values = np.zeros((rows, length), np.uint8)
    width = min(length, flat.shape[1])
    values[:, length - width :] = flat[:, flat.shape[1] - width :]
    return values, _first_nonzero(values) - _first_nonzero(digits)


def _to_bytes_slowly(digits: Bytes) -> tuple[Bytes, Rows]:
    values = np.zeros(digits.shape, np.uint8)
    for row, line in enumerate(digits):
        number = 0
        for digit in line.tolist():
            number = number * 58 + digit
        values[row] = np.frombuffer(number.to_bytes(digits.shape[1], "big"), np.uint8)
    return values, _first_nonzero(values) - _first_nonzero(digits)


def _to_text(values: Bytes) -> tuple[Bytes, Rows]:
    """Return digits, right-aligned in rows of one width, and where each text begins."""
    rows, width = values.shape
    limbs = _multiply(values.astype(np.float64), _weights(width, 256, _GROUP), _GROUP)
    pairs = np.empty((rows, limbs.shape[1], 3), np.int64)
    for at in (2, 1, 0):
        rest = limbs // 58**2
        pairs[:, :, at] = limbs - rest * 58**2
        limbs = rest
    text = _PAIRS[pairs.reshape(rows, -1)].reshape(rows, -1)
    first = _first_nonzero((text != ALPHABET[0]).view(np.uint8))
    return text, first - _first_nonzero(values)


def _first_nonzero(matrix: Bytes) -> Rows:
    """Return the first column that is not zero, the number of columns if all are."""
    present = matrix != 0
    first: Rows = present.argmax(axis=1)
    return np.where(present.any(axis=1), first, matrix.shape[1])


def _gather(sizes: Rows, parts: list[tuple[Rows, Bytes, Rows]], kind: pa.DataType) -> pa.Array:
    """Put the ends of the rows of several matrices where each belongs."""
    offsets = offsets_of(sizes)
    flat = np.empty(int(offsets[-1]), np.uint8)
    for some, matrix, begins in parts:
        width = matrix.shape[1]
        if (begins == begins[0]).all():
            tail = matrix[:, begins[0] :]
            flat[offsets[some][:, None] + np.arange(width - begins[0])] = tail
        else:
            inside = np.arange(width) >= begins[:, None]
            at = (offsets[some] - begins)[:, None] + np.arange(width)
            flat[at[inside]] = matrix[inside]
    return column_of(kind, offsets, flat)
