"""The tables of one stream in a folder of Delta tables: found, made, renamed.

Runs on the driver. A table belongs to one stream, whose id is in its properties. The first one that
a stream makes leads: its commits carry the state, and who has committed to it last is the writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.schema import Schema as DeltaSchema

from headwater.errors import (
    EvolveError,
    LakeForeignWriteError,
    LakePathError,
    LakeSchemaError,
    LakeWriterError,
    StateMissingError,
)
from headwater.targets.delta.changes import DataFile
from headwater.targets.delta.stream_table import CHANGES, KEEP_LOG, LEAD, LOG, StreamTable
from headwater.targets.lake.paths import Place
from headwater.targets.lake.settings import Table, check_folder_name
from headwater.targets.lake.state import STATE, STREAM, StoredStream, slug
from headwater.targets.lake.table import Announce, LakeTables, Lead

_DELTA_OPTIONS = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.region": "AWS_REGION",
    "s3.access-key-id": "AWS_ACCESS_KEY_ID",
    "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
    "s3.session-token": "AWS_SESSION_TOKEN",
}


class StreamTables(LakeTables[DataFile]):
    """The tables of one stream, by name. The first one that is made leads: it has the state.

    `automatic` ones need no declaration.
    """

    open: dict[str, StreamTable]  # type: ignore[assignment]

    def __init__(
        self,
        place: Place,
        stream_id: str,
        declared: Mapping[str, Table],
        announce: Announce = lambda step: None,
        *,
        automatic: bool = True,
    ) -> None:
        super().__init__(stream_id, declared, announce, automatic=automatic)
        self.place = place
        self._app = f"headwater/{stream_id}"  # the stream as Delta's transactions name it
        self._own = f"_headwater/{slug(stream_id)}/state"  # leads until a table has rows

    @property
    def _lead(self) -> StreamTable | None:
        """The table whose commits carry the state."""
        return next((table for table in self.open.values() if table.is_lead), None)

    @property
    def has_lead(self) -> bool:
        """Whether there is a place for what is stored before the first commit."""
        return self._lead is not None

    @property
    def side(self) -> Place:
        """Where a stream keeps the files of its side tables."""
        return self.place.under(f"_headwater/{slug(self.stream_id)}")

    def load(self) -> StoredStream | None:
        """Open the tables of the stream that exist; leave those of others alone."""
        self.open = {}
        self.appeared()
        lead = self._lead
        if lead is None:
            if self.open:
                raise StateMissingError(
                    "no table of the stream has its state",
                    stream=self.stream_id,
                    tables=[*self.open],
                )
            return None
        said = next((commit for commit in lead.said() if STATE in commit), None)
        if said is None:
            raise StateMissingError(
                "no commit with the stream's state is left", stream=self.stream_id, table=lead.name
            )
        return StoredStream.from_properties(said)

    def appeared(self) -> list[Lead[DataFile]]:
        """Open the tables of the stream that are not open yet."""
        tables: list[Lead[DataFile]] = []
        for name in self._names():
            handle = None if name in self.open else self._opened(name)
            if handle is not None and self._owner(handle) == self.stream_id:
                self.open[name] = self._made(name, handle)
                tables.append(self.open[name])
        return tables

    def take_over(self, before: StoredStream | None) -> StoredStream:
        """Begin an epoch: the first commit to the table that leads says it."""
        loaded = self.load()
        epoch = 0 if loaded is None else loaded.epoch
        if before is not None and epoch > before.epoch:
            raise LakeWriterError("another writer of the stream has begun", stream=self.stream_id)
        stored = replace(loaded or StoredStream(self.stream_id), epoch=epoch + 1)
        return (
            stored
            if before is None or loaded is not None
            else replace(stored, config=before.config)
        )

    def check(self) -> None:
        """Refuse to go on if another writer of the stream has begun."""
        lead = self._lead
        handle = None if lead is None else self._opened(lead.name)
        if lead is not None and handle is not None:
            lead.check_writer(handle)

    def in_order(self) -> list[Lead[DataFile]]:
        """Return the table that leads, then the others."""
        return sorted(self.open.values(), key=lambda table: not table.is_lead)

    def _names(self) -> list[str]:
        """Return the names that tables of the stream may have."""
        return sorted({*self.declared, *self.folders(), self._own})

    def _made(self, name: str, handle: DeltaTable) -> StreamTable:
        declared = self.declared.get(name, Table(name))
        return StreamTable(declared, self.place.under(name), handle, self._app)

    def _create(self, name: str, columns: pa.Schema, stored: StoredStream) -> StreamTable:
        """Make a table; the first one leads. Another may have been made by an earlier writer."""
        leads, handle = self._lead is None, self._opened(name)
        if handle is None:
            handle = self._make(name, columns, stored)
        elif self._owner(handle) != self.stream_id:
            raise LakeForeignWriteError("the table belongs to another stream", table=name)
        elif leads:
            raise LakeWriterError("another writer has made the table", table=name)
        table = self._made(name, handle)
        if not leads:
            self._claim(table, stored)
        return table

    def _make(self, name: str, columns: pa.Schema, stored: StoredStream) -> DeltaTable:
        """Make a table that is not there; the first one says what is stored."""
        leads = self._lead is None
        if name != self._own:
            check_folder_name(name)
        declared = self.declared.get(name, Table(name))
        _check_partitions(declared, columns)
        self._announce(f"create table {name}")
        lead = {LEAD: "true"} if leads else {}
        try:
            handle = DeltaTable.create(
                self.place.under(name).uri,
                DeltaSchema.from_arrow(columns),
                partition_by=[part.column for part in declared.partition_by] or None,
                configuration={STREAM: self.stream_id, **lead, **KEEP_LOG},
                raise_if_key_not_exists=False,
                storage_options=self._options(),
                commit_properties=CommitProperties(
                    custom_metadata={**stored.to_properties(), CHANGES: "[]"},
                    app_transactions=[Transaction(self._app, 1)],
                ),
            )
        except DeltaError as error:
            if self._opened(name) is not None:
                raise LakeWriterError("another writer has made the table", table=name) from None
            raise LakePathError("the table cannot be made", table=name, reason=str(error)) from None
        others = [other for other in self._names() if other != name] if leads else []
        if handle.version() or any(self.owner(other) == self.stream_id for other in others):
            raise LakeWriterError("another writer begins at this moment", table=name)
        return handle

    def check_rename(self, old: str, new: str) -> None:
        """Refuse a new name for a table of the stream that its folder cannot be given."""
        check_folder_name(new)
        if self.owner(old) != self.stream_id:
            return  # it was renamed before, or there is none
        before, after = self.place.under(old), self.place.under(new)
        if not before.is_local:
            raise EvolveError(
                "a folder of an object store cannot be renamed in one step: while the stream is "
                "stopped, move all its objects to the new name, then start again",
                old=before.uri,
                new=after.uri,
            )
        if after.local_path.exists():
            raise EvolveError("a folder of the new name is there already", old=old, new=new)

    def rename(self, old: str, new: str) -> None:
        """Give a table of the stream, which is a folder, a new name."""
        if self.owner(old) == self.stream_id:  # else it was renamed before, or there is none
            self.place.under(old).local_path.rename(self.place.under(new).local_path)

    def lead(self, stored: StoredStream) -> StreamTable:
        """Return the table that leads; make one of no rows if there is none."""
        lead = self._lead
        if lead is None:
            self.check()
            columns = pa.schema([("block_number", pa.int64())])
            self.open[self._own] = lead = self._create(self._own, columns, stored)
        return lead

    def _opened(self, name: str) -> DeltaTable | None:
        place = self.place.under(name)
        if place.is_local and not (place.local_path / LOG).is_dir():
            return None
        try:
            return DeltaTable(place.uri, storage_options=self._options())
        except TableNotFoundError:
            return None

    def owner(self, name: str) -> str | None:
        """Return the stream that a folder's table belongs to; None if it is no stream's table."""
        handle = self._opened(name)
        return None if handle is None else self._owner(handle)

    def _owner(self, handle: DeltaTable) -> str | None:
        return handle.metadata().configuration.get(STREAM)

    def folders(self) -> list[str]:
        """Return the folders of the place, where tables need no declaration."""
        if not self.automatic:
            return []
        return [folder for folder in self.place.folders() if not folder.startswith(("_", "."))]

    def _options(self) -> dict[str, str] | None:
        """Return the options of the place by the names that delta-rs has for them."""
        revealed = dict(self.place.options.reveal())
        options = {_DELTA_OPTIONS.get(name, name): value for name, value in revealed.items()}
        if revealed.get("s3.endpoint", "").startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
        return options or None


def _check_partitions(declared: Table, columns: pa.Schema) -> None:
    """Refuse a partition by a column that is not there, or of a type that has no plain text."""
    for part in declared.partition_by:
        name = part.column
        kind = columns.field(name).type if name in columns.names else None
        if kind not in _PARTITIONS:
            raise LakeSchemaError(
                "a partition needs a column of text, whole numbers, dates or truth values",
                table=declared.name, column=name, type=str(kind),
            )  # fmt: skip


_PARTITIONS = (pa.string(), pa.int32(), pa.int64(), pa.date32(), pa.bool_())
