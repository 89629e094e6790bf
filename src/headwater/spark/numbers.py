"""Functions for columns of 256-bit integers in decimal text: exact, and without Python per row.

    import headwater as hw

    data["transfers"].withColumn("amount", hw.units("value", 6))

NULL gives NULL. What cannot be computed ends the job with `IntegerRangeError`; with the forms that
begin with `try_` it is NULL. Sums and differences are computed by Python workers, a column at a
time; the rest is Spark's own expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from headwater.decode.columns.integers import Integer, tag
from headwater.errors import IntegerRangeError, InvalidOptionError
from headwater.spark.versions import arrow_function

Number: TypeAlias = Column | str
"""A column, or its name: decimal text, or integers of any type."""

PLACES = 18  # of `units` where the number of decimals is a column
_DIGITS = 38  # of Spark's decimals
_WIDTH, _HALF = 78, 39  # digits of 256 bits
_LARGEST = str(2**256 - 1)
_PART = pa.decimal256(_HALF + 2, 0)


def to_decimal(value: Number) -> Column:
    """Return integers as DECIMAL(38,0). `IntegerRangeError` where one has more than 38 digits."""
    return _or_error(try_to_decimal(value), "no integer of at most 38 digits", value)


def try_to_decimal(value: Number) -> Column:
    """Return integers as DECIMAL(38,0), NULL where one has more than 38 digits."""
    return _integer(value).try_cast(f"decimal({_DIGITS},0)")


def units(value: Number, decimals: int | Column) -> Column:
    """Return amounts of a token: integers divided by 10 to the power of `decimals`, exactly.

    The type is DECIMAL(38, decimals), or DECIMAL(38, 18) if `decimals` is a column, which may then
    hold 0 to 18. `IntegerRangeError` where a result does not fit in it.
    """
    what = "no integer that has at most 38 digits with these decimals"
    asked = [decimals] if isinstance(decimals, Column) else []
    return _or_error(try_units(value, decimals), what, value, *asked)


def try_units(value: Number, decimals: int | Column) -> Column:
    """Return what `units` does, NULL where a result does not fit.

    Raises:
        InvalidOptionError: `decimals` is not between 0 and 38, and no column.
    """
    if isinstance(decimals, Column):
        scale, places = PLACES, F.when(decimals.between(0, PLACES), decimals).cast("string")
    elif 0 <= decimals <= _DIGITS:
        scale, places = decimals, F.lit(str(decimals))
    else:
        raise InvalidOptionError("decimals is between 0 and 38, or a column", got=decimals)
    shifted = F.concat(_integer(value), F.lit("E-"), places)
    return shifted.try_cast(f"decimal({_DIGITS},{scale})")


def uint256_add(left: Number, right: Number) -> Column:
    """Return sums as decimal text. `IntegerRangeError` where one needs more than 256 bits."""
    return _computed(add_or_raise, left, right)


def try_uint256_add(left: Number, right: Number) -> Column:
    """Return sums as decimal text, NULL where one needs more than 256 bits."""
    return _computed(add, left, right)


def uint256_sub(left: Number, right: Number) -> Column:
    """Return differences as decimal text. `IntegerRangeError` where one is below zero."""
    return _computed(subtract_or_raise, left, right)


def try_uint256_sub(left: Number, right: Number) -> Column:
    """Return differences as decimal text, NULL where one is below zero."""
    return _computed(subtract, left, right)


def uint256_compare(left: Number, right: Number) -> Column:
    """Return -1, 0 or 1, as the left integer is lower than the right one, equal or higher.

    `IntegerRangeError` where one is no unsigned integer of at most 78 digits.
    """
    what = "no unsigned integers of at most 78 digits"
    return _or_error(try_uint256_compare(left, right), what, left, right)


def try_uint256_compare(left: Number, right: Number) -> Column:
    """Return what `uint256_compare` does, NULL where one is no unsigned integer of 78 digits."""
    padded, other = _padded(left), _padded(right)
    return (padded > other).cast("int") - (padded < other).cast("int")


# --- expressions ----------------------------------------------------------------------------------


def _text(value: Number) -> Column:
    return (F.col(value) if isinstance(value, str) else value).cast("string")


def _integer(value: Number) -> Column:
    """Return the text of integers, NULL for what is none: a cast of Spark's would round it."""
    return F.regexp_substr(_text(value), F.lit("^-?[0-9]+$"))


def _padded(value: Number) -> Column:
    """Return unsigned integers as texts of 78 digits, which compare as their numbers do."""
    return F.lpad(F.regexp_substr(_text(value), F.lit(r"^[0-9]{1,78}$")), _WIDTH, "0")


def _or_error(result: Column, what: str, *values: Number) -> Column:
    """Return the result; where it is NULL although no value is, an error."""
    before, after = str(IntegerRangeError(f"{what}: \0")).split("\0")
    shown = F.concat(
        _text(values[0]), *(F.concat(F.lit(", "), _text(value)) for value in values[1:])
    )
    error = F.raise_error(F.concat(F.lit(before), shown, F.lit(after)))
    return F.coalesce(result, F.when(shown.isNotNull(), error))


def _computed(function: Callable[[pa.Array, pa.Array], pa.Array], *values: Number) -> Column:
    """Return what a function makes of columns; metadata says that it is 256-bit integers."""
    result = arrow_function(function, "string")(*(_text(value) for value in values))
    return result.alias("uint256", metadata=tag(Integer(256)))


# --- what runs on executors -----------------------------------------------------------------------


def add(left: pa.Array, right: pa.Array) -> pa.Array:
    """Return sums, null where one needs more than 256 bits."""
    return _add(left, right, pc.add)


def subtract(left: pa.Array, right: pa.Array) -> pa.Array:
    """Return differences, null where one is below zero."""
    return _add(left, right, pc.subtract)


def add_or_raise(left: pa.Array, right: pa.Array) -> pa.Array:
    """Return sums; `IntegerRangeError` where one needs more than 256 bits."""
    return _or_raise(add(left, right), left, right, "no integers whose sum has 256 bits")


def subtract_or_raise(left: pa.Array, right: pa.Array) -> pa.Array:
    """Return differences; `IntegerRangeError` where one is below zero."""
    differences = subtract(left, right)
    return _or_raise(differences, left, right, "no integers of 256 bits in falling order")


def _add(left: pa.Array, right: pa.Array, operation: Callable[..., pa.Array]) -> pa.Array:
    """Compute with halves of 39 digits; 256-bit decimals of Arrow's have room for 76."""
    (high, low), (other_high, other_low) = _halves(left), _halves(right)
    base, carry = (pa.scalar(number, _PART) for number in (10**_HALF, 1))
    high = operation(high, other_high).cast(_PART)
    low = operation(low, other_low).cast(_PART)
    over, under = pc.greater_equal(low, base), pc.less(low, pa.scalar(0, _PART))
    high = pc.if_else(over, pc.add(high, carry).cast(_PART), high)
    high = pc.if_else(under, pc.subtract(high, carry).cast(_PART), high)
    low = pc.if_else(over, pc.subtract(low, base).cast(_PART), low)
    low = pc.if_else(under, pc.add(low, base).cast(_PART), low)
    parts = (pc.utf8_lpad(half.cast(pa.string()), _HALF, "0") for half in (high, low))
    whole = pc.binary_join_element_wise(*parts, "")
    fits = pc.and_(pc.equal(pc.binary_length(whole), _WIDTH), pc.less_equal(whole, _LARGEST))
    fits = pc.and_(fits, pc.greater_equal(high, pa.scalar(0, _PART)))
    shortest = pc.utf8_ltrim(whole, "0")
    shortest = pc.if_else(pc.equal(shortest, ""), "0", shortest)
    return pc.if_else(fits, shortest, pa.scalar(None, pa.string()))


def _halves(texts: pa.Array) -> list[pa.Array]:
    """Return unsigned integers of 256 bits as their upper and their lower 39 digits."""
    fits = pc.match_substring_regex(texts, r"^[0-9]{1,78}$")
    padded = pc.utf8_lpad(texts, _WIDTH, "0")
    fits = pc.and_(fits, pc.less_equal(padded, _LARGEST))
    padded = pc.if_else(fits, padded, pa.scalar(None, pa.string()))
    halves = (pc.utf8_slice_codeunits(padded, at, at + _HALF) for at in (0, _HALF))
    return [half.cast(pa.decimal256(_HALF, 0)) for half in halves]


def _or_raise(result: pa.Array, left: pa.Array, right: pa.Array, what: str) -> pa.Array:
    wrong = pc.and_(pc.is_null(result), pc.and_(pc.is_valid(left), pc.is_valid(right)))
    if pc.any(wrong, min_count=0).as_py():
        place = pc.index(wrong, pa.scalar(True)).as_py()
        raise IntegerRangeError(what, left=left[place], right=right[place])
    return result
