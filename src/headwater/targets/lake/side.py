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
        self._tables = {one.name: check_side_table(one) for one in tables}

    def add(self, files: Files, rows: Mapping[str, Any]) -> Files:
        """Return files with more rows; those whose key is there already stay as they are."""
        made = dict(files)
        for name, frame in rows.items():
            new = side_rows(self._table(name), frame)
            if not new.num_rows:
                continue
            held = made.get(name, ())
            numbers = pc.min_max(new.column(KEY[0])).as_py()
            near = [one for one in held if numbers["min"] <= one.last]
            if near:
                keys = pa.concat_tables(self._read(one).select(KEY) for one in near)
                new = new.join(keys, list(KEY), join_type="left anti")
                new = side_rows(self._table(name), new)
            made[name] = self._grown(name, held, new)
        return made

    def remove_above(self, files: Files, number: int) -> Files:
        """Return files without the rows above a block."""
        return {
            name: self._rewritten(
                name,
                held,
                [one for one in held if one.last > number],
                lambda rows: rows.filter(pc.field(KEY[0]) <= number),
            )
            for name, held in files.items()
        }

    def settle(
        self, files: Files, name: str, up_to: tuple[int, int], moved: Mapping[str, Any]
    ) -> Files:
        """Return files without the rows of a table up to a key, and with the rows that moved."""
        self._table(name)
        held = files.get(name, ())
        kept = self._rewritten(
            name,
            held,
            [one for one in held if one.first <= up_to[0]],
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
            one
            for one in files.get(name, ())
            if (up_to_block is None or one.first <= up_to_block)
            and (after is None or one.last >= after[0])
        ]
        rows = pa.concat_tables([schema.empty_table(), *map(self._read, wanted)])
        if after is not None:
            rows = rows.filter(after_key(rows, after))
        if up_to_block is not None:
            rows = rows.filter(pc.field(KEY[0]) <= up_to_block)
        return in_key_order(rows).slice(0, limit)

    def discard(self, before: Files, after: Files) -> None:
        """Delete the files that a stored state has ceased to name."""
        kept = {one.name for held in after.values() for one in held}
        for one in (one for held in before.values() for one in held):
            if one.name not in kept:
                self._cache.pop(one.name, None)
                self._place.delete(one.name)

    def sweep(self, files: Files) -> int:
        """Delete files of earlier epochs that the state does not name; return how many they were.

        `files` are those of a state that this epoch has taken over: no later state names others of
        earlier epochs.
        """
        kept = {one.name for held in files.values() for one in held}
        found = [
            one.name
            for one in self._place.files(DIRECTORY)
            if one.name not in kept and _epoch_of(one.name) < self._epoch
        ]
        for name in found:
            self._place.delete(name)
        return len(found)

    def _table(self, name: str) -> SideTable:
        if name not in self._tables:
            raise InvalidOptionError("no such side table was opened", table=name)
        return self._tables[name]

    def _grown(self, name: str, held: Sequence[SideFile], new: pa.Table) -> tuple[SideFile, ...]:
        """Add rows, together with the newest files that are not much larger: few files stay."""
        kept, tables = list(held), [new]
        while kept and kept[-1].rows < _GROWTH * sum(one.num_rows for one in tables):
            tables.append(self._read(kept.pop()))
        return (*kept, *self._written(name, pa.concat_tables(tables)))

    def _rewritten(
        self, name: str, held: Sequence[SideFile], affected: Sequence[SideFile], keep: Any
    ) -> tuple[SideFile, ...]:
        made: list[SideFile] = []
        for one in held:
            if one not in affected:
                made.append(one)
                continue
            rows = self._read(one)
            kept = keep(rows)
            made += [one] if kept.num_rows == rows.num_rows else self._written(name, kept)
        return tuple(made)

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
        found = self._cache.get(file.name)
        if found is None:
            with self._place.open(file.name) as source:
                found = pq.read_table(source)
            self._keep(file.name, found)
        return found

    def _keep(self, name: str, rows: pa.Table) -> None:
        """Remember rows that were read or written last: files never change."""
        while len(self._cache) >= _CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[name] = rows


def _epoch_of(name: str) -> int:
    """Return the epoch of a file's writer; 0 in names of releases that told none."""
    found = _EPOCH.search(name)
    return 0 if found is None else int(found[1])


def side_status(files: Files) -> dict[str, SideStatus]:
    """Return how much each side table holds, for operators."""
    return {
        name: SideStatus(sum(one.rows for one in held), min(one.first for one in held))
        for name, held in files.items()
        if held
    }
