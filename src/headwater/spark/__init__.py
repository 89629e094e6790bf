"""Spark: sessions, the data source "headwater", and the way between Arrow and DataFrames.

The only package that imports pyspark. Near the head rows stay in Arrow on the driver (`Frame`); far
behind it executors fetch and decode in parallel (`read_span`).
"""

from headwater.spark.columns import spark_schema
from headwater.spark.executors import ExecutorRows
from headwater.spark.frames import Frame, SpanFrame, frames
from headwater.spark.history import Span, read_span
from headwater.spark.java import Java, find_java
from headwater.spark.receipt import SpanReport
from headwater.spark.session import active_session, local_session, warm_up
from headwater.spark.source import register

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
    "spark_schema",
    "warm_up",
]
