"""What a task does with its rows: encode them, copy them into the stage, return a receipt.

Runs on executors, which need to reach the database. An attempt that is repeated has another number,
so its rows do not mix with earlier ones.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.targets.postgres.encode import HEADER, TRAILER
from headwater.targets.postgres.session import connect
from headwater.targets.postgres.sql import TableName, compose
from headwater.targets.postgres.transfer import Transfer

_NAMES = ("attempt", "pieces", "rows", "lowest", "highest", "nulls")
RECEIPT = pa.schema([(name, pa.int64()) for name in _NAMES])
RECEIPT_COLUMNS = ", ".join(f"`{name}` bigint" for name in _NAMES)


@dataclass(frozen=True, slots=True)
class StageWriter:
    """Copies the rows of a partition in one transaction. It pickles."""

    dsn: str
    stage: TableName
    transfer: Transfer
    block_column: str = ""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy, and yield the receipt."""
        attempt, seen = secrets.randbits(62), _Seen(self.block_column)
        remaining = (batch for batch in batches if batch.num_rows)
        first = next(remaining, None)
        if first is not None:
            rows = self.transfer.encode(first.schema, seen.through(chain([first], remaining)))
            sql = compose(
                "COPY {stage} (attempt, place, rows) FROM STDIN (FORMAT binary)", stage=self.stage
            )
            with (
                connect(self.dsn, name="headwater executor") as connection,
                connection.cursor() as cursor,
                cursor.copy(sql.encode()) as copy,
            ):
                copy.write(HEADER)
                for chunk in rows:
                    sizes = [one.to_bytes(4) for one in (8, 4, seen.pieces, len(chunk))]
                    copy.write(b"\x00\x03" + sizes[0] + attempt.to_bytes(8) + b"".join(sizes[1:]))
                    copy.write(chunk)
                    seen.pieces += 1
                copy.write(TRAILER)
        yield seen.receipt(attempt)


class _Seen:
    """Counts the rows that pass, and notes between which blocks they lie."""

    def __init__(self, block_column: str) -> None:
        self.pieces = 0
        self._column = block_column
        self._rows = self._nulls = 0
        self._blocks: list[int] = []

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass batches on."""
        for batch in batches:
            self._rows += batch.num_rows
            if self._column not in batch.schema.names:
                self._nulls += batch.num_rows
            else:
                ends, nulls = block_range(batch.column(self._column))
                self._nulls += nulls
                known = [*self._blocks, *ends]
                self._blocks = [min(known), max(known)] if known else []
            yield batch

    def receipt(self, attempt: int) -> pa.RecordBatch:
        """Return what the driver is told."""
        lowest, highest = self._blocks or (None, None)
        facts = (attempt, self.pieces, self._rows, lowest, highest, self._nulls)
        return pa.RecordBatch.from_pylist([dict(zip(_NAMES, facts, strict=True))], schema=RECEIPT)


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
