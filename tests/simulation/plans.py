"""A plan of Spark for the streams of the simulation: what `pipe` is given, of every kind at once.

It renames, casts and drops columns, joins with a table, filters, and calls a function of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("label", "digits")  # of the columns that it adds


def keeps(log_index: int) -> bool:
    """Tell whether the plan keeps a row."""
    return log_index % 3 != 1


def planned_of(address: str, value: str) -> tuple[str, str]:
    """Return the values of the columns that it adds, as they are compared."""
    return address[-4:], str(len(value))


def plan(spark: SparkSession, output: str, tokens: tuple[str, ...]) -> Callable[..., Any]:
    """Return what `pipe` is given."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own spelling

    labels = spark.createDataFrame(
        [(one, one[-4:]) for one in tokens], "token string, label string"
    )
    digits = F.udf(lambda value: len(str(value)), "int")

    def apply(data: Mapping[str, Any]) -> Mapping[str, Any]:
        rows = data[output].where(F.col("log_index") % 3 != 1).drop("transaction_index")
        rows = rows.withColumn("at", F.col("block_number").cast("string")).drop("block_number")
        rows = rows.withColumnRenamed("at", "block_number")
        rows = rows.withColumn("block_number", F.col("block_number").cast("long"))
        rows = rows.join(labels, rows["address"] == labels["token"], "left").drop("token")
        return {**data, output: rows.withColumn("digits", digits("value"))}

    return apply
