"""One table of a stream in Iceberg: a snapshot per batch, and a reference that moves back.

Runs on the driver. A table belongs to one stream, whose id is among its properties: its snapshots
are what a fork goes back to, so rows of two streams cannot share one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.table import Table as PyIcebergTable

from headwater.address import Secret
from headwater.core import PipeState
from headwater.errors import LakeForeignWriteError, LakeSchemaError, LakeUndoError
from headwater.targets.iceberg.inner import (
    DataFile,
    DataFileContent,
    FileFormat,
    Operation,
    Snapshot,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    from_bytes,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
    with_small_types,
)
from headwater.targets.iceberg.schemas import (
    PartitionSplit,
    is_wider,
    partition_record,
)
from headwater.targets.iceberg.snapshots import (
    TableChange,
    ancestors,
    block_of,
    live_files,
    named_files,
    newest_epoch,
    properties_of,
)
from headwater.targets.lake.columns import as_of_today, check_columns, lake_schema
from headwater.targets.lake.files import FilePlan, WrittenFile
from headwater.targets.lake.paths import CatalogPlace
from headwater.targets.lake.settings import IcebergSettings, LakeSettings, Table
from headwater.targets.lake.state import (
    BLOCK,
    FORMAT,
    FORMAT_VERSION,
    HASH,
    STREAM,
    StoredStream,
    position,
    slug,
)
from headwater.targets.lake.table import Change, LakeTable, TableRewritten

PROPERTIES = {
    FORMAT: str(FORMAT_VERSION),
    "format-version": "2",
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.parquet.compression-codec": "zstd",
}
NAMESPACE = "headwater.namespace"  # that of the state of the stream that writes a table
NEVER = -1  # the block of an empty table
_ATTEMPTS = 5  # at a table that others compact
_EXPIRED_AT_ONCE = 16  # snapshots


def place_of(table: PyIcebergTable) -> CatalogPlace:
    """Return where the files of a table are."""
    options = tuple(sorted((str(k), str(v)) for k, v in table.io.properties.items()))
    return CatalogPlace(table.location().rstrip("/"), Secret(options))


class StreamTable(LakeTable[DataFile]):
    """One table: what was declared of it, and what it is in the catalog.

    `check` refuses to go on if another writer has begun; none where the table is only looked at.
    """

    def __init__(
        self,
        declared: Table,
        stored: PyIcebergTable,
        settings: IcebergSettings | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self.declared = declared
        self.stored = stored
        self.name, self.key = declared.name, declared.key
        self._settings = settings or IcebergSettings()
        self._check = check
        self._floor = NEVER  # of the state that was committed last
        self._learn()

    def _learn(self) -> None:
        """Note what follows from the schema."""
        table = self.stored
        self.schema: Schema = table.schema()
        self.columns = with_small_types(schema_to_pyarrow(self.schema))
        self.place = place_of(table)
        self.split = PartitionSplit.of(table.spec(), self.schema)
        self._statistics = compute_statistics_plan(self.schema, table.properties)
        self._paths = parquet_path_to_id_mapping(self.schema)
        order = table.sort_order()
        self._order_id = order.order_id
        names = [self.schema.find_column_name(field.source_id) for field in order.fields]
        self.sort_by = tuple(name for name in names if name is not None)

    @property
    def age(self) -> tuple[str, int]:
        """The table's own id, and the number of its newest snapshot in the order of commits."""
        metadata = cast(Any, self.stored.metadata)
        return str(metadata.table_uuid), int(metadata.last_sequence_number)

    def seen(self) -> PyIcebergTable:
        """Return the table as the catalog has it at this moment."""
        return self.stored.catalog.load_table(self.stored.name())

    def reload(self) -> None:
        """Go on with the table as others have committed it."""
        self.stored = self.seen()
        self.forget()
        self._learn()

    def plan(self, frame: pa.Schema, stem: str) -> FilePlan:
        """Return how rows of a frame become files of this table; widen it if that was declared."""
        if self.declared.evolve:
            self.widen(frame)
        check_columns(self.name, frame, self.columns)
        needed = [column.name for column in self.columns if not column.nullable]
        missing = sorted(set(needed) - set(frame.names))
        if missing:
            raise LakeSchemaError(
                "the frame lacks columns that the table requires",
                table=self.name,
                columns=", ".join(missing),
            )
        return FilePlan(self.place, self.columns, stem, sort_by=self.sort_by, split=self.split)

    def data_file(self, file: WrittenFile) -> tuple[str, DataFile]:
        """Return a written file as a manifest names it, and its path."""
        statistics = data_file_statistics_from_parquet_metadata(
            file.metadata, self._statistics, self._paths
        )
        data_file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.place.uri_of(file.name),
            file_format=FileFormat.PARQUET,
            partition=partition_record(file.partition),
            file_size_in_bytes=file.size,
            sort_order_id=self._order_id or None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        data_file.spec_id = self.stored.spec().spec_id
        return data_file.file_path, data_file

    def _committed_files(self) -> dict[str, DataFile]:
        return {file.file_path: file for file, _ in live_files(self.stored)}

    def size_of(self, file: DataFile) -> int:
        """Return how many bytes a file has."""
        return int(file.file_size_in_bytes)

    def partition_of(self, file: DataFile) -> str | None:
        """Return a text that names the partition of a file; None in a spec of earlier days."""
        is_todays = file.spec_id == self.stored.spec().spec_id
        return repr(file.partition) if is_todays else None

    def comparable(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return values as Iceberg's bounds are read: times and dates are numbers."""
        if pa.types.is_timestamp(values.type):
            return values.cast(pa.int64())
        return values.cast(pa.int32()) if pa.types.is_date(values.type) else values

    def ends(self, file: DataFile, column: str) -> tuple[Any, Any]:
        """Return the bounds of a column that the file's manifest has."""
        source = self.schema.find_field(column)
        number, kind = source.field_id, cast(Any, source.field_type)
        both: list[Mapping[int, bytes]] = [file.lower_bounds or {}, file.upper_bounds or {}]
        low, high = (
            from_bytes(kind, bounds[number]) if number in bounds else None for bounds in both
        )
        return low, high

    def read(self, files: Iterable[DataFile]) -> pa.Table:
        """Return the rows of some files, in the columns of today."""
        tables = [self.columns.empty_table()]
        for data_file in files:
            with self.stored.io.new_input(data_file.file_path).open() as file:
                tables.append(as_of_today(pq.ParquetFile(file).read(), self.columns))
        return pa.concat_tables(tables)

    def widens(self, frame: pa.Schema) -> bool:
        """Tell whether a frame would change the columns, as it was declared that it may."""
        return self.declared.evolve and bool(self._changed(frame))

    def _changed(self, frame: pa.Schema) -> list[pa.Field]:
        """Return the columns of a frame that are new, and those that are wider."""
        columns = {column.name: column for column in self.columns}
        return [
            column
            if column.name not in columns
            else column.with_nullable(columns[column.name].nullable)
            for column in lake_schema(frame)
            if column.name not in columns or is_wider(column.type, columns[column.name].type)
        ]

    def widen(self, frame: pa.Schema) -> None:
        """Add the columns that are new, and widen those that are too narrow."""
        changed = self._changed(frame)
        if changed:
            with self._change() as change:
                change.widen(self.stored.update_schema().union_by_name(pa.schema(changed)))
            self._learn()

    # --- commits ----------------------------------------------------------------------------------

    def commit(self, several: Sequence[Change[DataFile]], stored: StoredStream) -> None:
        """Add a snapshot for each batch, all in one commit; again if files were only rewritten.

        Snapshots that nothing needs any more expire with it: so there are never many.
        """
        for attempt in range(_ATTEMPTS):
            change = TableChange(self.stored)
            try:
                for batch in several:
                    self._add(change, batch, stored)
                if not change:
                    break
                change.expire(self._expired_at_once())
                change.commit()
                break
            except CommitFailedException:
                change.abandon()
                self._accept_rewrite(several, last=attempt + 1 == _ATTEMPTS)
        self.committed()

    def _add(self, change: TableChange, batch: Change[DataFile], stored: StoredStream) -> None:
        said = position(stored.stream_id, stored.epoch, batch.state)
        if batch:
            change.add(list(batch.added.values()), list(batch.removed.values()), said)

    def _expired_at_once(self) -> list[int]:
        """Return the snapshots that a commit lets expire, once there are some: those still there.

        Maintenance beside the stream may have let some expire meanwhile, which moves no reference.
        """
        if not self._settings.maintain_every:
            return []
        gone = self._expired(self._floor, self._settings)
        return self._still_there(gone) if len(gone) >= _EXPIRED_AT_ONCE else []

    def _still_there(self, snapshots: list[int]) -> list[int]:
        """Return the snapshots that others have not let expire meanwhile."""
        there = {snapshot.snapshot_id for snapshot in self.seen().metadata.snapshots}
        return [snapshot for snapshot in snapshots if snapshot in there]

    def _expired(self, floor: int, settings: IcebergSettings) -> list[int]:
        """Return the snapshots that neither a rollback nor time travel needs."""
        metadata = self.stored.metadata
        kept = {ref.snapshot_id for ref in metadata.refs.values()}
        spare = settings.final_snapshots + 1  # the newest final one is where forks end
        for snapshot in ancestors(self.stored):
            block = block_of(snapshot)
            if block is None or block[0] > floor:
                kept.add(snapshot.snapshot_id)
                continue
            if not spare:
                break
            kept.add(snapshot.snapshot_id)
            spare -= 1
        return [
            snapshot.snapshot_id
            for snapshot in metadata.snapshots
            if snapshot.snapshot_id not in kept
        ]

    def _accept_rewrite(self, several: Sequence[Change[DataFile]], *, last: bool) -> None:
        """Load a table again that was changed; refuse any change but a rewrite of files."""
        base = self.stored.current_snapshot()
        self.reload()
        self._check()
        for newer, snapshot in enumerate(ancestors(self.stored)):
            if base is not None and snapshot.snapshot_id == base.snapshot_id:
                if last or (newer and any(batch.removed for batch in several)):
                    raise TableRewritten(self.name)
                return
            if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
                break
        raise LakeForeignWriteError(
            "the table was changed while the stream wrote it", table=self.name
        )

    def way_back(self, stored: StoredStream, *, claim: bool = False) -> Snapshot | None:
        """Return the snapshot to go back to; None in a new table."""
        return self.landing(stored.state)

    def go_back(self, way: Any, stored: StoredStream, *, claim: bool = False) -> bool:
        """Move the reference to a snapshot; a claim adds one that says the same block."""
        current = self.stored.current_snapshot()
        back = way is not None and current is not None and way != current
        self.forget()
        with self._change() as change:
            if back:
                change.go_back(way)
            if claim:
                self._floor = stored.state.undo_floor
                properties = self._said_up_to(way)
                kept = {name: properties[name] for name in (BLOCK, HASH) if name in properties}
                said = position(stored.stream_id, stored.epoch, stored.state)
                change.add((), (), {**said, BLOCK: str(NEVER), **kept})
        return back

    def _said_up_to(self, snapshot: Snapshot | None) -> Mapping[str, str]:
        """Return what the stream's newest commit up to a snapshot says; others may have rewritten
        files since.
        """
        snapshots = {stored.snapshot_id: stored for stored in self.stored.metadata.snapshots}
        while snapshot is not None and BLOCK not in properties_of(snapshot):
            snapshot = snapshots.get(snapshot.parent_snapshot_id or -1)
        return {} if snapshot is None else properties_of(snapshot)

    def forget_up_to(self, floor: int) -> None:
        """Note from where forks can take blocks: snapshots below may expire."""
        self._floor = floor

    @contextmanager
    def _change(self, *, outside: bool = False) -> Iterator[TableChange]:
        """Make a change, and commit it to the table as it was loaded, or not at all.

        Building it reads files that another writer may have swept meanwhile.
        """
        change = TableChange(self.stored, outside=outside)
        try:
            yield change
            if change:
                change.commit()
        except (CommitFailedException, CommitStateUnknownException) as error:
            change.abandon()
            raise TableRewritten(self.name) from error

    def landing(self, state: PipeState) -> Snapshot | None:
        """Return the newest snapshot whose rows all belong to the state; None in a new table."""
        seen: Snapshot | None = None
        for snapshot in ancestors(self.stored):
            seen = seen or snapshot
            block = block_of(snapshot)
            if block is None:
                if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
                    raise LakeForeignWriteError(
                        "the table holds a snapshot of another writer",
                        table=self.name,
                        snapshot=snapshot.snapshot_id,
                    )
                continue
            if is_part_of(block, state):
                return seen
            seen = None
        if self.stored.current_snapshot() is None:
            return None
        raise LakeUndoError(
            "no snapshot of the block is left to go back to", table=self.name, block=state.number
        )

    def check_follows(self, snapshot_id: int) -> None:
        """Refuse a table that others have taken back to before a snapshot; it may have expired."""
        came = [snapshot.snapshot_id for snapshot in ancestors(self.stored)]
        is_held = any(
            snapshot.snapshot_id == snapshot_id for snapshot in self.stored.metadata.snapshots
        )
        if is_held and snapshot_id not in came:
            raise LakeForeignWriteError(
                "others have taken the table back: make the snapshot current again",
                table=self.name,
                snapshot=snapshot_id,
            )

    # --- maintenance ------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The newest epoch that has committed to the table."""
        return newest_epoch(self.seen())

    def rewrite(
        self,
        new: Mapping[str, DataFile],
        old: Mapping[str, DataFile],
        stored: StoredStream,
        outside: bool,
    ) -> None:
        """Add a snapshot of the same rows, which says the block of the one that it is made of."""
        said = position(stored.stream_id, stored.epoch, stored.state)
        for snapshot in ancestors(self.stored):
            properties = properties_of(snapshot)
            if BLOCK in properties:
                said.pop(HASH, None)
                said |= {name: properties[name] for name in (BLOCK, HASH) if name in properties}
                break
        with self._change(outside=outside) as change:
            change.add(list(new.values()), list(old.values()), said, same_rows=True)

    def tidy(
        self, stored: StoredStream, settings: LakeSettings, *, outside: bool, bounded: bool
    ) -> dict[str, int]:
        """Let snapshots expire."""
        assert isinstance(settings, IcebergSettings), "given by the target"
        gone = self._still_there(self._expired(stored.state.undo_floor, settings))
        with self._change(outside=outside) as change:
            change.expire(gone)
        return {"expired": len(gone)}

    def aged(self, settings: LakeSettings) -> dict[str, bool]:
        """Return old files; that a commit has removed one is known of none."""
        before = time.time() - _grace(settings)
        return {file.name: False for file in self.place.files() if file.written < before}

    def named(self, stored: StoredStream, *, outside: bool) -> Iterator[str]:
        """Return all files that some snapshot names by now."""
        return named_files(self.seen())

    def rested(self, names: Sequence[str], settings: LakeSettings) -> Sequence[str]:
        """Return the files that nothing has named since a sweep that is long enough ago.

        A reader that has begun with a snapshot may need its files when it has expired. What each
        sweep finds is written down beside the table's metadata, with the time.
        """
        now = time.time()
        place = f"metadata/headwater-unnamed-{slug(self.stored.properties.get(STREAM, ''))}.json"
        try:
            known = json.loads(self.place.read(place) or b"{}")
        except ValueError:  # half a file, after a crash
            known = {}
        since = {name: min(now, float(known.get(name, now))) for name in names}
        gone = [name for name, first in since.items() if first <= now - _grace(settings)]
        waiting = {name: first for name, first in since.items() if name not in set(gone)}
        if waiting or known:
            self.place.replace(place, json.dumps(waiting).encode())
        return gone


def _grace(settings: LakeSettings) -> float:
    assert isinstance(settings, IcebergSettings), "given by the target"
    return settings.grace_s


def is_part_of(block: tuple[int, str | None], state: PipeState) -> bool:
    """Tell whether a snapshot that ends with this block belongs to the chain of a state.

    Above the second entry of the rollback chain all boundaries of batches are known.
    """
    number, block_hash = block
    if number > state.number:
        return False
    chain = {cursor.number: cursor.hash for cursor in state.rollback_chain}
    if number in chain:
        return block_hash is None or chain[number] is None or chain[number] == block_hash
    known = state.rollback_chain[1:]
    return not known or number < known[0].number
