"""Commits to one Iceberg table: several snapshots, a way back and an expiry in one step.

pyiceberg's transactions copy all of a table's metadata many times for each snapshot, and cannot go
back and add in one commit; so the updates are put together here, of pyiceberg's own parts, and
given to the catalog with the requirement that `main` is what this writer saw last. A catalog that
finds another snapshot there refuses: that is the fence. Runs on the driver.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, cast

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from headwater.targets.iceberg.inner import (
    MAIN_BRANCH,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    Operation,
    Snapshot,
    SnapshotRefType,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
    write_manifest,
    write_manifest_list,
)
from headwater.targets.iceberg.inner import update as _update
from headwater.targets.lake.state import BLOCK, EPOCH, HASH, STREAM, Author, slug

SMALL_MANIFEST = 1 << 20  # of bytes: those below are merged
MANIFESTS = 32  # of a snapshot; the next one merges the small ones
_CODEC: Literal["deflate"] = "deflate"
update: Any = _update  # its classes are made with names that their types do not show
_snapshot: Any = Snapshot


class TableChange:
    """What one commit changes of a table. Nothing is visible before `commit`.

    A change builds on what `table` was when it was loaded or committed last.
    """

    def __init__(self, table: Table, *, outside: bool = False) -> None:
        """`outside` says that the change comes from maintenance beside the stream."""
        self._table = table
        self._outside = outside
        self._metadata = cast(Any, table.metadata)
        self._base = table.current_snapshot()
        self._head = self._base
        self._sequence = int(self._metadata.last_sequence_number)
        self._updates: list[Any] = []
        self._paths: list[str] = []
        self._expires = False

    def __bool__(self) -> bool:
        return bool(self._updates)

    def go_back(self, snapshot: Snapshot) -> None:
        """Make an older snapshot the current one; what follows builds on it."""
        self._head = snapshot
        self._updates.append(
            update.SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=snapshot.snapshot_id
            )
        )

    def add(
        self,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        properties: Mapping[str, str],
        *,
        same_rows: bool = False,
    ) -> None:
        """Add a snapshot in which files come and others go; one with neither says something.

        With the `same_rows` in other files small manifests become one, too.
        """
        operation = Operation.OVERWRITE if removed else Operation.APPEND
        if same_rows:
            operation = Operation.REPLACE
        number = self._metadata.new_snapshot_id()
        mark = Author(slug(properties[STREAM]), int(properties[EPOCH]), self._outside).mark
        self._sequence += 1
        try:
            manifests = self._held()
            merge = same_rows or sum(map(_is_small, manifests)) >= MANIFESTS
            if removed or merge:
                manifests = self._without(manifests, removed, number, mark, merge=merge)
        except FileNotFoundError as error:
            raise CommitFailedException("the table has changed, and was swept") from error
        entries = [_entry(ManifestEntryStatus.ADDED, number, file) for file in added]
        manifests = [*self._written(entries, number, mark), *manifests]
        path = self._new_path(f"snap-{number}-0-{mark}-{uuid.uuid4()}.avro")
        with write_manifest_list(
            self._metadata.format_version,
            self._table.io.new_output(path),
            number,
            None if self._head is None else self._head.snapshot_id,
            self._sequence,
            _CODEC,
        ) as writer:
            writer.add_manifests(manifests)
        previous = None if self._head is None else self._head.snapshot_id
        snapshot: Snapshot = _snapshot(
            snapshot_id=number,
            parent_snapshot_id=previous,
            sequence_number=self._sequence,
            timestamp_ms=self._now(),
            manifest_list=path,
            summary=self._summary(operation, added, removed, properties),
            schema_id=self._metadata.current_schema_id,
        )
        self._updates += [
            update.AddSnapshotUpdate(snapshot=snapshot),
            update.SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=number
            ),
        ]
        self._head = snapshot

    def widen(self, schema: Any) -> None:
        """Change the columns as an update of pyiceberg's says, which is not committed itself."""
        self._updates += schema._commit()[0]

    def expire(self, ids: Collection[int]) -> None:
        """Forget snapshots; their files stay until they are swept."""
        self._expires = bool(ids)
        if ids:
            self._updates.append(update.RemoveSnapshotsUpdate(snapshot_ids=list(ids)))

    def commit(self) -> None:
        """Let the catalog make all of it current; `table` is then what was committed.

        Raises:
            CommitFailedException: the table has changed since it was loaded; nothing was done.
        """
        table = self._table
        requirements = (
            update.AssertTableUUID(uuid=self._metadata.table_uuid),
            update.AssertRefSnapshotId(
                ref=MAIN_BRANCH,
                snapshot_id=None if self._base is None else self._base.snapshot_id,
            ),
        )
        try:
            response = table.catalog.commit_table(table, requirements, tuple(self._updates))
        except ValueError as error:
            if not self._expires:
                raise
            raise CommitFailedException("others have let a snapshot expire") from error
        before, table.metadata = table.metadata, response.metadata
        table.metadata_location = response.metadata_location
        kept = {entry.metadata_file for entry in response.metadata.metadata_log}
        for entry in before.metadata_log:
            if entry.metadata_file not in kept:
                _delete(table, entry.metadata_file)

    def abandon(self) -> None:
        """Delete what was written for a commit that the catalog has refused."""
        for path in self._paths:
            _delete(self._table, path)

    # --- one snapshot -----------------------------------------------------------------------------

    def _held(self) -> list[ManifestFile]:
        """Return the manifests of the snapshot that the next one builds on."""
        manifests = [] if self._head is None else self._head.manifests(self._table.io)
        return [
            manifest
            for manifest in manifests
            if manifest.has_added_files() or manifest.has_existing_files()
        ]

    def _without(
        self,
        manifests: Sequence[ManifestFile],
        removed: Sequence[DataFile],
        number: int,
        mark: str,
        *,
        merge: bool,
    ) -> list[ManifestFile]:
        """Return manifests without some files, and those that say that these are gone."""
        gone = {file.file_path for file in removed}
        kept: list[ManifestFile] = []
        entries: list[ManifestEntry] = []
        for manifest in manifests:
            merged = merge and _is_small(manifest)
            if manifest.content != ManifestContent.DATA or not (gone or merged):
                kept.append(manifest)
                continue
            manifest_entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            if not merged and not any(
                entry.data_file.file_path in gone for entry in manifest_entries
            ):
                kept.append(manifest)
                continue
            for entry in manifest_entries:
                is_gone = entry.data_file.file_path in gone
                status = ManifestEntryStatus.DELETED if is_gone else ManifestEntryStatus.EXISTING
                entries.append(
                    _entry(status, number if is_gone else entry.snapshot_id, entry.data_file, entry)
                )
        return [*kept, *self._written(entries, number, mark)]

    def _written(
        self, entries: Sequence[ManifestEntry], number: int, mark: str
    ) -> Iterator[ManifestFile]:
        """Write entries into one manifest for each partition spec."""
        specs = self._metadata.specs()
        for spec_id in sorted({entry.data_file.spec_id for entry in entries}):
            path = self._new_path(f"{mark}-{uuid.uuid4()}-m0.avro")
            with write_manifest(
                self._metadata.format_version,
                specs[spec_id],
                self._metadata.schema(),
                self._table.io.new_output(path),
                number,
                _CODEC,
            ) as writer:
                for entry in entries:
                    if entry.data_file.spec_id == spec_id:
                        writer.add_entry(entry)
            yield writer.to_manifest_file()

    def _summary(
        self,
        operation: Operation,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        properties: Mapping[str, str],
    ) -> Summary:
        collector = SnapshotSummaryCollector()
        schema, specs = self._metadata.schema(), self._metadata.specs()
        for file in added:
            collector.add_file(file, schema, specs[file.spec_id])
        for file in removed:
            collector.remove_file(file, schema, specs[file.spec_id])
        before: Any = None if self._head is None else self._head.summary
        known = Operation.OVERWRITE if operation is Operation.REPLACE else operation
        summary = update_snapshot_summaries(
            Summary(known, **collector.build(), **properties), before
        )
        return Summary(operation, **summary.additional_properties)

    def _now(self) -> int:
        """Return the time, never before that of the snapshot that this one follows."""
        last = 0 if self._head is None else self._head.timestamp_ms
        return max(int(time.time() * 1000), last, int(self._metadata.last_updated_ms))

    def _new_path(self, name: str) -> str:
        path = self._table.location_provider().new_metadata_location(name)
        self._paths.append(path)
        return path


def _entry(
    status: ManifestEntryStatus,
    snapshot_id: int | None,
    file: DataFile,
    before: ManifestEntry | None = None,
) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=None if before is None else before.sequence_number,
        file_sequence_number=None if before is None else before.file_sequence_number,
        data_file=file,
    )


def _is_small(manifest: ManifestFile) -> bool:
    return bool(manifest.manifest_length < SMALL_MANIFEST)


def _delete(table: Table, path: str) -> None:
    with suppress(Exception):  # it is swept later
        table.io.delete(path)


# --- what snapshots say ---------------------------------------------------------------------------


def ancestors(table: Table) -> Iterator[Snapshot]:
    """Yield the current snapshot and those that it came from, newest first."""
    snapshot = table.current_snapshot()
    snapshots = {stored.snapshot_id: stored for stored in table.metadata.snapshots}
    while snapshot is not None:
        yield snapshot
        snapshot = snapshots.get(snapshot.parent_snapshot_id or -1)


def properties_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return what a commit has said about itself."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def block_of(snapshot: Snapshot) -> tuple[int, str | None] | None:
    """Return the block up to which a table is complete, and its hash; None if it is not said."""
    properties = properties_of(snapshot)
    text = properties.get(BLOCK)
    return None if text is None else (int(text), properties.get(HASH))


def newest_epoch(table: Table) -> int:
    """Return the newest epoch of which the table has a commit: all earlier writers are fenced."""
    said = map(properties_of, table.metadata.snapshots)
    return max((int(properties.get(EPOCH, 0)) for properties in said), default=0)


def live_files(table: Table) -> Iterator[tuple[DataFile, int | None]]:
    """Yield the data files of the current snapshot, and the snapshot that added each."""
    snapshot = table.current_snapshot()
    for manifest in () if snapshot is None else snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file, entry.snapshot_id


def named_files(table: Table) -> Iterator[str]:
    """Yield the files that a table's metadata names, for any snapshot that it still has."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (statistics.statistics_path for statistics in metadata.statistics)
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file.file_path
