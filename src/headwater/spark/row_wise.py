"""Tells whether each row of a DataFrame was made of one row of a frame, and keeps its block.

Hot blocks that wait are transformed together where that changes nothing: if every row of the result
comes from one row, which names its block, the result can be cut into what each block alone would
have given. Spark's own plan of the result says so. Anything that looks at several rows (groups,
joins, windows, limits, Python functions over batches) is transformed block by block, because a fork
may leave only some of the rows that such a result was made of. Runs on the driver; no Spark job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import ColumnTypeError
from headwater.spark.driver_rows import to_arrow
from headwater.spark.frames import Frame, SparkProvider, spark_schema

BLOCK = "block_number"
_ROW_BY_ROW = {"Project", "Filter", "SubqueryAlias"}
_LOOKS = {  # what makes a transform depend on rows that its plan does not show
    "agg", "approxQuantile", "collect", "corr", "cov", "crosstab", "describe", "first", "foreach",
    "foreachPartition", "freqItems", "head", "rdd", "show", "summary", "tail", "take",
    "toLocalIterator", "toPandas",
}  # fmt: skip


class JoinedFrame(Frame):
    """One output of several hot blocks. `seen` tells that a transform has looked at its rows."""

    __slots__ = ("seen",)

    def __init__(self, table: pa.Table, spark_provider: SparkProvider) -> None:
        super().__init__(table, spark_provider)
        self.seen = False

    def toArrow(self) -> pa.Table:  # noqa: N802 - a method of DataFrame
        """Return the rows as they were decoded."""
        self.seen = True
        return super().toArrow()

    def count(self) -> int:
        """Count the rows."""
        self.seen = True
        return super().count()

    def __getattr__(self, name: str) -> Any:
        if name in _LOOKS:
            self.seen = True
        return super().__getattr__(name)


def cut_by_block(
    made: Mapping[str, Any],
    given: Mapping[str, JoinedFrame],
    numbers: list[int],
    spark: SparkProvider,
    *,
    trusted: bool,
) -> list[dict[str, Frame]] | None:
    """Return what a transform made of several blocks, one mapping per block; None if it cannot.

    `given` are the frames that the transform was given. Each result is collected by one job. If the
    user says that the transform works row by row it is `trusted`, and the plan is not asked.
    """
    if trusted:
        columns = dict.fromkeys(made, BLOCK)
    else:
        if any(frame.seen for frame in given.values()):
            return None
        ids = {one for frame in given.values() if (one := _block_id(frame.made)) is not None}
        found = {name: _block_column(one, given, ids) for name, one in made.items()}
        columns = {name: one for name, one in found.items() if one is not None}
        if len(columns) < len(made):
            return None
    cut: list[dict[str, Frame]] = [{} for _ in numbers]
    for name, one in made.items():
        pieces = _pieces(
            one if isinstance(one, pa.Table) else to_arrow(one), columns[name], numbers
        )
        if pieces is None:
            return None
        for place, piece in enumerate(pieces):
            cut[place][name] = Frame(piece, spark)
    return cut


def _block_column(made: Any, given: Mapping[str, Frame], ids: set[int]) -> str | None:
    """Return the column of a result that holds each row's block; None if there is none for sure."""
    if isinstance(made, Frame):
        return BLOCK if any(made is one for one in given.values()) else None
    plan = _plan(made)
    if plan is None:
        return None
    found = next((str(one.name()) for one in _output(plan) if _id(one) in ids), None)
    while found is not None and plan.children().nonEmpty():
        children = plan.children()
        name = plan.getClass().getSimpleName()
        if name not in _ROW_BY_ROW or children.size() > 1 or plan.subqueries().nonEmpty():
            return None
        plan = children.head()
    return found


def _block_id(frame: Any) -> int | None:
    """Return by what Spark knows the block of a frame's rows; None if it is no DataFrame yet."""
    plan = None if frame is None else _plan(frame)
    if plan is None:
        return None
    return next((_id(one) for one in _output(plan) if one.name() == BLOCK), None)


def _plan(frame: Any) -> Any:
    """Return the plan of a DataFrame; None of anything else, and where Spark is far away."""
    inner = getattr(type(frame), "__module__", "").startswith("pyspark.sql.classic")
    return frame._jdf.queryExecution().analyzed() if inner else None


def _output(plan: Any) -> list[Any]:
    output = plan.output()
    return [output.apply(place) for place in range(output.size())]


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _pieces(rows: pa.Table, column: str, numbers: list[int]) -> list[pa.Table] | None:
    """Cut rows by block; None if there are rows of no block, or of another."""
    try:
        spark_schema(rows.schema)
    except ColumnTypeError:
        return None  # user code could not use a piece as a DataFrame
    kind = rows.schema.field(column).type if column in rows.column_names else None
    if kind is None or not pa.types.is_integer(kind) or rows.column(column).null_count:
        return None
    blocks = rows.column(column).to_numpy()
    if (blocks[1:] < blocks[:-1]).any():
        order = np.argsort(blocks, kind="stable")
        rows, blocks = rows.take(pa.array(order)), blocks[order]
    starts = np.searchsorted(blocks, numbers, "left")
    ends = np.searchsorted(blocks, numbers, "right")
    if int((ends - starts).sum()) != rows.num_rows:
        return None
    return [rows.slice(start, end - start) for start, end in zip(starts, ends, strict=True)]
