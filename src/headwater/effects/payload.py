"""Rows as JSON, exactly: the payload of messages.

Integers beyond ±(2^53 - 1), which many readers of JSON would round, are strings, and so are all
decimals; bytes are `0x…`, times ISO 8601. The same row has the same text at every replay.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

SAFE = 2**53 - 1
Convert = Callable[[Any], Any]


def json_rows(rows: pa.Table) -> list[str]:
    """Return each row as a JSON object with its columns in their order."""
    names = rows.schema.names
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        convert = _converter(field.type)
        values = column.to_pylist()
        columns.append([None if one is None else convert(one) for one in values])
    return [
        json.dumps(dict(zip(names, row, strict=True)), separators=(",", ":"), ensure_ascii=False)
        for row in zip(*columns, strict=True)
    ]


def _converter(kind: pa.DataType) -> Convert:
    """Return what makes values of a type fit for JSON."""
    types = pa.types
    if types.is_dictionary(kind):
        return _converter(kind.value_type)
    if types.is_map(kind):
        item = _nullable(_converter(kind.item_type))
        return lambda pairs: {str(key): item(value) for key, value in pairs}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _nullable(_converter(kind.value_type))
        return lambda values: [element(one) for one in values]
    if types.is_struct(kind):
        parts = {field.name: _nullable(_converter(field.type)) for field in kind}
        return lambda value: {name: part(value[name]) for name, part in parts.items()}
    return next((convert for test, convert in _CONVERTERS if test(kind)), str)


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _integer(value: int) -> int | str:
    return value if -SAFE <= value <= SAFE else str(value)


def _float(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _time(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def _binary(kind: pa.DataType) -> bool:
    plain = kind in (pa.binary(), pa.large_binary(), pa.binary_view())
    return plain or bool(pa.types.is_fixed_size_binary(kind))


_CONVERTERS: list[tuple[Callable[[pa.DataType], bool], Convert]] = [
    (pa.types.is_boolean, _same),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, lambda value: format(value, "f")),
    (_binary, lambda value: "0x" + value.hex()),
    (pa.types.is_timestamp, _time),
    (pa.types.is_date, lambda value: value.isoformat()),
]
