"""Iceberg and Delta tables of a user's own session: Unity, Glue, Hive, REST catalogs, any other."""

from headwater.targets.spark_table.target import SparkTableTarget, spark_table_target

__all__ = ["SparkTableTarget", "spark_table_target"]
