"""Changes and aggregates in lake tables: what each key's change makes of the row that is there.

The rows that change are taken out of their files, and come back as the changes leave them: in the
commit of their block, so a fork undoes them like any other change by key. Runs on the driver; whole
columns at a time.

Null: adding to null gives the value, raising and lowering ignore it, filling replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.declaration import ColumnType, TableSchema, check
from headwater.changes.fold import fold
from headwater.changes.model import ADD as SUM
from headwater.changes.model import MAX, MIN, one_array
from headwater.changes.numbers import reduce_numbers
from headwater.changes.values import one_spelling, text_column
from headwater.errors import DuplicateInsertError, LakeSchemaError
from headwater.targets.lake.table import LakeTable
from headwater.targets.sql.aggregate_tables import delta_changes, find_columns
from headwater.targets.sql.aggregates import Plan, compute_delta
from headwater.targets.sql.changes import (
    ABSENT,
    ADD,
    FILL,
    GIVEN,
    INSERT,
    LOWER,
    RAISE,
    REPLACE,
    SET,
    TRANSIENT,
    UPDATE,
    UPSERT,
    Column,
    Rounds,
    Shape,
    TableChanges,
)

_TYPES: Mapping[ColumnType, pa.DataType] = {
    "boolean": pa.bool_(), "timestamp": pa.timestamp("us", "UTC"), "date": pa.date32(),
    "bytes": pa.binary(),
}  # fmt: skip
_NUMBERS = ("integer", "decimal")
_REDUCED = {ADD: SUM, RAISE: MAX, LOWER: MIN}


def columns_of(schema: TableSchema) -> pa.Schema:
    """Return the columns of a new table; numbers of any length are exact text."""
    return pa.schema(
        [(name, _TYPES.get(kind, pa.string())) for name, kind in schema.columns.items()]
    )


def apply_changes(
    tx: Any, tables: Iterable[TableSchema], frame: Any, block: int, hot: bool
) -> None:
    """Apply a table of changes. Called by `Tx.apply`, for each batch."""
    known = {schema.name: schema for schema in tables}
    folded = fold(check(frame, list(known.values())), finalized=None if hot else block)
    shapes = {name: _shape(schema) for name, schema in known.items()}
    for changes in Rounds(shapes).by_key(folded):
        for table_changes in changes:
            schema = known[table_changes.shape.name]
            tx.merge(schema.name, columns_of(schema), schema.key, table_changes)


def add_aggregates(tx: Any, plans: Iterable[Plan], data: Mapping[str, Any], block: int) -> None:
    """Add what a batch contributes to aggregates. Called for each batch, after its rows."""
    for plan in plans:
        columns = find_columns(plan, data)
        delta = compute_delta(plan, data, columns.numeric)
        if not delta.num_rows:
            continue
        kinds: dict[str, ColumnType] = {}
        fields = []
        for field in columns.schema:
            is_number = columns.numeric.get(field.name, False)
            kinds[field.name] = "decimal" if is_number else _kind(field.type)
            is_long = field.name in columns.long
            fields.append(field.with_type(pa.decimal128(38, 0)) if is_long else field)
        shape = _shape(TableSchema(plan.table, plan.key, kinds))
        changes = delta_changes(plan, delta, shape, columns, block)
        tx.merge(plan.table, pa.schema(fields), plan.key, changes)


def _shape(schema: TableSchema) -> Shape:
    columns = {name: Column(name, kind, kind) for name, kind in schema.columns.items()}
    return Shape(schema.name, schema.name, tuple(schema.key), columns)


def _kind(kind: pa.DataType) -> ColumnType:
    types = pa.types
    if types.is_integer(kind):
        return "integer"
    if types.is_decimal(kind):
        return "decimal"
    if types.is_boolean(kind):
        return "boolean"
    if types.is_timestamp(kind):
        return "timestamp"
    if types.is_date(kind):
        return "date"
    return "bytes" if types.is_binary(kind) or types.is_fixed_size_binary(kind) else "text"


def touched_keys(changes: TableChanges, table: LakeTable[Any]) -> pa.Table:
    """Return the keys of all changes, in the types of the table."""
    names = changes.shape.key
    columns = [
        _typed(one_array(changes.frame[f"key_{at}"]), table.columns.field(name))
        for at, name in enumerate(names)
    ]
    return pa.table(columns, names=list(names)).group_by(list(names)).aggregate([])


def merged(changes: TableChanges, table: LakeTable[Any], before: pa.Table) -> pa.Table:
    """Return the rows that take the place of those before, in the columns of the table.

    Raises:
        DuplicateInsertError: a row is made that is there already.
    """
    frame, shape = changes.frame, changes.shape
    places = _places(changes, before)
    there = np.asarray(pc.is_valid(places))
    kinds = np.asarray(frame["kind"].to_pylist())
    _refuse_doubles(changes, there, kinds)
    keeps = np.isin(kinds, (INSERT, REPLACE))
    keeps |= there & np.isin(kinds, (UPDATE, UPSERT)) | ~there & np.isin(kinds, (UPSERT, ABSENT))
    stays = there & np.isin(kinds, (UPDATE, UPSERT))
    old = places.take(pa.array(np.flatnonzero(keeps)))
    old = pc.if_else(pa.array(stays[keeps]), old, pa.scalar(None, pa.int64()))
    mine = replace(changes, frame=frame.filter(pa.array(keeps)))
    columns = []
    for field in table.columns:
        values = one_array(before[field.name]).take(old)
        if field.name in shape.key:
            at = shape.key.index(field.name)
            columns.append(_typed(one_array(mine.frame[f"key_{at}"]), field))
        elif field.name in changes.steps:
            columns.append(_stepped(mine, field, values))
        else:
            columns.append(values)
    unchanged = _untouched(before, places, there & (kinds != ABSENT))
    rows = pa.table(columns, names=table.columns.names)
    return rows if not unchanged.num_rows else _joined(rows, unchanged)


def _joined(made: pa.Table, unchanged: pa.Table) -> pa.Table:
    return pa.concat_tables([made, unchanged.cast(made.schema)])


def _untouched(before: pa.Table, places: pa.Array, touched: Any) -> pa.Table:
    """Return the rows that were taken out and that no change is about after all."""
    gone = places.filter(pa.array(touched))
    everything = pa.array(range(before.num_rows), pa.int64())
    return before.filter(pc.invert(pc.is_in(everything, gone)))


def _places(changes: TableChanges, before: pa.Table) -> pa.Array:
    """Return the place of each change's row among those before; null where there is none."""
    names = [f"key_{at}" for at in range(len(changes.shape.key))]
    known = {}
    for at, name in enumerate(changes.shape.key):
        kind = changes.shape.columns[name].kind
        known[names[at]] = one_spelling(text_column(before[name], name), kind, name)
    old = pa.table({**known, "old": pa.array(range(before.num_rows), pa.int64())})
    new = changes.frame.select(names)
    new = new.append_column("new", pa.array(range(new.num_rows), pa.int64()))
    joined = new.join(old, names, join_type="left outer").sort_by("new")
    return one_array(joined["old"])


def _refuse_doubles(changes: TableChanges, there: Any, kinds: Any) -> None:
    doubled = np.flatnonzero(there & np.isin(kinds, (INSERT, TRANSIENT)))
    if len(doubled):
        row = int(doubled[0])
        key = {
            name: changes.frame[f"key_{at}"][row].as_py()
            for at, name in enumerate(changes.shape.key)
        }
        raise DuplicateInsertError(
            "a row is inserted that is there already", table=changes.shape.name, key=key
        )


def _stepped(changes: TableChanges, field: pa.Field, held: pa.Array) -> pa.Array:
    """Return what a column holds afterwards."""
    name, steps = field.name, changes.steps[field.name]
    kind = changes.shape.columns[name].kind

    def operand(step: str) -> pa.Array:
        return one_array(changes.frame[changes.operand(name, step)])

    if steps <= {SET, GIVEN}:
        value = _typed(operand(SET), field)
        held = held.cast(value.type)
        return (
            pc.if_else(pc.fill_null(operand(GIVEN), False), value, held)
            if GIVEN in steps
            else value
        )
    value = text_column(held, name)
    if SET in steps:
        is_given = (
            pc.fill_null(operand(GIVEN), False) if GIVEN in steps else pc.is_valid(operand(SET))
        )
        value = pc.if_else(is_given, operand(SET), value)
    if FILL in steps:
        value = pc.coalesce(value, operand(FILL))
    for step in (ADD, RAISE, LOWER):
        if step in steps and kind in _NUMBERS:
            value = _reduced(value, operand(step), _REDUCED[step])
        elif step in steps:
            mine, other = _typed(value, field), _typed(operand(step), field)
            better = pc.greater(mine, other) if step == RAISE else pc.less(mine, other)
            value = text_column(pc.coalesce(pc.if_else(better, mine, other), mine, other), name)
    return _typed(value, field)


def _reduced(values: pa.Array, operands: pa.Array, kind: int) -> pa.Array:
    """Return the sum or the extreme of two numbers each; null where both are."""
    both = pa.concat_arrays([values, operands])
    count = len(values)
    order = np.arange(2 * count).reshape(2, count).T.ravel()
    some = np.flatnonzero(np.asarray(pc.or_(pc.is_valid(values), pc.is_valid(operands))))
    if not len(some):
        return values
    reduced = reduce_numbers(both.take(pa.array(order)), 2 * some, 2 * some + 2, kind)
    source = np.full(count, -1, np.int64)
    source[some] = np.arange(len(some))
    return reduced.take(pa.array(source, mask=source < 0))


def _typed(texts: pa.Array, field: pa.Field) -> pa.Array:
    """Return texts as values of a column; whole numbers in decimals stay text, and are fitted."""
    kind, types = field.type, pa.types
    if not types.is_string(texts.type):
        return texts
    try:
        if types.is_string(kind) or (types.is_decimal(kind) and kind.scale == 0):
            return texts
        if types.is_decimal(kind):
            return texts.cast(pa.decimal256(76, kind.scale))
        if types.is_binary(kind):
            values = texts.to_pylist()
            return pa.array(
                [None if text is None else bytes.fromhex(text[2:]) for text in values], kind
            )
        if types.is_timestamp(kind) and kind.tz is None:
            texts = pc.replace_substring_regex(texts, r"(Z|[+-]00:?00)$", "")
        return texts.cast(kind)
    except (pa.ArrowInvalid, ValueError) as error:
        raise LakeSchemaError(
            "a value does not fit its column",
            column=field.name,
            held=str(kind),
            reason=str(error).splitlines()[0][:120],
        ) from None
