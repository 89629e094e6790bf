"""Changes from user code: written by hand for single events, or taken from the columns of a frame.

    Changes(block=100).insert("transfer", "tx1", value=1000)
    from_columns(transfers, table="balances", operation="upsert", key={"owner": "to"},
                 fields={"amount": add("value")}, ordinal="log_index")

`from_columns` makes one change per row and never builds a row in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.changes.model import (
    ANONYMOUS,
    CHANGES_SCHEMA,
    FIELD_OPERATIONS,
    FIELDS_TYPE,
    KEY_TYPE,
    NUMERIC,
    OPERATIONS,
    FieldOperationName,
    Operation,
    lists_of,
    one_array,
)
from headwater.changes.numbers import parse_number
from headwater.changes.values import text_column, text_of
from headwater.errors import ChangeFormError


@dataclass(frozen=True, slots=True)
class FieldOperation:
    """What is done to a column, and with which value. Made by `add`, `sub`, `max_`, …"""

    operation: FieldOperationName
    value: object


FieldSpec = FieldOperation | str


def set_(value: object) -> FieldOperation:
    """Give the column this value; the same as giving the value itself."""
    return FieldOperation("set", value)


def add(value: object) -> FieldOperation:
    """Add to the column; null counts as nothing, so adding to it gives the value."""
    return FieldOperation("add", value)


def sub(value: object) -> FieldOperation:
    """Subtract from the column; from null it gives the negative value."""
    return FieldOperation("sub", value)


def max_(value: object) -> FieldOperation:
    """Keep the larger number; null is ignored."""
    return FieldOperation("max", value)


def min_(value: object) -> FieldOperation:
    """Keep the smaller number; null is ignored."""
    return FieldOperation("min", value)


def set_if_null(value: object) -> FieldOperation:
    """Give the column this value only if it has none."""
    return FieldOperation("set_if_null", value)


class Changes:
    """Collects changes in the order in which they happen, and is then read with `toArrow`.

    Lives in user code, on the driver or in a task; made anew for each batch. Every method returns
    the collector, so calls can be chained. A key is one value, or a mapping of columns to values;
    the column of a single value is named by the table's declaration.
    """

    def __init__(self, block: int | None = None) -> None:
        self._block = block
        self._rows: list[dict[str, Any]] = []

    def at(self, block: int) -> Changes:
        """Let the changes that follow belong to this block."""
        self._block = block
        return self

    def insert(self, table: str, pk: object, /, **fields: object) -> Changes:
        """Make a new row; it is an error if there is one with this key."""
        return self._append("insert", table, pk, fields)

    def update(self, table: str, pk: object, /, **fields: object) -> Changes:
        """Change a row; nothing happens if there is none with this key."""
        return self._append("update", table, pk, fields)

    def upsert(self, table: str, pk: object, /, **fields: object) -> Changes:
        """Change a row, or make it if there is none with this key."""
        return self._append("upsert", table, pk, fields)

    def delete(self, table: str, pk: object, /) -> Changes:
        """Remove a row; nothing happens if there is none with this key."""
        return self._append("delete", table, pk, {})

    def toArrow(self) -> pa.Table:  # noqa: N802 - as a DataFrame has it
        """Return what was collected so far, in `CHANGES_SCHEMA`."""
        return pa.Table.from_pylist(self._rows, schema=CHANGES_SCHEMA)

    def __len__(self) -> int:
        return len(self._rows)

    def _append(
        self, operation: str, table: str, pk: object, fields: Mapping[str, object]
    ) -> Changes:
        if self._block is None:
            raise ChangeFormError("a change belongs to a block: use Changes(block=…) or .at(block)")
        if not isinstance(table, str) or not table:
            raise ChangeFormError("a change needs the name of a table", got=repr(table))
        row = {
            "table": table,
            "pk": key_of(table, pk),
            "operation": operation,
            "fields": [_field(table, name, value) for name, value in fields.items()],
            "ordinal": len(self._rows),
            "block_number": self._block,
        }
        self._rows.append(row)
        return self


def key_of(table: str, pk: object) -> list[dict[str, str]]:
    """Return a key as the schema holds it, its columns in the order of their names.

    Raises:
        ChangeFormError: it has no column, or a null or inexact value.
    """
    named = pk if isinstance(pk, Mapping) else {ANONYMOUS: pk}
    if not named or (isinstance(pk, Mapping) and not all(isinstance(n, str) and n for n in pk)):
        raise ChangeFormError("a key needs at least one column, with a name", table=table)
    parts = []
    for name in sorted(named):
        value = text_of(named[name])
        if value is None:
            raise ChangeFormError("a key cannot be null", table=table, column=name or "key")
        parts.append({"name": name, "value": value})
    return parts


def _field(table: str, name: str, value: object) -> dict[str, str | None]:
    operation = value if isinstance(value, FieldOperation) else set_(value)
    if operation.operation not in FIELD_OPERATIONS:
        known = ", ".join(FIELD_OPERATIONS)
        raise ChangeFormError("unknown field operation", got=operation.operation, known=known)
    text = text_of(operation.value)
    if operation.operation in NUMERIC:
        if text is None:
            raise ChangeFormError("a number is needed, not null", table=table, column=name,
                                  operation=operation.operation)  # fmt: skip
        parse_number(text)
    return {"name": name, "value": text, "operation": operation.operation}


def from_columns(
    frame: Any,
    *,
    table: str,
    operation: Operation,
    key: Sequence[str] | Mapping[str, str],
    fields: Sequence[str] | Mapping[str, FieldSpec] = (),
    block: str = "block_number",
    ordinal: str | None = None,
) -> pa.Table:
    """Return one change per row of an Arrow table, or of anything with `toArrow()`.

    `key` names columns of the frame, or maps the table's key columns to them. `fields` names
    columns that are set, or maps the table's columns to a field operation of a column of the frame:
    `add("value")`, or just "add" if both are called the same. Without `ordinal` the order of rows
    counts. Runs where the frame is; the same frame gives the same changes again.

    Raises:
        ChangeFormError: a column is missing, has nulls in a key, or no exact text.
    """
    if operation not in OPERATIONS:
        raise ChangeFormError("unknown operation", got=operation, known=", ".join(OPERATIONS))
    source = frame if isinstance(frame, pa.Table) else frame.toArrow()
    keys = dict(key) if isinstance(key, Mapping) else {name: name for name in key}
    if isinstance(key, str) or not keys or not table:
        raise ChangeFormError("a change needs a table and a list of key columns", key=repr(key))
    rows = source.num_rows
    key_texts = [_key_column(source, keys[name]) for name in sorted(keys)]
    specs = {name: _spec(name, spec) for name, spec in _fields(fields).items()}
    field_texts = [_field_column(source, name, spec) for name, spec in specs.items()]
    places = np.arange(rows) if ordinal is None else _integers(source, ordinal)
    steps = [spec.operation for spec in specs.values()]
    columns = [
        _repeated(table, rows),
        _interleaved(rows, [sorted(keys), key_texts], KEY_TYPE),
        _repeated(operation, rows),
        _interleaved(rows, [list(specs), field_texts, steps], FIELDS_TYPE),
        pa.array(places, pa.int64()),
        pa.array(_integers(source, block), pa.int64()),
    ]
    return pa.Table.from_arrays(columns, schema=CHANGES_SCHEMA)


def _fields(fields: Sequence[str] | Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
    if isinstance(fields, str):
        raise ChangeFormError("fields are a list or a mapping", got=repr(fields))
    return dict(fields) if isinstance(fields, Mapping) else {name: set_(name) for name in fields}


def _spec(name: str, spec: FieldSpec) -> FieldOperation:
    operation = spec if isinstance(spec, FieldOperation) else None
    if isinstance(spec, str) and spec in FIELD_OPERATIONS:
        operation = FieldOperation(spec, name)  # type: ignore[arg-type]  # just checked
    if operation is None or not isinstance(operation.value, str):
        raise ChangeFormError(
            "a field is an operation, or an operation of a column's name",
            column=name,
            got=repr(spec),
            known=", ".join(FIELD_OPERATIONS),
        )
    return operation


def _column(source: pa.Table, name: str) -> pa.Array:
    if name not in source.column_names:
        known = ", ".join(source.column_names)
        raise ChangeFormError("the frame has no such column", column=name, known=known)
    return one_array(source[name])


def _key_column(source: pa.Table, name: str) -> pa.Array:
    texts = text_column(_column(source, name), name)
    if texts.null_count:
        raise ChangeFormError("a key cannot be null", column=name)
    return texts


def _field_column(source: pa.Table, name: str, spec: FieldOperation) -> pa.Array:
    texts = text_column(_column(source, str(spec.value)), name)
    if texts.null_count and spec.operation in NUMERIC:
        raise ChangeFormError(
            "a number is needed, not null", column=spec.value, operation=spec.operation
        )
    return texts


def _integers(source: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    column = _column(source, name)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise ChangeFormError("a column of integers is needed", column=name, type=column.type)
    return np.asarray(column.cast(pa.int64()))


def _repeated(text: str, rows: int) -> pa.Array:
    return pa.array([text]).take(pa.array(np.zeros(rows, np.int64)))


def _interleaved(rows: int, parts: list[list[Any]], kind: pa.DataType) -> pa.Array:
    """Return lists with one entry per column: parts are names, columns of values, operations."""
    return lists_of(np.full(rows, len(parts[0])), [_woven(part, rows) for part in parts], kind)


def _woven(part: list[Any], rows: int) -> pa.Array:
    """Return what each row has of one part, row after row."""
    width = len(part)
    if not width:
        return pa.array([], pa.string())
    if isinstance(part[0], str):
        return pa.array(part).take(pa.array(np.tile(np.arange(width), rows)))
    places = np.arange(rows * width).reshape(width, rows).T
    return pa.concat_arrays(part).take(pa.array(places.reshape(-1)))
