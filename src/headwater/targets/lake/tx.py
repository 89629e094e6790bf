"""`Tx`, which `on_data` writes lake tables with: rows become files at once, or wait in memory.

They count with the commit of their batch. Runs on the driver; rows of final blocks that lie on
executors become files there. `upsert` and `delete` copy on write: the files that hold a key are
written anew without it. That is exact and undone like anything else, but costs the size of those
files, so it is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange, PipeState
from headwater.errors import (
    EvolveError,
    LakeKeyError,
    LakeRewriteError,
    LakeUnsupportedError,
    ParquetWriteError,
)
from headwater.targets.contract import Scope
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.lake import merge
from headwater.targets.lake.columns import check_columns, conformed, fitting
from headwater.targets.lake.files import FilePlan, write_distributed
from headwater.targets.lake.paths import coded_storage_failures
from headwater.targets.lake.settings import Table
from headwater.targets.lake.state import Author, StoredStream, slug, window_stem
from headwater.targets.lake.table import (
    BLOCK_NUMBER,
    Announce,
    Change,
    File,
    LakeTable,
    LakeTables,
)
from headwater.targets.sql.changes import TableChanges
from headwater.targets.values import Altered, Fitting, Tally

_PLACE, _OLD = "__headwater_place", "__headwater_old"


class Tx(Generic[File]):
    """Writes one batch. `changes` collects what the commit is to do, by table.

    `room` is how many bytes the batch may rewrite. `far` says that executors write the rows that
    lie on them. With `widens` tables get the columns that frames have more.
    """

    def __init__(
        self,
        tables: LakeTables[File],
        stored: StoredStream,
        scope: Scope,
        state: PipeState,
        room: int,
        announce: Announce,
        altered: Altered,
        declared: Mapping[str, Table],
        *,
        far: bool,
        widens: bool,
    ) -> None:
        self.changes: dict[str, Change[File]] = {}
        self._widens = widens
        self._tables, self._stored = tables, stored
        self._far = far
        self._scope = scope
        self._state = state
        self._room = room
        self._announce = announce
        self._altered = altered
        self._declared = declared
        author = Author(slug(stored.stream_id), stored.epoch)
        self._stem = window_stem(author, scope.after + 1, scope.block)

    def insert(self, table: str, frame: Any) -> None:
        """Add rows. Columns that the frame lacks are null."""
        far = executor_rows(frame) if self._far else None
        if far is not None and far.reaches_driver:
            lake_table, plan = self._plan(table, far.schema)
            self._announce(f"write files of {table}")
            tally = Tally()
            fitting = self._fitting(lake_table, far.schema)
            written = write_distributed(replace(plan, fitting=fitting), far, tally)
            self._add(lake_table, map(lake_table.data_file, written))
            self._altered.note(table, tally)
            return
        rows = to_arrow(frame)
        lake_table, plan = self._plan(table, rows.schema)
        self._write(lake_table, plan, self._fitted(lake_table, rows))

    def upsert(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Add rows, or replace the columns that the frame has where the key exists already."""
        self._check_changes(table)
        rows = to_arrow(frame)
        lake_table, plan = self._plan(table, rows.schema)
        wanted = _check_key(table, key or lake_table.key, lake_table.columns.names)
        missing = [name for name in lake_table.columns.names if name not in rows.column_names]
        rows = conformed(self._fitted(lake_table, rows), lake_table.columns)
        before = self._take_out(lake_table, _distinct_keys(table, rows, wanted, once=True))
        if missing and before.num_rows:
            rows = _filled(rows, before, wanted, missing)
        self._write(lake_table, plan, rows)

    def delete(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Remove the rows that have one of these keys; a key that is not there is no error."""
        self._check_changes(table)
        rows = to_arrow(frame)
        lake_table = self._find(table)
        if lake_table is None:
            return
        wanted = _check_key(table, key or lake_table.key, lake_table.columns.names)
        check_columns(table, rows.schema, lake_table.columns)
        columns = pa.schema([lake_table.columns.field(name) for name in wanted])
        rows = self._fitted(lake_table, rows.select(wanted))
        self._take_out(
            lake_table, _distinct_keys(table, conformed(rows, columns), wanted, once=False)
        )

    def apply(self, frame: Any) -> None:
        """Apply a table of changes (`headwater.changes`) to tables declared by a `TableSchema`."""
        tables = [table.schema for table in self._declared.values() if table.schema is not None]
        merge.apply_changes(self, tables, to_arrow(frame), self._scope.block, self._scope.hot)

    def merge(
        self, table: str, columns: pa.Schema, key: Sequence[str], changes: TableChanges
    ) -> None:
        """Replace the rows that changes are about by what they make of them."""
        self._check_changes(table)
        lake_table, _ = self._plan(table, columns)
        _check_key(table, key, lake_table.columns.names)
        keys = merge.touched_keys(changes, lake_table)
        keys = conformed(keys, pa.schema([lake_table.columns.field(name) for name in key]))
        rows = self._fitted(
            lake_table, merge.merged(changes, lake_table, self._take_out(lake_table, keys))
        )
        self._write(
            lake_table,
            lake_table.plan(lake_table.columns, self._stem),
            conformed(rows, lake_table.columns),
        )

    def put_in_place(self, table: str, frame: Any, blocks: BlockRange) -> None:
        """Add rows of some blocks; those that the table has of these blocks go.

        Raises:
            EvolveError: the table does not say the block of each row.
        """
        far = executor_rows(frame)
        rows = frame if far is not None else to_arrow(frame)
        schema = rows.schema if far is None else far.schema
        if BLOCK_NUMBER not in schema.names:
            raise EvolveError(
                "rows that are filled must say their block: a crash would double them",
                table=table,
                column=BLOCK_NUMBER,
            )
        lake_table = self._find(table)
        if lake_table is not None:
            self._take_out_blocks(lake_table, blocks)
        self.insert(table, rows)

    def execute(self, sql: str, *given: object, **more: object) -> NoReturn:
        """Refuse: there is no engine here that runs SQL."""
        raise LakeUnsupportedError("lake targets run no SQL: tx.execute is not offered")

    def query(self, sql: str, *given: object, **more: object) -> NoReturn:
        """Refuse: there is no engine here that runs SQL."""
        raise LakeUnsupportedError("lake targets run no SQL: tx.query is not offered")

    def _check_changes(self, table: str) -> None:
        """Refuse changes by key where files never change, before a table is made for them."""
        if not self._tables.changes:
            raise ParquetWriteError("Parquet files take inserts alone", table=table)

    def _find(self, name: str, schema: pa.Schema | None = None) -> LakeTable[File] | None:
        """Return a table; it is created for columns, if some are given."""
        return self._tables.get(name, schema, self._stored)

    def _plan(self, name: str, schema: pa.Schema) -> tuple[LakeTable[File], FilePlan]:
        with coded_storage_failures():
            lake_table = self._find(name, schema)
            assert lake_table is not None, "a schema was given"
            if self._widens:
                lake_table.widen(schema)
            return lake_table, lake_table.plan(schema, self._stem)

    def _fitting(self, table: LakeTable[File], frame: pa.Schema) -> Fitting:
        policy, block = self._altered.policy, self._scope.block
        return fitting(frame, table.columns, policy, table.key, block)

    def _fitted(self, table: LakeTable[File], rows: pa.Table) -> pa.Table:
        """Return rows whose values have a place in a table."""
        tally = Tally()
        rows = self._fitting(table, rows.schema).apply(rows, tally)
        self._altered.note(table.name, tally)
        return rows

    def _write(self, table: LakeTable[File], plan: FilePlan, rows: pa.Table) -> None:
        if rows.num_rows:
            self._announce(f"write files of {table.name}")
            with coded_storage_failures():
                self._add(table, table.written(plan, rows))

    def _add(self, table: LakeTable[File], files: Iterable[tuple[str, File]]) -> None:
        for path, file in files:
            self._change(table).added[path] = file
            table.add(path, file)

    def _change(self, table: LakeTable[File]) -> Change[File]:
        return self.changes.setdefault(table.name, Change(self._state))

    def _take_out(self, table: LakeTable[File], keys: pa.Table) -> pa.Table:
        """Write the files that hold a key anew, without it; return the rows that were taken out."""
        taken = [table.columns.empty_table()]
        for path, file in self._candidates(table, keys).items():
            with coded_storage_failures():
                rows = table.read([file])
            matching, others = _split_by_key(rows, keys)
            if not matching.num_rows:
                continue
            taken.append(matching)
            self._replace(table, path, others)
        return pa.concat_tables(taken)

    def _take_out_blocks(self, table: LakeTable[File], blocks: BlockRange) -> None:
        """Remove the files of these blocks; one that holds others, too, is written anew."""
        assert blocks.to_block is not None, "a batch ends in a block"
        first, last = ends = blocks.from_block, blocks.to_block
        affected = [
            (path, file)
            for path, file in table.live().items()
            if table.may_hold(file, {BLOCK_NUMBER: ends})
        ]
        for path, file in affected:
            low, high = table.ends(file, BLOCK_NUMBER)
            if low is not None and high is not None and first <= low and high <= last:
                self._replace(table, path, None)
                continue
            with coded_storage_failures():
                rows = table.read([file])
            mine = pc.and_(
                pc.greater_equal(rows.column(BLOCK_NUMBER), first),
                pc.less_equal(rows.column(BLOCK_NUMBER), last),
            )
            others = rows.filter(pc.invert(pc.fill_null(mine, False)))
            if others.num_rows < rows.num_rows:
                self._replace(table, path, others)

    def _replace(self, table: LakeTable[File], path: str, rows: pa.Table | None) -> None:
        """Remove a file; write the rows that stay, if there are some."""
        change, file = self._change(table), table.live().pop(path)
        if change.added.pop(path, None) is None:
            change.removed[path] = file
        if rows is not None:
            self._write(table, table.plan(rows.schema, self._stem), rows)

    def _candidates(self, table: LakeTable[File], keys: pa.Table) -> dict[str, File]:
        """Return the files that may hold a key, by their statistics.

        Raises:
            LakeRewriteError: they are more than one batch may rewrite.
        """
        if not keys.num_rows:
            return {}
        ranges = {}
        for name in keys.column_names:
            ends = pc.min_max(table.comparable(keys.column(name))).as_py()
            ranges[name] = (ends["min"], ends["max"])
        with coded_storage_failures():
            live = table.live()
        candidates = {path: file for path, file in live.items() if table.may_hold(file, ranges)}
        size = sum(map(table.size_of, candidates.values()))
        if size > self._room:
            raise LakeRewriteError(
                "a change by key would rewrite too much of the table",
                table=table.name, bytes=size, allowed=self._room,
            )  # fmt: skip
        self._room -= size
        return candidates


# --- keys: which rows have one, and which have none -----------------------------------------------


def _check_key(table: str, key: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the columns of a key; refuse one that the table lacks."""
    if not key or set(key) - set(columns):
        raise LakeKeyError("a key of columns of the table is needed", table=table, got=list(key))
    return list(key)


def _distinct_keys(table: str, rows: pa.Table, key: list[str], *, once: bool) -> pa.Table:
    """Return the keys of rows; refuse rows without one, and with `once` two rows of the same."""
    keys = rows.select(key)
    nulls = sum(keys.column(name).null_count for name in key)
    if nulls:
        raise LakeKeyError("rows have no key", table=table, rows=nulls)
    distinct = keys.group_by(key).aggregate([])
    if once and distinct.num_rows < keys.num_rows:
        twice = keys.num_rows - distinct.num_rows
        raise LakeKeyError("two rows have the same key", table=table, rows=twice)
    return distinct


def _split_by_key(rows: pa.Table, keys: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that have one of the keys, and the others; both in order."""
    numbered = _numbered(rows.select(keys.column_names), _PLACE)
    joined = numbered.join(keys, keys.column_names, join_type="left semi")
    places = joined.column(_PLACE).combine_chunks().sort()
    everything = pa.array(range(rows.num_rows), pa.int64())
    others = everything.filter(pc.invert(pc.is_in(everything, places)))
    return rows.take(places), rows.take(others)


def _filled(rows: pa.Table, before: pa.Table, key: list[str], missing: Sequence[str]) -> pa.Table:
    """Return new rows with the values of the old ones in the columns that they lack."""
    new, old = _numbered(rows.select(key), _PLACE), _numbered(before.select(key), _OLD)
    joined = new.join(old, key, join_type="left outer").sort_by(_PLACE)
    places = joined.column(_OLD).combine_chunks()
    for name in missing:
        at = rows.schema.get_field_index(name)
        values = before.column(name).combine_chunks().take(places)
        rows = rows.set_column(at, rows.schema.field(at), values)
    return rows


def _numbered(rows: pa.Table, name: str) -> pa.Table:
    return rows.append_column(name, pa.array(range(rows.num_rows), pa.int64()))
