"""ERC-20 transfers through forks: the changelog is appended, views net it."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.spark.streaming import collapse, retractable

spark = SparkSession.active()


@dp.table
def transfer_changes() -> DataFrame:
    """Every insert and every delete, as they came: a streaming table that only grows."""
    return (
        spark.readStream.format("headwater")
        .option("portal", os.environ["HEADWATER_PORTAL"])
        .option("event", "erc20.Transfer")
        .option("journal", os.environ["HEADWATER_JOURNAL"])
        .load()
    )


@dp.materialized_view
def transfers() -> DataFrame:
    """The transfers of the canonical chain."""
    return collapse(spark.read.table("transfer_changes"))


@dp.materialized_view
def received() -> DataFrame:
    """What each account has received, worked out of the changes alone."""
    amount = F.col("value").cast("decimal(38,0)")
    return (
        spark.read.table("transfer_changes")
        .where("length(value) <= 30")  # what a decimal of Spark holds, with room for sums
        .groupBy("address", "to")
        .agg(retractable.sum(amount).alias("amount"), retractable.count().alias("transfers"))
        .where("transfers > 0")
    )
