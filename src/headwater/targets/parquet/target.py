"""A folder of Parquet files as a target: final rows only, in files that anybody can read.

    <dir>/<table>/000000000150-000000000180.parquet    rows of blocks 150 to 180; in an object store
                                                       the epoch of the writer follows: -e000003
    <dir>/_headwater/<stream>/…json                    the state: cursor, and what files cover

A commit takes rows in; they are published once their blocks are final and a rule of `Rollover` is
met: the files first, then the state that makes them count. So a crash leaves, at worst, files above
the stored cursor, and every start removes these before anything is read. Rows of blocks that a fork
may still take are held back and never reach a file. They are not stored: the stored cursor is that
of the last published block, and a restart reads what follows it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core import Batch, PipeState
from headwater.core.callbacks import Callback
from headwater.core.rooms import Policy
from headwater.core.several import Several
from headwater.errors import (
    CursorMoveError,
    InvalidOptionError,
    LakeForeignWriteError,
    ParquetWriteError,
    ParquetWriterError,
    StateMissingError,
    UnexplainedFilesError,
)
from headwater.runtime import ALONE, Runtime
from headwater.targets.contract import Capabilities, Delivery, StoredConfig
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.lake.columns import check_columns, conform, fitting, lake_schema
from headwater.targets.lake.files import COMPRESSION, GROUP_ROWS, FilePlan, write_distributed
from headwater.targets.lake.paths import (
    Options,
    Place,
    coded_full_disk,
    coded_storage_errors,
    coded_storage_failures,
)
from headwater.targets.lake.settings import Table, check_folder_name, declared_tables
from headwater.targets.parquet.held import Held, HeldBatch, by_range, covered
from headwater.targets.parquet.state import Folder, StateFiles, Stored, check_owners
from headwater.targets.parquet.tx import Tx
from headwater.targets.parquet.windows import (
    Rollover,
    Window,
    leftovers,
    staged_epoch,
    staged_stem,
    window_of,
)
from headwater.targets.tables import TableOptions
from headwater.targets.values import Altered, Tally, check_policy

MEMORY_BYTES = 256 << 20
STAGING = "_staging"
OnData = Callable[[Tx, Any], object] | Callable[[Tx, Any, Any], object]
logger = logging.getLogger("headwater.targets.parquet")


def parquet_target(
    dir: str | Path,
    *,
    tables: Several[str | TableOptions | Table] | None = None,
    on_data: OnData | None = None,
    rollover: Rollover | None = None,
    memory_bytes: int = MEMORY_BYTES,
    compression: str = COMPRESSION,
    options: Options | None = None,
    unrepresentable: str = "replace",
    id: str | None = None,
) -> ParquetTarget:
    """Write the final rows of a stream to Parquet files.

    Args:
        dir: a directory, `s3://bucket/prefix`, or any path that fsspec knows; a folder per table.
        tables: every table that `on_data` writes, as a name or `table(name, evolve=True)`. Without
            `on_data`, only those that need more than their name.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called once per batch with a `tx`
            that inserts. Left out, each output goes into the table of its own name.
        rollover: when final rows are published; by default at 128 MiB of one table's rows, or after
            10 minutes. Spans of a backfill are published at once.
        memory_bytes: of rows that wait; more of them are kept in temporary files.
        compression: of the files: zstd, snappy, gzip, none and so on.
        options: credentials and addresses of an object store (`s3.endpoint`, `s3.region`,
            `s3.access-key-id`, `s3.secret-access-key`); left out, those of the environment.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        id: the key of the stored state, if not the stream's id.
    """
    if on_data is not None and tables is None:
        raise InvalidOptionError("on_data is given, but not the tables that it writes")
    lacking = ("key", "partition_by", "order_by", "properties")
    declared = declared_tables(tables, without=lacking)
    for name in declared:
        check_folder_name(name)
    if type(memory_bytes) is not int or memory_bytes < 0:
        raise InvalidOptionError("memory_bytes is a whole number from 0", got=repr(memory_bytes))
    return ParquetTarget(
        Place.of(dir, options),
        declared,
        Callback.optional("on_data", on_data, "tx, data", "tx, data, ctx"),
        rollover or Rollover(),
        memory_bytes,
        compression,
        id,
        check_policy(unrepresentable),
    )


class ParquetTarget:
    """Made by `parquet_target`. All calls come from one thread of the driver.

    `clock` says the seconds by which a roll-over is due, `folder.on_io` is called before each
    change of a file, both for tests.
    """

    def __init__(
        self,
        place: Place,
        tables: dict[str, Table],
        on_data: Callback | None,
        rollover: Rollover,
        memory_bytes: int,
        compression: str,
        given_id: str | None,
        policy: Policy = Policy.REPLACE,
    ) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.altered = Altered(policy)
        self.folder = Folder(place)
        self._tables = tables
        self._on_data = on_data
        self._rollover = rollover
        self._memory_bytes = memory_bytes
        self._compression = compression
        self._given_id = given_id
        self._id = given_id or "stream"
        self._files: StateFiles | None = None
        self._state = PipeState()
        self._stored = Stored()
        self._held = Held(memory_bytes)
        self._published: list[str] = []  # with the state that is being stored

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It keeps the configuration, and publishes what is final when all is read."""
        return Capabilities(
            config=self,
            finish=self._finish,
            uses_frames=self._on_data is not None,
            altered=self.altered.totals,
        )

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Take the stream's id, unless the target was given another."""
        if self._files is not None:
            raise InvalidOptionError("a target is bound before it is opened", stream=stream_id)
        self._id = self._given_id or stream_id

    def recover(self) -> PipeState:
        """Return the stored state, after removing the files that lie above its cursor.

        Raises:
            ParquetWriterError: another process writes this stream.
            LakeForeignWriteError: another stream writes one of its tables.
            StateMissingError: there is no state, but files of the declared tables are.
            UnexplainedFilesError: a file is there that nothing explains; nothing was deleted.
            LakePathError: the storage cannot be reached.
        """
        with coded_storage_errors():
            if self._files is None:
                self._files = StateFiles(self.folder, self._id)
            self._stored, known = self._files.claim()
            if not known:
                self._refuse_lost_state()
            self._held = Held(self._memory_bytes)
            self._state = self._stored.state
            self._repair()
        return self._state

    @coded_full_disk()
    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Take the batches in, and publish what has become final if it is due."""
        self.altered.begin()
        states = [self._state, *(batch.state for batch in batches[:-1]), state]
        for batch, (before, after) in zip(batches, pairwise(states), strict=False):
            self._take(batch, before, after)
        self.altered.committed()
        self._state = state
        final = state.undo_floor
        going = self._held.up_to(final)
        if going and self._is_due(going):
            self._publish(going)

    def roll_back(self, state: PipeState) -> None:
        """Forget the rows of orphaned blocks: they were never published."""
        self._state.check_reach(state)
        self._held.drop_above(state.number)
        self._state = state

    def move(self, state: PipeState) -> None:
        """Take the folder to a block, back or ahead; an operator's command, on an open target.

        Files above it do not count from then on: this start, or the next one, removes them.

        Raises:
            CursorMoveError: a file covers blocks on both sides.
        """
        number, forward = state.number, state.number > self._stored.state.number
        coverage = dict(self._stored.coverage)
        for name, first in coverage.items():
            found = map(window_of, self.folder.names(name))
            across = [one for one in found if one and one.first <= number < one.last]
            if across and not forward:
                raise CursorMoveError(
                    "a file covers blocks on both sides, and files never change",
                    table=name, wanted=number, lower=min(across).first - 1, higher=max(across).last,
                )  # fmt: skip
            coverage[name] = number + 1 if forward else min(first, number + 1)
        with coded_storage_failures():
            self._save(replace(self._stored, state=state, coverage=coverage))
            self._state = state
            self._repair()

    def forget(self, *, keep_data: bool) -> None:
        """Forget the stream; its files are removed, at once or when the stream begins anew."""
        tables = dict.fromkeys(self._stored.coverage, 0)
        with coded_storage_failures():
            self._save(Stored(coverage=tables, schemas=self._stored.schemas))
            self._state = PipeState()
            if not keep_data:
                self._repair()
                self._save(Stored())

    def close(self) -> None:
        """Let go of the stream; what is not published is read again by the next start."""
        files, self._files = self._files, None
        if files is not None:
            files.release()
        self._held = Held(self._memory_bytes)
        self._state = PipeState()

    def stored_config(self) -> StoredConfig:
        """Return where the text of this stream's configuration is kept."""
        return _Config(self)

    def held_rows(self, name: str) -> pa.Table:
        """Return the rows of a table that are not published yet, as far as the driver has them."""
        schema = self._stored.schemas.get(name)
        rows = [one for batch in self._held for one in batch.rows.get(name, ())]
        return pa.concat_tables(rows) if rows else (schema or pa.schema([])).empty_table()

    # --- taking rows in ---------------------------------------------------------------------------

    def _take(self, batch: Batch[Delivery], before: PipeState, after: PipeState) -> None:
        assert self._files is not None, "a target recovers before it commits"
        assert after.cursor is not None, "a batch ends in a block"
        start, first, blocks = covered(batch)
        held = HeldBatch(after.cursor, start, first, blocks, self.clock())
        final = after.number <= self._state.undo_floor or not after.is_hot
        tx = Tx(self, held, (before.number + 1, after.number), far=final and _is_span(batch))
        delivery = batch.data
        if self._on_data is None:
            for name, frame in delivery.data.items():
                tx.insert(name, frame)
        else:
            self._on_data(tx, delivery.data, delivery.ctx)
        self._held.add(held)

    def insert(self, held: HeldBatch, name: str, frame: Any, window: Any, *, far: bool) -> None:
        """Add rows to a batch; called by its `Tx`."""
        if self._on_data is not None and name not in self._tables:
            raise ParquetWriteError("a table is written that was not declared", table=name)
        rows, tally = executor_rows(frame) if far else None, Tally()
        last = held.cursor.number
        if rows is not None and rows.reaches_driver:
            schema = self._prepare(name, rows.schema, held.first)
            assert self._files is not None, "a target recovers before it writes"
            stem = staged_stem(window[0], window[1], self._files.epoch)
            plan = FilePlan(
                self.folder.place, schema, stem, f"{name}/{STAGING}",
                block_column="block_number", window=window, compression=self._compression,
                fitting=fitting(rows.schema, schema, self.altered.policy, block=last),
            )  # fmt: skip
            held.staged.setdefault(name, []).extend(write_distributed(plan, rows, tally))
            self.altered.note(name, tally)
            return
        found = to_arrow(frame)
        schema = self._prepare(name, found.schema, held.first)
        found = fitting(found.schema, schema, self.altered.policy, block=last).apply(found, tally)
        self.altered.note(name, tally)
        fitted = [conform(one, schema) for one in found.combine_chunks().to_batches()]
        held.rows.setdefault(name, []).append(pa.Table.from_batches(fitted, schema))

    def _prepare(self, name: str, frame: pa.Schema, first: int) -> pa.Schema:
        """Return the columns of a table; write down a new one before anything is published."""
        stored = self._stored
        known = stored.schemas.get(name)
        if known is None:
            check_folder_name(name)
            if any(not one.startswith(("_", ".")) for one in self.folder.names(name)):
                raise UnexplainedFilesError(
                    "the folder of a new table holds files that are not the stream's", table=name
                )
            known = lake_schema(frame)
        else:
            wider = _evolved(known, frame)
            if wider == known or not self._tables.get(name, Table(name)).evolve:
                check_columns(name, frame, known)
                return known
            check_columns(name, frame, wider)
            known = wider
        coverage = {**stored.coverage, name: stored.coverage.get(name, first)}
        self._save(replace(stored, coverage=coverage, schemas={**stored.schemas, name: known}))
        if name not in stored.coverage:
            try:
                check_owners(self.folder.place, self._id, [name])
            except LakeForeignWriteError:
                self._save(stored)
                raise
        return known

    # --- publishing -------------------------------------------------------------------------------

    def _is_due(self, going: Sequence[HeldBatch]) -> bool:
        names = {name for one in going for name in one.tables()}
        if not names or any(one.staged for one in going):
            return True
        return self._rollover.is_due(
            size=max(sum(one.size(name) for one in going) for name in names),
            rows=max(sum(one.count(name) for one in going) for name in names),
            blocks=sum(one.blocks for one in going),
            seconds=self.clock() - going[0].since,
        )

    @coded_storage_failures()
    def _publish(self, going: Sequence[HeldBatch], *, all_tables: bool = False) -> None:
        """Publish batches of final blocks, then the state: the commit point.

        A table without rows waits, unless its range has ended: then an empty file says so.
        """
        assert self._files is not None, "a target recovers before it publishes"
        self._files.check()
        self._published = []
        coverage, previous = dict(self._stored.coverage), self._stored.state.number
        for start, several in by_range(going):
            last = several[-1].cursor.number
            for name in coverage:
                if coverage[name] < start:
                    self._publish_table(name, (), coverage[name], previous)
                    coverage[name] = start
                if any(one.count(name) for one in several):
                    self._publish_table(name, several, coverage[name], last)
                    coverage[name] = last + 1
            previous = last
        if all_tables:
            for name in coverage:
                self._publish_table(name, (), coverage[name], previous)
                coverage[name] = max(coverage[name], previous + 1)
        state = self._stored.state
        if going:
            cursor = going[-1].cursor
            final = None if self._state.finalized is None else cursor
            state = PipeState(cursor, final, (cursor,))
        try:
            self._save(replace(self._stored, state=state, coverage=coverage))
        except ParquetWriterError:
            self._take_back()
            raise
        self._held.drop_up_to(state.number)

    def _publish_table(
        self, name: str, batches: Sequence[HeldBatch], first: int, last: int
    ) -> None:
        """Publish the rows of one window: those in memory as one file, then staged files."""
        if first > last:
            return
        window, schema = Window(first, last), self._stored.schemas[name]
        rows = [one for batch in batches for one in batch.rows.get(name, ()) if one.num_rows]
        staged = [one for batch in batches for one in batch.staged.get(name, ())]
        parts = len(staged) + (1 if rows or not staged else 0)
        assert self._files is not None, "a target recovers before it publishes"
        epoch = self._files.epoch
        names = [f"{name}/{window.file_name(part, parts, epoch)}" for part in range(parts)]
        self._published += names
        if staged:
            given = zip(staged, names[parts - len(staged) :], strict=True)
            self.folder.publish({one.name: to for one, to in given})
        if parts > len(staged):
            self.folder.put(names[0], self._parquet(rows, schema))
        logger.info("window.published id=%s table=%s blocks=%d..%d", self._id, name, first, last)

    def _take_back(self) -> None:
        """Delete what was published for a state that does not count: another writer took over.

        Its files have names of another epoch. What is not deleted here, its next start removes.
        """
        if self._files is not None and self._files.epoch:
            for name in self._published:
                self.folder.delete(name)

    def _parquet(self, rows: Sequence[pa.Table], schema: pa.Schema) -> bytes:
        """Return rows as the bytes of a Parquet file."""
        sink = BytesIO()
        with pq.ParquetWriter(sink, schema, compression=self._compression) as writer:
            for one in rows:
                for batch in one.to_batches():
                    writer.write_batch(conform(batch, schema), row_group_size=GROUP_ROWS)
        return sink.getvalue()

    def _finish(self) -> None:
        """Publish all that is final: the range is read. Every table says how far it goes."""
        going = self._held.up_to(self._state.undo_floor)
        owing = any(first <= self._stored.state.number for first in self._stored.coverage.values())
        if going or owing:
            self._publish(going, all_tables=True)

    # --- the state --------------------------------------------------------------------------------

    def _save(self, stored: Stored) -> None:
        assert self._files is not None, "a target recovers before it stores anything"
        self._files.save(stored)
        self._stored = stored

    def _repair(self) -> None:
        """Remove what a crash has left; refuse what nothing explains before removing anything.

        All that is removed is of an earlier epoch, or a lock keeps others out.
        """
        assert self._files is not None, "a target claims its stream before it removes anything"
        check_owners(self.folder.place, self._id, self._stored.coverage)
        epoch = self._files.epoch
        names = {name: self.folder.names(name) for name in self._stored.coverage}
        found = {
            name: [one for one in several if "/" not in one] for name, several in names.items()
        }
        removed = leftovers(found, self._state.number, self._stored.coverage, epoch)
        for name, file in removed:
            logger.warning("file.removed id=%s table=%s file=%s", self._id, name, file)
            self.folder.delete(f"{name}/{file}")
        for name, several in names.items():
            for file in several:
                mark = staged_epoch(file.removeprefix(f"{STAGING}/"))
                if file.startswith((f"{STAGING}/", ".")) and (mark < epoch or not epoch):
                    self.folder.delete(f"{name}/{file}")
        self._files.check()

    def _refuse_lost_state(self) -> None:
        """Refuse to begin where files of the declared tables are, but no state."""
        for name in self._tables:
            if any(not one.startswith(("_", ".")) for one in self.folder.names(name)):
                raise StateMissingError(
                    "no state is stored, but files of the stream are", stream=self._id, table=name
                )


@dataclass(frozen=True, slots=True)
class _Config:
    """The stored configuration: a part of the state."""

    target: ParquetTarget

    def read(self) -> str | None:
        return self.target._stored.config

    def write(self, text: str) -> None:
        self.target._save(replace(self.target._stored, config=text))


def _is_span(batch: Batch[Delivery]) -> bool:
    """Tell whether executors are to read the blocks of a batch: then they write its rows, too."""
    counts = getattr(batch.data.ctx, "batch", None)
    return counts is not None and counts.blocks_count > len(batch.headers)


def _evolved(known: pa.Schema, frame: pa.Schema) -> pa.Schema:
    """Return the columns of a table that later rows widen: new ones, and larger numbers."""
    fields = {one.name: one for one in known}
    for one in lake_schema(frame):
        held = fields.get(one.name)
        if held is None or (held.type, one.type) in _WIDER:
            fields[one.name] = one
    return pa.schema(list(fields.values()))


_WIDER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}
