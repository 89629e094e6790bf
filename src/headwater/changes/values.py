"""Values as exact text: single values, whole Arrow columns, and one spelling for each value.

A value has the same text whether it was given alone or in a column, and `one_spelling` gives keys
that are equal in the database one text: `05` and `5` are one integer, `0xAB` and `0xab` the same
bytes. Folding and the change log compare texts, so they must not see two keys where the database
sees one.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.numbers import canonical
from headwater.errors import ChangeFormError, ChangeNumberError


def text_of(value: object) -> str | None:
    """Return the exact text of a value. Called for each value given to the fluent interface.

    Raises:
        ChangeFormError: its kind has no exact text here; a float never has.
    """
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal() if value.is_finite():
            return format(value, "f")
        case bytes():
            return f"0x{value.hex()}"
        case datetime():
            return _instant(value)
        case date():
            return value.isoformat()
        case _:
            raise ChangeFormError(
                "a value of this kind has no exact text", kind=type(value).__name__, got=repr(value)
            )


def text_column(column: pa.ChunkedArray | pa.Array, name: str) -> pa.Array:
    """Return a column as text. Called by `from_columns`, once per column.

    Raises:
        ChangeFormError: a type that has no exact text: floats, lists, structs.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_null(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array.cast(pa.string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind):
        return array.cast(pa.string())
    if pa.types.is_decimal(kind):
        return _without_exponents(array)
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", kind.tz))
        return pa.array([text_of(value) for value in array.to_pylist()], pa.string())
    if kind in (pa.binary(), pa.large_binary()) or pa.types.is_fixed_size_binary(kind):
        return pa.array([text_of(value) for value in array.to_pylist()], pa.string())
    raise ChangeFormError("a column of this type has no exact text", column=name, type=kind)


def _instant(moment: datetime) -> str:
    """Return ISO 8601; a moment with a zone is given in UTC, so that equal ones have equal text."""
    if moment.tzinfo is None:
        return moment.isoformat()
    return moment.astimezone(UTC).isoformat()


def _without_exponents(array: pa.Array) -> pa.Array:
    """Return decimals as text; Arrow writes small ones with an exponent, which keys must not."""
    text = array.cast(pa.string())
    odd = pc.fill_null(pc.match_substring(text, "E"), False)
    if not pc.any(odd).as_py():
        return text
    plain = [text_of(value) for value in array.filter(odd).to_pylist()]
    return pc.replace_with_mask(text, odd, pa.array(plain, pa.string()))


_TRUE, _FALSE = ("true", "t", "1"), ("false", "f", "0")
_ZONE = r"(Z|z|[+-]\d{2}(:?\d{2})?)$"


def one_spelling(values: pa.Array, kind: str, column: str) -> pa.Array:
    """Return values of a column of this type in one spelling; null stays null.

    Called by `check` for keys, and by targets for what they set.

    Raises:
        ChangeNumberError: a number is needed, and a value is none.
        ChangeFormError: a value is not of its type.
    """
    match kind:
        case "integer":
            numbers = canonical(values)
            _refuse(numbers, pc.match_substring(numbers, "."), ChangeNumberError, column, kind)
            return numbers
        case "decimal":
            return canonical(values)
        case "bytes":
            return _hexadecimal(values, column)
        case "boolean":
            lowered = pc.utf8_lower(values)
            true = pc.is_in(lowered, value_set=pa.array(_TRUE))
            known = pc.or_(true, pc.is_in(lowered, value_set=pa.array(_FALSE)))
            _refuse(values, pc.invert(known), ChangeFormError, column, kind)
            named = pc.if_else(true, "true", "false")
            return pc.if_else(pc.is_valid(values), named, pa.scalar(None, pa.string()))
        case "timestamp":
            bare = pc.invert(pc.match_substring_regex(values, _ZONE))
            utc = pc.binary_join_element_wise(values, "+00:00", "")
            return pc.if_else(bare, utc, values)
        case _:
            return values


def _hexadecimal(values: pa.Array, column: str) -> pa.Array:
    plain = pc.replace_substring_regex(pc.utf8_lower(values), r"^\\x", "0x")
    fine = pc.match_substring_regex(plain, "^0x([0-9a-f]{2})*$")
    _refuse(values, pc.invert(fine), ChangeFormError, column, "bytes")
    return plain


def _refuse(
    values: pa.Array,
    wrong: pa.Array,
    error: type[ChangeFormError] | type[ChangeNumberError],
    column: str,
    kind: str,
) -> None:
    wrong = pc.and_(pc.fill_null(wrong, False), pc.is_valid(values))
    if pc.any(wrong, min_count=0).as_py():
        got = values.filter(wrong)[0].as_py()
        raise error("a value is not of its type", column=column, type=kind, got=repr(got[:100]))
