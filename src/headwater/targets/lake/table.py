"""One table of a stream, as every format has it: rows become files, which are committed and undone.

A format says how its files, commits and histories differ. Runs on the driver. A table belongs to
one stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import Batch, PipeState
from headwater.errors import (
    LakeForeignWriteError,
    LakeUnsupportedError,
    LakeWriterError,
    UndeclaredLakeTableError,
)
from headwater.targets.contract import Delivery
from headwater.targets.lake.columns import lake_schema
from headwater.targets.lake.files import FilePlan, WrittenFile
from headwater.targets.lake.paths import Place
from headwater.targets.lake.settings import LakeSettings, Table
from headwater.targets.lake.state import StoredStream

BLOCK_NUMBER = "block_number"
ATTEMPTS = 5  # at tables that others rewrite
ROWS = 50_000  # of a table in memory, written at a time
Announce = Callable[[str], None]
Ranges = Mapping[str, tuple[Any, Any]]
File = TypeVar("File")  # a data file as the format's log or manifest names it


class TableRewritten(Exception):  # noqa: N818 - an event, which never leaves a target
    """Others have changed a table since it was loaded: a commit is made again, of what is there."""


@dataclass(slots=True)
class Change(Generic[File]):
    """The files that one batch adds to a table and removes from it, by path.

    `begins_anew` says that the table is forgotten: it is committed in any case.
    """

    state: PipeState
    added: dict[str, File] = field(default_factory=dict)
    removed: dict[str, File] = field(default_factory=dict)
    begins_anew: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.begins_anew)


class Lead(ABC, Generic[File]):
    """What takes part in the commits of a stream: a table, or what has the state alone."""

    name: str
    is_lead = False  # whether its commits carry what is stored of the stream

    @property
    def step(self) -> str:
        """How a commit is announced."""
        return f"commit {self.name}"

    @abstractmethod
    def commit(self, several: Sequence[Change[File]], stored: StoredStream) -> None:
        """Commit what batches change; the one that leads commits what is stored with it.

        Raises:
            LakeWriterError: another writer of the stream has begun.
            LakeForeignWriteError: others have changed rows.
            TableRewritten: others have rewritten files that this commit removes.
        """

    def way_back(self, stored: StoredStream, *, claim: bool = False) -> Any:
        """Return what takes the table back to a state. Nothing that is visible is changed.

        Raises:
            LakeUndoError: what a rollback needs is gone.
        """

    def go_back(self, way: Any, stored: StoredStream, *, claim: bool = False) -> bool:
        """Make the table end where the state does; return whether there was anything to undo.

        To `claim` it commits in any case: a writer that has not seen that commit can make no more.

        Raises:
            TableRewritten: the table is not what it was when the way was found.
        """
        return False

    def reload(self) -> None:
        """Read what others have committed, another writer of the stream among them."""

    def look(self) -> None:
        """Read what others have committed; refuse another writer, if the table tells of one."""
        self.reload()

    def forget_up_to(self, floor: int) -> None:
        """Forget how to undo blocks that no fork can take."""


class LakeTable(Lead[File]):
    """One table of a stream, as this writer has left it, or as others have rewritten it since."""

    key: tuple[str, ...]
    columns: pa.Schema
    place: Place

    def __init__(self) -> None:
        self._files: dict[str, File] | None = None  # of keyed tables, once they are read
        self._pending: dict[str, File] = {}

    def live(self) -> dict[str, File]:
        """Return the data files by path: those committed, and those that wait for their commit."""
        if self._files is None:
            self._files = {**self._committed_files(), **self._pending}
        return self._files

    def written(self, plan: FilePlan, rows: pa.Table) -> Iterable[tuple[str, File]]:
        """Write rows of this process; return their files by path. They wait for their commit."""
        return map(self.data_file, plan.write(rows.to_batches(ROWS)))

    def add(self, path: str, file: File) -> None:
        """Note a file that waits for its commit."""
        (self._pending if self._files is None else self._files)[path] = file

    def committed(self) -> None:
        """Note that nothing waits any more."""
        self._pending.clear()

    def forget(self) -> None:
        """Forget which files there are: others have changed that, or nothing came of it."""
        self._files = None
        self._pending.clear()

    def may_hold(self, file: File, ranges: Ranges) -> bool:
        """Tell whether a file may hold a key between these ends, by its statistics."""
        for name, (least, most) in ranges.items():
            low, high = self.ends(file, name)
            if type(low) is type(most) and low > most:
                return False
            if type(high) is type(least) and high < least:
                return False
        return True

    def rows_of(self, first: int, last: int) -> pa.Table:
        """Return rows: all that are of these blocks, maybe others too."""
        wanted = {BLOCK_NUMBER: (first, last)}
        return self.read([file for file in self.live().values() if self.may_hold(file, wanted)])

    def first_block(self) -> int | None:
        """Return the first block that the table has rows of; None if it has none."""
        numbers = []
        for file in self.live().values():
            low = self.ends(file, BLOCK_NUMBER)[0]
            if low is None:
                low = pc.min(self.read([file]).column(BLOCK_NUMBER)).as_py()
            if low is not None:
                numbers.append(int(low))
        return min(numbers, default=None)

    def comparable(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return values of a key as statistics hold them."""
        return values

    @property
    def age(self) -> tuple[str, int]:
        """The table's own id, and a number that grows with each commit of the stream."""
        return self.name, 0

    # --- what each format does in its own way -----------------------------------------------------

    @abstractmethod
    def plan(self, frame: pa.Schema, stem: str) -> FilePlan:
        """Return how rows of a frame become files of this table; widen it if that was declared."""

    def widens(self, frame: pa.Schema) -> bool:
        """Tell whether a frame would change the columns, as it was declared that it may."""
        return False

    @abstractmethod
    def widen(self, frame: pa.Schema) -> None:
        """Add the columns of a frame that the table lacks."""

    @abstractmethod
    def data_file(self, file: WrittenFile) -> tuple[str, File]:
        """Return a written file as the format names it, and its path."""

    @abstractmethod
    def read(self, files: Sequence[File]) -> pa.Table:
        """Return the rows of some files, in the columns of today."""

    @abstractmethod
    def size_of(self, file: File) -> int:
        """Return how many bytes a file has."""

    @abstractmethod
    def ends(self, file: File, column: str) -> tuple[Any, Any]:
        """Return the least and the largest value of a column; None where statistics lack it."""

    def partition_of(self, file: File) -> str | None:
        """Return a text that names the partition of a file; None if no new one may join it."""
        return None

    @abstractmethod
    def _committed_files(self) -> dict[str, File]:
        """Return the data files of the last commit, by path."""

    # --- maintenance ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The newest epoch that has committed to the table: all earlier writers are fenced out."""

    def rewrite(
        self, new: Mapping[str, File], old: Mapping[str, File], stored: StoredStream, outside: bool
    ) -> None:
        """Commit other files with the same rows. `outside`: the stream may run meanwhile.

        Raises:
            TableRewritten: the table has changed meanwhile.
        """
        raise LakeUnsupportedError("files of this format never change", table=self.name)

    def tidy(
        self, stored: StoredStream, settings: LakeSettings, *, outside: bool, bounded: bool
    ) -> dict[str, int]:
        """Forget what neither a rollback nor time travel needs of the history; say how much.

        Raises:
            TableRewritten: the table has changed meanwhile.
        """
        return {}

    @abstractmethod
    def aged(self, settings: LakeSettings) -> dict[str, bool]:
        """Return files that may be old enough to be deleted, and whether a commit removed them."""

    @abstractmethod
    def named(self, stored: StoredStream, *, outside: bool) -> Iterable[str]:
        """Return the files that the table needs at this moment, for readers or for a rollback."""

    def rested(self, names: Sequence[str], settings: LakeSettings) -> Sequence[str]:
        """Return those of some files that nothing has named for as long as readers are given."""
        return names


class LakeTables(ABC, Generic[File]):
    """The tables of one stream in one place, and what is stored of it. `open` are those that exist.

    Made for a target, which takes the stream over, or to be looked at and maintained from outside.
    `automatic` tables need no declaration.
    """

    changes: ClassVar[bool] = True  # whether rows that were committed can be replaced

    def __init__(
        self, stream_id: str, declared: Mapping[str, Table], announce: Announce, *, automatic: bool
    ) -> None:
        self.stream_id = stream_id
        self.declared = declared
        self.automatic = automatic
        self.open: dict[str, LakeTable[File]] = {}
        self._announce = announce

    @abstractmethod
    def load(self) -> StoredStream | None:
        """Read all anew; return what is stored of the stream, None if nothing is.

        Raises:
            StateMissingError: tables of the stream hold blocks, but no state is left.
        """

    @abstractmethod
    def take_over(self, before: StoredStream | None) -> StoredStream:
        """Read all anew and begin the stream's next epoch, or go on after a failure.

        Raises:
            LakeWriterError: another writer has begun since `before`.
        """

    @abstractmethod
    def check(self) -> object:
        """Refuse to go on if another writer of the stream has begun.

        Raises:
            LakeWriterError: one has.
        """

    @property
    @abstractmethod
    def side(self) -> Place:
        """Where files of the stream itself are kept."""

    @property
    def has_lead(self) -> bool:
        """Whether there is a place for what is stored before the first commit."""
        return True

    @abstractmethod
    def lead(self, stored: StoredStream) -> Lead[File]:
        """Return what commits the state; it is made if there is none, and says what is stored."""

    @abstractmethod
    def in_order(self) -> list[Lead[File]]:
        """Return all that takes part in a rollback: what has the state comes first."""

    def ages(self) -> dict[str, int]:
        """Return how old the tables are, by their ids; the state itself is as old as its own."""
        ages = (table.age for table in self.open.values() if not table.is_lead)
        return {name: age for name, age in ages if age}

    def check_ages(self, stored: StoredStream) -> None:
        """Refuse tables that are older copies of what they were when the state was stored."""
        for table in self.open.values():
            name, age = table.age
            if age < stored.ages.get(name, 0):
                raise LakeForeignWriteError(
                    "the table is an older copy than the state of the stream: bring back the "
                    "newest one, or the state and all tables of one moment",
                    table=table.name,
                )

    def swept(self) -> list[LakeTable[File]]:
        """Return all tables whose folders may hold files of the stream."""
        return list(self.open.values())

    def begin(self, batch: Batch[Delivery], after: PipeState) -> bool:
        """Learn of a batch before its rows come; tell whether executors write files of it."""
        return not after.is_hot

    def move(self, stored: StoredStream) -> None:
        """Take what is there along, as far as that can be done, when an operator moves a cursor.

        Raises:
            CursorMoveError: it cannot.
        """

    def get(
        self, name: str, frame: pa.Schema | None, stored: StoredStream
    ) -> LakeTable[File] | None:
        """Return a table; it is created for the columns of a frame, if one is given.

        Raises:
            UndeclaredLakeTableError: `on_data` writes a table that was not declared.
            LakeForeignWriteError: the table belongs to another stream.
        """
        if not self.automatic and name not in self.declared:
            raise UndeclaredLakeTableError("a table is written that was not declared", table=name)
        table = self.open.get(name)
        if frame is None:
            return table
        if table is None or table.widens(frame):
            self.check()
        if table is None:
            self.open[name] = table = self._create(name, lake_schema(frame), stored)
        return table

    @abstractmethod
    def _create(self, name: str, columns: pa.Schema, stored: StoredStream) -> LakeTable[File]:
        """Make a table. One that a writer may have made that was replaced is claimed."""

    def _claim(self, table: LakeTable[File], stored: StoredStream) -> None:
        """Commit to a new table what no earlier writer has seen: none of its rows count."""
        nothing = StoredStream(self.stream_id, epoch=stored.epoch)
        for left in reversed(range(ATTEMPTS)):
            self.check()
            try:
                table.go_back(table.way_back(nothing, claim=True), nothing, claim=True)
                break
            except (LakeWriterError, TableRewritten):
                if not left:
                    raise
                table.reload()

    def appeared(self) -> list[Lead[File]]:
        """Return tables that an earlier writer has made while the stream was taken over."""
        return []

    @abstractmethod
    def check_rename(self, old: str, new: str) -> None:
        """Make sure that a table of the stream can be given a new name. Nothing is changed.

        Raises:
            EvolveError: it cannot.
        """

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Give a table of the stream a new name, if there is one of the old name.

        Raises:
            EvolveError: the place renames no tables at all.
        """

    def close(self) -> None:
        """Let go of what is open."""
