"""Changes from the columns of a frame: one change per row, no row ever built in Python.

from_columns(transfers, table="balances", operation="upsert", key={"owner": "to"},
             fields={"amount": add("value")}, ordinal="log_index")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.changes.collector import FieldOperation, set_
from headwater.changes.model import (
    CHANGES_SCHEMA,
    FIELD_OPERATIONS,
    FIELDS_TYPE,
    KEY_TYPE,
    NUMERIC,
    OPERATIONS,
    Operation,
    one_array,
)
from headwater.changes.values import text_column
from headwater.errors import ChangeFormError

FieldSpec = FieldOperation | str


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
    found = spec if isinstance(spec, FieldOperation) else None
    if isinstance(spec, str) and spec in FIELD_OPERATIONS:
        found = FieldOperation(spec, name)  # type: ignore[arg-type]  # just checked
    if found is None or not isinstance(found.value, str):
        raise ChangeFormError(
            "a field is an operation, or an operation of a column's name",
            column=name,
            got=repr(spec),
            known=", ".join(FIELD_OPERATIONS),
        )
    return found


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
    width = len(parts[0])
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width)
    children = [_woven(part, rows) for part in parts]
    entries = pa.StructArray.from_arrays(children, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(offsets, entries, type=kind)


def _woven(part: list[Any], rows: int) -> pa.Array:
    """Return what each row has of one part, row after row."""
    width = len(part)
    if not width:
        return pa.array([], pa.string())
    places = np.arange(rows)[:, None] * np.ones(width, np.int64)
    if isinstance(part[0], str):
        return pa.array(part).take(pa.array(np.tile(np.arange(width), rows)))
    places = places + np.arange(width) * rows
    return pa.concat_arrays(part).take(pa.array(places.reshape(-1)))
