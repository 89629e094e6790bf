"""Aggregates that deletes take back, and the netting of rows: helpers for a changelog's DataFrame.

    from headwater.spark.streaming import collapse, retractable

    balances = transfers.groupBy("to").agg(
        retractable.sum("value").alias("received"), retractable.count().alias("transfers"))

Each is a plain expression over `_sign`, so it works in streaming queries in update and complete
mode, in batch queries over a stored changelog, and beside any other aggregate. A group whose rows
are all retracted stays, with a count of 0: filter it where it is shown.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own spelling

from headwater.spark.streaming.changelog_rows import CHANGE_COLUMNS

SIGN, ROW_ID = "_sign", "_row_id"


def sum(column: Column | str) -> Column:
    """Return the sum of a column over the rows that are left; 0 if none is.

    Numbers are added as they are: cast text of 256-bit values to a decimal before.
    """
    value = F.col(column) if isinstance(column, str) else column
    return F.sum(F.when(F.col(SIGN) > 0, value).otherwise(-value))


def count(column: Column | str | None = None) -> Column:
    """Return how many rows are left; with a column, those in which it is not null."""
    if column is None:
        return F.sum(F.col(SIGN).cast("long"))
    value = F.col(column) if isinstance(column, str) else column
    return F.sum(F.when(value.isNotNull(), F.col(SIGN).cast("long")).otherwise(F.lit(0)))


def avg(column: Column | str) -> Column:
    """Return the mean of a column over the rows that are left; null if none is."""
    return F.try_divide(sum(column), count(column))


def count_distinct(column: Column | str) -> Column:
    """Return how many different values the rows that are left have.

    It must know how often each value came and went, so a group's state grows with its changes. For
    groups of millions, count by group and value first, and the values where they are stored.
    """
    value = F.col(column) if isinstance(column, str) else column
    changes = F.array_sort(
        F.collect_list(
            F.when(value.isNotNull(), F.struct(value.alias("v"), F.col(SIGN).alias("s")))
        )
    )
    nothing = F.struct(
        F.lit(None).cast("string").alias("v"),
        F.lit(0).cast("long").alias("held"),
        F.lit(0).cast("long").alias("found"),
    )

    def add(seen: Column, change: Column) -> Column:
        text, sign = change["v"].cast("string"), change["s"].cast("long")
        same = seen["v"].eqNullSafe(text)
        return F.struct(
            text.alias("v"),
            F.when(same, seen["held"] + sign).otherwise(sign).alias("held"),
            F.when(same, seen["found"])
            .otherwise(seen["found"] + _one_if(seen["held"]))
            .alias("found"),
        )

    return F.aggregate(changes, nothing, add, lambda seen: seen["found"] + _one_if(seen["held"]))


def _one_if(held: Column) -> Column:
    return F.when(held > 0, F.lit(1)).otherwise(F.lit(0)).cast("long")


def collapse(changelog: DataFrame) -> DataFrame:
    """Return the rows that are left once deletes have taken back their inserts.

    The columns are those of the batch source and `_row_id`. For a changelog that was stored, and
    for streams in complete mode. A change that was stored twice counts once. Nothing is analysed
    here, so that it can be used in the definition of a pipeline.
    """
    added = ", ".join(name for name in CHANGE_COLUMNS.names if name != ROW_ID)
    newest = changelog.groupBy(ROW_ID).agg(
        F.max_by(F.col(SIGN), F.col("_commit_version")).alias("__sign"),
        F.expr(f"any_value(struct(* EXCEPT ({added})))").alias("__row"),
    )
    return newest.where(F.col("__sign") > 0).select("__row.*")
