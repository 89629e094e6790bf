"""Folding where the changes are: executors check and fold them, the driver gets one row per key.

Used for final blocks, whose changes are folded together and may be many. Each task checks its part,
which gives keys their one spelling; then all changes of a key meet in one task, in their order, and
are folded there by the code that the driver uses. Repeating a task gives the same rows.

A module of its own, so that processes which fold nothing do not import the change model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from headwater.changes import CHANGES_SCHEMA, TableSchema, check, fold
from headwater.changes.model import FOLDED_SCHEMA
from headwater.spark.executors import DataFrameRows, map_in_arrow
from headwater.spark.versions import parallelism

_ENDS = [pa.field("lowest", pa.int64()), pa.field("highest", pa.int64())]
_SENT = pa.schema([*FOLDED_SCHEMA, *_ENDS])


def fold_on_executors(
    frames: Sequence[Any], tables: Sequence[TableSchema], finalized: int
) -> tuple[pa.Table, tuple[int, int] | None]:
    """Check and fold DataFrames of changes; return rows, and between which blocks they lie.

    Called on the driver; runs a Spark job.

    In a DataFrame, changes of different keys with the same block and ordinal have no order.

    Raises:
        HeadwaterError: changes do not fit the declared tables.
    """
    changes = reduce(lambda frame, other: frame.unionByName(other), frames)
    changes = changes.select(*CHANGES_SCHEMA.names)
    checked = map_in_arrow(changes, partial(_check, list(tables)), CHANGES_SCHEMA)
    parts = 2 * parallelism(changes.sparkSession)
    meeting = (
        checked.withColumn("place", F.monotonically_increasing_id())
        .repartition(parts, F.xxhash64("table", F.array_sort("pk")))
        .sortWithinPartitions("block_number", "ordinal", "place")
    )
    sent = DataFrameRows(meeting).run(partial(_fold, finalized), _SENT)
    if not sent.num_rows:
        return FOLDED_SCHEMA.empty_table(), None
    lowest, highest = pc.min(sent["lowest"]).as_py(), pc.max(sent["highest"]).as_py()
    rows = sent.select(FOLDED_SCHEMA.names).cast(FOLDED_SCHEMA)
    return (
        rows.sort_by([("block_number", "ascending"), ("ordinal", "ascending")]).combine_chunks(),
        (lowest, highest),
    )


def _check(
    tables: list[TableSchema], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the same changes, their keys in one spelling. Runs on executors."""
    for batch in batches:
        yield from check(pa.Table.from_batches([batch]), tables).to_batches()


def _fold(finalized: int, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
    """Yield one row per key, with the ends of the blocks that the partition saw.

    The partition holds all changes of its keys. Runs on executors.
    """
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return
    changes = pa.Table.from_batches(filled)
    ends = pc.min_max(changes["block_number"])
    rows = fold(changes.select(CHANGES_SCHEMA.names), finalized=finalized)
    for field in _ENDS:
        end = ends["min" if field.name == "lowest" else "max"]
        rows = rows.append_column(field, pa.repeat(end, rows.num_rows))
    yield from rows.cast(_SENT).to_batches()
