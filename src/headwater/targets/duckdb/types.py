"""Rows as DuckDB can take them: any Arrow type to a column type, exactly.

Arrow scans are zero-copy. What DuckDB cannot scan (256-bit decimals) becomes decimal text. Text
becomes an integer only after `targets/values.py`: DuckDB itself would round "1.5".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from headwater.decode.columns.integers import wide_integer
from headwater.errors import TableSchemaError
from headwater.targets.text import Fragment

INTEGER_TYPES = re.compile(
    r"BIGNUM|U?HUGEINT|U?(?:BIGINT|INTEGER|SMALLINT|TINYINT)|DECIMAL\(\d+,0\)"
)
_PLAIN = {
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.string_view(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.binary_view(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.null(): "VARCHAR",
}
_NO_VIEW = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_BITS |= {f"U{name}": bits for name, bits in _BITS.items()}


def scannable(rows: pa.Table) -> pa.Table:
    """Return rows as DuckDB can scan them: pyarrow below 25 crashes where views are handed over."""
    for index, field in enumerate(rows.schema):
        kind, plain = field.type, _NO_VIEW.get(field.type)
        if pa.types.is_decimal256(kind) and kind.scale == 0:
            plain = pa.string()
        elif pa.types.is_list(kind) and pa.types.is_dictionary(kind.value_type):
            plain = pa.list_(kind.value_type.value_type)
        if plain is not None:
            rows = rows.set_column(index, field.with_type(plain), rows.column(index).cast(plain))
    return rows


def column_type(field: pa.Field) -> str:
    """Return the DuckDB type of a frame's column."""
    kind = field.type
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return "TIMESTAMP WITH TIME ZONE" if kind.tz else "TIMESTAMP"
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_dictionary(kind):
        return column_type(pa.field(field.name, kind.value_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{column_type(kind.value_field)}[]"
    if pa.types.is_struct(kind) and kind.num_fields:
        inner = ", ".join(f'"{_escaped(one.name)}" {column_type(one)}' for one in kind)
        return f"STRUCT({inner})"
    if pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    raise TableSchemaError("no column type for this Arrow type", column=field.name, type=kind)


def new_column_type(field: pa.Field) -> str:
    """Return the type of a column that is created for a frame's column: wide integers are numbers.

    `BIGNUM` is the only exact one for 256 bits. It is taken for 128 bits as well: the sum of
    `UHUGEINT` is a `DOUBLE`, and that of `HUGEINT` can overflow.
    """
    return "BIGNUM" if wide_integer(field) else column_type(field)


def fits(source: str, target: str, kind: pa.DataType) -> bool:
    """Tell whether all or some values of a frame's type can be stored in a column exactly.

    Integers go into any column of integers: `targets/values.py` sees to those that have no place.
    """
    if kind == pa.null() or _plain(source) == _plain(target):
        return True
    if target == "BIGNUM":
        return source in _BITS or source == "VARCHAR" or source.endswith(",0)")
    if source == "VARCHAR":
        return target in ("JSON", "UUID") or bool(INTEGER_TYPES.fullmatch(target))
    if source in _BITS and target in _BITS:
        return True
    if source.startswith("DECIMAL") and target.startswith("DECIMAL") and not (
        is_nested(source) or is_nested(target)
    ):  # fmt: skip
        (digits, scale), (room, places) = _decimal(source), _decimal(target)
        return places >= scale and room - places >= digits - scale
    return (source, target) == ("FLOAT", "DOUBLE")


def as_stored(name: str, source: pa.DataType, kind: str) -> str:
    """Return SQL for a column of a frame in the type of the table's column."""
    if kind == "BIGNUM" and pa.types.is_decimal(source):
        name = f"{name}::VARCHAR"  # which DuckDB does not cast
    return f"CAST({name} AS {kind})"


def as_json(pairs: Iterable[tuple[str, str, str]], *, texts: bool = False) -> Fragment:
    """Return SQL for a JSON object of (name, value, type of the value), exact when it is read back.

    Integers of any length, booleans and text are what they are; of anything else JSON holds the
    text, because a reader would round it or write it otherwise. `texts`: of those, too, as the
    Substreams sink has keys.
    """
    parts = []
    for name, value, kind in pairs:
        if is_nested(kind):
            value = f"to_json({value})::VARCHAR"
        elif texts or not (kind in ("VARCHAR", "BOOLEAN") or INTEGER_TYPES.fullmatch(kind)):
            value = f"{value}::VARCHAR"
        parts.append("'" + name.replace("'", "''") + f"': {value}")
    return Fragment(f"to_json({{{', '.join(parts)}}})::VARCHAR")


def from_text(value: str, kind: str) -> str:
    """Return SQL that reads back what `as_json` wrote."""
    return f"CAST({value}::JSON AS {kind})" if is_nested(kind) else f"CAST({value} AS {kind})"


def is_nested(kind: str) -> bool:
    """Tell whether a type is of lists, structs or maps."""
    return kind.endswith("]") or kind.startswith(("STRUCT", "MAP"))


def _plain(kind: str) -> str:
    """Return a type without the differences that are only spelling."""
    return kind.replace(" ", "").replace('"', "").upper()


def _decimal(kind: str) -> tuple[int, int]:
    digits, scale = kind.removeprefix("DECIMAL(").removesuffix(")").split(",")
    return int(digits), int(scale)


def _escaped(name: str) -> str:
    return name.replace('"', '""')
