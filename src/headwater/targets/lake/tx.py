"""`Tx`, which `on_data` writes Iceberg and Delta tables with: rows become files at once.

They count with the commit of their batch. Runs on the driver; rows of final blocks that lie on
executors become files there. `upsert` and `delete` copy on write: the files that hold a key are
written anew without it. That is exact and undone like anything else, but costs the size of those
files, so it is bounded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import PipeState
from headwater.errors import LakeRewriteError, LakeUnsupportedError
from headwater.targets.contract import Scope
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.lake.columns import check_columns
from headwater.targets.lake.files import FilePlan, WrittenFile, window_stem, write_distributed
from headwater.targets.lake.keys import check_key, conformed, distinct_keys, filled, split_by_key

ROWS = 50_000  # of a table in memory, written at a time
Announce = Callable[[str], None]
Ranges = Mapping[str, tuple[Any, Any]]
File = TypeVar("File")  # a data file as the format's log or manifest names it


@dataclass(slots=True)
class Change(Generic[File]):
    """The files that one batch adds to a table and removes from it, by path."""

    state: PipeState
    added: dict[str, File] = field(default_factory=dict)
    removed: dict[str, File] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


class LakeTable(ABC, Generic[File]):
    """One table of a stream, as this writer has left it."""

    name: str
    key: tuple[str, ...]
    columns: pa.Schema

    def __init__(self) -> None:
        self._files: dict[str, File] | None = None  # of keyed tables, once they are read
        self._pending: dict[str, File] = {}

    def live(self) -> dict[str, File]:
        """Return the data files by path: those committed, and those that wait for their commit."""
        if self._files is None:
            self._files = {**self._committed_files(), **self._pending}
        return self._files

    def add(self, path: str, file: File) -> None:
        """Note a file that waits for its commit."""
        (self._pending if self._files is None else self._files)[path] = file

    def committed(self) -> None:
        """Note that nothing waits any more."""
        self._pending.clear()

    def forget(self) -> None:
        """Forget which files there are: others have changed that, or nothing came of it."""
        self._files = None
        self._pending.clear()

    @abstractmethod
    def plan(self, frame: pa.Schema, stem: str) -> FilePlan:
        """Return how rows of a frame become files of this table; widen it if that was declared."""

    @abstractmethod
    def data_file(self, file: WrittenFile) -> tuple[str, File]:
        """Return a written file as the format names it, and its path."""

    @abstractmethod
    def read(self, files: Sequence[File]) -> pa.Table:
        """Return the rows of some files, in the columns of today."""

    @abstractmethod
    def size_of(self, file: File) -> int:
        """Return how many bytes a file has."""

    @abstractmethod
    def may_hold(self, file: File, ranges: Ranges) -> bool:
        """Tell whether a file may hold a key between these ends, by its statistics."""

    def comparable(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return values of a key as statistics hold them."""
        return values

    @abstractmethod
    def _committed_files(self) -> dict[str, File]:
        """Return the data files of the last commit, by path."""


class Tx(Generic[File]):
    """Writes one batch. `changes` collects what the commit is to do, by table.

    `find` returns a declared table; it is created for columns, if some are given. `room` is how
    many bytes the batch may rewrite.
    """

    def __init__(
        self,
        find: Callable[[str, pa.Schema | None], LakeTable[File] | None],
        stream_id: str,
        scope: Scope,
        state: PipeState,
        room: int,
        announce: Announce,
    ) -> None:
        self.changes: dict[str, Change[File]] = {}
        self._find = find
        self._scope = scope
        self._state = state
        self._room = room
        self._announce = announce
        self._stem = window_stem(stream_id, scope.after + 1, scope.block)

    def insert(self, table: str, frame: Any) -> None:
        """Add rows. Columns that the frame lacks are null."""
        far = None if self._scope.hot else executor_rows(frame)
        if far is not None and far.reaches_driver:
            held, plan = self._plan(table, far.schema)
            self._announce(f"write files of {table}")
            self._add(held, write_distributed(plan, far))
            return
        rows = to_arrow(frame)
        held, plan = self._plan(table, rows.schema)
        self._write(held, plan, rows)

    def upsert(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Add rows, or replace the columns that the frame has where the key exists already."""
        rows = to_arrow(frame)
        held, plan = self._plan(table, rows.schema)
        wanted = check_key(table, key or held.key, held.columns.names)
        missing = [one for one in held.columns.names if one not in rows.column_names]
        rows = conformed(rows, held.columns)
        before = self._take_out(held, distinct_keys(table, rows, wanted, once=True))
        if missing and before.num_rows:
            rows = filled(rows, before, wanted, missing)
        self._write(held, plan, rows)

    def delete(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Remove the rows that have one of these keys; a key that is not there is no error."""
        rows = to_arrow(frame)
        held = self._find(table, None)
        if held is None:
            return
        wanted = check_key(table, key or held.key, held.columns.names)
        check_columns(table, rows.schema, held.columns)
        columns = pa.schema([held.columns.field(one) for one in wanted])
        self._take_out(held, distinct_keys(table, conformed(rows, columns), wanted, once=False))

    def execute(self, sql: str, *given: object, **more: object) -> NoReturn:
        """Refuse: there is no engine here that runs SQL."""
        raise LakeUnsupportedError("lake targets run no SQL: tx.execute is not offered")

    def query(self, sql: str, *given: object, **more: object) -> NoReturn:
        """Refuse: there is no engine here that runs SQL."""
        raise LakeUnsupportedError("lake targets run no SQL: tx.query is not offered")

    def _plan(self, name: str, schema: pa.Schema) -> tuple[LakeTable[File], FilePlan]:
        held = self._find(name, schema)
        assert held is not None, "a schema was given"
        return held, held.plan(schema, self._stem)

    def _write(self, table: LakeTable[File], plan: FilePlan, rows: pa.Table) -> None:
        if rows.num_rows:
            self._announce(f"write files of {table.name}")
            self._add(table, plan.write(rows.to_batches(ROWS)))

    def _add(self, table: LakeTable[File], files: Sequence[WrittenFile]) -> None:
        for one in files:
            path, file = table.data_file(one)
            self._change(table).added[path] = file
            table.add(path, file)

    def _change(self, table: LakeTable[File]) -> Change[File]:
        return self.changes.setdefault(table.name, Change(self._state))

    def _take_out(self, table: LakeTable[File], keys: pa.Table) -> pa.Table:
        """Write the files that hold a key anew, without it; return the rows that were taken out."""
        taken = [table.columns.empty_table()]
        for path, file in self._candidates(table, keys).items():
            found, others = split_by_key(table.read([file]), keys)
            if not found.num_rows:
                continue
            taken.append(found)
            change = self._change(table)
            if change.added.pop(path, None) is None:
                change.removed[path] = file
            del table.live()[path]
            self._write(table, table.plan(others.schema, self._stem), others)
        return pa.concat_tables(taken)

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
        found = {path: one for path, one in table.live().items() if table.may_hold(one, ranges)}
        size = sum(map(table.size_of, found.values()))
        if size > self._room:
            raise LakeRewriteError(
                "a change by key would rewrite too much of the table",
                table=table.name, bytes=size, allowed=self._room,
            )  # fmt: skip
        self._room -= size
        return found
