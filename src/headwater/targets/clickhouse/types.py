"""Arrow types and ClickHouse types: which column a frame's column becomes, and which it fits.

A frame may be written to a column of another type as long as no value changes. The server would
wrap, cut or pad some values silently; those are refused here.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode.columns.hex_text import bytes_of, is_lower_hex
from headwater.decode.columns.integers import wide_integer
from headwater.errors import ClickHouseTableError

_PLAIN = {
    pa.string(): "String",
    pa.large_string(): "String",
    pa.string_view(): "String",
    pa.binary(): "String",
    pa.large_binary(): "String",
    pa.binary_view(): "String",
    pa.bool_(): "Bool",
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.uint8(): "UInt8",
    pa.uint16(): "UInt16",
    pa.uint32(): "UInt32",
    pa.uint64(): "UInt64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.date32(): "Date32",
    pa.null(): "String",
}
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_UNITS = {0: "s", 3: "ms", 6: "us", 9: "ns"}
_INTEGER = re.compile(r"(U?)Int(8|16|32|64|128|256)")
_NESTED = ("Array(", "Tuple(", "Map(", "JSON", "Nested(", "Variant(", "Dynamic")


def column_type(field: pa.Field) -> str:
    """Return the type of the column that a frame's column becomes, without `Nullable`."""
    kind = field.type
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind):
        return f"DateTime64({_DIGITS[kind.unit]}, 'UTC')"
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 76:
        return f"Decimal({kind.precision}, {kind.scale})"
    if pa.types.is_dictionary(kind):
        return column_type(pa.field(field.name, kind.value_type))
    if pa.types.is_fixed_size_binary(kind):
        return f"FixedString({kind.byte_width})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"Array({_inner(kind.value_field)})"
    if pa.types.is_struct(kind):
        inner = ", ".join(f"`{one.name}` {_inner(one)}" for one in kind)
        return f"Tuple({inner})"
    if pa.types.is_map(kind):
        return f"Map({column_type(kind.key_field)}, {_inner(kind.item_field)})"
    raise ClickHouseTableError("no column type for this Arrow type", column=field.name, type=kind)


def new_column_type(field: pa.Field) -> str:
    """Return the type of a column that is created for a frame's: wide integers are numbers."""
    wide = wide_integer(field)
    if wide is None:
        return column_type(field)
    return f"{'' if wide.signed else 'U'}Int{128 if wide.bits <= 128 else 256}"


def nullable(kind: str) -> str:
    """Return the type that also holds null; nested types cannot."""
    return kind if kind.startswith(_NESTED) else f"Nullable({kind})"


def bare(kind: str) -> str:
    """Return a type without `Nullable` and `LowCardinality`."""
    while match := re.fullmatch(r"(?:Nullable|LowCardinality)\((.*)\)", kind):
        kind = match[1]
    return kind


def fit(column: Any, kind: str, name: str) -> Any:
    """Return the values of a column as they can be sent to a column of this type, exactly.

    Raises:
        ClickHouseTableError: a value would change on the way.
    """
    wanted = bare(kind)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type in (pa.string_view(), pa.binary_view()):
        column = column.cast(pa.string() if column.type == pa.string_view() else pa.binary())
    source = column.type
    natural = column_type(pa.field(name, source))
    if natural == wanted or wanted == "String":
        if wanted == "String" and natural != "String" and not natural.startswith("FixedString"):
            raise _unfit(name, source, kind, "make it text in a transform")
        return column
    if integer := _INTEGER.fullmatch(wanted):
        return _fit_integers(column, name, kind, integer[1] == "U", int(integer[2]))
    if wanted.startswith("FixedString("):
        return _fit_bytes(column, name, kind, int(wanted[12:-1]))
    if wanted.startswith("DateTime"):
        return _fit_times(column, name, kind, wanted)
    if wanted.startswith("Array(") and pa.types.is_list(source):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        for one in chunks:  # the server turns items as it would values
            fit(one.flatten(), wanted.removeprefix("Array(").removesuffix(")"), name)
        return column
    if _is_safe(source, natural, wanted):
        return column
    raise _unfit(name, source, kind)


def _is_safe(source: pa.DataType, natural: str, wanted: str) -> bool:
    """Tell whether the server turns all values into the other type without a change, or refuses."""
    if natural == "String":
        return not wanted.startswith(_NESTED) or wanted.startswith("JSON")
    if wanted.startswith("Decimal") and natural.startswith("Decimal"):
        digits, scale = (int(one) for one in wanted[8:-1].split(","))
        return bool(source.scale <= scale and source.precision - source.scale <= digits - scale)
    if (natural, wanted) in (("Float32", "Float64"), ("Bool", "UInt8")):
        return True
    return _plain_shape(natural) == _plain_shape(wanted)


def _inner(field: pa.Field) -> str:
    kind = column_type(field)
    return nullable(kind) if field.nullable else kind


def _plain_shape(kind: str) -> str:
    return re.sub(r"Nullable\(|LowCardinality\(|[()`\s]", "", kind)


def _unfit(name: str, source: object, kind: str, hint: str = "") -> ClickHouseTableError:
    said = f"a column cannot hold the frame's values{': ' + hint if hint else ''}"
    return ClickHouseTableError(said, column=name, frame=source, found=kind)


def _fit_integers(column: Any, name: str, kind: str, unsigned: bool, bits: int) -> Any:
    lowest = 0 if unsigned else -(2 ** (bits - 1))
    highest = 2 ** (bits if unsigned else bits - 1) - 1
    source = column.type
    if pa.types.is_integer(source) or (pa.types.is_decimal(source) and source.scale == 0):
        ends = [one.as_py() for one in pc.min_max(column).values()]
        if ends[0] is not None and (ends[0] < lowest or ends[1] > highest):
            raise _unfit(name, source, kind, f"it holds {ends[0]} to {ends[1]}")
        return column
    if column_type(pa.field(name, source)) != "String":
        raise _unfit(name, source, kind)
    bad = _out_of_range(column.cast(pa.string()), lowest, highest)
    if bad is not None:
        raise _unfit(name, source, kind, f"{bad[:90]!r} is no integer of that width")
    return column


def _out_of_range(texts: Any, lowest: int, highest: int) -> str | None:
    """Return a text that is not an integer within these limits."""
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest < len(str(highest)) and pc.all(pc.ascii_is_decimal(texts), min_count=0).as_py():
        return None
    right = pc.match_substring_regex(texts, "^-?[0-9]+$")
    negative = pc.starts_with(texts, "-")
    digits = pc.utf8_ltrim(texts, "-0")
    for limit, side in ((str(highest), pc.invert(negative)), (str(-lowest), negative)):
        length = pc.binary_length(digits)
        longer = pc.greater(length, len(limit))
        higher = pc.and_(pc.equal(length, len(limit)), pc.greater(digits, limit))
        if limit == "0":
            longer, higher = pc.greater(length, 0), pc.equal(length, -1)
        right = pc.and_not(right, pc.and_(side, pc.or_(longer, higher)))
    place = pc.index(pc.fill_null(right, True), pa.scalar(False)).as_py()
    return None if place < 0 else str(texts[place])


def _fit_bytes(column: Any, name: str, kind: str, width: int) -> Any:
    if column_type(pa.field(name, column.type)) != "String":
        raise _unfit(name, column.type, kind)
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.binary(width))
    shortest, longest = (one.as_py() for one in pc.min_max(pc.binary_length(column)).values())
    if shortest == longest == width:
        return column.cast(pa.binary()).cast(pa.binary(width))
    if shortest != 2 * width + 2 or longest != shortest:
        raise _unfit(name, column.type, kind, f"{shortest} to {longest} bytes")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array(
        [_from_hex(one, width, name, kind) for one in chunks], type=pa.binary(width)
    )


def _from_hex(texts: Any, width: int, name: str, kind: str) -> Any:
    """Turn `0x…` texts of one length into bytes, all at once."""
    known = texts.drop_null().cast(pa.large_binary())
    size = 2 * width + 2
    start = known.offset
    begins = np.frombuffer(known.buffers()[1], np.int64)[start]
    raw = np.frombuffer(known.buffers()[2] or b"", np.uint8)[begins : begins + len(known) * size]
    rows = raw.reshape(-1, size)
    digits = np.ascontiguousarray(rows[:, 2:]).reshape(-1)
    digits[(digits >= ord("A")) & (digits <= ord("F"))] |= 0x20
    prefixed = bool(np.all(rows[:, 0] == ord("0")) and np.all(rows[:, 1] == ord("x")))
    if not prefixed or not is_lower_hex(digits):
        raise _unfit(name, texts.type, kind, "not all are 0x and hex digits")
    values = bytes_of(digits).tobytes()
    made = pa.Array.from_buffers(pa.binary(width), len(known), [None, pa.py_buffer(values)])
    if not texts.null_count:
        return made
    places = np.cumsum(np.asarray(texts.is_valid())) - 1
    return made.take(pa.array(places, mask=np.asarray(texts.is_null())))


def _fit_times(column: Any, name: str, kind: str, wanted: str) -> Any:
    source = column.type
    if column_type(pa.field(name, source)) == "String":
        return column
    if not pa.types.is_timestamp(source):
        raise _unfit(name, source, kind)
    match = re.match(r"DateTime64\((\d)", wanted)
    digits = int(match[1]) if match else 0
    unit = _UNITS[max(one for one in _UNITS if one <= digits)]
    try:
        return column.cast(pa.timestamp(unit, source.tz or "UTC"), safe=True)
    except pa.ArrowInvalid as error:
        raise _unfit(name, source, kind, "parts of a second would be lost") from error
