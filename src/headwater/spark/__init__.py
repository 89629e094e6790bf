"""Spark: sessions, the data source "headwater", and the way between Arrow and DataFrames.

The only package that imports pyspark. Near the head rows stay in Arrow on the driver (`Frame`); far
behind it executors fetch and decode in parallel (`read_span`).
"""

from headwater.spark.datasource import register
from headwater.spark.executors import ExecutorRows
from headwater.spark.frames import Frame, SpanFrame, frames, spark_schema
from headwater.spark.jvm import Java, find_java
from headwater.spark.parts import SpanReport
from headwater.spark.session import active_session, local_session, ship, warm_up
from headwater.spark.spans import Span, read_span

__all__ = [
    "ExecutorRows",
    "Frame",
    "Java",
    "Span",
    "SpanFrame",
    "SpanReport",
    "active_session",
    "find_java",
    "frames",
    "local_session",
    "read_span",
    "register",
    "ship",
    "spark_schema",
    "warm_up",
]
