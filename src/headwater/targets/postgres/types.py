"""Arrow types and PostgreSQL types: of the columns of a frame, and of the result of a query.

What has no exact counterpart (structures, lists of lists) becomes `jsonb`.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import RawCursor
from psycopg.adapt import Loader
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader
from psycopg.types.string import TextLoader

from headwater.changes.declaration import ColumnType
from headwater.decode.columns.integers import wide_integer
from headwater.errors import PostgresTableError
from headwater.targets.postgres.encode import INTEGERS
from headwater.targets.sql.dialect import COLUMN_TYPES

_PLAIN = {kind: names[0] for kind, names in COLUMN_TYPES.items()}
KINDS: dict[str, ColumnType] = {
    **dict.fromkeys(INTEGERS, "integer"),
    "numeric": "decimal",
    "real": "decimal",
    "double precision": "decimal",
    "boolean": "boolean",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp",
    "date": "date",
    "bytea": "bytes",
    "json": "json",
    "jsonb": "json",
}
SCALARS = {*KINDS, "text", "character varying", "character", "uuid"} - {"json", "jsonb"}
_LONG_NAMES = {
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
    "varchar": "character varying",
    "int2": "smallint",
    "int4": "integer",
    "int": "integer",
    "int8": "bigint",
    "bool": "boolean",
    "float4": "real",
    "float8": "double precision",
    "decimal": "numeric",
}


def column_type(field: pa.Field) -> str:
    """Return the PostgreSQL type of a frame's column."""
    kind = field.type
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    if pa.types.is_decimal(kind) and kind.scale >= 0:
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_dictionary(kind):
        return column_type(pa.field(field.name, kind.value_type))
    if pa.types.is_fixed_size_binary(kind):
        return "bytea"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = column_type(kind.value_field)
        return "jsonb" if inner == "jsonb" or inner.endswith("[]") else f"{inner}[]"
    if pa.types.is_struct(kind):
        return "jsonb"
    raise PostgresTableError("no column type for this Arrow type", column=field.name, type=kind)


def new_column_type(field: pa.Field) -> str:
    """Return the type of a column that is created for a frame's column: wide integers are numbers.

    `numeric(78,0)` holds 256 bits, with and without sign.
    """
    wide = wide_integer(field)
    return f"numeric({len(str(2**wide.bits))},0)" if wide else column_type(field)


def bare_type(kind: str) -> str:
    """Return a type in PostgreSQL's own spelling without precision: `numeric(78,0)` is numeric."""
    array = "[]" if kind.endswith("[]") else ""
    bare = kind.removesuffix("[]").split("(")[0].strip()
    rest = kind.removesuffix("[]").partition(")")[2].strip()
    bare = f"{bare} {rest}".strip()
    return _LONG_NAMES.get(bare, bare) + array


def castable(kind: pa.DataType, target: str) -> bool:
    """Tell whether text may be handed to the server to be read as this type."""
    text = kind in (pa.string(), pa.large_string(), pa.string_view())
    inexact = ("timestamp", "time", "date", "interval", "real", "double", "boolean", "bytea")
    return text and not target.startswith(inexact) and not target.endswith("[]")


def find_nul(frame: pa.Table) -> str | None:
    """Return the first column with a text that PostgreSQL cannot store, for a better error."""
    for field in frame.schema:
        if field.type in (pa.string(), pa.large_string()):
            has_nul = pc.any(pc.match_substring(frame.column(field.name), "\0"), min_count=0)
            if has_nul.as_py():
                return str(field.name)
    return None


def to_table(cursor: RawCursor[tuple[object, ...]]) -> pa.Table:
    """Return the rows of a query as Arrow; numbers too wide for Arrow come as decimal text."""
    if cursor.description is None:
        return pa.table({})
    rows = cursor.fetchall()
    columns = []
    for index, column in enumerate(cursor.description):
        kind, text = _arrow_type(column)
        values = [row[index] for row in rows]
        if text:
            values = [
                value if value is None or isinstance(value, str) else _text(value)
                for value in values
            ]
        columns.append(pa.array(values, kind))
    names = [column.name for column in cursor.description]
    return pa.Table.from_arrays(columns, names=names)


_TYPES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp": pa.timestamp("us"),
}


def _arrow_type(column: psycopg.Column) -> tuple[pa.DataType, bool]:
    """Return the Arrow type of a result's column, and whether its values must be made text."""
    info = psycopg.adapters.types.get(column.type_code)
    if info is not None and info.array_oid == column.type_code and info.oid != column.type_code:
        inner = _TYPES.get(info.name)
        if inner is not None:
            return pa.list_(inner), False
        return (pa.list_(pa.string()), False) if info.name in ("text", "varchar") else _FALLBACK
    name = info.name if info is not None else ""
    if name == "numeric" and column.precision is not None and column.precision <= 38:
        return pa.decimal128(column.precision, column.scale or 0), False
    return (_TYPES[name], False) if name in _TYPES else _FALLBACK


_FALLBACK = (pa.string(), True)
_FAR = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(\.\d+)?(?:\+00)?)?( BC)?")
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # of the calendar, after which it begins anew


def _far_days(text: str) -> tuple[int, int]:
    """Return days and microseconds since 1970 of a date or a time that Python has no object for."""
    match = _FAR.fullmatch(text)
    if match is None:
        raise psycopg.DataError(f"neither a date nor a time: {text[:40]!r}")
    year, month, day = (int(part) for part in match.groups()[:3])
    year = 1 - year if match[8] else year
    cycles, year = divmod(year, _CYCLE_YEARS)
    begun = date(year + _CYCLE_YEARS, month, day).toordinal() - date(1970, 1, 1).toordinal()
    days = begun + (cycles - 1) * _CYCLE_DAYS
    hour, minute, second = (int(part or 0) for part in match.groups()[3:6])
    rest = round(float(match[7] or 0) * 1_000_000)
    return days, ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + rest


def _far_loader(kind: type[Loader], part: int) -> type[Loader]:
    class FarLoader(kind):  # type: ignore[valid-type,misc]  # the same for three kinds
        """Reads dates or times; those that Python has no object for as numbers since 1970."""

        def load(self, data: Any) -> Any:
            """Return a date or time, or a number of days or microseconds."""
            try:
                return super().load(data)
            except psycopg.DataError:
                return _far_days(bytes(data).decode())[part]

    return FarLoader


LOADERS: dict[str, type[Loader]] = {  # a connection's zone is UTC
    "json": TextLoader,
    "jsonb": TextLoader,
    "date": _far_loader(DateLoader, 0),
    "timestamp": _far_loader(TimestampLoader, 1),
    "timestamptz": _far_loader(TimestamptzLoader, 1),
}


def _text(value: object) -> str:
    return format(value, "f") if type(value).__name__ == "Decimal" else str(value)
