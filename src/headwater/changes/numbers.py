"""Exact arithmetic on numbers in text: add, min and max, one number or many groups at once.

There are no floats and no rounding. A number that was computed has one text: no exponent, no plus
sign, no zeros that say nothing. So the same number is the same text, however the changes that led
to it were cut into batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.model import ADD, MAX, MIN, Codes, Mask
from headwater.errors import ChangeNumberError

MAX_DIGITS = 1000

_EXACT = Context(
    prec=4 * MAX_DIGITS,
    Emax=4 * MAX_DIGITS,
    Emin=-4 * MAX_DIGITS,
    traps=[Inexact, InvalidOperation, Overflow],
)
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?", re.ASCII)


def parse_number(text: str) -> Decimal:
    """Return the number that a text stands for, exactly.

    Raises:
        ChangeNumberError: it stands for none, or for one with more than 1000 digits.
    """
    if not _NUMBER.fullmatch(text):
        raise ChangeNumberError("not a number", got=repr(text[:100]))
    try:
        number = _EXACT.create_decimal(text)
    except (Inexact, InvalidOperation, Overflow) as error:
        raise ChangeNumberError("too long a number", got=repr(text[:100])) from error
    if number and max(len(number.as_tuple().digits), abs(number.adjusted())) > MAX_DIGITS:
        raise ChangeNumberError("too long a number", got=repr(text[:100]))
    return number


def format_number(number: Decimal) -> str:
    """Return the one text of a number."""
    if not number:
        return "0"
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def plus(one: Decimal, other: Decimal) -> Decimal:
    """Return the exact sum.

    Raises:
        ChangeNumberError: it has more than 4000 digits.
    """
    try:
        return _EXACT.add(one, other)
    except (Inexact, Overflow) as error:
        raise ChangeNumberError("the sum has too many digits") from error


def negated(text: str) -> str:
    """Return the text of the number with the other sign."""
    return format_number(parse_number(text).copy_negate())


_INT64_DIGITS = 18
_DECIMALS = ((37, pa.decimal128(38, 0)), (75, pa.decimal256(76, 0)))
_ZERO, _NINE, _MINUS = ord("0"), ord("9"), ord("-")


class _Reduction(NamedTuple):
    """How numbers are summed up, or the least or greatest found, in each form they may have."""

    name: str
    short: np.ufunc
    long: Callable[[list[int]], int]
    exact: Callable[[Decimal, Decimal], Decimal]


REDUCTIONS = {
    ADD: _Reduction("sum", np.add, sum, plus),
    MIN: _Reduction("min", np.minimum, min, min),
    MAX: _Reduction("max", np.maximum, max, max),
}


def canonical(texts: pa.Array) -> pa.Array:
    """Return each number in its one text; null stays null.

    Raises:
        ChangeNumberError: a text is no number.
    """
    odd = ~is_plain_integer(texts) & np.asarray(pc.is_valid(texts))
    if not odd.any():
        return texts
    mask = pa.array(odd)
    new = [format_number(parse_number(text)) for text in texts.filter(mask).to_pylist()]
    return pc.replace_with_mask(texts, mask, pa.array(new, pa.string()))


def opposites(texts: pa.Array) -> pa.Array:
    """Return each number with the other sign; null stays null.

    Raises:
        ChangeNumberError: a text is no number.
    """
    texts = canonical(texts)
    bare = pc.utf8_slice_codeunits(texts, 1)
    minus = pc.binary_join_element_wise("-", texts, "")
    turned = pc.if_else(pc.starts_with(texts, "-"), bare, minus)
    return pc.if_else(pc.equal(texts, "0"), texts, turned)


def reduce_numbers(values: pa.Array, begins: Codes, ends: Codes, kind: int) -> pa.Array:
    """Return the sum, minimum or maximum of each range of `values`; nulls in it are left out.

    Each range holds at least one number. Called by `fold`.

    Raises:
        ChangeNumberError: a text is no number.
    """
    groups = np.repeat(np.arange(len(begins)), ends - begins)
    starts = np.cumsum(ends - begins) - (ends - begins)
    places = np.arange(len(groups)) - np.repeat(starts - begins, ends - begins)
    texts = values.take(pa.array(places))
    if texts.null_count:
        present = np.asarray(pc.is_valid(texts))
        texts, groups = texts.filter(pa.array(present)), groups[present]
        starts = np.searchsorted(groups, np.arange(len(begins)))
    digits = _digits_needed(texts, groups, starts)
    result: list[tuple[Codes, pa.Array]] = []
    lower = 0
    tiers: list[tuple[int, Callable[[pa.Array, Codes, int], pa.Array]]] = [
        (_INT64_DIGITS, _reduce_int64),
        *((most, _decimal_reducer(kept)) for most, kept in _DECIMALS),
        (MAX_DIGITS, _reduce_integers),
        (2**62, _reduce_one_by_one),
    ]
    for most, reducer in tiers:
        chosen = (digits > lower) & (digits <= most)
        lower = most
        if not chosen.any():
            continue
        if chosen.all():
            return reducer(texts, groups, kind)
        mine = chosen[groups]
        result.append((np.flatnonzero(chosen), reducer(texts.filter(pa.array(mine)),
                                                       groups[mine], kind)))  # fmt: skip
    order = np.argsort(np.concatenate([places for places, _ in result]), kind="stable")
    return pa.concat_arrays([texts for _, texts in result]).take(pa.array(order))


def is_plain_integer(texts: pa.Array) -> Mask:
    """Tell which texts are integers in their one text: digits, no zero in front, maybe a minus."""
    data, offsets = _bytes_of(texts)
    lengths = np.diff(offsets)
    if not len(data):
        return np.zeros(len(texts), np.bool_)
    first = data[np.minimum(offsets[:-1], len(data) - 1)]
    second = data[np.minimum(offsets[:-1] + 1, len(data) - 1)]
    minus = (first == _MINUS) & (lengths > 1)
    leading = np.where(minus, second, first)
    fine: Mask = (
        (lengths > 0) & (lengths <= MAX_DIGITS) & ((leading != _ZERO) | ((lengths == 1) & ~minus))
    )
    strange = (data - np.uint8(_ZERO)) > _NINE - _ZERO  # wraps around below zero
    strange[offsets[:-1][minus]] = False
    fine[np.searchsorted(offsets, np.flatnonzero(strange), side="right") - 1] = False
    return fine


def _bytes_of(texts: pa.Array) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], Codes]:
    """Return the characters of all texts, and where each begins and ends among them."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    places = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    places = places.astype(np.int64)
    return np.frombuffer(data, np.uint8)[places[0] : places[-1]], places - places[0]


def _digits_needed(texts: pa.Array, groups: Codes, starts: Codes) -> Codes:
    """Return how many digits the result of each group may need; very many if not of integers."""
    lengths = np.asarray(pc.binary_length(texts)).astype(np.int64)
    lengths = np.where(is_plain_integer(texts), lengths, 2**61)
    longest = np.maximum.reduceat(lengths, starts)
    sizes = np.diff(np.append(starts, len(groups)))
    needed: Codes = longest + np.ceil(np.log10(sizes)).astype(np.int64)
    return needed


def _ranges(groups: Codes) -> Iterator[tuple[int, int]]:
    changes = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    return pairwise([0, *changes.tolist(), len(groups)])


def _reduce_int64(texts: pa.Array, groups: Codes, kind: int) -> pa.Array:
    numbers = texts.cast(pa.int64()).to_numpy()
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    return pa.array(REDUCTIONS[kind].short.reduceat(numbers, starts)).cast(pa.string())


def _decimal_reducer(kept: pa.DataType) -> Callable[[pa.Array, Codes, int], pa.Array]:
    def reduce_decimals(texts: pa.Array, groups: Codes, kind: int) -> pa.Array:
        table, name = (
            pa.table({"group": groups, "number": texts.cast(kept)}),
            REDUCTIONS[kind].name,
        )
        reduced = table.group_by("group", use_threads=False).aggregate([("number", name)])
        return reduced[f"number_{name}"].combine_chunks().cast(kept).cast(pa.string())

    return reduce_decimals


def _reduce_integers(texts: pa.Array, groups: Codes, kind: int) -> pa.Array:
    numbers = [int(text) for text in texts.to_pylist()]
    join = REDUCTIONS[kind].long
    return pa.array([str(join(numbers[begin:end])) for begin, end in _ranges(groups)], pa.string())


def _reduce_one_by_one(texts: pa.Array, groups: Codes, kind: int) -> pa.Array:
    numbers = [parse_number(text) for text in texts.to_pylist()]
    join = REDUCTIONS[kind].exact
    reduced = [format_number(reduce(join, numbers[begin:end])) for begin, end in _ranges(groups)]
    return pa.array(reduced, pa.string())
