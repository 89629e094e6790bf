"""Outputs of many final blocks that executors decode: the driver has received them, no more.

An endpoint sends one ordered stream, so the driver receives it. What it does with a message of
history is to hand its bytes on: tasks decode them, and fold or write the rows, as those of a
portal's span. The cursor of the last block is stored by the commit of their rows. Tasks that are
tried again give the same rows, because the bytes are a part of the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from headwater.core import BlockHeader
from headwater.decode import Decoded
from headwater.spark.parts import Part, Receipt, SpanReader, SpanReport, table_batches
from headwater.spark.spans import Span
from headwater.spark.startup import SparkOfRun
from headwater.substreams.messages import ModuleOutput, OutputDecoder

FAR_BYTES = 4 << 20  # of outputs, below which a job costs more than decoding here
Held = tuple[ModuleOutput, ...]


@dataclass(frozen=True, slots=True)
class OutputReader(SpanReader[Held]):
    """Decodes parts that hold their outputs."""

    decoder: OutputDecoder

    @property
    def schema(self) -> pa.Schema:
        """The columns of the first output."""
        return next(iter(self.decoder.schemas.values()))

    def _rows(self, part: Part[Held], receipt: Receipt) -> Iterator[pa.RecordBatch]:
        receipt.add(
            [BlockHeader(output.clock.number, output.clock.hash) for output in part.blocks],
            [output.value for output in part.blocks],
        )
        tables = self.decoder.decode(part.blocks)
        receipt.count(Decoded(tables, {}, {}))
        yield from table_batches(tables[name] for name in self.decoder.schemas)


class OutputSpan(Span):
    """Outputs of consecutive final blocks, to be decoded by as many tasks as there are cores."""

    def __init__(
        self, spark: SparkOfRun, decoder: OutputDecoder, outputs: Sequence[ModuleOutput]
    ) -> None:
        parts = split(outputs, spark.parallelism)
        super().__init__(spark, OutputReader(decoder), decoder.schemas, parts)

    def _sum(self, receipts: Sequence[Receipt]) -> SpanReport:
        return SpanReport.of(receipts, self.parts[-1][-1].clock.cursor)


def split(outputs: Sequence[ModuleOutput], parts: int) -> list[Held]:
    """Return consecutive outputs in so many parts, at most, of about the same size."""
    total = sum(len(output.value) for output in outputs)
    groups: list[list[ModuleOutput]] = [[]]
    done = 0
    for output in outputs:
        if groups[-1] and done * parts >= total * len(groups):
            groups.append([])
        groups[-1].append(output)
        done += len(output.value)
    return [tuple(group) for group in groups]


def has_executors(session: SparkSession | None) -> bool:
    """Tell whether a session's executors are on other machines, or at least other processes.

    On one machine they share its cores with the driver, and bytes that travel to them and rows that
    come back cost more than decoding saves (docs/decisions/0021). A session of Spark Connect cannot
    be handed bytes.
    """
    if session is None or type(session).__module__.startswith("pyspark.sql.connect"):
        return False
    return not (session.sparkContext.master or "local").startswith("local")
