"""Changes as one writes them by hand: `Changes(block=100).insert("transfer", "tx1", value=1000)`.

For rules that look at single events. Whole columns go through `from_columns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.changes.model import (
    ANONYMOUS,
    CHANGES_SCHEMA,
    FIELD_OPERATIONS,
    NUMERIC,
    FieldOperationName,
)
from headwater.changes.numbers import parse_number
from headwater.changes.values import text_of
from headwater.errors import ChangeFormError


@dataclass(frozen=True, slots=True)
class FieldOperation:
    """What is done to a column, and with which value. Made by `add`, `sub`, `max_`, …"""

    operation: FieldOperationName
    value: object


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
