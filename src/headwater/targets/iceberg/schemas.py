"""Columns of a lake as Iceberg has them: types, the order of rows, and ids of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from headwater.errors import LakeSchemaError
from headwater.targets.iceberg.partitions import column_of
from headwater.targets.lake.settings import Table

_PLAIN: Mapping[pa.DataType, Any] = {
    pa.bool_(): iceberg.BooleanType(), pa.int32(): iceberg.IntegerType(),
    pa.int64(): iceberg.LongType(), pa.float32(): iceberg.FloatType(),
    pa.float64(): iceberg.DoubleType(), pa.string(): iceberg.StringType(),
    pa.binary(): iceberg.BinaryType(), pa.date32(): iceberg.DateType(),
    pa.timestamp("us"): iceberg.TimestampType(),
    pa.timestamp("us", "UTC"): iceberg.TimestamptzType(),
}  # fmt: skip


def iceberg_schema(schema: pa.Schema) -> Schema:
    """Return the schema of a new table, for columns in lake types."""
    numbers = iter(range(1, 1 << 16))
    fields = [
        iceberg.NestedField(
            field_id=next(numbers),
            name=one.name,
            field_type=iceberg_type(one.type, numbers),
            required=False,
        )
        for one in schema
    ]
    return Schema(*fields)


def iceberg_type(kind: pa.DataType, numbers: Any = None) -> Any:
    """Return Iceberg's type for a lake type; parts get the next of some numbers as their ids."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    numbers = iter(range(1 << 16, 1 << 17)) if numbers is None else numbers
    if pa.types.is_decimal128(kind):
        return iceberg.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        number = next(numbers)
        element = iceberg_type(kind.value_type, numbers)
        return iceberg.ListType(element_id=number, element=element, element_required=False)
    if pa.types.is_struct(kind):
        return iceberg.StructType(
            *(
                iceberg.NestedField(
                    field_id=next(numbers),
                    name=one.name,
                    field_type=iceberg_type(one.type, numbers),
                    required=False,
                )
                for one in kind
            )
        )
    raise LakeSchemaError("Iceberg has no such type", type=str(kind))


def sort_order(declared: Table, schema: Schema) -> SortOrder:
    """Return by which columns the rows of a new table's files are sorted."""
    fields = [
        SortField(
            source_id=column_of(schema, one, declared.name).field_id, transform=IdentityTransform()
        )
        for one in declared.order_by
    ]
    return SortOrder(*fields)


def is_wider(kind: pa.DataType, held: pa.DataType) -> bool:
    """Tell whether Iceberg can widen a column of one type to another."""
    types = pa.types
    return bool(
        (types.is_int64(kind) and types.is_int32(held))
        or (types.is_float64(kind) and types.is_float32(held))
        or (
            types.is_decimal(kind)
            and types.is_decimal(held)
            and kind.scale == held.scale
            and kind.precision > held.precision
        )
    )


def small(schema: pa.Schema) -> pa.Schema:
    """Return a schema with Arrow's usual types of text and lists; ids of fields stay."""
    return pa.schema([one.with_type(_small_type(one.type)) for one in schema])


def _small_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        item = kind.value_field
        return pa.list_(item.with_type(_small_type(item.type)))
    if types.is_struct(kind):
        return pa.struct([one.with_type(_small_type(one.type)) for one in kind])
    return kind
