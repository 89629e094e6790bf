"""The work of one task: fetch a part of a range, decode it, yield Arrow batches.

Made on the driver, pickled to executors with all it needs, the portal's secrets included. It holds
no position: a task that is tried again, or runs twice by speculation, reads its part from the
beginning and yields the same rows, because only final blocks are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headwater.core import BlockRange, Blocks, Fork
from headwater.errors import FinalizedForkError
from headwater.portal import Address, Dataset, HttpTransport, PortalClient, RetryPolicy, StreamQuery
from headwater.spark.receipt import COLUMN, Receipt
from headwater.spark.rows import RowMaker, gather

READ_BYTES = 4 << 20  # what is decoded at once: as much as the decoder scans at once


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a range: the work of one task."""

    index: int
    blocks: BlockRange


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads parts of final blocks. `with_receipts`: each part ends with a row that sums it up."""

    address: Address
    query: StreamQuery
    row_maker: RowMaker
    dataset: Dataset | None
    retry: RetryPolicy
    with_receipts: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches."""
        schema = self.row_maker.schema
        return schema.append(COLUMN) if self.with_receipts else schema

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part, in order of blocks. Runs on an executor.

        Each call has a client of its own. Requests that fail are sent again by the client; what it
        gives up on fails the task, with the error's text, and Spark may try the task again.

        Raises:
            FinalizedForkError: the portal contradicts itself about final blocks.
            HeadwaterError: whatever the client or a decoder raises.
        """
        receipt = Receipt(part.index)
        for batch in self.rows(part, receipt):
            yield self._widen(batch)
        if self.with_receipts:
            empty = [pa.nulls(1, field.type) for field in self.row_maker.schema]
            row = [*empty, pa.array([receipt.to_text()], COLUMN.type)]
            yield pa.RecordBatch.from_arrays(row, schema=self.schema)

    def rows(self, part: Part, receipt: Receipt) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part, and sum the part up in a receipt. Runs on an executor."""
        return gather(self._rows(part, receipt))

    def client(self, max_bytes: int = READ_BYTES) -> PortalClient:
        """Return a client for one task, or for planning; whoever asks closes it."""
        transport = HttpTransport(self.address)
        return PortalClient(transport, retry=self.retry, dataset=self.dataset, max_bytes=max_bytes)

    def _rows(self, part: Part, receipt: Receipt) -> Iterator[pa.RecordBatch]:
        with self.client() as client:
            for answer in client.read(self.query, part.blocks, finalized=True):
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

    def _widen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.with_receipts:
            return batch
        return batch.append_column(COLUMN, pa.nulls(batch.num_rows, COLUMN.type))


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
        return self._reader.read(partition.value)
