"""Columns of a lake as Iceberg has them: types, the order of rows, ids of fields, partitions.

pyiceberg has the transforms of partitions as functions of one value; each is called once per
distinct value of a batch. `PartitionSplit` pickles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.typedef import Record

from headwater.errors import LakeSchemaError
from headwater.targets.iceberg.inner import schema_without_ids
from headwater.targets.lake.settings import Partition, Table

_FIRST_FIELD_ID = 1000


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Return the schema of a new table, for columns in lake types."""
    return assign_fresh_schema_ids(schema_without_ids(columns))


def sort_order(declared: Table, schema: Schema) -> SortOrder:
    """Return by which columns the rows of a new table's files are sorted."""
    fields = [
        SortField(
            source_id=column_of(schema, column, declared.name).field_id,
            transform=IdentityTransform(),
        )
        for column in declared.order_by
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


# --- partitions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionSplit:
    """Cuts rows by the partitions of a spec: (column, Iceberg type, transform) for each field."""

    fields: tuple[tuple[str, Any, str], ...]

    @classmethod
    def of(cls, spec: PartitionSpec, schema: Schema) -> PartitionSplit | None:
        """Return what cuts rows for a table; None if it has no partitions."""
        if spec.is_unpartitioned():
            return None
        fields = []
        for field in spec.fields:
            source = schema.find_field(field.source_id)
            fields.append((source.name, source.field_type, str(field.transform)))
        return cls(tuple(fields))

    def __call__(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each partition, with a text that `partition_record` reads."""
        values: list[list[Any]] = []
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        for column, kind, transform in self.fields:
            distinct, own = _coded(rows.column(column))
            apply = parse_transform(transform).transform(kind)
            parts = [apply(value) for value in distinct]
            names = list(dict.fromkeys(parts))
            places = {name: place for place, name in enumerate(names)}
            codes = codes * len(names) + np.array([places[part] for part in parts])[own]
            values.append(names)
        for code in np.unique(codes):
            chosen = codes == code
            piece = rows if chosen.all() else rows.filter(pa.array(chosen))
            key, rest = [], int(code)
            for names in reversed(values):
                rest, place = divmod(rest, len(names))
                key.append(names[place])
            yield json.dumps([_dumped(value) for value in reversed(key)]), piece


def partition_record(text: str) -> Record:
    """Return the partition that a text names; the empty text names that of a table without any."""
    return Record(*(_loaded(value) for value in json.loads(text))) if text else Record()


def partition_spec(partitions: tuple[Partition, ...], schema: Schema, table: str) -> PartitionSpec:
    """Return the spec of a new table.

    Raises:
        LakeSchemaError: a column is not there, or a transform cannot take its type.
    """
    fields = []
    for place, partition in enumerate(partitions):
        source = column_of(schema, partition.column, table)
        transform = parse_transform(
            f"{partition.transform}[{partition.width}]" if partition.width else partition.transform
        )
        if not transform.can_transform(source.field_type):
            raise LakeSchemaError(
                "a partition cannot be made of this column",
                table=table, column=partition.column,
                transform=partition.transform, type=source.field_type,
            )  # fmt: skip
        fields.append(
            PartitionField(
                source_id=source.field_id,
                field_id=_FIRST_FIELD_ID + place,
                transform=transform,
                name=partition.name,
            )
        )
    return PartitionSpec(*fields)


def column_of(schema: Schema, name: str, table: str) -> Any:
    """Return a column of a table; refuse one that is not there."""
    try:
        return schema.find_field(name)
    except ValueError:
        raise LakeSchemaError("the table has no such column", table=table, column=name) from None


def _coded(values: pa.Array) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """Return the distinct values, as pyiceberg takes them, and which of them each row has."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    elif pa.types.is_date(kind):
        values = values.cast(pa.int32())
    coded = values.dictionary_encode(null_encoding="encode")
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)


def _dumped(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {"decimal": str(value)} if isinstance(value, Decimal) else value


def _loaded(value: Any) -> Any:
    match value:
        case {"bytes": text}:
            return bytes.fromhex(text)
        case {"decimal": text}:
            return Decimal(text)
        case _:
            return value
