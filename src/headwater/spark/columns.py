"""Arrow columns as Spark columns, with nothing lost on the way.

Spark has its own mapping, but it lets some types change silently (nanoseconds are cut). Here a type
passes unchanged or is refused before a row moves.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as spark

from headwater.errors import ColumnTypeError

_PLAIN: dict[pa.DataType, type[spark.DataType]] = {
    pa.bool_(): spark.BooleanType,
    pa.int8(): spark.ByteType,
    pa.int16(): spark.ShortType,
    pa.int32(): spark.IntegerType,
    pa.int64(): spark.LongType,
    pa.float32(): spark.FloatType,
    pa.float64(): spark.DoubleType,
    pa.string(): spark.StringType,
    pa.binary(): spark.BinaryType,
    pa.date32(): spark.DateType,
    pa.timestamp("us", tz="UTC"): spark.TimestampType,
    pa.timestamp("us"): spark.TimestampNTZType,
}


def spark_schema(schema: pa.Schema) -> spark.StructType:
    """Return the Spark schema that holds these columns. Pure; no session is needed.

    Raises:
        ColumnTypeError: a column has a type that Spark lacks.
    """
    return spark.StructType([_field(field, field.name) for field in schema])


def _field(field: pa.Field, path: str) -> spark.StructField:
    return spark.StructField(field.name, _type(field.type, path), field.nullable)


def _type(arrow: pa.DataType, path: str) -> spark.DataType:
    if arrow in _PLAIN:
        return _PLAIN[arrow]()
    if pa.types.is_decimal128(arrow):
        return spark.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow):
        item = arrow.value_field
        return spark.ArrayType(_type(item.type, f"{path}[]"), item.nullable)
    if pa.types.is_struct(arrow):
        return spark.StructType([_field(field, f"{path}.{field.name}") for field in arrow])
    raise ColumnTypeError("Spark has no such type", column=path, type=str(arrow))
