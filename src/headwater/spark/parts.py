"""What one task of a span does: read a part, decode it, count what it has read.

A `PartReader` is made on the driver and pickled to executors with all that it needs, also the
portal's secrets. It holds no position: a task that is tried again, or runs twice by speculation,
reads its part from the beginning and yields the same rows, because only final blocks are read. Its
`Receipt` tells the driver which blocks it has read; the receipts of all parts are compared there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headwater import __version__
from headwater.core import (
    Answer,
    BlockCursor,
    BlockHeader,
    BlockRange,
    Blocks,
    Density,
    Fork,
    block_count,
    even_partitions,
)
from headwater.decode import Decoded, Output, decode_outputs
from headwater.errors import (
    BlockLinkError,
    ExecutorPythonError,
    FinalizedForkError,
    coded_line_first,
)
from headwater.portal import (
    SAMPLES,
    Address,
    BlockOrder,
    Dataset,
    LimitedTransport,
    PortalClient,
    RetryPolicy,
    StreamQuery,
    Timeouts,
    open_transport,
    probe,
    sources_of,
)
from headwater.portal.budget import Permits, UnlimitedPermits
from headwater.read_ahead import ReadAhead
from headwater.spark.relay import Office, TaskPermits

Item = TypeVar("Item")

Packed = tuple[int, bytes]
"""A batch of rows as an Arrow stream, behind the place of its output; or the receipt of a part."""

PACKED = pa.schema([("output", pa.int32()), ("rows", pa.binary())])
RECEIPT = -1  # in the place of an output

_OUTPUT = b"headwater.output"  # in the metadata of a batch: whose rows it has, if there are several


@dataclass(slots=True)
class Receipt:
    """What one task has read. Filled on an executor, read on the driver."""

    part: int
    blocks: int = 0
    bytes_read: int = 0
    first: BlockHeader | None = None
    last: BlockHeader | None = None
    rows: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    unlike: dict[str, int] = field(default_factory=dict)
    refused: bool = False

    def note_refusal(self) -> None:
        """Note that the portal was asked too much."""
        self.refused = True

    def add(self, headers: Sequence[BlockHeader], lines: Sequence[bytes]) -> None:
        """Count the blocks of one answer."""
        self.blocks += len(headers)
        self.bytes_read += sum(map(len, lines))
        self.first = self.first or headers[0]
        self.last = headers[-1]

    def count(self, decoded: Decoded) -> None:
        """Count the rows of outputs, and those that they left out."""
        _add(self.rows, {name: table.num_rows for name, table in decoded.tables.items()})
        _add(self.skipped, decoded.skipped)
        _add(self.unlike, decoded.unlike)

    def to_text(self) -> str:
        """Return the text that goes into the row."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> Receipt:
        """Read it again. Runs on the driver."""
        return msgspec.json.decode(text, type=cls)


@dataclass(frozen=True, slots=True)
class SpanReport:
    """What all tasks of a span have read.

    `blocks` counts the blocks that arrived (of those without a match, only some do), `bytes_read`
    their size. `cursor` is the last of them: the place to go on from. `rows` counts the rows of
    each output, `skipped` those that could not be decoded, where the output skips such, `unlike`
    logs of another form, of outputs that have no row here. `refused` says that the portal was asked
    too much by a task that asked nobody first.
    """

    blocks: int
    bytes_read: int
    cursor: BlockCursor | None
    rows: dict[str, int]
    skipped: dict[str, int]
    unlike: dict[str, int]
    refused: bool = False

    @classmethod
    def of(cls, receipts: Sequence[Receipt], cursor: BlockCursor | None) -> SpanReport:
        """Add up receipts. Runs on the driver, when a job has ended."""
        rows, skipped, unlike = dict[str, int](), dict[str, int](), dict[str, int]()
        for receipt in receipts:
            _add(rows, receipt.rows)
            _add(skipped, receipt.skipped)
            _add(unlike, receipt.unlike)
        return cls(
            blocks=sum(receipt.blocks for receipt in receipts),
            bytes_read=sum(receipt.bytes_read for receipt in receipts),
            cursor=cursor,
            rows=rows,
            skipped=skipped,
            unlike={name: count for name, count in unlike.items() if not rows.get(name)},
            refused=any(receipt.refused for receipt in receipts),
        )


def sum_receipts(
    receipts: Iterable[Receipt], parts: Sequence[BlockRange], *, complete: bool
) -> SpanReport:
    """Add up receipts of parts that were read apart, where their seams are checked.

    The first block of each must descend from the last block of the one before. `complete` says that
    every block was asked for.

    Raises:
        BlockLinkError: two neighbouring parts are not of one chain, or one is missing.
    """
    by_part = {receipt.part: receipt for receipt in receipts}
    missing = [index for index in range(len(parts)) if index not in by_part]
    if missing:
        raise BlockLinkError(
            "tasks have ended without a receipt",
            parts=", ".join(str(parts[index]) for index in missing[:3]),
        )
    ordered = [by_part[index] for index in range(len(parts))]
    last: BlockHeader | None = None
    for receipt in ordered:
        if receipt.first is not None and last is not None:
            between = BlockRange(last.number + 1, parts[receipt.part].to_block)
            BlockOrder(between, last.cursor, complete=complete).accept(receipt.first)
        last = receipt.last or last
    return SpanReport.of(ordered, None if last is None else last.cursor)


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


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
            pa.array([header.number for header in headers], pa.int64()),
            pa.array([header.hash for header in headers], pa.string()),
            pa.array([header.parent_hash for header in headers], pa.string()),
            pa.array(
                [
                    None if header.timestamp is None else header.timestamp * 1_000_000
                    for header in headers
                ],
                pa.int64(),
            ).cast(RAW_SCHEMA.field("timestamp").type),
            pa.array(blocks.lines, pa.binary()).cast(pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of outputs, which are decoded at once, each in columns of its own."""

    outputs: Mapping[str, Output]
    ranges: Mapping[str, Sequence[BlockRange]]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the first output; all may be null, for Spark."""
        first = next(iter(self.outputs.values()))
        return pa.schema([field.with_nullable(True) for field in first.schema])

    def rows(self, blocks: Blocks, receipt: Receipt) -> Iterator[pa.RecordBatch]:
        """Yield the decoded rows, output by output."""
        decoded = decode_outputs(self.outputs, blocks.lines, self.ranges)
        receipt.count(decoded)
        return table_batches(decoded.tables.values())


def table_rows(output: Output) -> TableRows:
    """Return the rows of one output, in all blocks."""
    return TableRows({"rows": output}, {"rows": (BlockRange(0),)})


def table_batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the tables of outputs; all but the first say whose they are."""
    for output, table in enumerate(tables):
        schema = table.schema
        if output:
            schema = schema.with_metadata({_OUTPUT: str(output).encode()})
        for batch in table.to_batches(max_chunksize=BATCH_ROWS):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _output_of(batch: pa.RecordBatch) -> int:
    return int((batch.schema.metadata or {}).get(_OUTPUT, 0))


def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches that are too small to pass on by themselves; order is kept within an output.

    Sparse ranges give a handful of rows per answer, and each batch costs a crossing into the JVM.
    """
    waiting: dict[int, list[pa.RecordBatch]] = {}
    sizes: dict[int, tuple[int, int]] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        output = _output_of(batch)
        waiting.setdefault(output, []).append(batch)
        rows, size = sizes.pop(output, (0, 0))
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_ROWS // 2 or size >= _BATCH_BYTES:
            yield _join(waiting.pop(output))
        else:
            sizes[output] = rows, size
    yield from map(_join, waiting.values())


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


READ_BYTES = 4 << 20  # what is decoded at once: as much as the decoder scans at once


@dataclass(frozen=True, slots=True)
class Part(Generic[Item]):
    """One part of a span: the work of one task. `blocks` is a range, or the blocks themselves."""

    index: int
    blocks: Item


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanReader(ABC, Generic[Item]):
    """Makes rows of parts.

    Made on the driver and pickled to executors. A task that is tried again makes the same rows.
    """

    version: str = __version__  # of the driver, where the reader is made

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the first output, which is the only one where rows are not packed."""

    @abstractmethod
    def _rows(self, part: Part[Item], receipt: Receipt) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part, in order of blocks, and sum it up in the receipt."""

    def rows(self, part: Part[Item], receipt: Receipt) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part, in order of blocks, and sum it up. Runs on an executor.

        Raises:
            ExecutorPythonError: the executor has another version of this package than the driver.
            HeadwaterError: whatever the reading or a decoder raises; Spark may try the task again.
        """
        if self.version != __version__:
            raise ExecutorPythonError(
                "an executor has another version of headwater",
                driver=self.version,
                here=__version__,
            )
        return gather(self._rows(part, receipt))

    def read(self, part: Part[Item]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part; nobody asks for its receipt."""
        return self.rows(part, Receipt(part.index))

    def packed(self, part: Part[Item]) -> Iterator[Packed]:
        """Yield the rows of all outputs of one part, and its receipt."""
        receipt = Receipt(part.index)
        for batch in self.rows(part, receipt):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield _output_of(batch), sink.getvalue().to_pybytes()
        yield RECEIPT, receipt.to_text().encode()


def unpacked(rows: bytes | pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Yield the rows that were packed. Copies nothing."""
    for batch in pa.ipc.open_stream(rows):
        yield batch.replace_schema_metadata(None)


@dataclass(frozen=True, slots=True)
class PartReader(SpanReader[BlockRange]):
    """Reads parts of final blocks from a portal.

    Each part has a client of its own. Requests that fail are sent again by the client; what it
    gives up on fails the task, with the error's text.
    """

    address: Address
    query: StreamQuery
    row_maker: RowMaker
    dataset: Dataset | None
    retry: RetryPolicy
    timeouts: Timeouts | None = None
    office: Office | None = None  # where to ask before each request

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.row_maker.schema

    def client(
        self,
        max_bytes: int = READ_BYTES,
        on_refused: Callable[[], None] = lambda: None,
        headers: StreamQuery | None = None,
    ) -> PortalClient:
        """Return a client for one task, or for planning; the caller closes it.

        `on_refused` is told that the portal was asked too much, where nobody is asked first.
        """
        permits: Permits = UnlimitedPermits(on_refused)
        if self.office is not None:
            permits = TaskPermits(self.office)
        transport = open_transport(self.address, self.timeouts, network=self.dataset)
        return PortalClient(
            LimitedTransport(transport, permits),
            retry=self.retry,
            dataset=self.dataset,
            max_bytes=max_bytes,
            headers=headers,
            sources=sources_of(transport),
        )

    def _rows(self, part: Part[BlockRange], receipt: Receipt) -> Iterator[pa.RecordBatch]:
        with ReadAhead(partial(self._answers, part, receipt)) as answers:
            for answer in answers:
                match answer:
                    case Blocks(headers, lines):
                        receipt.add(headers, lines)
                        yield from self.row_maker.rows(answer, receipt)
                    case Fork(previous_blocks):
                        raise FinalizedForkError(
                            "the portal reports a fork among finalized blocks",
                            range=part.blocks,
                            sample=", ".join(map(str, previous_blocks[:3])),
                        )
                    case _:
                        pass  # a replica that is behind; the client asks again at its own pace

    def _answers(self, part: Part[BlockRange], receipt: Receipt) -> Iterator[Answer]:
        """Yield what the portal says of a part, by a client that nothing else uses."""
        with self.client(on_refused=receipt.note_refusal) as client:
            yield from client.read(self.query, part.blocks, finalized=True)


class PartsReader(DataSourceReader):
    """Spark's view of a planned reading.

    It keeps nothing between calls and takes no filters: Spark uses one reader for several scans of
    the same DataFrame, so a filter kept here would leak from one scan into another.
    """

    def __init__(self, reader: PartReader, parts: Sequence[BlockRange]) -> None:
        self._reader = reader
        self._parts = tuple(parts)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per part. Called on the driver whenever a scan is planned."""
        return [InputPartition(Part(index, blocks)) for index, blocks in enumerate(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part. Called on an executor, once per attempt of the task."""
        with coded_line_first():
            yield from self._reader.read(partition.value)


# --- into how many parts a span is cut ------------------------------------------------------------


_TASKS_PER_CORE = 4
_SMALL_TASK = 1 << 20
_LARGE_TASK = 64 << 20
_UNKNOWN = 10_000.0  # bytes of a block that was not measured


def plan_parts(
    client: PortalClient,
    query: StreamQuery,
    block_range: BlockRange,
    *,
    partitions: int | None,
    cores: int,
    samples: int = SAMPLES,
    densities: Sequence[Density] = (),
) -> list[BlockRange]:
    """Return the parts that tasks will read: measure the range, choose how many, cut evenly.

    Called on the driver, once per range. What was measured already is not measured again. Without
    `samples`, or for one part, nothing is asked and all blocks count as equal.
    """
    if not densities:
        if samples > 0 and min(block_count(block_range), partitions or 2) > 1:
            densities = probe(client, query, block_range, samples)
        else:
            densities = [Density(block_range, _UNKNOWN)]
    count = partition_count(densities, cores) if partitions is None else partitions
    return even_partitions(densities, count)


def partition_count(densities: Sequence[Density], cores: int) -> int:
    """Return into how many parts to cut, if the user does not say.

    Four per core keep all cores busy to the end; but no task is so small that starting it costs
    more than running it, or so large that repeating it hurts.
    """
    total = sum(density.total for density in densities)
    wanted = min(_TASKS_PER_CORE * cores, math.ceil(total / _SMALL_TASK))
    return max(1, wanted, math.ceil(total / _LARGE_TASK))
