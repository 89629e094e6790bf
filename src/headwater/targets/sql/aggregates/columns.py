"""Which columns an aggregate's table has: worked out from the columns of its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.errors import AggregateError
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.sql.aggregates.declaration import Plan
from headwater.targets.sql.aggregates.deltas import check_column

_TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.null())


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of an aggregate's table.

    `schema` has their Arrow types, numbers of any length as text; `wide` are those numbers, `long`
    the sums of integers that are at most 64 bits long; `numeric` says which columns are computed
    with as numbers.
    """

    schema: pa.Schema
    wide: frozenset[str]
    long: frozenset[str]
    numeric: Mapping[str, bool]


def find_columns(plan: Plan, data: Mapping[str, Any]) -> Columns:
    """Return the columns of a table, as the outputs of a batch call for them.

    Raises:
        AggregateError: an output or a column is missing, or has a type that cannot be summed up.
    """
    schemas = {part.source: _schema(part.source, data) for part in plan.parts}
    fields: dict[str, pa.Field] = {}
    wide, long, numeric = set[str](), set[str](), dict[str, bool]()
    first = plan.parts[0]
    for name in plan.key:
        source = check_column(schemas[first.source], first, first.keys[name])
        fields[name] = pa.field(name, source.type, nullable=False)
    for part in plan.parts:
        for one in part.measures:
            if isinstance(one.source, int):
                kind = pa.int64()
            else:
                kind = check_column(schemas[part.source], part, one.source).type
            numeric[one.column] = one.operation != "last" and _is_number(kind)
            if one.operation != "last" and not numeric[one.column]:
                _refuse(part.table, one.column, one.operation, kind)
            if numeric[one.column] and _is_wide(kind):
                wide.add(one.column)
            elif one.operation == "add" and isinstance(one.source, str):
                if pa.types.is_integer(kind):
                    long.add(one.column)
                else:
                    kind = pa.decimal128(38, kind.scale)
            fields.setdefault(one.column, pa.field(one.column, kind))
    for name in wide | long:
        fields[name] = pa.field(name, pa.string())
    return Columns(
        pa.schema(list(fields.values())), frozenset(wide), frozenset(long - wide), numeric
    )


def _schema(source: str, data: Mapping[str, Any]) -> pa.Schema:
    if source not in data:
        raise AggregateError(
            "there is no such output", output=source, known=", ".join(data) or "none"
        )
    frame = data[source]
    rows = executor_rows(frame)
    return to_arrow(frame).schema if rows is None else rows.schema


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or kind in _TEXTS)


def _is_wide(kind: pa.DataType) -> bool:
    """Tell whether numbers of a type may have more digits than a database's own integers."""
    whole = pa.types.is_decimal(kind) and kind.scale == 0
    return bool(kind in _TEXTS or whole)


def _refuse(table: str, column: str, operation: str, kind: pa.DataType) -> None:
    """Refuse a sum of what is no number, and an extreme of what has no order, or is not exact."""
    ordered = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if operation == "add" or not ordered:
        raise AggregateError(
            "values of this type cannot be summed up exactly",
            table=table,
            column=column,
            operation=operation,
            type=kind,
        )
