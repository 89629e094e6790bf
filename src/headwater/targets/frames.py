"""Frames as targets are given them: rows in memory, or rows that lie on Spark's executors.

Targets know no Spark: what is done with rows on executors, these rows do themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import InvalidOptionError

if TYPE_CHECKING:
    from headwater.spark.executors import ExecutorRows

TABLE_ROWS, TABLE_BYTES = 200_000, 64 << 20  # of rows from executors in the driver's memory


def executor_rows(frame: Any) -> ExecutorRows | None:
    """Return the rows of a frame that lie on executors; None if they are in this process.

    Asks the class, not the object: a frame that only acts like a DataFrame would make one. A
    DataFrame of a block that the driver has read is as good as in this process.
    """
    own = getattr(type(frame), "executor_rows", None)
    if own is not None:
        rows: ExecutorRows = own(frame)
        return rows
    if not type(frame).__module__.startswith("pyspark.sql."):
        return None
    from headwater.spark.executors import DataFrameRows
    from headwater.spark.frames import are_few

    return None if are_few(frame) else DataFrameRows(frame)


def to_arrow(frame: Any) -> pa.Table:
    """Return the rows of a frame: an Arrow table, or anything with `toArrow()`.

    A Spark DataFrame is computed here, and its rows are collected on the driver.
    """
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        return frame
    if not hasattr(frame, "toArrow"):
        raise InvalidOptionError(
            "a frame is an Arrow table or has toArrow(), as a Spark DataFrame does",
            got=type(frame).__name__,
        )
    if type(frame).__module__.startswith("pyspark.sql."):
        from headwater.spark.frames import to_arrow as collect

        return collect(frame)
    return frame.toArrow()


def bounded_tables(frame: Any, rows: int = TABLE_ROWS) -> Iterator[pa.Table]:
    """Yield the rows of a frame, one table or more: for targets that load rows in this process.

    Rows that lie on executors come in tables of about so many rows, so memory stays bounded.
    """
    far = executor_rows(frame)
    if far is None or not far.reaches_driver:
        yield to_arrow(frame)
        return
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    came = False
    for batch in far.pieces():
        waiting.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= rows or size >= TABLE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, count, size, came = [], 0, 0, True
    if waiting or not came:
        yield pa.Table.from_batches(waiting, far.schema if not waiting else None)


def rows_above(frame: Any, column: str, number: int) -> Any:
    """Return the rows of a frame above a block, as a frame of its kind: callbacks see it."""
    kind = type(frame)
    above = getattr(kind, "above", None)  # of rows that are here: no Spark job
    if above is not None:
        return above(frame, column, number)
    if _is_spark(kind):
        return frame.where(f"`{column}` > {number}")
    return to_arrow(frame).filter(pc.field(column) > number)


def column_names(frame: Any) -> list[str]:
    """Return the names of a frame's columns."""
    names: list[str] = frame.columns if _is_spark(type(frame)) else to_arrow(frame).column_names
    return names


def _is_spark(kind: type) -> bool:
    """Tell whether it is a DataFrame, or does as one; asks the class, which makes none."""
    return kind.__module__.startswith("pyspark.sql.") or hasattr(kind, "dataframe")


def block_range(values: Any) -> tuple[tuple[int, ...], int]:
    """Return the lowest and the highest block number of a column, if any, and its nulls."""
    if not pa.types.is_decimal(values.type):
        values = values.cast(pa.int64())
    ends = (end.as_py() for end in pc.min_max(values).values())
    return tuple(int(end) for end in ends if end is not None), values.null_count
