"""Arrow types and ClickHouse types: which column a frame's column becomes, and which it fits.

A frame may be written to a column of another type as long as no value changes. The server would
wrap, cut or pad some values silently: `targets/values.py` has seen to those, and types whose values
it would change are refused here.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode.columns.bytes_text import bytes_of
from headwater.decode.columns.integers import wide_integer
from headwater.errors import ClickHouseTableError
from headwater.targets.value_checks import listed, put

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
    if pa.types.is_struct(kind) and kind.num_fields:
        inner = ", ".join(f"`{member.name}` {_inner(member)}" for member in kind)
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
    if _INTEGER.fullmatch(wanted):
        return _fit_integers(column, name, kind)
    if wanted.startswith("FixedString("):
        return _fit_bytes(column, name, kind, int(wanted[12:-1]))
    if wanted.startswith("DateTime"):
        return _fit_times(column, name, kind, wanted)
    if wanted.startswith("Array(") and pa.types.is_list(source):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        inner = wanted.removeprefix("Array(").removesuffix(")")
        if not chunks:
            fit(pa.nulls(0, source.value_type), inner, name)
            return column
        fitted = [fit(chunk.flatten(), inner, name) for chunk in chunks]
        plain = [
            items.combine_chunks() if isinstance(items, pa.ChunkedArray) else items
            for items in fitted
        ]
        lists = zip(chunks, plain, strict=True)
        return pa.chunked_array([listed(chunk, items, chunk.is_null()) for chunk, items in lists])
    if _is_safe(source, natural, wanted):
        return column
    raise _unfit(name, source, kind)


def _is_safe(source: pa.DataType, natural: str, wanted: str) -> bool:
    """Tell whether the server turns all values into the other type without a change, or refuses."""
    if natural == "String":  # the server would round text to a float, and take many for a date
        return not wanted.startswith((*_NESTED, "Date", "Float")) or wanted.startswith("JSON")
    if wanted.startswith("Decimal") and natural.startswith("Decimal"):
        digits, scale = (int(part) for part in wanted[8:-1].split(","))
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


def _fit_integers(column: Any, name: str, kind: str) -> Any:
    """Return integers, or text of such: that all are in range was seen to before."""
    source = column.type
    if pa.types.is_integer(source) or (pa.types.is_decimal(source) and source.scale == 0):
        return column
    if column_type(pa.field(name, source)) != "String":
        raise _unfit(name, source, kind)
    return column


def _fit_bytes(column: Any, name: str, kind: str, width: int) -> Any:
    if column_type(pa.field(name, column.type)) != "String":
        raise _unfit(name, column.type, kind)
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.binary(width))
    is_hex = pc.not_equal(pc.binary_length(column), width)
    if not pc.any(is_hex, min_count=0).as_py():
        return column.cast(pa.binary()).cast(pa.binary(width))
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([_as_bytes(chunk, width) for chunk in chunks], type=pa.binary(width))


def _as_bytes(values: Any, width: int) -> Any:
    """Return bytes of values that are `0x…` texts, or bytes already."""
    is_hex = pc.fill_null(pc.not_equal(pc.binary_length(values), width), False)
    if pc.all(pc.or_(is_hex, pc.is_null(values)), min_count=0).as_py():
        return _from_hex(values, width)
    plain = values.filter(pc.invert(is_hex)).cast(pa.binary()).cast(pa.binary(width))
    filled = put(pa.nulls(len(values), pa.binary(width)), pc.invert(is_hex), plain)
    return put(filled, is_hex, _from_hex(values.filter(is_hex), width))


def _from_hex(texts: Any, width: int) -> Any:
    """Turn `0x…` texts of one length into bytes, all at once."""
    known = pc.fill_null(texts, "0x" + "00" * width).cast(pa.large_binary())
    size = 2 * width + 2
    begins = np.frombuffer(known.buffers()[1], np.int64)[known.offset]
    raw = np.frombuffer(known.buffers()[2] or b"", np.uint8)[begins : begins + len(known) * size]
    digits = np.ascontiguousarray(raw.reshape(-1, size)[:, 2:]).reshape(-1)
    digits[(digits >= ord("A")) & (digits <= ord("F"))] |= 0x20
    values = pa.py_buffer(bytes_of(digits).tobytes())
    decoded = pa.Array.from_buffers(pa.binary(width), len(known), [None, values])
    if not texts.null_count:
        return decoded
    return put(decoded, pc.is_null(texts), pa.nulls(texts.null_count, pa.binary(width)))


def _fit_times(column: Any, name: str, kind: str, wanted: str) -> Any:
    source = column.type
    if not pa.types.is_timestamp(source):
        raise _unfit(name, source, kind, "make it a timestamp in a transform")
    match = re.match(r"DateTime64\((\d)", wanted)
    digits = int(match[1]) if match else 0
    unit = _UNITS[min(precision for precision in _UNITS if precision >= digits)]
    return column.cast(pa.timestamp(unit, source.tz or "UTC"))
