"""Decodes columns of integers of 8 to 256 bits from the text of their 32-byte words.

A word is kept as its 64 hex digits, eight to a 64-bit integer. Small types become int32 or int64,
middle ones decimal128(38, 0), wide ones exact decimal text. A word that is not the extension of a
value of its type is malformed, never truncated.

A column of such text says in its metadata which integers it holds, in Spark's own form: the tag
goes through DataFrames as long as the column is selected, filtered or renamed, and is gone once an
expression makes another one of it. Targets give tables that they create a number column by it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decode.columns.bytes_text import numbers_of
from headwater.decode.columns.malformed import Rows, refuse

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


_ALL_ONES = np.uint64(0xFFFFFFFF)
_ONE, _NOTHING = np.uint64(1), np.uint64(0)
_LIMB = np.uint64(32)
DECIMAL = pa.decimal128(38, 0)
_EXACT_DECIMAL_BITS = 120  # the widest integer whose every value has at most 38 digits and a sign
_DECIMAL_LIMBS = 4
_DECIMAL_END = divmod(10**38, 2**64)  # the first magnitude that decimal128(38, 0) cannot hold

Limbs = Sequence[npt.NDArray[np.uint64]]
Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
Text = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]

SMALL_LIMBS = 3

_STEP = 1 << 14  # rows converted at once: intermediate results stay in the cache
_GROUP = 10**8
_GROUP_DIGITS = 8
_ASCII = np.uint64(0x30303030_30303030)
_LAST_BYTE = np.uint64(1 << 56)
_MAX_OFFSET = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Integer:
    """A type of integers. `as_decimal` is the user's wish to have a wide one as decimal(38, 0)."""

    bits: int
    signed: bool = False
    as_decimal: bool = False

    @property
    def name(self) -> str:
        """The name that Solidity gives it."""
        return f"{'int' if self.signed else 'uint'}{self.bits}"

    @property
    def is_wide(self) -> bool:
        """Whether it becomes text unless the user asks for a decimal."""
        return self.bits > _EXACT_DECIMAL_BITS

    @property
    def column(self) -> pa.DataType:
        """The type of its column."""
        signed_bits = self.bits + (not self.signed)
        if signed_bits <= 64:
            return pa.int32() if signed_bits <= 32 else pa.int64()
        return pa.string() if self.is_wide and not self.as_decimal else DECIMAL


_METADATA = b"SPARK::metadata::json"  # where Spark keeps the metadata of a column in Arrow
_TAG = "headwater.integer"
_NAME = re.compile(r"(u?)int(\d+)")


def tag(kind: Integer) -> dict[str, str]:
    """Return Spark's metadata of a column of text that holds such integers."""
    return {_TAG: kind.name}


def integer_field(name: str, kind: Integer) -> pa.Field:
    """Return the field of a column of integers; if they become text, it says which they are."""
    metadata = {_METADATA: json.dumps(tag(kind)).encode()}
    return pa.field(name, kind.column, metadata=metadata if kind.column == pa.string() else None)


def spark_metadata(field: pa.Field) -> dict[str, object]:
    """Return the metadata that Spark has of a column, or is to have."""
    metadata = json.loads((field.metadata or {}).get(_METADATA, b"{}"))
    return metadata if isinstance(metadata, dict) else {}


def with_spark_metadata(field: pa.Field, metadata: dict[str, object]) -> pa.Field:
    """Return a column that says what Spark says of it."""
    return field.with_metadata({_METADATA: json.dumps(metadata).encode()}) if metadata else field


def wide_integer(field: pa.Field) -> Integer | None:
    """Return which integers a column of text holds, if its metadata says so. Called by targets."""
    match = _NAME.fullmatch(str(spark_metadata(field).get(_TAG)))
    if match is None or not pa.types.is_string(field.type):
        return None
    return Integer(int(match[2]), signed=not match[1])


def decode_integers(kind: Integer, words: WordText, where: str, owners: Rows) -> pa.Array:
    """Return the column of an integer type. Called by `payload.decode_words`.

    Raises:
        MalformedRowsError: some words are out of the type's range, or do not fit the decimal that
            the user asked for.
    """
    column = kind.column
    if pa.types.is_string(column):
        return _decode_text(kind, words, where, owners)
    if kind.as_decimal and column == DECIMAL:
        return _decode_asked_decimal(kind, words, where, owners)
    limbs, negative = _read_limbs(kind, words, where, owners)
    if column == DECIMAL:
        return _make_decimals(limbs, negative)
    if len(limbs) == 1:
        values = limbs[0].astype(np.uint32).view(np.int32)
        if not kind.signed:
            return pa.array(limbs[0].astype(np.int64)).cast(column)
        return pa.array(values).cast(column)
    return pa.array(((limbs[0] << _LIMB) | limbs[1]).view(np.int64))


def _read_limbs(
    kind: Integer, words: WordText, where: str, owners: Rows
) -> tuple[list[Words], Mask | None]:
    """Return as many low limbs as the type has, sign-extended to 32 bits, and which are negative.

    Everything above them is checked.
    """
    count = -(-kind.bits // PART_BITS)
    limbs = _low_limbs(words, count)
    spare = np.uint64(kind.bits - PART_BITS * (count - 1))  # bits in use in the first limb
    reason = f"{where} is out of range of {kind.name}"
    above = words[:, : PARTS - count]
    if not kind.signed:
        if not (above == ZEROS).all() or (limbs[0] >> spare).any():
            refuse((above != ZEROS).any(axis=1) | (limbs[0] >> spare != 0), reason, owners)
        return limbs, None
    negative = (limbs[0] >> (spare - _ONE)) & _ONE == 1
    high = limbs[0] >> (spare - _ONE)
    extended = np.where(negative, _ALL_ONES >> (spare - _ONE), _NOTHING)
    expected = np.where(negative, ONES, ZEROS)
    refuse((high != extended) | (above != expected[:, None]).any(axis=1), reason, owners)
    return limbs, negative


def _low_limbs(words: WordText, count: int) -> list[Words]:
    """Return the lowest limbs of each word, the most significant first."""
    return list(numbers_of(np.ascontiguousarray(words[:, PARTS - count :].T)))


def _make_decimals(limbs: list[Words], negative: Mask | None) -> pa.Decimal128Array:
    """Return decimals of at most four limbs; shorter ones are extended by their sign."""
    sign = np.zeros(len(limbs[0]), np.uint64)
    if negative is not None:
        sign[negative] = _ALL_ONES
    full = [sign] * (_DECIMAL_LIMBS - len(limbs)) + limbs
    values = np.empty((len(sign), 2), np.uint64)
    values[:, 0] = (full[2] << _LIMB) | full[3]
    values[:, 1] = (full[0] << _LIMB) | full[1]
    return pa.Array.from_buffers(
        DECIMAL, len(values), [None, pa.py_buffer(np.ascontiguousarray(values).reshape(-1))]
    )


def _decode_asked_decimal(
    kind: Integer, words: WordText, where: str, owners: Rows
) -> pa.Decimal128Array:
    """Return decimals of a wide type; a value of more than 38 digits is malformed."""
    limbs, negative = _read_limbs(kind, words, where, owners)
    if negative is None:
        negative = np.zeros(len(words), bool)
    extension = np.where(negative, _ALL_ONES, _NOTHING)
    bad = np.zeros(len(words), bool)
    for limb in limbs[:-_DECIMAL_LIMBS]:
        bad |= limb != extension
    low = limbs[-_DECIMAL_LIMBS:]
    size = negate(low, negative)
    high, rest = (size[0] << _LIMB) | size[1], (size[2] << _LIMB) | size[3]
    limit_high, limit_rest = (np.uint64(part) for part in _DECIMAL_END)
    bad |= (high > limit_high) | ((high == limit_high) & (rest >= limit_rest))
    refuse(bad, f"{where} has more than 38 digits, but is asked for as a decimal", owners)
    return _make_decimals(low, negative)


def _decode_text(kind: Integer, words: WordText, where: str, owners: Rows) -> pa.StringArray:
    """Return exact text. Rows whose upper parts are only zeros (or only ones) are short numbers."""
    used = PARTS - SMALL_LIMBS
    is_short = _all_equal(words, used, ZEROS)
    small = _low_limbs(words, SMALL_LIMBS)
    if not kind.signed:
        wide = np.flatnonzero(~is_short)
        limbs, _ = _read_limbs(kind, words[wide], where, owners[wide])
        return format_mixed(small, wide, limbs)
    negative = _all_equal(words, used, ONES)
    negative &= (small[0] | small[1] | small[2]) != 0  # else its magnitude needs another limb
    wide = np.flatnonzero(~(is_short | negative))
    small = negate(small, negative)
    limbs, marked = _read_limbs(kind, words[wide], where, owners[wide])
    if marked is not None:
        limbs = negate(limbs, marked)
        negative[wide] = marked
    return format_mixed(small, wide, limbs, negative)


def _all_equal(words: WordText, parts: int, text: np.uint64) -> Mask:
    """Whether the first parts of each word are this text; column by column, which is faster."""
    equal: Mask = words[:, 0] == text
    for part in range(1, parts):
        equal &= words[:, part] == text
    return equal


# --- exact decimal text ---------------------------------------------------------------------------
# A number comes as 32-bit limbs, most significant first, one array per limb. Each limb's weight is
# known in groups of eight decimal digits, so the groups of a number are sums of products that stay
# below 2^64, and one pass of carries. A group becomes its eight characters inside one 64-bit word.
# Most amounts on chain are below 2^96, so only the others are computed with all their limbs.


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
    which costs less than leaving them out.
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
    flip = np.where(negative, _ALL_ONES, np.uint64(0))
    carry = negative.astype(np.uint64)
    result: list[Words] = []
    for limb in reversed(limbs):
        total = (limb ^ flip) + carry
        carry = total >> _LIMB
        result.append(total & _ALL_ONES)
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
