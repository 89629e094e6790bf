"""A model of a streaming query with `foreachBatch`: what Spark's checkpoint keeps, and the calls.

Before a micro-batch is given, its offsets are written down; after the call it counts as committed.
So a process that dies in between is given the same rows under the same id again. The rows are those
of the simulated contents, as changes: blocks that a fork took away are retracted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, NoReturn

import pyarrow as pa

from headwater.core import BlockHeader
from headwater.spark.streaming.changelog_rows import CHANGE_COLUMNS, block_hash
from headwater.stream.micro_batches import ForeachBatch, MicroBatch, foreach_batch
from headwater.testing.chain.tree import ChainSim, SimBlock
from tests.simulation.tables import TRANSFERS, transfers_of

_TYPES = pa.schema(
    [
        ("block_number", pa.int64()),
        ("log_index", pa.int64()),
        ("address", pa.string()),
        ("from", pa.string()),
        ("to", pa.string()),
        ("value", pa.string()),
        *CHANGE_COLUMNS,
    ]
)


@dataclass(slots=True)
class Query:
    """The checkpoint of one query, which outlives the processes that run it."""

    chain: ChainSim
    tokens: Sequence[str]
    dice: Random
    tip: str | None = None  # the last block of the micro-batch that was committed last
    planned: tuple[int, pa.Table, str] | None = None
    batch_id: int = 0
    version: int = 0
    took_back: bool = False

    @property
    def is_at_head(self) -> bool:
        """Whether everything up to the newest block is committed."""
        return self.planned is None and self.tip == self.chain.head.hash

    def plan(self) -> tuple[int, pa.Table] | None:
        """Return id and rows of the micro-batch under way, or of the next; None if none is."""
        if self.planned is None:
            head = self.chain.head.hash
            old = [] if self.tip is None else self.chain.path(self.tip)
            kept = [one for one in old if self.chain.is_ancestor(one.hash, head)]
            gone = old[len(kept) :]
            first = kept[-1].number + 1 if kept else 0
            new = self.chain.path(head, first)[: self.dice.choice([1, 1, 2, 5, 50])]
            if not gone and not new:
                return None
            self.took_back |= bool(gone)
            rows = [*self._changes(reversed(gone), -1), *self._changes(new, 1)]
            last = new[-1].hash if new else (kept[-1].hash if kept else head)
            self.planned = (self.batch_id, pa.Table.from_pylist(rows, schema=_TYPES), last)
        return self.planned[:2]

    def commit(self, batch_id: int) -> None:
        """Count a micro-batch as committed, unless another process has done so."""
        if self.planned is not None and self.planned[0] == batch_id:
            self.tip, self.planned = self.planned[2], None
            self.batch_id += 1

    def _changes(self, blocks: Any, sign: int) -> Iterator[dict[str, Any]]:
        final = self.chain.finalized
        for block in blocks:
            self.version += 1
            for at, row in enumerate(self._of(block)):
                yield dict(zip(_TYPES.names[:6], row, strict=True)) | {
                    "_change_type": "insert" if sign > 0 else "delete",
                    "_commit_version": self.version,
                    "_commit_timestamp": datetime.fromtimestamp(block.timestamp, UTC),
                    "_sign": sign,
                    "_row_id": f"{block.hash}-{at}",
                    "_finalized": None if final is None else final.number,
                }

    def _of(self, block: SimBlock) -> list[Any]:
        return transfers_of(self.chain, block, self.tokens)


def run_query(query: Query, stream_id: str, target: Any, pause: Callable[[], None]) -> None:
    """Run micro-batches for ever; `pause` is called where a process may be stopped."""
    write = foreach_batch(target, id=stream_id, output=TRANSFERS)
    try:
        while True:
            planned = query.plan()
            if planned is not None:
                _give(write, *planned)
                pause()
                query.commit(planned[0])
            pause()
    finally:
        write.close()


def _give(write: ForeachBatch, batch_id: int, rows: pa.Table) -> None:
    """Do what `foreachBatch` does with a DataFrame of these rows."""
    came = [row for row in rows.to_pylist() if row["_sign"] > 0]
    first = min((row["block_number"] for row in came), default=None)
    last, is_final = None, False
    if came:
        newest = max(came, key=lambda row: row["block_number"])
        last = BlockHeader(newest["block_number"], block_hash(newest["_row_id"]))
        final = newest["_finalized"]
        is_final = len(came) == rows.num_rows and final is not None and last.number <= final
    given = MicroBatch(batch_id, "query", rows, rows.num_rows, first, last, is_final)
    write.write(given, _no_spark)


def _no_spark() -> NoReturn:
    raise AssertionError("rows of a few blocks need no Spark")
