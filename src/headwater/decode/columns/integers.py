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
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decode.columns.decimal_text import SMALL_LIMBS, format_mixed, negate
from headwater.decode.columns.hex_text import numbers_of
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

Limb = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


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
    found = json.loads((field.metadata or {}).get(_METADATA, b"{}"))
    return found if isinstance(found, dict) else {}


def with_spark_metadata(field: pa.Field, metadata: dict[str, object]) -> pa.Field:
    """Return a column that says what Spark says of it."""
    return field.with_metadata({_METADATA: json.dumps(metadata).encode()}) if metadata else field


def wide_integer(field: pa.Field) -> Integer | None:
    """Return which integers a column of text holds, if its metadata says so. Called by targets."""
    found = _NAME.fullmatch(str(spark_metadata(field).get(_TAG)))
    if found is None or not pa.types.is_string(field.type):
        return None
    return Integer(int(found[2]), signed=not found[1])


def decode_integers(kind: Integer, words: WordText, where: str, owners: Rows) -> pa.Array:
    """Return the column of an integer type. Called by `words.decode_words`.

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
) -> tuple[list[Limb], Mask | None]:
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


def _low_limbs(words: WordText, count: int) -> list[Limb]:
    """Return the lowest limbs of each word, the most significant first."""
    return list(numbers_of(np.ascontiguousarray(words[:, PARTS - count :].T)))


def _make_decimals(limbs: list[Limb], negative: Mask | None) -> pa.Decimal128Array:
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
