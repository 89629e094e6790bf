"""The rows of a changelog: those of the batch source, and the columns that say what happened.

Made on executors for final blocks and on the driver for hot ones, by the same code: the same block
gives the same rows with the same `_row_id`, wherever and however often it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import Blocks
from headwater.errors import BlockContentError
from headwater.spark.parts import Receipt, RowMaker

INSERT, DELETE = "insert", "delete"
_LAST_SECOND = (2**63 - 1) // 1_000_000  # that 64 bits of microseconds hold

CHANGE_COLUMNS = pa.schema(
    [
        ("_change_type", pa.string()),
        ("_commit_version", pa.int64()),
        ("_commit_timestamp", pa.timestamp("us", tz="UTC")),
        ("_sign", pa.int8()),
        ("_row_id", pa.string()),
        ("_finalized", pa.int64()),
    ]
)
"""`_finalized` is the highest final block number that was known when the row was emitted."""


def changelog_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a changelog over rows with these columns."""
    return pa.schema([*schema, *CHANGE_COLUMNS])


def number_column(names: Collection[str]) -> str:
    """Return the column with a block's number: raw queries name it otherwise."""
    return "block_number" if "block_number" in names else "number"


@dataclass(frozen=True, slots=True)
class InsertRows:
    """Makes the rows of new blocks. A `RowMaker`; pickles.

    `shift` is added to a block's number to get its version.
    """

    row_maker: RowMaker
    shift: int
    finalized: int | None

    @property
    def schema(self) -> pa.Schema:
        """The columns: those of the rows, then those of the changelog."""
        return changelog_schema(self.row_maker.schema)

    def rows(self, blocks: Blocks, receipt: Receipt) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these blocks as inserts, in order of blocks."""
        schema, numbered = self.schema, _RowNumbers()
        headers = blocks.headers
        numbers = np.fromiter((header.number for header in headers), np.int64, len(headers))
        hashes = pa.array([header.hash for header in headers], pa.string())
        times = pa.array([_microseconds(header.timestamp) for header in headers], pa.int64())
        for batch in self.row_maker.rows(blocks, receipt):
            own = batch.column(number_column(schema.names)).to_numpy()
            places = pa.array(np.searchsorted(numbers, own))
            positions = pa.array(numbered.take(own)).cast(pa.string())
            count = batch.num_rows
            columns = [
                pa.repeat(pa.scalar(INSERT), count),
                pa.array(own + self.shift),
                times.take(places).cast(CHANGE_COLUMNS.field("_commit_timestamp").type),
                pa.repeat(pa.scalar(1, pa.int8()), count),
                pc.binary_join_element_wise(hashes.take(places), positions, "-"),
                pa.repeat(pa.scalar(self.finalized, pa.int64()), count),
            ]
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)


class _RowNumbers:
    """Counts the rows of each block from 0, also where a block's rows come in several batches."""

    def __init__(self) -> None:
        self._number = -1
        self._count = 0

    def take(self, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> object:
        """Return the position of each row in its block; rows come in order of blocks."""
        rows = np.arange(len(numbers))
        if not len(numbers):
            return rows
        begins = np.concatenate(([True], numbers[1:] != numbers[:-1]))
        starts = np.flatnonzero(begins)
        positions = rows - np.repeat(starts, np.diff(np.append(starts, len(numbers))))
        if numbers[0] == self._number:
            first = starts[1] if len(starts) > 1 else len(numbers)
            positions[:first] += self._count
        self._number, self._count = int(numbers[-1]), int(positions[-1]) + 1
        return positions


def block_hash(row_id: str) -> str:
    """Return the hash of a row's block."""
    return row_id.rpartition("-")[0]


def _microseconds(seconds: int | None) -> int | None:
    if seconds is None:
        return None
    if abs(seconds) > _LAST_SECOND:
        raise BlockContentError("a block has an impossible timestamp", timestamp=seconds)
    return seconds * 1_000_000


def retracted(rows: pa.Table, version: int, finalized: int | None) -> pa.Table:
    """Return the rows of an orphaned block as deletes, the last one first."""
    count = rows.num_rows
    backwards = rows.take(pa.array(np.arange(count)[::-1]))
    replaced = {
        "_change_type": pa.repeat(pa.scalar(DELETE), count),
        "_commit_version": pa.repeat(pa.scalar(version, pa.int64()), count),
        "_sign": pa.repeat(pa.scalar(-1, pa.int8()), count),
        "_finalized": pa.repeat(pa.scalar(finalized, pa.int64()), count),
    }
    columns = [replaced.get(name, backwards[name]) for name in rows.schema.names]
    return pa.table(columns, schema=rows.schema)
