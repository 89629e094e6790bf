"""`Tx`, which `on_data` writes Delta tables with: rows become files at once, and count later.

Runs on the driver; rows of final blocks that lie on executors become files there. `upsert` and
`delete` copy on write: the files that hold a key are written anew without it. That is exact and
undone like anything else, but costs the size of those files, so it is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import LakeRewriteError, LakeUnsupportedError
from headwater.targets.contract import Scope
from headwater.targets.delta.changes import BatchChange, DataFile
from headwater.targets.delta.tables import Announce, StreamTable, StreamTables
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.lake.columns import check_columns
from headwater.targets.lake.files import FilePlan, window_stem, write_distributed
from headwater.targets.lake.keys import check_key, conformed, distinct_keys, filled, split_by_key

_ROWS = 50_000


class Tx:
    """Writes one batch. `changes` collects what the commit is to do, by table."""

    def __init__(
        self,
        tables: StreamTables,
        stream_id: str,
        scope: Scope,
        said: Mapping[str, str],
        rewrite_bytes: int,
        announce: Announce,
    ) -> None:
        self.changes: dict[str, BatchChange] = {}
        self._tables = tables
        self._scope = scope
        self._said = said
        self._room = rewrite_bytes
        self._announce = announce
        self._stem = window_stem(stream_id, scope.after + 1, scope.block)

    def insert(self, table: str, frame: Any) -> None:
        """Add rows. Columns that the frame lacks are null."""
        far = None if self._scope.hot else executor_rows(frame)
        if far is not None and far.reaches_driver:
            held, plan = self._plan(table, far.schema)
            self._announce(f"write files of {table}")
            self._add(held, [held.data_file(one) for one in write_distributed(plan, far)])
            return
        rows = to_arrow(frame)
        held, plan = self._plan(table, rows.schema)
        self._write(held, plan, rows)

    def upsert(self, table: str, frame: Any, *, key: Sequence[str] | None = None) -> None:
        """Add rows, or replace the columns that the frame has where the key exists already."""
        rows = to_arrow(frame)
        held, plan = self._plan(table, rows.schema)
        wanted = check_key(table, key or held.declared.key, held.columns.names)
        missing = [one for one in held.columns.names if one not in rows.column_names]
        rows = conformed(rows, held.columns)
        keys = distinct_keys(table, rows, wanted, once=True)
        before = self._take_out(held, keys)
        if missing and before.num_rows:
            rows = filled(rows, before, wanted, missing)
        self._write(held, plan, rows)

    def delete(self, table: str, frame: Any, *, key: Sequence[str] | None = None) -> None:
        """Remove the rows that have one of these keys; a key that is not there is no error."""
        rows = to_arrow(frame)
        held = self._tables.get(table, None, self._said)
        if held is None:
            return
        wanted = check_key(table, key or held.declared.key, held.columns.names)
        check_columns(table, rows.schema, held.columns)
        columns = pa.schema([held.columns.field(one) for one in wanted])
        self._take_out(held, distinct_keys(table, conformed(rows, columns), wanted, once=False))

    def execute(self, sql: str, *given: object, **more: object) -> NoReturn:
        """Refuse: there is no engine here that runs SQL."""
        raise LakeUnsupportedError("lake targets run no SQL: tx.execute is not offered")

    def query(self, sql: str, *given: object, **more: object) -> NoReturn:
        """Refuse: there is no engine here that runs SQL."""
        raise LakeUnsupportedError("lake targets run no SQL: tx.query is not offered")

    # --- files ------------------------------------------------------------------------------------

    def _plan(self, name: str, schema: pa.Schema) -> tuple[StreamTable, FilePlan]:
        held = self._tables.get(name, schema, self._said)
        assert held is not None, "a schema was given"
        return held, held.plan(schema, self._stem)

    def _write(self, table: StreamTable, plan: FilePlan, rows: pa.Table) -> None:
        if rows.num_rows:
            self._announce(f"write files of {table.name}")
            files = plan.write(rows.to_batches(_ROWS))
            self._add(table, [table.data_file(one) for one in files])

    def _add(self, table: StreamTable, files: Sequence[DataFile]) -> None:
        for one in files:
            self._change(table).added[one.path] = one
            if table.files is not None:
                table.files[one.path] = one

    def _change(self, table: StreamTable) -> BatchChange:
        if table.name not in self.changes:
            self.changes[table.name] = change = BatchChange(self._scope.block)
            table.pending.append(change)
        return self.changes[table.name]

    def _take_out(self, table: StreamTable, keys: pa.Table) -> pa.Table:
        """Write the files that hold a key anew, without it; return the rows that were taken out."""
        taken = [table.columns.empty_table()]
        for file in self._candidates(table, keys):
            found, others = split_by_key(table.read([file]), keys)
            if not found.num_rows:
                continue
            taken.append(found)
            change = self._change(table)
            if change.added.pop(file.path, None) is None:
                change.removed[file.path] = file
            del table.live()[file.path]
            self._write(table, table.plan(others.schema, self._stem), others)
        return pa.concat_tables(taken)

    def _candidates(self, table: StreamTable, keys: pa.Table) -> list[DataFile]:
        """Return the files that may hold a key, by their statistics.

        Raises:
            LakeRewriteError: they are more than one batch may rewrite.
        """
        if not keys.num_rows:
            return []
        ranges = {}
        for name in keys.column_names:
            ends = pc.min_max(keys.column(name)).as_py()
            ranges[name] = (ends["min"], ends["max"])
        found = [one for one in table.live().values() if one.may_hold(ranges)]
        size = sum(one.size for one in found)
        if size > self._room:
            raise LakeRewriteError(
                "a change by key would rewrite too much of the table",
                table=table.name,
                bytes=size,
                allowed=self._room,
            )
        self._room -= size
        return found
