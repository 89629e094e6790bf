"""One table of a stream in Delta's format: read, widened, and changed in atomic commits.

Runs on the driver. A table belongs to one stream. Each commit carries Delta's transaction id with a
version that grows: of two writers of one stream the one that has not seen the other's commit is
refused. Delta itself would accept an old version and a writer without one, so each start commits to
every table before it trusts what it has read. What other engines commit meanwhile is looked at,
never guessed: they may rewrite files, also those of hot blocks, and change no rows.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any, NoReturn
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field
from deltalake.schema import Schema as DeltaSchema
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from headwater.errors import (
    LakeFileGoneError,
    LakeForeignWriteError,
    LakeUndoError,
    LakeWriterError,
)
from headwater.targets.delta.changes import (
    DataFile,
    Net,
    by_row,
    dump_changes,
    file_statistics,
    flat_statistics,
    load_changes,
)
from headwater.targets.lake.columns import check_columns, conformed, lake_schema
from headwater.targets.lake.files import (
    FilePlan,
    ValueSplit,
    WrittenFile,
    partition_text,
)
from headwater.targets.lake.paths import Place
from headwater.targets.lake.settings import DeltaSettings, LakeSettings, Table
from headwater.targets.lake.state import BLOCK, EPOCH, Author, StoredStream, position, slug
from headwater.targets.lake.table import BLOCK_NUMBER, Change, LakeTable, TableRewritten

CHANGES = "headwater.changes"
LEAD = "headwater.lead"
LOG = "_delta_log"
_CHECKPOINT = ".checkpoint.parquet"
_ENTRY = re.compile(r"(\d{20})(?:\.json|\.checkpoint\.parquet)$")
_ATTEMPTS = 20  # at a commit, while others commit
KEEP_LOG = {"delta.logRetentionDuration": "interval 36500 days"}
"""The state of a stream is in the log, however long it stands still; `shorten_log` shortens it."""
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


_NOT_REBASED = CommitProperties(max_commit_retries=0)  # delta-rs would let a replaced writer in


class StreamTable(LakeTable[DataFile]):
    """One table: as this writer has left it, or as others have rewritten it since."""

    def __init__(self, declared: Table, place: Place, handle: DeltaTable, app: str) -> None:
        super().__init__()
        self.declared, self.place, self.name = declared, place, declared.name
        self.key = declared.key
        self.undo: list[Net] = []  # of blocks that a fork may take, oldest first
        self._handle = handle
        self._app = app
        self._version = handle.transaction_version(app) or 0
        self._seen = handle.version()  # of the log: what comes next is looked at
        self.is_lead = handle.metadata().configuration.get(LEAD) == "true"
        self._rewritten = False  # whether others may have rewritten files of hot blocks
        self._learn()

    def _learn(self) -> None:
        schema = pa.schema(self._handle.schema().to_arrow())
        self.columns = lake_schema(schema)
        self.partition_by = tuple(self._handle.metadata().partition_columns)

    @property
    def age(self) -> tuple[str, int]:
        """The table's own id, and how many commits the stream has made to it."""
        return str(self._handle.metadata().id), self._version

    @property
    def epoch(self) -> int:
        """The newest epoch that has committed to the table."""
        return next((int(commit[EPOCH]) for commit in self.said()), 0)

    def look(self, *, fenced: bool = True) -> None:
        """Read what others have committed since; what it was like before is forgotten.

        Not while files wait for their commit, but to make it again.

        Raises:
            LakeWriterError: another writer of the stream has committed.
            LakeForeignWriteError: others have changed rows.
        """
        self._handle.update_incremental()
        if fenced:
            self.check_writer(self._handle)
        self._look_at(self._seen + 1)
        if self._handle.version() > self._seen:
            self._seen = self._handle.version()
            self.forget()
            self._learn()

    def check_writer(self, handle: DeltaTable) -> None:
        """Refuse to go on if another writer of the stream has committed, as a handle says."""
        if (handle.transaction_version(self._app) or 0) > self._version:
            raise LakeWriterError("another writer of the stream has committed", table=self.name)

    def _look_at(self, first: int) -> None:
        """Accept commits that are this stream's, and those that have rewritten files without their
        rows. What others have taken back again, as RESTORE does, has changed nothing.
        """
        changed: dict[str, str] = {}
        for version in range(first, self._handle.version() + 1):
            text = self.place.read(f"{LOG}/{version:020d}.json") or b""
            entry = [json.loads(line) for line in text.splitlines()]
            if any(CHANGES in action.get("commitInfo", {}) for action in entry):
                continue
            files = [
                (kind, action[kind])
                for action in entry
                for kind in ("add", "remove")
                if kind in action
            ]
            self._rewritten |= bool(files) or not entry
            for kind, file in files:
                if file.get("dataChange", True) and changed.setdefault(file["path"], kind) != kind:
                    del changed[file["path"]]
        if changed:
            raise LakeForeignWriteError(
                "others have changed rows of the table", table=self.name, files=len(changed)
            )

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
        new = [column for column in lake_schema(frame) if column.name not in self.columns.names]
        if new:
            fields = DeltaSchema.from_arrow(pa.schema(new)).fields
            with self._changed():
                self._handle.alter.add_columns(list[Field](fields), commit_properties=_NOT_REBASED)
            self._learn()

    def data_file(self, file: WrittenFile) -> tuple[str, DataFile]:
        """Return a written file as the log names it, and its path."""
        values = json.loads(file.partition) if file.partition else ()
        partition = dict(zip(self.partition_by, values, strict=True))
        return file.name, DataFile(file.name, file.size, file_statistics(file.metadata), partition)

    def _committed_files(self) -> dict[str, DataFile]:
        rows = pa.table(self._handle.get_add_actions(flatten=True)).to_pylist()
        files = {}
        for row in rows:
            values = {name: partition_text(row[f"partition.{name}"]) for name in self.partition_by}
            path = unquote(row["path"])  # as actions take it, which encode it again
            files[path] = DataFile(path, row["size_bytes"], flat_statistics(row), values)
        return files

    def size_of(self, file: DataFile) -> int:
        """Return how many bytes a file has."""
        return file.size

    def ends(self, file: DataFile, column: str) -> tuple[Any, Any]:
        """Return the ends of a column that the log has of the file."""
        return file.ends(column)

    def partition_of(self, file: DataFile) -> str | None:
        """Return a text that names the partition of a file."""
        return repr(file.partition)

    def read(self, files: Sequence[DataFile]) -> pa.Table:
        """Return the rows of some files, in the columns of today."""
        tables = [self.columns.empty_table()]
        for file in files:
            try:
                with self.place.open(file.path) as source:
                    rows = pq.ParquetFile(source).read()
            except FileNotFoundError as error:
                self._gone(file.path, error)
            for name, text in file.partition.items():
                if name not in rows.column_names:  # other engines leave it to the log
                    value = pa.scalar(text, pa.string()).cast(self.columns.field(name).type)
                    rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
            tables.append(conformed(rows, self.columns))
        return pa.concat_tables(tables)

    def _gone(self, path: str, error: FileNotFoundError) -> NoReturn:
        """Say why a file is not there: others have rewritten it, or it is missing."""
        self._handle.update_incremental()
        if path not in self._committed_files():
            raise TableRewritten(self.name) from error
        raise LakeFileGoneError(
            "a file that the table names is not there", table=self.name, file=path
        ) from error

    def is_there(self, path: str) -> bool:
        """Tell whether a file that the log names, or has named, is on disk."""
        info = self.place.filesystem.get_file_info(self.place.path_of(path))
        return bool(info.type == fs.FileType.File)

    # --- commits ----------------------------------------------------------------------------------

    def commit(self, several: Sequence[Change[DataFile]], stored: StoredStream) -> None:
        """Commit what batches change, and how each of them is undone."""
        undo = [Net(change.added, change.removed, change.state.number) for change in several]
        self.write(Net.of(undo), self._said_of(stored), undo)
        self.undo += undo

    def _said_of(self, stored: StoredStream) -> dict[str, str]:
        """Return what a commit says of itself: its block; that of the leader, the whole state."""
        if self.is_lead:
            return stored.to_properties()
        return position(stored.stream_id, stored.epoch, stored.state)

    def write(
        self,
        net: Net,
        said: Mapping[str, str],
        changes: Sequence[Net] = (),
        *,
        changed: bool = True,
        fenced: bool = True,
    ) -> None:
        """Add and remove files in one commit, which says what it is.

        Only maintenance from outside is not `fenced`: it says nothing, and takes no stream over.

        Raises:
            LakeWriterError: another writer of the stream has committed.
            LakeForeignWriteError: others have changed rows.
            TableRewritten: others have rewritten files that this commit removes.
        """
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, changed, now, file.size, file.partition)
            for file in net.removed.values()
        ]
        actions += [
            AddAction(file.path, file.size, file.partition, now, changed, file.stats)
            for file in net.added.values()
        ]
        properties = CommitProperties(
            custom_metadata={**said, CHANGES: dump_changes(changes)} if fenced else {},
            app_transactions=[Transaction(self._app, self._version + 1)] if fenced else [],
            max_commit_retries=0,  # delta-rs would let a commit in that removes what is gone
        )
        for attempt in range(_ATTEMPTS):
            try:
                self._handle.create_write_transaction(
                    actions,
                    "append",
                    self._handle.schema(),
                    list(self.partition_by) or None,
                    commit_properties=properties,
                    post_commithook_properties=None if fenced else _NO_HOOKS,
                )
                break
            except CommitFailedError as error:
                self.look(fenced=fenced)
                live = self._committed_files() if net.removed else {}
                if attempt + 1 == _ATTEMPTS or not net.removed.keys() <= live.keys():
                    raise TableRewritten(self.name) from error
        self._version += fenced
        self.committed()
        self._handle.update_incremental()
        if self._handle.version() == self._seen + 1:
            self._seen += 1
        else:
            self.look(fenced=fenced)

    def way_back(self, stored: StoredStream, *, claim: bool = False) -> Net:
        """Return what undoes all batches above a block. Nothing is changed, but files are written
        where rows have to be taken out of others.

        Raises:
            LakeUndoError: files that a rollback needs are gone.
        """
        number, author = stored.state.number, Author(slug(stored.stream_id), stored.epoch)
        if claim:
            self.read_undo(stored.state.undo_floor)
        self.look()
        net = Net.of([change for change in self.undo if change.block > number]).undone()
        gone = [path for path in net.added if not self.is_there(path)]
        if gone:
            raise LakeUndoError(
                "files that a rollback needs were deleted", table=self.name, block=number,
                files=len(gone), first=gone[0],
            )  # fmt: skip
        if not self._rewritten:
            return net
        live = self.live()
        lost = [file for path, file in net.removed.items() if path not in live]
        there = {path: file for path, file in net.removed.items() if path in live}
        net = Net({path: file for path, file in net.added.items() if path not in live}, there)
        return by_row(self, net, lost, number, author) if lost else net

    def go_back(self, way: Any, stored: StoredStream, *, claim: bool = False) -> bool:
        """Commit the way back; forget how to undo what has been undone."""
        if way or claim or self.is_lead:
            self.write(way, self._said_of(stored))
        self.undo = [change for change in self.undo if change.block <= stored.state.number]
        self.forget()
        if claim:
            self._keep_log()
        return bool(way)

    def forget_up_to(self, floor: int) -> None:
        """Forget how to undo blocks that no fork can take."""
        self.undo = [change for change in self.undo if change.block > floor]

    def read_undo(self, floor: int) -> None:
        """Learn from the log how to undo batches above a block. Called by each start.

        Raises:
            LakeUndoError: the log does not go back so far.
        """
        said = []
        for commit in self.said():
            said.append(commit)
            if int(commit[BLOCK]) <= floor:
                break
        oldest = said[-1] if said else {BLOCK: floor + 1, "version": -1}
        if int(oldest[BLOCK]) > floor and oldest["version"] and (said or self._holds_above(floor)):
            raise LakeUndoError(
                "the log has lost commits of blocks that are not final",
                table=self.name,
                block=oldest[BLOCK],
                floor=floor,
            )
        newest = said[0]["version"] if said else self._handle.version()
        self._look_at(newest + 1)  # what came while nobody looked
        self.undo = []
        for commit in reversed(said):
            block = int(commit[BLOCK])
            self.undo = [change for change in self.undo if change.block <= block]
            self.undo += [
                change for change in load_changes(commit[CHANGES]) if change.block > floor
            ]
        added = Net.of(self.undo).added
        self._rewritten = bool(added and added.keys() - self._committed_files().keys())

    def _holds_above(self, block: int) -> bool:
        """Tell whether the table may hold rows above a block, by what is known of its files."""
        above = {BLOCK_NUMBER: (block + 1, 1 << 62)}
        return any(self.may_hold(file, above) for file in self._committed_files().values())

    def said(self) -> Iterator[dict[str, Any]]:
        """Yield what the stream's own commits said, the newest first, as far as the log goes.

        delta-rs numbers its history from the version that a handle has read, and lists newer
        commits as well: so the entries are read themselves.
        """
        at = self._handle.version()
        while (text := self.place.read(f"{LOG}/{at:020d}.json")) is not None:
            infos = (json.loads(line).get("commitInfo") for line in text.splitlines())
            said: dict[str, Any] = next((info for info in infos if info is not None), {})
            if CHANGES in said:
                yield {**said, "version": at}
            at -= 1

    @property
    def version(self) -> int:
        """The newest version that was read."""
        return self._seen

    def version_at(self, number: int) -> int | None:
        """Return the newest version of the stream's that ends at a block or below."""
        versions = (
            int(commit["version"]) for commit in self.said() if int(commit[BLOCK]) <= number
        )
        return next(versions, None)

    def reload(self) -> None:
        """Read what others have committed, another writer of the stream among them."""
        self._handle.update_incremental()
        self._version = self._handle.transaction_version(self._app) or 0
        self._seen = self._handle.version()
        self.forget()
        self._learn()

    def _keep_log(self) -> None:
        """Have other engines leave the log of a table alone that an earlier release has made."""
        configuration = self._handle.metadata().configuration
        if not KEEP_LOG.items() <= configuration.items():
            with self._changed():
                self._handle.alter.set_table_properties(KEEP_LOG, commit_properties=_NOT_REBASED)

    # --- maintenance ------------------------------------------------------------------------------

    def rewrite(
        self,
        new: Mapping[str, DataFile],
        old: Mapping[str, DataFile],
        stored: StoredStream,
        outside: bool,
    ) -> None:
        """Commit the same rows in other files; from outside the commit says nothing else."""
        said = {} if outside else self._said_of(stored)
        self.write(Net(new, old), said, changed=False, fenced=not outside)

    def tidy(
        self, stored: StoredStream, settings: LakeSettings, *, outside: bool, bounded: bool
    ) -> dict[str, int]:
        """Shorten the log; where time is at hand, write its checkpoint before."""
        assert isinstance(settings, DeltaSettings), "given by the target"
        if not bounded:
            self._handle.create_checkpoint()
        if not outside:
            self.look()
        shortened = self.shorten_log(stored.state.undo_floor, settings.log_entries)
        return {"log_entries": shortened} if bounded else {}

    def aged(self, settings: LakeSettings) -> dict[str, bool]:
        """Return files that no version of the last hours needs.

        Those that a commit has removed, and those that none has named. delta-rs counts whole hours:
        a part of one is a whole one, so that nothing goes too early.
        """
        assert isinstance(settings, DeltaSettings), "given by the target"
        hours = ceil(settings.retention_hours)
        vacuumed: list[set[str]] = [
            set(self._handle.vacuum(hours, True, enforce_retention_duration=False, full=full))
            for full in (False, True)
        ]
        return {path: path in vacuumed[0] for path in sorted(vacuumed[0] | vacuumed[1])}

    def named(self, stored: StoredStream, *, outside: bool) -> set[str]:
        """Return the files of the newest version, and those that a rollback would add again."""
        if outside:
            self.reload()
            self.read_undo(stored.state.undo_floor)
        else:
            self.look()
        undo = {path for change in self.undo for path in (*change.added, *change.removed)}
        return undo | self.live().keys()

    def shorten_log(self, floor: int, kept: int) -> int:
        """Delete entries of the log below a checkpoint; return how many those were.

        Every commit lists the log, so its length is what a commit takes. The newest `kept` entries
        stay, and all that undo blocks above the floor, the stream's state among them.
        """
        needed = next(
            (commit["version"] for commit in self.said() if int(commit[BLOCK]) <= floor), 0
        )
        last = min(needed, self._handle.version() - kept)
        names = [file.name for file in self.place.files(LOG)]
        entries = [(int(match[1]), match[0]) for match in map(_ENTRY.search, names) if match]
        ends = [version for version, name in entries if name.endswith(_CHECKPOINT)]
        cut = max((version for version in ends if version <= last), default=0)
        gone = [f"{LOG}/{name}" for version, name in entries if version < cut]
        for name in gone:
            self.place.delete(name)
        return len(gone)

    @contextmanager
    def _changed(self) -> Iterator[None]:
        """Surround a commit that changes no files."""
        try:
            yield
        except CommitFailedError as error:
            self.look()
            raise TableRewritten(self.name) from error
        self._handle.update_incremental()
        if self._handle.version() == self._seen + 1:
            self._seen += 1
        else:
            self.look()
