"""Bytes and the texts that stand for them, a column at a time: hex, base58, base64.

Base58 is a number of base 58, so its bytes are a sum of digits with known weights. Texts of one
length are converted together: digits times a matrix of weights, which gives limbs of 40 bits that
are exact in a double, then one pass of carries. The other direction is the same with other bases.
A batch has few lengths, because the instructions of a program do.

Runs wherever outputs decode. No step loops over rows, except base58 of values longer than a key
ever is.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode.columns.buffers import Bytes, column_of, offsets_of, text_parts
from headwater.decode.columns.malformed import Rows, refuse
from headwater.query import base58

Words = npt.NDArray[np.uint64]

_SLICE = 1 << 18  # bytes looked at in one go, so that intermediate results stay in the cache


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
        int(np.count_nonzero(hex_mask(text[first : first + _SLICE])))
        for first in range(0, len(text), _SLICE)
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


# --- base58 ---------------------------------------------------------------------------------------


_ALPHABET = base58.ALPHABET.encode()

Weights = npt.NDArray[np.float64]

_GROUP = 58**6  # 512 bytes times this are exact in a double
NO_DIGIT = 255
_SHORT = 128  # digits of which a sum with weights of 40 bits is below 2^53, so exact in a double
_MAX_MATRIX = 1 << 12  # longer texts, which no transaction can hold, are converted one by one
_STEP = 1 << 14  # rows converted at once: intermediate results stay in the cache


def _digit_table() -> Bytes:
    table = np.full(256, NO_DIGIT, np.uint8)
    table[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(58)
    return table


DIGITS_OF_BASE58 = _digit_table()
_PAIRS = np.array(
    [[_ALPHABET[first], _ALPHABET[second]] for first in range(58) for second in range(58)], np.uint8
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
    first = _first_nonzero((text != _ALPHABET[0]).view(np.uint8))
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


# --- bytes as text --------------------------------------------------------------------------------


BytesEncoding = Literal["raw", "hex", "0xhex", "base64", "base58"]
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_HEX = np.stack([_DIGITS.repeat(16), np.tile(_DIGITS, 16)], axis=1)
_BASE64 = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_LONG = 128  # bytes, above which a matrix of weights costs more than one value at a time


def bytes_as_text(values: pa.Array, encoding: BytesEncoding) -> pa.Array:
    """Return bytes as text, where they are to be; nulls, and values that are no bytes, stay."""
    if encoding == "raw" or values.type != pa.binary():
        return values
    filled = pc.fill_null(values, b"")
    begins, ends, data = text_parts(filled)
    starts = np.append(begins, ends[-1:]) if len(ends) else np.zeros(1, np.int64)
    if encoding == "base58":
        texts = _base58(starts, data)
    elif encoding == "base64":
        texts = _base64(starts, data)
    else:
        texts = _hex(starts, data, b"0x" if encoding == "0xhex" else b"")
    if not values.null_count:
        return texts
    return pc.if_else(values.is_null(), pa.scalar(None, pa.string()), texts)


def _hex(starts: Rows, data: Bytes, prefix: bytes) -> pa.Array:
    digits = _HEX[data].reshape(-1)
    if not prefix:
        return column_of(pa.string(), starts * 2, digits)
    bounds = starts * 2 + np.arange(len(starts)) * len(prefix)
    flat = np.empty(int(bounds[-1]), np.uint8)
    ours = np.zeros(len(flat), np.bool_)
    for at, character in enumerate(prefix):
        flat[bounds[:-1] + at] = character
        ours[bounds[:-1] + at] = True
    flat[~ours] = digits
    return column_of(pa.string(), bounds, flat)


def _base64(starts: Rows, data: Bytes) -> pa.Array:
    """Fill each value with zeros to groups of three bytes, which are four characters."""
    sizes = np.diff(starts)
    groups = -(-sizes // 3)
    bounds = offsets_of(groups)
    filled = np.zeros(int(bounds[-1]) * 3, np.uint8)
    filled[np.arange(len(data)) + np.repeat(bounds[:-1] * 3 - starts[:-1], sizes)] = data
    threes = filled.reshape(-1, 3).astype(np.uint32)
    words = threes[:, 0] << 16 | threes[:, 1] << 8 | threes[:, 2]
    flat = _BASE64[np.stack([words >> shift & 63 for shift in (18, 12, 6, 0)], axis=1)].reshape(-1)
    ends = bounds[1:] * 4
    flat[ends[sizes % 3 > 0] - 1] = ord("=")
    flat[ends[sizes % 3 == 1] - 2] = ord("=")
    return column_of(pa.string(), bounds * 4, flat)


def _base58(starts: Rows, data: Bytes) -> pa.Array:
    """Convert values of one length together."""
    sizes = np.diff(starts)
    parts: list[pa.Array] = []
    rows: list[Rows] = []
    for size in np.unique(sizes).tolist():
        same = np.flatnonzero(sizes == size)
        rows.append(same)
        matrix = data[starts[same][:, None] + np.arange(size)]
        if 0 < size <= _LONG:
            parts.append(encode_base58(matrix))
        else:
            parts.append(
                pa.array([base58.encode(value.tobytes()) for value in matrix], pa.string())
            )
    if not parts:
        return pa.array([], pa.string())
    places = np.empty(len(sizes), np.int64)
    places[np.concatenate(rows)] = np.arange(len(sizes))
    return pa.concat_arrays(parts).take(pa.array(places))
