"""Side tables of lake targets: rows that the stream keeps for itself, in Parquet files of its own.

The stored state names the files (`StoredStream.side`), so rows of side tables change in the very
step that replaces the state: with their batch, with a rollback, or when messages are settled. A
file is never changed; each method writes new files and returns what the next state is to name.
What no state names is an orphan. Names tell the epoch of the writer, and only files of earlier ones
are swept: a start that was paused and replaced deletes nothing of its successor. All of it runs on
the driver.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.errors import InvalidOptionError
from headwater.targets.contract import SideTable
from headwater.targets.lake.paths import Place
from headwater.targets.lake.state import SideFile
from headwater.targets.side_rows import (
    KEY,
    SideStatus,
    after_key,
    check_side_table,
    in_key_order,
    side_rows,
)

Files = Mapping[str, tuple[SideFile, ...]]
DIRECTORY = "side"
_GROWTH = 3  # a file at least so many times as large as the next one is left alone
_CACHED = 64
_EPOCH = re.compile(r"-e(\d{6,})-[0-9a-f]+\.parquet$")


class SideFiles:
    """Reads and writes the files; `place` is where the stream keeps its state.

    `epoch` is that of the writer, 0 for one that only reads.
    """

    def __init__(self, place: Place, epoch: int = 0) -> None:
        self._place = place
        self._epoch = epoch
        self._tables: dict[str, SideTable] = {}
        self._cache: dict[str, pa.Table] = {}

    def open(self, tables: Sequence[SideTable]) -> None:
        """Take the tables that the stream wants to keep; files are made with their first rows."""
        self._tables = {table.name: check_side_table(table) for table in tables}

    def add(self, files: Files, rows: Mapping[str, Any]) -> Files:
        """Return files with more rows; those whose key is there already stay as they are."""
        grown = dict(files)
        for name, frame in rows.items():
            new = side_rows(self._table(name), frame)
            if not new.num_rows:
                continue
            table_files = grown.get(name, ())
            numbers = pc.min_max(new.column(KEY[0])).as_py()
            near = [file for file in table_files if numbers["min"] <= file.last]
            if near:
                keys = pa.concat_tables(self._read(file).select(KEY) for file in near)
                new = new.join(keys, list(KEY), join_type="left anti")
                new = side_rows(self._table(name), new)
            grown[name] = self._grown(name, table_files, new)
        return grown

    def remove_above(self, files: Files, number: int) -> Files:
        """Return files without the rows above a block."""
        return {
            name: self._rewritten(
                name,
                table_files,
                [file for file in table_files if file.last > number],
                lambda rows: rows.filter(pc.field(KEY[0]) <= number),
            )
            for name, table_files in files.items()
        }

    def settle(
        self, files: Files, name: str, up_to: tuple[int, int], moved: Mapping[str, Any]
    ) -> Files:
        """Return files without the rows of a table up to a key, and with the rows that moved."""
        self._table(name)
        table_files = files.get(name, ())
        kept = self._rewritten(
            name,
            table_files,
            [file for file in table_files if file.first <= up_to[0]],
            lambda rows: rows.filter(after_key(rows, up_to)),
        )
        return self.add({**files, name: kept}, moved)

    def read(
        self,
        files: Files,
        name: str,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return rows in the order of their keys."""
        schema = self._table(name).columns
        wanted = [
            file
            for file in files.get(name, ())
            if (up_to_block is None or file.first <= up_to_block)
            and (after is None or file.last >= after[0])
        ]
        rows = pa.concat_tables([schema.empty_table(), *map(self._read, wanted)])
        if after is not None:
            rows = rows.filter(after_key(rows, after))
        if up_to_block is not None:
            rows = rows.filter(pc.field(KEY[0]) <= up_to_block)
        return in_key_order(rows).slice(0, limit)

    def discard(self, before: Files, after: Files) -> None:
        """Delete the files that a stored state has ceased to name."""
        kept = {file.name for table_files in after.values() for file in table_files}
        for file in (file for table_files in before.values() for file in table_files):
            if file.name not in kept:
                self._cache.pop(file.name, None)
                self._place.delete(file.name)

    def sweep(self, files: Files) -> int:
        """Delete files of earlier epochs that the state does not name; return how many they were.

        `files` are those of a state that this epoch has taken over: no later state names others of
        earlier epochs.
        """
        kept = {file.name for table_files in files.values() for file in table_files}
        unnamed = [
            file.name
            for file in self._place.files(DIRECTORY)
            if file.name not in kept and _epoch_of(file.name) < self._epoch
        ]
        for name in unnamed:
            self._place.delete(name)
        return len(unnamed)

    def _table(self, name: str) -> SideTable:
        if name not in self._tables:
            raise InvalidOptionError("no such side table was opened", table=name)
        return self._tables[name]

    def _grown(self, name: str, files: Sequence[SideFile], new: pa.Table) -> tuple[SideFile, ...]:
        """Add rows, together with the newest files that are not much larger: few files stay."""
        kept, tables = list(files), [new]
        while kept and kept[-1].rows < _GROWTH * sum(table.num_rows for table in tables):
            tables.append(self._read(kept.pop()))
        return (*kept, *self._written(name, pa.concat_tables(tables)))

    def _rewritten(
        self, name: str, files: Sequence[SideFile], affected: Sequence[SideFile], keep: Any
    ) -> tuple[SideFile, ...]:
        rewritten: list[SideFile] = []
        for file in files:
            if file not in affected:
                rewritten.append(file)
                continue
            rows = self._read(file)
            kept = keep(rows)
            rewritten += [file] if kept.num_rows == rows.num_rows else self._written(name, kept)
        return tuple(rewritten)

    def _written(self, name: str, rows: pa.Table) -> list[SideFile]:
        if not rows.num_rows:
            return []
        rows = in_key_order(rows)
        blocks = rows.column(KEY[0])
        file = f"{DIRECTORY}/{name}-e{self._epoch:06d}-{secrets.token_hex(8)}.parquet"
        with self._place.create(file) as sink:
            pq.write_table(rows, sink, compression="zstd")
        self._keep(file, rows)
        return [SideFile(file, blocks[0].as_py(), blocks[-1].as_py(), rows.num_rows)]

    def _read(self, file: SideFile) -> pa.Table:
        rows = self._cache.get(file.name)
        if rows is None:
            with self._place.open(file.name) as source:
                rows = pq.read_table(source)
            self._keep(file.name, rows)
        return rows

    def _keep(self, name: str, rows: pa.Table) -> None:
        """Remember rows that were read or written last: files never change."""
        while len(self._cache) >= _CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[name] = rows


def _epoch_of(name: str) -> int:
    """Return the epoch of a file's writer; 0 in names of releases that told none."""
    match = _EPOCH.search(name)
    return 0 if match is None else int(match[1])


def side_status(files: Files) -> dict[str, SideStatus]:
    """Return how much each side table holds, for operators."""
    return {
        name: SideStatus(
            sum(file.rows for file in table_files), min(file.first for file in table_files)
        )
        for name, table_files in files.items()
        if table_files
    }
