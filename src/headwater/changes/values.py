"""Values to text, exactly: single ones as users write them, and whole Arrow columns.

Both give the same text for the same value, so a key is the same key however it was built.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import ChangeFormError


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
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_fixed_binary(kind):
        return pa.array([text_of(one) for one in array.to_pylist()], pa.string())
    if pa.types.is_timestamp(kind):
        return pa.array([text_of(one) for one in _microseconds(array).to_pylist()], pa.string())
    raise ChangeFormError("a column of this type has no exact text", column=name, type=kind)


def _is_fixed_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(kind))


def _microseconds(array: pa.Array) -> pa.Array:
    return array.cast(pa.timestamp("us", array.type.tz))


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
    plain = [text_of(one) for one in array.filter(odd).to_pylist()]
    return pc.replace_with_mask(text, odd, pa.array(plain, pa.string()))
