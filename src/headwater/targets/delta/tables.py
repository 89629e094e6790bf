"""Tables of a stream in Delta's format: found, created, widened, changed in atomic commits.

Runs on the driver. A table belongs to one stream. Each commit carries Delta's transaction id with a
version that grows: of two writers of one stream the one that has not seen the other's commit is
refused. Delta itself would accept an old version and a writer without one, so each start commits to
every table before it trusts what it has read.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field
from deltalake.schema import Schema as DeltaSchema
from deltalake.transaction import AddAction, RemoveAction

from headwater.errors import (
    EvolveError,
    InvalidOptionError,
    LakeForeignWriteError,
    LakePathError,
    LakeSchemaError,
    LakeUndoError,
    LakeWriterError,
    UndeclaredLakeTableError,
)
from headwater.targets.delta.changes import (
    DataFile,
    Net,
    Undo,
    dump_changes,
    file_statistics,
    flat_statistics,
    load_changes,
)
from headwater.targets.lake.columns import check_columns, lake_schema
from headwater.targets.lake.files import (
    FilePlan,
    ValueSplit,
    WrittenFile,
    partition_text,
    slug,
)
from headwater.targets.lake.keys import conformed
from headwater.targets.lake.paths import Place
from headwater.targets.lake.state import BLOCK, STREAM
from headwater.targets.lake.tx import Announce, LakeTable

CHANGES = "headwater.changes"
LEAD = "headwater.lead"
_LOG = "_delta_log"
_CHECKPOINT = ".checkpoint.parquet"
_ENTRY = re.compile(r"(\d{20})(?:\.json|\.checkpoint\.parquet)$")
_HISTORY = 64  # commits that are read at once
_DAY = 86_400.0
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_DELTA_OPTIONS = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.region": "AWS_REGION",
    "s3.access-key-id": "AWS_ACCESS_KEY_ID",
    "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
    "s3.session-token": "AWS_SESSION_TOKEN",
}


@dataclass(frozen=True, slots=True)
class Table:
    """One table that a stream writes. Made by `table`."""

    name: str
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    evolve: bool = False


def table(
    name: str, *, key: Sequence[str] = (), partition_by: str = "", evolve: bool = False
) -> Table:
    """Declare a Delta table. One that exists keeps its partitions.

    Args:
        name: of its folder.
        key: columns that tell rows apart, for `tx.upsert` and `tx.delete`.
        partition_by: columns, separated by commas: `"day"`, `"chain, day"`. Delta has no
            transforms: make the column in the pipeline.
        evolve: a frame with a new column adds it to the table; otherwise such a frame is refused.
    """
    if not name or name.startswith(("_", ".")) or set(name) & set("/\\\x00"):
        raise LakeSchemaError("a table's name is that of a folder", table=name)
    columns = tuple(one.strip() for one in partition_by.split(",") if one.strip())
    if isinstance(key, str) or any("(" in one for one in columns):
        raise InvalidOptionError(
            "key is a list of columns; partition_by takes columns of the table, no transforms",
            table=name,
        )
    return Table(name, tuple(key), columns, evolve)


class StreamTable(LakeTable[DataFile]):
    """One table, as this writer has left it: nothing is read again but what a commit returns."""

    def __init__(self, declared: Table, place: Place, handle: DeltaTable, app: str) -> None:
        super().__init__()
        self.declared, self.place, self.name = declared, place, declared.name
        self.key = declared.key
        self.undo: list[Undo] = []  # of blocks that a fork may take, oldest first
        self._handle = handle
        self._app = app
        self._version = handle.transaction_version(app) or 0
        self._learn()

    def _learn(self) -> None:
        found = pa.schema(self._handle.schema().to_arrow())
        self.columns = lake_schema(found)
        self.partition_by = tuple(self._handle.metadata().partition_columns)

    @property
    def is_lead(self) -> bool:
        """Whether the table's commits carry the state of the stream."""
        return self._handle.metadata().configuration.get(LEAD) == "true"

    # --- rows -------------------------------------------------------------------------------------

    def plan(self, frame: pa.Schema, stem: str) -> FilePlan:
        """Return how rows of a frame become files of this table; widen it if that was declared."""
        if self.declared.evolve:
            self.widen(frame)
        check_columns(self.name, frame, self.columns)
        split = ValueSplit(self.partition_by) if self.partition_by else None
        return FilePlan(self.place, self.columns, stem, split=split)

    def widen(self, frame: pa.Schema) -> None:
        """Add the columns that are new, in a commit of their own."""
        new = [one for one in lake_schema(frame) if one.name not in self.columns.names]
        if new:
            fields = DeltaSchema.from_arrow(pa.schema(new)).fields
            with self._coded():
                self._handle.alter.add_columns(list[Field](fields))
                self._handle.update_incremental()
            self._learn()

    def data_file(self, file: WrittenFile) -> tuple[str, DataFile]:
        """Return a written file as the log names it, and its path."""
        values = json.loads(file.partition) if file.partition else ()
        partition = dict(zip(self.partition_by, values, strict=True))
        return file.name, DataFile(file.name, file.size, file_statistics(file.metadata), partition)

    def _committed_files(self) -> dict[str, DataFile]:
        rows = pa.table(self._handle.get_add_actions(flatten=True)).to_pylist()
        found = {}
        for one in rows:
            values = {name: partition_text(one[f"partition.{name}"]) for name in self.partition_by}
            found[one["path"]] = DataFile(
                one["path"], one["size_bytes"], flat_statistics(one), values
            )
        return found

    def size_of(self, file: DataFile) -> int:
        """Return how many bytes a file has."""
        return file.size

    def ends(self, file: DataFile, column: str) -> tuple[Any, Any]:
        """Return the ends of a column that the log has of the file."""
        return file.ends(column)

    def read(self, files: Sequence[DataFile]) -> pa.Table:
        """Return the rows of some files, in the columns of today."""
        found = [self.columns.empty_table()]
        for one in files:
            with self.place.open(one.path) as file:
                found.append(conformed(pq.ParquetFile(file).read(), self.columns))
        return pa.concat_tables(found)

    # --- commits ----------------------------------------------------------------------------------

    def commit(
        self,
        net: Net,
        said: Mapping[str, str],
        changes: Sequence[Undo] = (),
        *,
        changed: bool = True,
        fenced: bool = True,
    ) -> None:
        """Add and remove files in one commit, which says what it is.

        Only maintenance from outside is not `fenced`: it says nothing, and takes no stream over.

        Raises:
            LakeWriterError: another writer of the stream has committed.
            LakeForeignWriteError: something else has changed the same files.
        """
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(one.path, changed, now, one.size, one.partition)
            for one in net.removed.values()
        ]
        actions += [
            AddAction(one.path, one.size, one.partition, now, changed, one.stats)
            for one in net.added.values()
        ]
        with self._coded(fenced=fenced):
            self._handle.create_write_transaction(
                actions,
                "append",
                self._handle.schema(),
                list(self.partition_by) or None,
                commit_properties=CommitProperties(
                    custom_metadata={**said, CHANGES: dump_changes(changes)} if fenced else {},
                    app_transactions=[Transaction(self._app, self._version + 1)] if fenced else [],
                ),
                post_commithook_properties=None if fenced else _NO_HOOKS,
            )
            self._handle.update_incremental()
        self._version += fenced
        self.committed()

    def put_back(self, number: int) -> Net:
        """Return what undoes all batches above a block, and forget them."""
        taken = [one for one in self.undo if one.block > number]
        self.undo = [one for one in self.undo if one.block <= number]
        return Net.of(taken).undone()

    def forget_up_to(self, floor: int) -> None:
        """Forget how to undo blocks that no fork can take."""
        self.undo = [one for one in self.undo if one.block > floor]

    def read_undo(self, floor: int) -> None:
        """Learn from the log how to undo batches above a block. Called by each start.

        Raises:
            LakeUndoError: the log does not go back so far.
        """
        said = []
        for one in self.said():
            said.append(one)
            if int(one[BLOCK]) <= floor:
                break
        if said and int(said[-1][BLOCK]) > floor and said[-1]["version"]:
            raise LakeUndoError(
                "the log has lost commits of blocks that are not final",
                table=self.name,
                block=said[-1][BLOCK],
                floor=floor,
            )
        self.undo = []
        for one in reversed(said):
            block = int(one[BLOCK])
            self.undo = [held for held in self.undo if held.block <= block]
            self.undo += [held for held in load_changes(one[CHANGES]) if held.block > floor]

    def said(self) -> Iterator[dict[str, Any]]:
        """Yield what the stream's own commits said, the newest first."""
        limit, seen = _HISTORY, 0
        while True:
            found = self._handle.history(limit)
            for one in found[seen:]:
                if CHANGES in one:
                    yield one
            if len(found) < limit:
                return
            limit, seen = limit * 4, len(found)

    def reload(self) -> None:
        """Read what others have committed."""
        self._handle.update_incremental()
        self._version = self._handle.transaction_version(self._app) or 0
        self.forget()
        self._learn()

    def unreferenced(self, hours: int) -> list[str]:
        """Return files that no version of the last hours needs, and that no attempt just wrote."""
        found: list[str] = self._handle.vacuum(
            hours, dry_run=True, enforce_retention_duration=False, full=True
        )
        return found

    def checkpoint(self) -> None:
        """Write the log's checkpoint, and remove log entries that have expired.

        The state is in the entry of a commit: none is removed if the newest is not of today.
        """
        self._handle.create_checkpoint()
        newest = next(self.said(), None)
        if newest is not None and newest["timestamp"] > (time.time() - _DAY) * 1000:
            self._handle.cleanup_metadata()

    def shorten_log(self, floor: int, kept: int) -> int:
        """Delete entries of the log below a checkpoint; return how many those were.

        Every commit lists the log, so its length is what a commit takes. The newest `kept` entries
        stay, and all that undo blocks above the floor, the stream's state among them.
        """
        needed = next((one["version"] for one in self.said() if int(one[BLOCK]) <= floor), 0)
        last = min(needed, self._handle.version() - kept)
        names = [one.name for one in self.place.files(_LOG)]
        found = [(int(match[1]), match[0]) for match in map(_ENTRY.search, names) if match]
        ends = [version for version, name in found if name.endswith(_CHECKPOINT)]
        cut = max((one for one in ends if one <= last), default=0)
        gone = [f"{_LOG}/{name}" for version, name in found if version < cut]
        for name in gone:
            self.place.delete(name)
        return len(gone)

    @contextmanager
    def _coded(self, *, fenced: bool = True) -> Iterator[None]:
        """Raise what Delta refuses as the errors that say why."""
        try:
            yield
        except CommitFailedError as error:
            self._refused(error, fenced)

    def _refused(self, error: CommitFailedError, fenced: bool) -> None:
        with suppress(DeltaError):
            self._handle.update_incremental()
        if fenced and (self._handle.transaction_version(self._app) or 0) > self._version:
            raise LakeWriterError(
                "another writer of the stream has committed", table=self.name
            ) from None
        raise LakeForeignWriteError(
            "the table was changed while the stream wrote it",
            table=self.name,
            reason=str(error).splitlines()[0][:120],
        ) from None


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
        for name in sorted({*self.declared, *self.folders(), self._own}):
            handle = self._opened(name)
            if handle is None or handle.metadata().configuration.get(STREAM) != self.stream_id:
                continue
            declared = self.declared.get(name, Table(name))
            self.open[name] = StreamTable(declared, self.place.under(name), handle, self._app)

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
        declared = self.declared.get(name) or (Table(name) if name == self._own else table(name))
        if self._opened(name) is not None:
            raise LakeForeignWriteError("the table belongs to another stream", table=name)
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
                configuration={STREAM: self.stream_id, **leads},
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
        if place.is_local and not (place.local_path / _LOG).is_dir():
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
