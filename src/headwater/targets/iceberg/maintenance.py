"""Keeps Iceberg tables small: snapshots expire, small files become large ones, orphans are swept.

Nothing that a rollback may go back to is touched: the snapshots of all hot blocks stay, and the one
below them. Called by the target between two batches, with a bound on what it rewrites, and by
`headwater maintain`, also while the stream runs: rewriting files changes no rows, and a stream that
finds its table rewritten goes on from there. A crash leaves files that nothing names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from headwater.targets.iceberg.settings import IcebergSettings
from headwater.targets.iceberg.snapshots import (
    TableChange,
    ancestors,
    block_of,
    live_files,
    newest_epoch,
    properties_of,
)
from headwater.targets.iceberg.tables import StreamTable, place_of
from headwater.targets.lake.authors import Author, Sweeper, slug
from headwater.targets.lake.state import BLOCK, HASH, StoredStream, position

BIN_BYTES = 64 << 20  # of files that become one


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Maintains the tables of one stream. `bounded` limits what is rewritten by the settings.

    `check` refuses to go on if the stream has another writer; maintenance from outside has none.
    """

    tables: Sequence[StreamTable]
    stored: StoredStream
    settings: IcebergSettings
    bounded: bool
    check: Callable[[], object] | None = None

    def run(self) -> dict[str, int]:
        """Expire and compact; return how many snapshots and files those were.

        Raises:
            CommitFailedException: a table has changed meanwhile; the others are done.
        """
        expired = compacted = 0
        for table in self.tables:
            gone = self.expired(table.stored)
            old, new = self._compact(table)
            change = TableChange(table.stored, outside=self.check is None)
            if old:
                change.rewrite(new, old, self._said(table.stored))
            change.expire(gone)
            if not change:
                continue
            try:
                change.commit()
            except CommitFailedException:
                change.abandon()
                raise
            table.forget()
            expired, compacted = expired + len(gone), compacted + len(old)
        return {"expired": expired, "compacted": compacted}

    def sweep(self, others: Iterable[Table] = ()) -> int:
        """Delete old files of the stream that no snapshot names; return how many those were.

        Which files there are is read first, then what the table names by now, then who writes it.
        """
        before = time.time() - self.settings.grace_s
        swept = 0
        for table in [*(one.stored for one in self.tables), *others]:
            place = place_of(table)
            old = [one.name for one in place.files() if one.written < before]
            now = table.catalog.load_table(table.name())
            sweeper = Sweeper(self.stored.stream_id, newest_epoch(now), self.check is not None)
            gone = sweeper.unnamed(old, _named_files(now))
            if self.check is not None:
                self.check()
            for name in gone:
                place.delete(name)
            swept += len(gone)
        return swept

    def expired(self, table: Table) -> list[int]:
        """Return the snapshots that neither a rollback nor time travel needs."""
        floor = self.stored.state.undo_floor
        kept = {one.snapshot_id for one in table.metadata.refs.values()}
        spare = self.settings.final_snapshots + 1  # the newest final one is where forks end
        for one in ancestors(table):
            block = block_of(one)
            if block is None or block[0] > floor:
                kept.add(one.snapshot_id)
                continue
            if not spare:
                break
            kept.add(one.snapshot_id)
            spare -= 1
        return [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id not in kept]

    def _compact(self, table: StreamTable) -> tuple[list[DataFile], list[DataFile]]:
        """Write small files of final blocks anew; return the old ones and the new ones."""
        old: list[DataFile] = []
        new: list[DataFile] = []
        room = self.settings.compact_bytes if self.bounded else None
        author = Author(slug(self.stored.stream_id), self.stored.epoch, self.check is None)
        stem = f"rewritten-{max(self.stored.state.number, 0):010d}-{author.mark}"
        for files in self._bins(table):
            size = sum(one.file_size_in_bytes for one in files)
            if room is not None and old and size > room:
                break
            room = None if room is None else room - size
            made = table.plan(table.columns, stem).write(_batches(table, files))
            old += files
            new += [table.data_file(one)[1] for one in made]
        return old, new

    def _bins(self, table: StreamTable) -> Iterator[list[DataFile]]:
        """Yield small files that may become one: of one partition, in the order of blocks."""
        floor = self.stored.state.undo_floor
        hot = set()
        for one in ancestors(table.stored):
            block = block_of(one)
            if block is not None and block[0] > floor:
                hot.add(one.snapshot_id)
        groups: dict[object, list[DataFile]] = {}
        spec = table.stored.spec().spec_id
        for file, added in live_files(table.stored):
            small = file.file_size_in_bytes < self.settings.small_file_bytes
            if small and added not in hot and file.spec_id == spec:
                groups.setdefault(repr(file.partition), []).append(file)
        for files in groups.values():
            if len(files) < self.settings.compact_files:
                continue
            held: list[DataFile] = []
            for file in sorted(files, key=lambda one: one.file_path):
                held.append(file)
                if sum(one.file_size_in_bytes for one in held) >= BIN_BYTES:
                    yield held
                    held = []
            if len(held) > 1:
                yield held

    def _said(self, table: Table) -> dict[str, str]:
        """Return what a rewritten table says: the block of the snapshot that it was made of."""
        said = position(self.stored.stream_id, self.stored.epoch, self.stored.state)
        for one in ancestors(table):
            found = properties_of(one)
            if BLOCK in found:
                said.pop(HASH, None)
                return {**said, **{name: found[name] for name in (BLOCK, HASH) if name in found}}
        return said


def _batches(table: StreamTable, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, one file at a time."""
    for file in files:
        yield from table.read([file]).to_batches(50_000)


def _named_files(table: Table) -> Iterator[str]:
    """Yield the files that a table's metadata names, for any snapshot that it still has."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (one.metadata_file for one in metadata.metadata_log)
    yield from (one.statistics_path for one in metadata.statistics)
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for one in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield one.data_file.file_path
