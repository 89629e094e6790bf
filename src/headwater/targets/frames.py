"""Frames as targets are given them: rows in memory, or rows that lie on Spark's executors.

Nothing here imports Spark: whoever brings a DataFrame has loaded it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import REGISTRY, HeadwaterError, InvalidOptionError

_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_UNLIMITED = str(2**31 - 1)
_ROWS = 4000  # of half a megabyte each would fill a batch
_lock = Lock()
_counting: dict[Any, tuple[int, dict[str, str | None]]] = {}


def is_distributed(frame: Any) -> bool:
    """Tell whether the rows of a frame lie on executors: it is a DataFrame of Spark's.

    The class is asked, not the object: a frame that only acts like a DataFrame would make one.
    """
    return hasattr(type(frame), "mapInArrow")


def is_in_reach(frame: Any) -> bool:
    """Tell whether the executors that hold a frame's rows know this process as their driver.

    Those of Spark Connect do not: its rows are collected.
    """
    return is_distributed(frame) and not type(frame).__module__.startswith("pyspark.sql.connect")


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
    return frame.toArrow()


def block_range(values: Any) -> tuple[tuple[int, ...], int]:
    """Return the lowest and the highest block number of a column, if any, and its nulls."""
    if not pa.types.is_decimal(values.type):
        values = values.cast(pa.int64())
    ends = (one.as_py() for one in pc.min_max(values).values())
    return tuple(int(one) for one in ends if one is not None), values.null_count


def map_in_arrow(frame: Any, function: Any, schema: str) -> Any:
    """Return a DataFrame of what a function makes of each partition's record batches.

    Spark's `mapInArrow` asks for pandas on the driver, although neither it nor the workers use it
    for Arrow; without pandas the same plan is made from the parts that Spark has loaded.
    """
    try:
        return frame.mapInArrow(function, schema)
    except ImportError:
        kind = sys.modules["pyspark.util"].PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        made = sys.modules["pyspark.sql.udf"].UserDefinedFunction(function, schema, evalType=kind)
        names = [f"`{name.replace('`', '``')}`" for name in frame.columns]
        plan = frame._jdf.mapInArrow(made(*(frame[name] for name in names))._jc, False, None)
        return type(frame)(plan, frame.sparkSession)


def collect_in_arrow(frame: Any, function: Any, schema: str) -> pa.Table:
    """Run a function on each partition's record batches, and return what it makes of them.

    Called on the driver; runs a Spark job.
    """
    with _batches_by_count(frame.sparkSession):
        return map_in_arrow(frame, function, schema).toArrow()


@contextmanager
def _batches_by_count(session: Any) -> Iterator[None]:
    """Let Spark end a batch for Python by its rows alone, while jobs of ours run.

    To limit a batch's bytes Spark adds up its buffers after every row, which takes as long as all
    else that it does for the row. A limit that somebody has set stays. Jobs of several threads may
    overlap: the last one that ends puts back what was there before the first.
    """
    with _lock:
        holders, before = _counting.get(session) or (0, _count_rows(session.conf))
        _counting[session] = (holders + 1, before)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # what ended may be the session: what happened first is said
            _stop_counting(session)
        raise
    _stop_counting(session)


def _count_rows(conf: Any) -> dict[str, str | None]:
    """Change the settings; return what was there, if somebody had set it."""
    known = conf.getAll
    if _BATCH_BYTES in known:
        return {}
    before = {name: known.get(name) for name in (_BATCH_BYTES, _BATCH_ROWS)}
    rows = int(conf.get(_BATCH_ROWS))
    conf.set(_BATCH_BYTES, _UNLIMITED)
    conf.set(_BATCH_ROWS, rows if 0 < rows < _ROWS else _ROWS)
    return before


def _stop_counting(session: Any) -> None:
    """Put back the settings, unless another job of ours still runs."""
    with _lock:
        holders, before = _counting.pop(session)
        if holders > 1:
            _counting[session] = (holders - 1, before)
            return
        for name, value in before.items():
            if value is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, value)


def partition_id() -> int:
    """Return which partition a task works on; runs on executors."""
    context = sys.modules["pyspark.taskcontext"].TaskContext.get()
    return int(context.partitionId())


def coded(error: Exception) -> Exception:
    """Return the coded error that a task has raised; only its text comes back from an executor."""
    found = re.search(r"\[(E\d{4})\] (.*?)(?:\. Fix:|$)", str(error), re.DOTALL)
    kind: type[HeadwaterError] | None = REGISTRY.get(found[1]) if found else None
    return error if kind is None or found is None else kind(found[2])
