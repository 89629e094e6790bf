"""Micro-batches of a changelog into a Headwater target, each exactly once.

    write = foreach_batch(postgres_target("postgresql://…", tables=…, on_data=…), id="usdc")
    changelog.writeStream.foreachBatch(write).option("checkpointLocation", …).start()

Inserts become batches, deletes become a rollback, so the target's own undo does the work and its
`on_data` is the same as with `pipe_to`. Spark may give a micro-batch again after a crash. The
target knows: the id of the micro-batch is a row of a side table, committed together with the rows
and the cursor, and undone with them. A rollback is a commit of its own; a micro-batch that comes
again after it finds the orphaned blocks gone, and goes on with its inserts.

A target that keeps no side tables (Parquet, `create_target`) has its cursor alone: a micro-batch
that ends with the cursor's block is left out. That is enough while Spark gives only the last
micro-batch again, as it does: two neighbours never end with the same block unless they change
nothing.

Runs on the driver, in the thread of the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState, hot_cursors
from headwater.core.state import newest_at_or_below
from headwater.errors import ForkCursorMissingError, MicroBatchOrderError
from headwater.spark.streaming.changelog_rows import CHANGE_COLUMNS, block_hash, number_column
from headwater.stream.owned import check_id
from headwater.targets.contract import Delivery, KeepsSideTables, SideTable, Target, prepared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BEFORE = "before the first block"  # stands for the hash of a block that was never seen
TABLE = SideTable(
    "micro_batches", pa.schema([("block_number", pa.int64()), ("ordinal", pa.int64())])
)
"""A row for each micro-batch that wrote something: its last block, and its id as `ordinal`."""
PRUNE_AT = 200  # rows of final blocks, before they are removed


@dataclass(frozen=True, slots=True)
class _Change:
    """The rows of one block that came or went."""

    cursor: BlockCursor
    sign: int
    finalized: int | None
    rows: pa.Table


class _Made(NamedTuple):
    """A batch before it has its delivery."""

    headers: tuple[BlockHeader, ...]
    head: Head
    state: PipeState
    hot: tuple[BlockCursor, ...]
    frame: Any


class ForeachBatch:
    """What `foreachBatch` is given. `output` is the name under which `on_data` finds the rows."""

    def __init__(self, target: Target[Delivery], stream_id: str, output: str) -> None:
        self._target = target
        self._id = stream_id
        self._output = output
        self._state: PipeState | None = None
        self._written = WrittenBatches(target.capabilities.side_tables)

    def __call__(self, micro_batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, unless it is written already. Called by Spark."""
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own spelling

        number = number_column(micro_batch.columns)
        micro_batch = micro_batch.persist()
        try:
            found = micro_batch.agg(
                F.count("*"),
                F.min("_sign"),
                F.min("_finalized"),
                F.max(number),
                F.max_by("_row_id", number),
            ).first()
            assert found is not None, "an aggregate without groups has a row"
            rows, sign, finalized, last, row_id = found
            if not rows:
                return
            if sign > 0 and finalized is not None and last <= finalized:
                own = micro_batch.drop(*CHANGE_COLUMNS.names)
                self.apply_final(batch_id, BlockHeader(last, block_hash(row_id)), own)
            else:
                self.apply(batch_id, micro_batch.toArrow())
        finally:
            micro_batch.unpersist()

    def apply_final(self, batch_id: int, last: BlockHeader, frame: Any) -> None:
        """Write a micro-batch of final blocks: one batch, whose rows may stay on executors."""
        state = self._recovered()
        if self._written.has(batch_id) or state.number >= last.number:
            return
        head = Head(last.cursor)
        after = state.advance((last,), head)
        self._commit(batch_id, [_Made((last,), head, after, (), frame)], after)

    def apply(self, batch_id: int, rows: pa.Table) -> None:
        """Write a micro-batch that has hot blocks, or deletes: a batch for each block."""
        state, changes = self._recovered(), list(_changes(rows))
        if self._written.has(batch_id) or not changes:
            return
        if not self._written.is_kept and _ends_like(state, changes):
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
            self._written.rolled_back(state)
            self._state = state
        made: list[_Made] = []
        for one in changes:
            if one.sign > 0:
                made.append(_made(state, one))
                state = made[-1].state
        if made:
            self._commit(batch_id, made, state)

    def close(self) -> None:
        """Release the target. To be called when the query has ended."""
        self._target.close()
        self._state = None

    def _commit(self, batch_id: int, made: Sequence[_Made], state: PipeState) -> None:
        """Commit batches, and with the last of them the id of the micro-batch."""
        side = self._written.rows(batch_id, state)
        batches = [
            prepared(
                self._target,
                Batch(
                    one.headers,
                    one.head,
                    one.state,
                    one.hot,
                    Delivery({self._output: one.frame}, side=side if one is made[-1] else {}),
                ),
            )
            for one in made
        ]
        self._target.commit(batches, state)
        self._written.committed(batch_id, state)
        self._state = state

    def _recovered(self) -> PipeState:
        if self._state is None:
            self._target.bind(self._id)
            self._written.open()
            self._state = self._target.recover()
            self._written.read()
        return self._state


class WrittenBatches:
    """The ids of the micro-batches that a target holds, beside its state.

    Without a target that keeps side tables nothing is known, and no id is refused.
    """

    def __init__(self, kept: KeepsSideTables | None) -> None:
        self._kept = kept
        self._keys: list[tuple[int, int]] = []  # block number and id, ascending

    @property
    def is_kept(self) -> bool:
        """Whether the target keeps them."""
        return self._kept is not None

    def open(self) -> None:
        """Create the table, if there is none. Called before the target recovers."""
        if self._kept is not None:
            self._kept.open_side_tables([TABLE])

    def read(self) -> None:
        """Read what is stored. Called after the target has recovered."""
        if self._kept is not None:
            rows = self._kept.read_side_table(TABLE.name)
            numbers, ids = (rows[name].to_pylist() for name in TABLE.columns.names)
            self._keys = list(zip(numbers, ids, strict=True))

    def has(self, batch_id: int) -> bool:
        """Tell whether the target holds a micro-batch.

        Raises:
            MicroBatchOrderError: it holds a later one, so this query is not the one that wrote it.
        """
        newest = self._keys[-1][1] if self._keys else -1
        if batch_id < newest:
            raise MicroBatchOrderError(
                "the target holds a later micro-batch than the query is at",
                holds=newest,
                given=batch_id,
            )
        return batch_id == newest

    def rows(self, batch_id: int, state: PipeState) -> dict[str, pa.Table]:
        """Return what is to be committed with a micro-batch."""
        if self._kept is None:
            return {}
        row = {"block_number": state.number, "ordinal": batch_id}
        return {TABLE.name: pa.Table.from_pylist([row], schema=TABLE.columns)}

    def committed(self, batch_id: int, state: PipeState) -> None:
        """Note a micro-batch, and remove rows of blocks that are final for long."""
        if self._kept is None:
            return
        self._keys.append((state.number, batch_id))
        old = [key for key in self._keys[:-1] if key[0] <= state.undo_floor]
        if len(old) >= PRUNE_AT:
            self._kept.settle_side_rows(TABLE.name, old[-1], {})
            self._keys = self._keys[len(old) :]

    def rolled_back(self, state: PipeState) -> None:
        """Forget the micro-batches above the state's cursor, as the target did."""
        self._keys = [key for key in self._keys if key[0] <= state.number]


def foreach_batch(target: Target[Delivery], *, id: str, output: str = "rows") -> ForeachBatch:
    """Return what `writeStream.foreachBatch` takes to write a changelog into a target.

    Args:
        target: any Headwater target; no other stream may write it under this id.
        id: the key of the stored state, as that of a stream; never rename it.
        output: the name under which `on_data` finds the rows. Their columns are those of the batch
            source, without those of the changelog.

    Raises:
        StreamIdError: the id is empty, or names no file or folder.
    """
    check_id(id)
    return ForeachBatch(target, id, output)


def _made(state: PipeState, change: _Change) -> _Made:
    """Return the batch of a block that came."""
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
    return _Made((header,), head, after, hot, change.rows)


def _ends_like(state: PipeState, changes: Sequence[_Change]) -> bool:
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
    number = number_column(rows.column_names)
    own = [name for name in rows.column_names if name not in CHANGE_COLUMNS.names]
    for version in pc.unique(versions).to_pylist():
        part = rows.filter(pc.equal(versions, version))
        first = part.slice(0, 1).to_pylist()[0]
        time = first["_commit_timestamp"]
        seconds = None if time is None else int(time.timestamp())
        cursor = BlockCursor(first[number], block_hash(first["_row_id"]), seconds)
        yield _Change(cursor, first["_sign"], first["_finalized"], part.select(own))
