"""The tables of one stream in a folder of Delta tables: found, made, renamed.

Runs on the driver. A table belongs to one stream, whose id is in its properties. The first one that
a stream makes leads: its commits carry the state, and who has committed to it last is the writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    UndeclaredLakeTableError,
)
from headwater.targets.delta.settings import Table, table
from headwater.targets.delta.stream_table import CHANGES, KEEP_LOG, LEAD, LOG, StreamTable
from headwater.targets.lake.authors import slug
from headwater.targets.lake.columns import lake_schema
from headwater.targets.lake.paths import Place
from headwater.targets.lake.state import STREAM
from headwater.targets.lake.tx import Announce

_DELTA_OPTIONS = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.region": "AWS_REGION",
    "s3.access-key-id": "AWS_ACCESS_KEY_ID",
    "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
    "s3.session-token": "AWS_SESSION_TOKEN",
}


@dataclass(slots=True)
class StreamTables:
    """The tables of one stream, by name. The first one that is made leads: it has the state.

    `automatic` ones need no declaration. `open` are those that exist.
    """

    place: Place
    stream_id: str
    declared: Mapping[str, Table]
    automatic: bool
    announce: Announce
    open: dict[str, StreamTable] = field(default_factory=dict)

    @property
    def _app(self) -> str:
        """The stream as Delta's transactions name it."""
        return f"headwater/{self.stream_id}"

    @property
    def _own(self) -> str:
        """The table that leads until one has rows."""
        return f"_headwater/{slug(self.stream_id)}/state"

    @property
    def lead(self) -> StreamTable | None:
        """The table whose commits carry the state."""
        return next((one for one in self.open.values() if one.is_lead), None)

    def load(self) -> None:
        """Open the tables of the stream that exist; leave those of others alone."""
        self.open = {}
        for name in self._names():
            handle = self._opened(name)
            if handle is None or handle.metadata().configuration.get(STREAM) != self.stream_id:
                continue
            declared = self.declared.get(name, Table(name))
            self.open[name] = StreamTable(declared, self.place.under(name), handle, self._app)

    def check_lead(self) -> None:
        """Refuse to go on if another writer of the stream has begun."""
        handle = None if self.lead is None else self._opened(self.lead.name)
        if self.lead is not None and handle is not None:
            self.lead.check_writer(handle)

    def _names(self) -> list[str]:
        """Return the names that tables of the stream may have."""
        return sorted({*self.declared, *self.folders(), self._own})

    def get(
        self, name: str, frame: pa.Schema | None, said: Mapping[str, str]
    ) -> StreamTable | None:
        """Return a table; it is created for the columns of a frame, if one is given.

        Raises:
            UndeclaredLakeTableError: `on_data` writes a table that was not declared.
            LakeForeignWriteError: the table belongs to another stream.
        """
        if not self.automatic and name not in self.declared and name != self._own:
            raise UndeclaredLakeTableError("a table is written that was not declared", table=name)
        found = self.open.get(name)
        if found is not None or frame is None:
            return found
        self.check_lead()
        declared = self.declared.get(name) or (Table(name) if name == self._own else table(name))
        handle = self._opened(name)
        if handle is not None:
            if handle.metadata().configuration.get(STREAM) != self.stream_id:
                raise LakeForeignWriteError("the table belongs to another stream", table=name)
            if self.lead is None:
                raise LakeWriterError("another writer has made the table", table=name)
            place = self.place.under(name)  # a writer that was replaced has made it
            self.open[name] = there = StreamTable(declared, place, handle, self._app)
            return there
        columns = lake_schema(frame)
        _check_partitions(declared, columns)
        leads = {} if self.lead is not None else {LEAD: "true"}
        self.announce(f"create table {name}")
        place = self.place.under(name)
        try:
            handle = DeltaTable.create(
                place.uri,
                DeltaSchema.from_arrow(columns),
                partition_by=list(declared.partition_by) or None,
                configuration={STREAM: self.stream_id, **leads, **KEEP_LOG},
                raise_if_key_not_exists=False,
                storage_options=self._options(),
                commit_properties=CommitProperties(
                    custom_metadata={**said, CHANGES: "[]"},
                    app_transactions=[Transaction(self._app, 1)],
                ),
            )
        except DeltaError as error:
            if self._opened(name) is not None:
                raise LakeWriterError("another writer has made the table", table=name) from None
            raise LakePathError("the table cannot be made", table=name, reason=str(error)) from None
        others = [one for one in self._names() if one != name] if leads else []
        if handle.version() or any(self.owner(one) == self.stream_id for one in others):
            raise LakeWriterError("another writer begins at this moment", table=name)
        self.open[name] = made = StreamTable(declared, place, handle, self._app)
        return made

    def check_rename(self, old: str, new: str) -> None:
        """Refuse a new name for a table of the stream that its folder cannot be given."""
        if self.owner(old) != self.stream_id:
            return  # it was renamed before, or there is none
        before, after = self.place.under(old), self.place.under(table(new).name)
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

    def make_lead(self, said: Mapping[str, str]) -> StreamTable:
        """Return the table that leads; make one of no rows if there is none."""
        found = self.lead or self.get(self._own, pa.schema([("block_number", pa.int64())]), said)
        assert found is not None, "a schema was given"
        return found

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
        return None if handle is None else handle.metadata().configuration.get(STREAM)

    def folders(self) -> list[str]:
        """Return the folders of the place, where tables need no declaration."""
        if not self.automatic:
            return []
        return [one for one in self.place.folders() if not one.startswith(("_", "."))]

    def _options(self) -> dict[str, str] | None:
        """Return the options of the place by the names that delta-rs has for them."""
        given = dict(self.place.options.reveal())
        options = {_DELTA_OPTIONS.get(name, name): value for name, value in given.items()}
        if given.get("s3.endpoint", "").startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
        return options or None


def _check_partitions(declared: Table, columns: pa.Schema) -> None:
    """Refuse a partition by a column that is not there, or of a type that has no plain text."""
    for name in declared.partition_by:
        kind = columns.field(name).type if name in columns.names else None
        if kind not in _PARTITIONS:
            raise LakeSchemaError(
                "a partition needs a column of text, whole numbers, dates or truth values",
                table=declared.name, column=name, type=str(kind),
            )  # fmt: skip


_PARTITIONS = (pa.string(), pa.int32(), pa.int64(), pa.date32(), pa.bool_())
