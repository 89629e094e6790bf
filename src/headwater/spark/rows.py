"""Blocks as the rows that a task yields: raw lines, or the tables of outputs.

Everything here is pickled to executors and pure there: the same blocks give the same rows, so a
task can be tried again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headwater.core import BlockRange, Blocks
from headwater.decode import Output, decode_outputs
from headwater.spark.receipt import Receipt

BATCH_ROWS = 10_000  # larger Arrow batches are slower to pass to the JVM, smaller ones too

RAW_SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("hash", pa.string()),
        ("parent_hash", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("line", pa.string()),
    ]
)

_BATCH_BYTES = 16 << 20


class RowMaker(Protocol):
    """Turns blocks into rows."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        ...

    def rows(self, blocks: Blocks, receipt: Receipt) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these blocks, in order; note in the receipt what was left out."""
        ...


@dataclass(frozen=True, slots=True)
class RawRows:
    """One row per block: its header, and its line as it arrived."""

    @property
    def schema(self) -> pa.Schema:
        """The columns: number, hash, parent_hash, timestamp, line."""
        return RAW_SCHEMA

    def rows(self, blocks: Blocks, receipt: Receipt) -> Iterator[pa.RecordBatch]:
        """Yield the blocks; lines are known to be UTF-8."""
        headers = blocks.headers
        columns = [
            pa.array([one.number for one in headers], pa.int64()),
            pa.array([one.hash for one in headers], pa.string()),
            pa.array([one.parent_hash for one in headers], pa.string()),
            pa.array(
                [None if one.timestamp is None else one.timestamp * 1_000_000 for one in headers],
                pa.int64(),
            ).cast(RAW_SCHEMA.field("timestamp").type),
            pa.array(blocks.lines, pa.binary()).cast(pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of one output, in its own columns."""

    name: str
    output: Output
    ranges: tuple[BlockRange, ...]

    @property
    def schema(self) -> pa.Schema:
        """The output's columns; all may be null, because the row of a receipt has none of them."""
        return pa.schema([one.with_nullable(True) for one in self.output.schema])

    def rows(self, blocks: Blocks, receipt: Receipt) -> Iterator[pa.RecordBatch]:
        """Yield the decoded rows."""
        decoded = decode_outputs({self.name: self.output}, blocks.lines, {self.name: self.ranges})
        receipt.count(decoded)
        for batch in decoded.tables[self.name].to_batches(max_chunksize=BATCH_ROWS):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)


@dataclass(frozen=True, slots=True)
class CombinedRows:
    """The rows of several outputs in one table: a struct column for each, one of them not null.

    This is what lets one reading of a range serve all outputs. Columns are called o0, o1, … so that
    no name of an output can confuse Spark.
    """

    outputs: Mapping[str, Output]
    ranges: Mapping[str, Sequence[BlockRange]]

    @property
    def schema(self) -> pa.Schema:
        """One struct column per output, in their order."""
        return pa.schema(
            [
                pa.field(combined_column(index), pa.struct(list(output.schema)))
                for index, output in enumerate(self.outputs.values())
            ]
        )

    def rows(self, blocks: Blocks, receipt: Receipt) -> Iterator[pa.RecordBatch]:
        """Yield the decoded rows, output by output."""
        decoded = decode_outputs(self.outputs, blocks.lines, self.ranges)
        receipt.count(decoded)
        schema = self.schema
        for position, table in enumerate(decoded.tables.values()):
            fields = list(table.schema)
            for batch in table.to_batches(max_chunksize=BATCH_ROWS):
                own = pa.StructArray.from_arrays(batch.columns, fields=fields)
                columns = [
                    own if index == position else pa.nulls(batch.num_rows, field.type)
                    for index, field in enumerate(schema)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def combined_column(index: int) -> str:
    """Return the name of an output's column in the combined rows."""
    return f"o{index}"


def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches that are too small to pass on by themselves; order is kept.

    Sparse ranges give a handful of rows per answer, and each batch costs a crossing into the JVM.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_ROWS // 2 or size >= _BATCH_BYTES:
            yield _join(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
