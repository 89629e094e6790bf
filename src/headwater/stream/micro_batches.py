"""Micro-batches of a changelog into a Headwater target, each exactly once.

    write = foreach_batch(postgres_target("postgresql://…", tables=…, on_data=…), id="usdc")
    changelog.writeStream.foreachBatch(write).option("checkpointLocation", …).start()

Inserts become batches, deletes become a rollback, so the target's own undo does the work and its
`on_data` is the same as with `pipe_to`. Spark may give a micro-batch again after a crash. The
target knows: its state, committed together with the rows, ends with the last block of what it has
applied, and a micro-batch that ends there too is left out. That is enough, because Spark gives only
the last micro-batch again, and two neighbours never end with the same block unless they change
nothing.

Runs on the driver, in the thread of the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState, hot_cursors
from headwater.core.state import newest_at_or_below
from headwater.errors import ForkCursorMissingError, InvalidOptionError
from headwater.spark.streaming.changelog_rows import CHANGE_COLUMNS
from headwater.targets.contract import Delivery, Target, prepared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BEFORE = "before the first block"  # stands for the hash of a block that was never seen


@dataclass(frozen=True, slots=True)
class _Change:
    """The rows of one block that came or went."""

    cursor: BlockCursor
    sign: int
    finalized: int | None
    rows: pa.Table


class ForeachBatch:
    """What `foreachBatch` is given. `output` is the name under which `on_data` finds the rows."""

    def __init__(self, target: Target[Delivery], stream_id: str, output: str) -> None:
        self._target = target
        self._id = stream_id
        self._output = output
        self._state: PipeState | None = None

    def __call__(self, micro_batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, unless it is written already. Called by Spark."""
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own spelling

        number, block_hash = _block_columns(micro_batch.columns)
        micro_batch = micro_batch.persist()
        try:
            found = micro_batch.agg(
                F.count("*"),
                F.min("_sign"),
                F.min("_finalized"),
                F.max(number),
                F.max_by(block_hash, number),
            ).first()
            assert found is not None, "an aggregate without groups has a row"
            rows, sign, finalized, last, last_hash = found
            if not rows:
                return
            if sign > 0 and finalized is not None and last <= finalized:
                own = micro_batch.drop(*CHANGE_COLUMNS.names)
                self.apply_final(BlockHeader(last, last_hash), own)
            else:
                self.apply(micro_batch.toArrow())
        finally:
            micro_batch.unpersist()

    def apply_final(self, last: BlockHeader, frame: Any) -> None:
        """Write a micro-batch of final blocks: one batch, whose rows may stay on executors."""
        state = self._recovered()
        if state.number >= last.number:
            return
        head = Head(last.cursor)
        after = state.advance((last,), head)
        batch = Batch((last,), head, after, (), Delivery({self._output: frame}))
        self._commit([batch], after)

    def apply(self, rows: pa.Table) -> None:
        """Write a micro-batch that has hot blocks, or deletes: a batch for each block."""
        state, changes = self._recovered(), list(_changes(rows))
        if not changes or _is_applied(state, changes):
            return
        gone = [one.cursor for one in changes if one.sign < 0]
        if any(one in gone for one in (*state.rollback_chain, state.cursor)):
            lowest = min(one.number for one in gone)
            safe = newest_at_or_below(state.landing_points(), lowest - 1)
            if safe is None:
                raise ForkCursorMissingError(
                    "the target holds nothing below what is retracted", lowest=lowest
                )
            state = state.rewind(safe)
            self._target.roll_back(state)
            self._state = state
        batches: list[Batch[Delivery]] = []
        for one in changes:
            if one.sign > 0:
                batch = self._batch(state, one)
                batches.append(batch)
                state = batch.state
        if batches:
            self._commit(batches, state)

    def close(self) -> None:
        """Release the target. To be called when the query has ended."""
        self._target.close()
        self._state = None

    def _batch(self, state: PipeState, change: _Change) -> Batch[Delivery]:
        number, final = change.cursor.number, change.finalized
        header = BlockHeader(
            number, str(change.cursor.hash), _BEFORE, number - 1, change.cursor.timestamp
        )
        ours = None
        if final is not None:
            points = (*state.landing_points(), change.cursor)
            ours = newest_at_or_below(points, final)
        head = Head(ours)
        after = state.advance((header,), head)
        hot = hot_cursors((header,), -1 if final is None else final)
        return Batch((header,), head, after, hot, Delivery({self._output: change.rows}))

    def _commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        self._target.commit([prepared(self._target, one) for one in batches], state)
        self._state = state

    def _recovered(self) -> PipeState:
        if self._state is None:
            self._target.bind(self._id)
            self._state = self._target.recover()
        return self._state


def foreach_batch(target: Target[Delivery], *, id: str, output: str = "rows") -> ForeachBatch:
    """Return what `writeStream.foreachBatch` takes to write a changelog into a target.

    Args:
        target: any Headwater target; no other stream may write it under this id.
        id: the key of the stored state, as that of a stream; never rename it.
        output: the name under which `on_data` finds the rows. Their columns are those of the batch
            source, without those of the changelog.

    Raises:
        InvalidOptionError: the id is empty.
    """
    if not id:
        raise InvalidOptionError("a stream needs an id", got=id)
    return ForeachBatch(target, id, output)


def _is_applied(state: PipeState, changes: Sequence[_Change]) -> bool:
    """Tell whether a state is the one that these changes lead to."""
    last = changes[-1]
    if last.sign > 0:
        return state.cursor == last.cursor
    gone = {one.cursor for one in changes}
    return not gone.intersection((*state.rollback_chain, state.cursor))


def _changes(rows: pa.Table) -> Iterator[_Change]:
    """Cut a changelog's rows by version, in order: each is a block that came or went."""
    rows = rows.sort_by([("_commit_version", "ascending")])
    versions = rows["_commit_version"].combine_chunks()
    number, block_hash = _block_columns(rows.column_names)
    own = [name for name in rows.column_names if name not in CHANGE_COLUMNS.names]
    for version in pc.unique(versions).to_pylist():
        part = rows.filter(pc.equal(versions, version))
        first = part.slice(0, 1).to_pylist()[0]
        time = first["_commit_timestamp"]
        cursor = BlockCursor(
            first[number], first[block_hash], None if time is None else int(time.timestamp())
        )
        yield _Change(cursor, first["_sign"], first["_finalized"], part.select(own))


def _block_columns(names: Sequence[str]) -> tuple[str, str]:
    """Return the columns with a block's number and hash: raw queries name them otherwise."""
    return ("block_number", "block_hash") if "block_number" in names else ("number", "hash")
