"""Columns as lake tables keep them: which types there are, and rows brought into them.

Runs on the driver and on executors. Types are those that Iceberg, Delta and Parquet share, so that
any engine reads the files: integers of 32 and 64 bits, decimals of at most 38 digits. Larger
integers stay decimal text, which is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.rooms import Policy, lake_room
from headwater.errors import LakeSchemaError
from headwater.targets.contract import NEW_COLUMN
from headwater.targets.values import Fitting

_FIELD_ID = b"PARQUET:field_id"
_SAME = {
    pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(),
}  # fmt: skip
_OTHER = {
    pa.int8(): pa.int32(), pa.int16(): pa.int32(), pa.uint8(): pa.int32(), pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0), pa.float16(): pa.float32(),
    pa.large_string(): pa.string(), pa.string_view(): pa.string(), pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(), pa.date64(): pa.date32(), pa.null(): pa.string(),
}  # fmt: skip


def lake_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a new table for these rows; all of them may be null.

    Raises:
        LakeSchemaError: a type has no place in a lake table, or two columns differ only by case.
    """
    names = [field.name.lower() for field in schema]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LakeSchemaError("columns differ only by case", columns=", ".join(twice))
    return pa.schema([pa.field(field.name, lake_type(field.type, field.name)) for field in schema])


def lake_type(kind: pa.DataType, column: str) -> pa.DataType:
    """Return the type in which a lake table keeps values of an Arrow type."""
    if kind in _SAME:
        return kind
    if kind in _OTHER:
        return _OTHER[kind]
    types = pa.types
    if types.is_decimal128(kind):
        return kind
    if types.is_decimal256(kind) and kind.scale == 0:
        return pa.decimal128(kind.precision, 0) if kind.precision <= 38 else pa.string()
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_dictionary(kind):
        return lake_type(kind.value_type, column)
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field("element", lake_type(kind.value_type, f"{column}[]")))
    if types.is_struct(kind):
        fields = [
            pa.field(field.name, lake_type(field.type, f"{column}.{field.name}")) for field in kind
        ]
        return pa.struct(fields)
    raise LakeSchemaError("lake tables have no such type", column=column, type=str(kind))


def check_columns(table: str, frame: pa.Schema, held: pa.Schema) -> None:
    """Refuse a frame with a column that the table lacks, or that does not fit into its type.

    What fits by its type may still hold a value that does not: `fitting` sees to that.
    """
    known = {field.name: field for field in held}
    for field in frame:
        own = known.get(field.name)
        if own is None:
            raise LakeSchemaError(
                f"the table lacks a column that the frame has; {NEW_COLUMN}",
                table=table,
                column=field.name,
            )
        if not fits(lake_type(field.type, field.name), own.type):
            raise LakeSchemaError(
                "a column has another type than the table",
                table=table,
                column=field.name,
                frame=str(field.type),
                held=str(own.type),
            )


def fits(kind: pa.DataType, held: pa.DataType) -> bool:
    """Tell whether all or some values of a type can be kept in a column of another, exactly."""
    types = pa.types
    if types.is_null(kind) or _plain(kind) == _plain(held):
        return True
    if types.is_integer(kind):
        return bool(types.is_integer(held) or types.is_decimal(held) or types.is_string(held))
    if types.is_decimal(kind):
        return bool((types.is_decimal(held) and kind.scale == held.scale) or types.is_string(held))
    if types.is_float32(kind):
        return bool(types.is_float64(held))
    return bool(types.is_string(kind) and types.is_decimal(held) and held.scale == 0)


def fitting(
    frame: pa.Schema, held: pa.Schema, policy: Policy, key: Sequence[str] = (), block: int = -1
) -> Fitting:
    """Plan how rows of a frame are made to fit into a table, before they are conformed."""
    rooms = {
        field.name: replace(
            lake_room(str(field.type)), unique=field.name in key, required=not field.nullable
        )
        for field in held
    }
    return Fitting.plan(frame, rooms, policy, LakeSchemaError, "block_number", block)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with exactly the columns of a schema, in its types; what is missing is null.

    Raises:
        LakeSchemaError: a value does not fit.
    """
    columns = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        columns.append(_cast(batch.column(place), field))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with exactly the columns of a schema."""
    return pa.Table.from_batches([conform(batch, schema) for batch in rows.to_batches()], schema)


def _cast(values: pa.Array, field: pa.Field) -> pa.Array:
    if values.type == field.type:
        return values
    try:
        if pa.types.is_decimal(values.type) and pa.types.is_string(field.type):
            values = pc.cast(values, pa.decimal256(76, values.type.scale))
        return pc.cast(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise LakeSchemaError(
            "a value does not fit its column",
            column=field.name,
            frame=str(values.type),
            held=str(field.type),
            reason=str(error).splitlines()[0][:120],
        ) from None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without the names and ids of its parts, so that two can be compared."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    return _OTHER.get(kind, kind)


def as_of_today(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows of an Iceberg table's file in the columns of today, found by the ids of fields.

    Columns of the same ids are widened, others are null. pyiceberg's own projection makes an empty
    list of a list of structs that is null, so that rows would change as files are rewritten.
    """
    rows = rows.combine_chunks()
    arrays = [_fitted(rows.columns, list(rows.schema), field, rows.num_rows) for field in columns]
    return pa.Table.from_arrays(arrays, schema=columns)


def _fitted(
    values: list[pa.ChunkedArray], held: list[pa.Field], wanted: pa.Field, count: int
) -> pa.Array:
    """Return the values of a field among those that a file holds; null where it has none."""
    for array, field in zip(values, held, strict=True):
        if _is_same(field, wanted):
            whole = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
            return _nested(whole, field.type, wanted.type)
    return pa.nulls(count, wanted.type)


def _is_same(held: pa.Field, wanted: pa.Field) -> bool:
    """Tell whether two fields are one: by their ids, or by name in files of who writes no ids."""
    mine, other = ((field.metadata or {}).get(_FIELD_ID) for field in (held, wanted))
    by_name = mine is None or other is None
    return bool(held.name == wanted.name if by_name else mine == other)


def _nested(values: pa.Array, held: pa.DataType, wanted: pa.DataType) -> pa.Array:
    if held == wanted:
        return values
    types = pa.types
    if types.is_struct(wanted):
        parts = [values.field(place) for place in range(held.num_fields)]
        fields = [_fitted(parts, list(held), field, len(values)) for field in wanted]
        return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=values.is_null())
    if types.is_list(wanted):
        items = _nested(values.values, held.value_type, wanted.value_type)
        return pa.ListArray.from_arrays(
            values.offsets, items, type=wanted, mask=values.is_null() if values.null_count else None
        )
    return pc.cast(values, wanted)
