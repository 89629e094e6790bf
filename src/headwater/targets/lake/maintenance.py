"""Keeps tables small: small files become large ones, history is forgotten, orphans are deleted.

Nothing that a rollback may go back to is touched: only files of blocks that no fork can take are
compacted. Called by the target between two batches, with a bound on what it rewrites, and by
`headwater maintain`, also while the stream runs: rewriting files changes no rows, and a stream that
finds its table rewritten goes on from there. A crash leaves files that nothing names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic

from headwater.errors import LakeForeignWriteError
from headwater.targets.lake.settings import LakeSettings, TableSettings
from headwater.targets.lake.state import (
    Author,
    StoredStream,
    Sweeper,
    blocks_of,
    file_name,
    slug,
    window_stem,
)
from headwater.targets.lake.table import (
    ATTEMPTS,
    ROWS,
    Announce,
    File,
    LakeTable,
    LakeTables,
    TableRewritten,
)


@dataclass(frozen=True, slots=True)
class Maintenance(Generic[File]):
    """Maintains the tables of one stream. `bounded` limits what is rewritten by the settings.

    `check` refuses to go on if the stream has another writer; maintenance from outside has none.
    """

    tables: LakeTables[File]
    stored: StoredStream
    settings: LakeSettings
    announce: Announce
    bounded: bool
    check: Callable[[], object] | None = None

    @property
    def _outside(self) -> bool:
        return self.check is None

    def run(self) -> dict[str, int]:
        """Compact files and forget history; return how much that was.

        Raises:
            TableRewritten: a table has changed meanwhile; the others are done.
        """
        done = {"compacted": 0}
        for table in self.tables.open.values():
            if isinstance(self.settings, TableSettings):
                done["compacted"] += self._compact(table, self.settings)
            self.announce(f"tidy {table.name}")
            outside, bounded = self._outside, self.bounded
            counts = table.tidy(self.stored, self.settings, outside=outside, bounded=bounded)
            for name, count in counts.items():
                done[name] = done.get(name, 0) + count
        return done

    def sweep(self) -> int:
        """Delete files of the stream that nothing needs any more; return how many those were.

        Which files there are is read first, then what is named by now, then who writes.
        """
        return sum(map(self._sweep, self.tables.swept()))

    def _check(self) -> None:
        if self.check is not None:
            self.check()

    def _compact(self, table: LakeTable[File], settings: TableSettings) -> int:
        done, author = 0, Author(slug(self.stored.stream_id), self.stored.epoch, self._outside)
        for old in self._bins(table, settings):
            ends = [blocks_of(path) for path in old]
            stem = window_stem(
                author, min(first for first, _ in ends), max(last for _, last in ends)
            )
            plan = table.plan(table.columns, stem)
            batches = (
                batch for file in old.values() for batch in table.read([file]).to_batches(ROWS)
            )
            self.announce(f"compact {table.name}")
            new = dict(map(table.data_file, plan.write(batches)))
            self.announce(f"commit {table.name}")
            table.rewrite(new, old, self.stored, self._outside)
            done += len(old)
        table.forget()
        return done

    def _bins(self, table: LakeTable[File], settings: TableSettings) -> Iterator[dict[str, File]]:
        """Yield small files that become one: of one partition, of final blocks, in their order."""
        floor = self.stored.state.undo_floor
        groups: dict[str, list[str]] = {}
        live = dict(table.live())
        for path in sorted(live, key=file_name):
            group = table.partition_of(live[path])
            is_small = table.size_of(live[path]) < settings.small_file_bytes
            if group is not None and is_small and 0 <= blocks_of(path)[1] <= floor:
                groups.setdefault(group, []).append(path)
        room = settings.compact_bytes if self.bounded else 1 << 62
        for paths in groups.values():
            files: dict[str, File] = {}
            size = 0
            for path in paths:
                more = table.size_of(live[path])
                if more > room:
                    break
                if size + more > settings.bin_bytes:
                    if len(files) >= settings.compact_files:
                        yield files
                    files, size = {}, 0
                files[path] = live[path]
                size, room = size + more, room - more
            if len(files) >= settings.compact_files:
                yield files

    def _sweep(self, table: LakeTable[File]) -> int:
        aged = table.aged(self.settings)
        kept = set(map(file_name, table.named(self.stored, outside=self._outside)))
        sweeper = Sweeper(self.stored.stream_id, table.epoch, not self._outside)
        free = [name for name in aged if sweeper.is_own(name) and file_name(name) not in kept]
        self._check()
        rested = table.rested(free, self.settings)
        gone = [name for name in rested if sweeper.may_delete(name, was_removed=aged[name])]
        self._check()
        for name in gone:
            self.announce(f"sweep {table.name}")
            table.place.delete(name)
        return len(gone)


def maintain_stream(tables: LakeTables[File], settings: LakeSettings) -> dict[str, int]:
    """Do all maintenance of a stream from outside: no stream is taken over.

    Raises:
        LakeForeignWriteError: a table changes all the time.
    """
    for _ in range(ATTEMPTS):
        stored = tables.load()
        if stored is None:
            return {}
        work = Maintenance(tables, stored, settings, lambda step: None, bounded=False)
        try:
            return {**work.run(), "swept": work.sweep()}
        except TableRewritten:
            continue
    raise LakeForeignWriteError("tables change all the time", tables=", ".join(tables.open))
