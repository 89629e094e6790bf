"""`Tx`, which `on_data` writes with: rows become files at once, and count with the batch's commit.

Runs on the driver; rows of final blocks that lie on executors become files there. `upsert` and
`delete` copy on write: the files that hold a key are written anew without it. That is exact and
undone like anything else, but costs the size of those files, so it is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile

from headwater.core import PipeState
from headwater.errors import (
    LakeKeyError,
    LakeRewriteError,
    LakeUnsupportedError,
    UndeclaredLakeTableError,
)
from headwater.targets.contract import Scope
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.iceberg.tables import StreamTable, StreamTables
from headwater.targets.lake.columns import check_columns, conform
from headwater.targets.lake.files import window_stem, write_distributed

_PLACE = "__headwater_place"


@dataclass(slots=True)
class BatchFiles:
    """What one batch changes of one table: files that come, and files that go."""

    state: PipeState
    added: dict[str, DataFile] = field(default_factory=dict)
    removed: dict[str, DataFile] = field(default_factory=dict)


class Tx:
    """Writes one batch. `changes` collects what the commit is to do, by table."""

    def __init__(
        self,
        tables: StreamTables,
        stream_id: str,
        epoch: int,
        scope: Scope,
        state: PipeState,
        rewrite_bytes: int,
        announce: Callable[[str], None],
    ) -> None:
        self.changes: dict[str, BatchFiles] = {}
        self._tables = tables
        self._epoch = epoch
        self._scope = scope
        self._state = state
        self._room = rewrite_bytes
        self._announce = announce
        self._stem = window_stem(stream_id, scope.after + 1, scope.block)

    def insert(self, table: str, frame: Any) -> None:
        """Add rows. Columns that the frame lacks are null."""
        far = None if self._scope.hot else executor_rows(frame)
        if far is not None and not far.reaches_driver:
            far = None
        rows = to_arrow(frame) if far is None else None
        schema = far.schema if far is not None else rows.schema if rows is not None else None
        held = self._held(table, schema)
        assert held is not None, "a frame was given"
        assert schema is not None
        plan = held.plan(schema, self._stem)
        self._announce(f"write files of {table}")
        if far is not None:
            files = write_distributed(plan, far)
        else:
            files = plan.write(rows.to_batches(50_000) if rows is not None else ())
        self._add(held, [held.data_file(one) for one in files])

    def upsert(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Add rows, or replace the columns that the frame has where the key exists already."""
        rows = to_arrow(frame)
        held = self._held(table, rows.schema)
        assert held is not None, "a frame was given"
        wanted = self._key(held, key)
        held.plan(rows.schema, self._stem)
        missing = [one for one in held.columns.names if one not in rows.column_names]
        rows = _conformed(rows, held.columns)
        keys = self._keys(held, rows, wanted, once=True)
        if not rows.num_rows:
            return
        before = self._take_out(held, keys)
        if missing and before.num_rows:
            rows = _filled(rows, before, wanted, missing)
        plan = held.plan(rows.schema, self._stem)
        self._announce(f"write files of {table}")
        files = plan.write(rows.to_batches(50_000))
        self._add(held, [held.data_file(one) for one in files])

    def delete(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Remove the rows that have one of these keys; a key that is not there is no error."""
        rows = to_arrow(frame)
        held = self._held(table, None)
        if held is None:
            return
        wanted = self._key(held, key)
        check_columns(table, rows.schema, held.columns)
        columns = pa.schema([held.columns.field(one) for one in wanted])
        self._take_out(held, self._keys(held, _conformed(rows, columns), wanted, once=False))

    def execute(self, sql: str, *given: object, **more: object) -> NoReturn:
        """Refuse: there is no engine here that runs SQL."""
        raise LakeUnsupportedError("lake targets run no SQL: tx.execute is not offered")

    def query(self, sql: str, *given: object, **more: object) -> NoReturn:
        """Refuse: there is no engine here that runs SQL."""
        raise LakeUnsupportedError("lake targets run no SQL: tx.query is not offered")

    # --- tables -----------------------------------------------------------------------------------

    def _held(self, name: str, schema: pa.Schema | None) -> StreamTable | None:
        if name not in self._tables.declared:
            raise UndeclaredLakeTableError("a table is written that was not declared", table=name)
        if schema is not None and self._tables.get(name, None, self._epoch) is None:
            self._announce(f"create table {name}")
        return self._tables.get(name, schema, self._epoch)

    def _change(self, table: StreamTable) -> BatchFiles:
        return self.changes.setdefault(table.name, BatchFiles(self._state))

    def _add(self, table: StreamTable, files: Sequence[DataFile]) -> None:
        for one in files:
            self._change(table).added[one.file_path] = one
            table.add(one)

    # --- keys -------------------------------------------------------------------------------------

    @staticmethod
    def _key(table: StreamTable, given: Sequence[str] | None) -> list[str]:
        wanted = list(given or table.declared.key)
        if not wanted or set(wanted) - set(table.columns.names):
            raise LakeKeyError(
                "a key of columns of the table is needed", table=table.name, got=wanted
            )
        return wanted

    @staticmethod
    def _keys(table: StreamTable, rows: pa.Table, wanted: list[str], *, once: bool) -> pa.Table:
        """Return the keys of rows; refuse rows without one, and two rows with the same."""
        keys = rows.select(wanted)
        nulls = sum(keys.column(one).null_count for one in wanted)
        if nulls:
            raise LakeKeyError("rows have no key", table=table.name, rows=nulls)
        distinct = keys.group_by(wanted).aggregate([])
        if once and distinct.num_rows < keys.num_rows:
            twice = keys.num_rows - distinct.num_rows
            raise LakeKeyError("two rows have the same key", table=table.name, rows=twice)
        return distinct

    def _take_out(self, table: StreamTable, keys: pa.Table) -> pa.Table:
        """Write the files that hold a key anew, without it; return the rows that were taken out."""
        live, change = table.live(), None
        taken = [table.columns.empty_table()]
        for file in self._candidates(table, keys):
            rows = table.read([file])
            places = _matching(rows, keys)
            if not len(places):
                continue
            change = change or self._change(table)
            taken.append(rows.take(places))
            kept = rows.take(_others(rows.num_rows, places))
            self._announce(f"rewrite a file of {table.name}")
            made = table.plan(kept.schema, self._stem).write(kept.to_batches(50_000))
            if change.added.pop(file.file_path, None) is None:
                change.removed[file.file_path] = file
            del live[file.file_path]
            self._add(table, [table.data_file(one) for one in made])
        return pa.concat_tables(taken)

    def _candidates(self, table: StreamTable, keys: pa.Table) -> list[DataFile]:
        """Return the files that may hold a key, by their statistics.

        Raises:
            LakeRewriteError: they are more than one batch may rewrite.
        """
        if not keys.num_rows:
            return []
        ranges = []
        for name in keys.column_names:
            source = table.schema.find_field(name)
            ends = pc.min_max(_comparable(keys.column(name))).as_py()
            ranges.append((source.field_id, source.field_type, ends["min"], ends["max"]))
        found = [one for one in table.live().values() if _may_hold(one, ranges)]
        size = sum(one.file_size_in_bytes for one in found)
        if size > self._room:
            raise LakeRewriteError(
                "a change by key would rewrite too much of the table",
                table=table.name,
                bytes=size,
                allowed=self._room,
            )
        self._room -= size
        return found


def _conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([conform(one, schema) for one in rows.to_batches()], schema)


def _matching(rows: pa.Table, keys: pa.Table) -> pa.Array:
    """Return where rows have one of the keys. Only key columns are joined: any row may be taken."""
    names = keys.column_names
    numbered = rows.select(names).append_column(_PLACE, pa.array(range(rows.num_rows), pa.int64()))
    found = numbered.join(keys, names, join_type="left semi").column(_PLACE)
    return found.combine_chunks().sort()


def _others(count: int, places: pa.Array) -> pa.Array:
    everything = pa.array(range(count), pa.int64())
    return everything.filter(pc.invert(pc.is_in(everything, places)))


def _filled(rows: pa.Table, before: pa.Table, key: list[str], missing: Sequence[str]) -> pa.Table:
    """Return new rows with the values of the old ones in the columns that they lack."""
    new = rows.select(key).append_column(_PLACE, pa.array(range(rows.num_rows), pa.int64()))
    old = before.select(key).append_column("__old", pa.array(range(before.num_rows), pa.int64()))
    joined = new.join(old, key, join_type="left outer").sort_by(_PLACE)
    places = joined.column("__old").combine_chunks()
    for name in missing:
        at = rows.schema.get_field_index(name)
        values = before.column(name).combine_chunks().take(places)
        rows = rows.set_column(at, rows.schema.field(at), values)
    return rows


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values as Iceberg's bounds are read: times and dates are numbers."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date(values.type) else values


def _may_hold(file: DataFile, ranges: Sequence[tuple[int, Any, Any, Any]]) -> bool:
    lower: Mapping[int, bytes] = file.lower_bounds or {}
    upper: Mapping[int, bytes] = file.upper_bounds or {}
    for number, kind, least, most in ranges:
        if number in lower and from_bytes(kind, lower[number]) > most:
            return False
        if number in upper and from_bytes(kind, upper[number]) < least:
            return False
    return True
