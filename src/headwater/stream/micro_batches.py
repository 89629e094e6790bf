"""Micro-batches of a changelog into a Headwater target, each exactly once.

    write = foreach_batch(postgres_target("postgresql://…", tables=…, on_data=…), id="usdc")
    changelog.writeStream.foreachBatch(write).option("checkpointLocation", …).start()

Inserts become batches, deletes become a rollback, so the target's own undo does the work and its
`on_data` is the same as with `pipe_to`. Spark may give a micro-batch again after a crash. The
target knows which it holds (`stream/micro_batch_log.py`). A rollback is a commit of its own; a
micro-batch that comes again after it finds the orphaned blocks gone, and goes on with its inserts.
What is written is durable when the call returns: Spark counts the micro-batch as done then.

A target of `create_target` has its cursor alone, and no rows that a fork may take back: after a
restart nothing is known of the blocks below it that a rollback could go back to.

Runs on the driver, in the thread of the query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import (
    Batch,
    BlockCursor,
    BlockHeader,
    BlockRange,
    Head,
    PipeState,
    hot_cursors,
)
from headwater.core.state import newest_at_or_below
from headwater.errors import (
    ForkCursorMissingError,
    MicroBatchGapError,
    MicroBatchOrderError,
    MicroBatchReadError,
    MicroBatchTargetError,
)
from headwater.spark.frames import Frame, SparkProvider
from headwater.spark.streaming.changelog_rows import CHANGE_COLUMNS, block_hash, number_column
from headwater.stream.context import (
    BatchContext,
    BatchCounts,
    BatchInfo,
    Progress,
    QueryInfo,
    StreamBatch,
    StreamInfo,
    StreamState,
)
from headwater.stream.micro_batch_log import MicroBatchLog
from headwater.stream.owned import OwnedTarget, check_cursor, check_id, check_target
from headwater.targets.contract import Delivery, Target, prepared
from headwater.targets.frames import column_names, rows_above

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BEFORE = "before the first block"  # stands for the hash of a block that was never seen
_QUERY = "sql.streaming.queryId"  # a local property of Spark's, in the thread of a query
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch, and what Spark has counted of it.

    `query` is the id that the checkpoint keeps; empty where a function of the user's calls from a
    thread that is not the query's. `rows` are its changes, `first` and `last` the blocks of its
    inserts, None without any. `is_final` says that no fork can take back what it inserts, and that
    it takes nothing back. Rows of another source than ours are not cut into blocks: `is_numbered`
    says that each micro-batch counts as one, with the number that Spark gives it.
    """

    id: int
    query: str
    rows: Any
    count: int = 0
    first: int | None = None
    last: BlockHeader | None = None
    is_final: bool = False
    is_numbered: bool = False

    @property
    def own(self) -> Any:
        """The rows without the columns of the changelog."""
        if self.is_numbered:
            return self.rows
        if isinstance(self.rows, pa.Table):
            return self.rows.drop_columns(CHANGE_COLUMNS.names)
        return self.rows.drop(*CHANGE_COLUMNS.names)


class ForeachBatch(ABC):
    """What `foreachBatch` is given. `output` is the name under which `on_data` finds the rows."""

    def __init__(self, stream_id: str, output: str) -> None:
        self._id = stream_id
        self._output = output

    def __call__(self, micro_batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, unless it is written already. Called by Spark."""
        session = micro_batch.sparkSession
        query = session.sparkContext.getLocalProperty(_QUERY) or ""
        micro_batch = micro_batch.persist()
        try:
            self.write(_looked_at(micro_batch, batch_id, query), lambda: session)
        finally:
            micro_batch.unpersist()

    def write(self, given: MicroBatch, spark: SparkProvider) -> None:
        """Write one micro-batch, unless it is held; it is durable when this returns.

        After an error the next one finds out anew what is stored.
        """
        try:
            self._write(given, spark)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _write(self, given: MicroBatch, spark: SparkProvider) -> None: ...

    @abstractmethod
    def next_id(self) -> int:
        """Return the id of the micro-batch that comes next: of one who writes without a query."""

    @abstractmethod
    def close(self) -> None:
        """Release the target. To be called when the query has ended; it may be written again."""

    def _final_batches(self, given: MicroBatch, state: PipeState) -> list[Batch[Delivery]]:
        """Return a micro-batch of final blocks as one batch, whose rows may stay on executors.

        No batch if all is held; without the blocks that are, if the target stands among them.
        """
        last, first = given.last, given.first
        assert last is not None and first is not None, "it inserts something"  # noqa: PT018
        if state.number == last.number and state.cursor != last.cursor:
            raise MicroBatchOrderError(
                "the target holds another final block than the query",
                holds=state.cursor,
                given=last,
            )
        if state.number >= last.number:
            return []
        rows = given.own
        if first <= state.number:
            rows = rows_above(rows, number_column(column_names(rows)), state.number)
            first = state.number + 1
        head = Head(last.cursor)
        batch = Batch((last,), head, state.advance((last,), head), (), rows)
        return [self._with_context(batch, last.number - first + 1, given.count)]

    def _with_context(self, batch: Batch[Any], blocks: int, rows: int) -> Batch[Delivery]:
        """Return a batch with its delivery. Only a portal knows more than the context is told."""
        last = batch.headers[-1].cursor
        state = StreamState(0, None, last, (BlockRange(0),), batch.rollback_chain)
        progress = Progress(0, None, last.number, None, None, None)
        info = StreamInfo(None, batch.head, state, progress, QueryInfo("", "", b""))
        counts = partial(BatchCounts, 0, rows, {})
        ctx = BatchContext(self._id, info, BatchInfo(blocks, counts, counts))
        return batch.with_data(Delivery({self._output: batch.data}, ctx))


def foreach_batch(
    target: Target[Delivery] | OwnedTarget, *, id: str, output: str = "rows"
) -> ForeachBatch:
    """Return what `writeStream.foreachBatch` takes to write a changelog into a target.

    Args:
        target: a target that keeps side tables, or one of `create_target`, whose `write` is called
            for each micro-batch of final blocks; no other stream may write it under this id.
        id: the key of the stored state, as that of a stream; never rename it.
        output: the name under which `on_data` finds the rows. Their columns are those of the batch
            source, without those of the changelog.

    Raises:
        StreamIdError: the id is empty, or names no file or folder.
        MicroBatchTargetError: the target cannot tell which micro-batches it holds.
        InvalidOptionError: it is no target.
    """
    check_id(id)
    check_target(target)
    if isinstance(target, OwnedTarget):
        return _IntoOwned(target, id, output)
    return _IntoTarget(target, id, output)


# --- a target of ours -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Change:
    """The rows of one block that came or went."""

    cursor: BlockCursor
    sign: int
    finalized: int | None
    rows: pa.Table


class _IntoTarget(ForeachBatch):
    """Writes micro-batches as batches, each with its id."""

    def __init__(self, target: Target[Delivery], stream_id: str, output: str) -> None:
        super().__init__(stream_id, output)
        self._target = target
        self._state: PipeState | None = None
        self._log = MicroBatchLog(target, stream_id)

    def _write(self, given: MicroBatch, spark: SparkProvider) -> None:
        state = self._recovered()
        last = None if given.last is None else given.last.cursor
        if not self._log.is_due(given.id, given.query, last, state):
            return
        if given.is_final:
            batches = self._final_batches(given, state)
        else:
            batches = self._hot_batches(given, state, spark)
        if batches:
            self._commit(given.id, batches)
        else:
            self._log.passed(given.id, state)

    def close(self) -> None:
        self._state = None
        self._target.close()

    def next_id(self) -> int:
        self._recovered()
        return self._log.next_id()

    def _hot_batches(
        self, given: MicroBatch, state: PipeState, spark: SparkProvider
    ) -> list[Batch[Delivery]]:
        """Take back what is retracted; return a batch for each block that came."""
        rows = given.rows if isinstance(given.rows, pa.Table) else given.rows.toArrow()
        changes = list(_changes(rows)) if given.count else []
        gone = [change.cursor for change in changes if change.sign < 0]
        if any(point in gone for point in (*state.rollback_chain, state.cursor)):
            state = self._take_back(given.id, state, gone)
        batches: list[Batch[Delivery]] = []
        for change in changes:
            if change.sign > 0 and change.cursor not in state.landing_points():
                batch = _hot_batch(state, change, spark)
                batches.append(self._with_context(batch, 1, change.rows.num_rows))
                state = batch.state
        return batches

    def _take_back(self, batch_id: int, state: PipeState, gone: Sequence[BlockCursor]) -> PipeState:
        lowest = min(cursor.number for cursor in gone)
        safe = newest_at_or_below(state.landing_points(), lowest - 1)
        if safe is None:
            raise ForkCursorMissingError(
                "the target holds nothing below what is retracted", lowest=lowest
            )
        state = state.rewind(safe)
        self._log.takes_back(batch_id, state)
        self._target.roll_back(state)
        self._log.went_back(state)
        self._state = state
        return state

    def _commit(self, batch_id: int, batches: list[Batch[Delivery]]) -> None:
        """Commit batches, and with the last of them the id of the micro-batch."""
        last = batches[-1]
        side = self._log.rows(batch_id, last.state)
        batches[-1] = last.with_data(replace(last.data, side=side))
        self._target.commit([prepared(self._target, batch) for batch in batches], last.state)
        self._log.committed(batch_id, last.state)
        self._state = last.state

    def _recovered(self) -> PipeState:
        if self._state is None:
            self._target.bind(self._id)
            self._log.open()
            self._state = self._target.recover()
            self._log.read()
        return self._state


# --- a target of the user's -----------------------------------------------------------------------


class _IntoOwned(ForeachBatch):
    """Calls `write` of a target that the user owns, once for each micro-batch of final blocks."""

    def __init__(self, target: OwnedTarget, stream_id: str, output: str) -> None:
        super().__init__(stream_id, output)
        self._target = target
        self._given: BlockCursor | None = None  # in this process

    def _write(self, given: MicroBatch, spark: SparkProvider) -> None:
        if not given.count:
            return
        if not given.is_final:
            raise MicroBatchTargetError(
                "a target of create_target takes final blocks alone: read with finalOnly=true",
                given=given.id,
            )
        assert given.last is not None, "a micro-batch of final blocks has one"
        is_read = False

        def read(cursor: BlockCursor | None = None) -> Iterator[StreamBatch]:
            """Hand out what of the micro-batch is above the user's cursor."""
            nonlocal is_read
            check_cursor(cursor)
            before = self._given
            if before is not None and (cursor is None or cursor.number < before.number):
                raise MicroBatchGapError(
                    "write reads from below what it was handed before",
                    cursor=cursor,
                    handed=before,
                )
            state = PipeState(cursor, cursor, () if cursor is None else (cursor,))
            for batch in self._final_batches(given, state):
                yield StreamBatch(batch.data.data, batch.data.ctx)
            is_read = True

        self._target.write(read)
        if not is_read:
            raise MicroBatchReadError(
                "write returned before it had all of a micro-batch", given=given.id
            )
        self._given = given.last.cursor

    def next_id(self) -> int:
        raise MicroBatchTargetError("a target of create_target takes micro-batches of a query")

    def close(self) -> None:
        """Hold nothing: the next cursor says where the target stands."""
        self._given = None


# --- what a micro-batch holds ---------------------------------------------------------------------


def _looked_at(frame: DataFrame, batch_id: int, query: str) -> MicroBatch:
    """Ask Spark what a micro-batch holds; one job."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own spelling

    number = F.col(number_column(frame.columns))
    came = F.when(F.col("_sign") > 0, number)
    counts = frame.agg(
        F.count("*"),
        F.min("_sign"),
        F.min("_finalized"),
        F.min(came),
        F.max(came),
        F.max_by("_row_id", came),
    ).first()
    assert counts is not None, "an aggregate without groups has a row"
    count, sign, finalized, first, last, row_id = counts
    if last is None:
        return MicroBatch(batch_id, query, frame, count)
    is_final = sign > 0 and finalized is not None and last <= finalized
    header = BlockHeader(last, block_hash(row_id))
    return MicroBatch(batch_id, query, frame, count, first, header, is_final)


def _hot_batch(state: PipeState, change: _Change, spark: SparkProvider) -> Batch[Frame]:
    """Return the batch of a block that came."""
    number, final = change.cursor.number, change.finalized
    # another branch may have rows in blocks below the first one that had some here
    before = number - 1 if state.cursor is not None else min(number - 1, 0)
    header = BlockHeader(number, str(change.cursor.hash), _BEFORE, before, change.cursor.timestamp)
    ours = None
    if final is not None:
        points = (*state.landing_points(), change.cursor)
        ours = newest_at_or_below(points, final)
    head = Head(ours)
    after = state.advance((header,), head)
    hot = hot_cursors((header,), -1 if final is None else final)
    return Batch((header,), head, after, hot, Frame(change.rows, spark))


def _changes(rows: pa.Table) -> Iterator[_Change]:
    """Cut a changelog's rows by version, in order: each is a block that came or went."""
    rows = rows.sort_by([("_commit_version", "ascending")])
    versions = rows["_commit_version"].combine_chunks()
    number = number_column(rows.column_names)
    own = [name for name in rows.column_names if name not in CHANGE_COLUMNS.names]
    for version in pc.unique(versions).to_pylist():
        part = rows.filter(pc.equal(versions, version))
        first = part.select([number, "_row_id", "_sign", "_finalized"]).slice(0, 1).to_pylist()[0]
        # no datetime: it ends with the year 9999
        time = part["_commit_timestamp"].cast(pa.int64())[0].as_py()
        seconds = None if time is None else time // _MICROSECONDS
        cursor = BlockCursor(first[number], block_hash(first["_row_id"]), seconds)
        yield _Change(cursor, first["_sign"], first["_finalized"], part.select(own))
