"""Administers the streams of a lake: shows them, moves and forgets them, maintains their tables.

Runs in the process of the command. To look takes nothing over, so it may be beside a stream that
runs. A move or a reset begins the stream's next epoch, as a start does: a stream that runs stops
(E2603), and what a crash leaves is put right by the next start. What each format does in its own
way is in its own `target.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockCursor
from headwater.core.rooms import Room, lake_room
from headwater.errors import (
    LakeCommandError,
    LakeForeignWriteError,
    LakePathError,
    VerifyError,
)
from headwater.targets.admin import (
    Admin,
    BlockRows,
    Move,
    MoveKind,
    StreamStatus,
    TableStatus,
    check_reset,
    find_stream,
    plan_move,
)
from headwater.targets.compare import counted
from headwater.targets.contract import SideTable
from headwater.targets.extras import import_extra
from headwater.targets.lake.maintenance import maintain_stream
from headwater.targets.lake.paths import Options, Place, coded_storage_errors
from headwater.targets.lake.settings import LakeSettings
from headwater.targets.lake.side import SideFiles, side_status
from headwater.targets.lake.state import StoredStream
from headwater.targets.lake.table import ATTEMPTS, BLOCK_NUMBER, File, LakeTable, LakeTables
from headwater.targets.side_rows import SideStatus


@dataclass(frozen=True, slots=True)
class LakeMoment:
    """One moment of all tables of a stream: the block, and the version of each that ends there.

    A version is a snapshot's id in Iceberg, a number in Delta, and the block itself in Parquet: its
    `files` up to there are named. The block is None at the beginning.
    """

    stream_id: str
    block: BlockCursor | None
    versions: Mapping[str, int]
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class LakeAdmin(Admin, Generic[File]):
    """Administers one place. `undo` is the word for how the format takes back hot blocks."""

    undo: str
    own_rows = False  # whether all rows of a table are the stream's

    def streams(self) -> list[StreamStatus]:
        """Return all streams that have stored something here."""
        streams = []
        with self._lakes() as lakes:
            for _, tables in sorted(lakes.items()):
                stored = tables.load()
                if stored is None or stored.is_forgotten:
                    continue
                names = [self.shown(name) for name in tables.open]
                shown = sorted(name for name in names if name is not None)
                status = (TableStatus(name, self.undo, own_rows=self.own_rows) for name in shown)
                streams.append(StreamStatus(stored.stream_id, stored.state, tuple(status)))
        return streams

    def read_blocks(self, stream_id: str, table: str, first: int, last: int) -> BlockRows:
        """Return the rows of a table that are of these blocks."""
        names = [status.name for status in find_stream(self.streams(), stream_id).tables]
        matches = [name for name in names if name == table or name.rpartition(".")[2] == table]
        if len(matches) != 1:
            raise VerifyError(
                "there is no such table of the stream", table=table, tables=", ".join(names)
            )
        with self._table(stream_id, matches[0]) as lake_table:
            if BLOCK_NUMBER not in lake_table.columns.names:
                raise VerifyError(
                    "no column with the number of the block", table=table, column=BLOCK_NUMBER
                )
            rows = lake_table.rows_of(first, last)
        if pa.types.is_string(rows.schema.field(BLOCK_NUMBER).type):  # an integer of changes
            at = rows.column_names.index(BLOCK_NUMBER)
            rows = rows.set_column(at, BLOCK_NUMBER, rows[BLOCK_NUMBER].cast(pa.int64()))
        block = pc.field(BLOCK_NUMBER)
        rooms = rooms_of(rows.schema)
        rows = rows.filter((block >= first) & (block <= last))
        return BlockRows(counted(rows), BLOCK_NUMBER, rooms)

    def read_table(self, stream_id: str, table: str) -> pa.Table:
        """Return all rows of a table. An aggregate has one row per key."""
        with self._table(stream_id, table) as lake_table:
            return lake_table.read(list(lake_table.live().values()))

    def maintain(self, stream_id: str | None, settings: LakeSettings) -> dict[str, dict[str, int]]:
        """Do all maintenance of the tables of all streams, or of one; return what was done."""
        with self._lakes() as lakes:
            wanted = [stream for stream in lakes if stream_id in (None, stream)]
            return {stream: maintain_stream(lakes[stream], settings) for stream in wanted}

    def moment(self, stream_id: str) -> LakeMoment:
        """Read the state, then the tables, then whether the chain has forked meanwhile."""
        find_stream(self.streams(), stream_id)
        with self._lakes() as lakes:
            for _ in range(ATTEMPTS):
                moment = self.ends_in(lakes[stream_id])
                if moment is not None:
                    return moment
        raise LakeForeignWriteError("the chain forks all the time", stream=stream_id)

    def move(
        self, stream_id: str, number: int, *, block_hash: str | None = None, force: bool = False
    ) -> Move:
        """Move a cursor, and the data with it as far as it can be undone."""
        stream = find_stream(self.streams(), stream_id)
        plan_move(stream, number, block_hash, force=force)  # a refusal stops no writer
        with closing(self._writer(stream_id)) as target:
            now = StreamStatus(stream_id, target.recover(), stream.tables)
            move = plan_move(now, number, block_hash, force=force)
            if move.kind is MoveKind.UNDO:
                target.roll_back(move.state)
            else:
                target.move(move.state)
        return move

    def reset(self, stream_id: str, *, force: bool = False, keep_data: bool = False) -> None:
        """Forget a stream, and empty its tables unless they keep their rows."""
        check_reset(find_stream(self.streams(), stream_id).state, force=force)
        with closing(self._writer(stream_id)) as target:
            check_reset(target.recover(), force=force)
            target.forget(keep_data=keep_data)

    def target(self, stream_id: str) -> Any:
        """Return a target that writes nothing but the stream's side tables."""
        find_stream(self.streams(), stream_id)
        return self._writer(stream_id)

    def setup(
        self, schema: Any, side_tables: Sequence[SideTable] = (), *, change_log: bool = False
    ) -> NoReturn:
        """Refuse: tables are made by the stream."""
        raise LakeCommandError("this command creates no tables of a lake")

    @contextmanager
    def _side(self, stream_id: str) -> Iterator[_Side]:
        find_stream(self.streams(), stream_id)
        with self._lakes() as lakes:
            yield _Side(lakes[stream_id])

    @contextmanager
    def _lakes(self) -> Iterator[Mapping[str, LakeTables[File]]]:
        """Open the place; a storage that fails meanwhile has a code."""
        with coded_storage_errors(), self.lakes() as lakes:
            yield lakes

    @contextmanager
    def _table(self, stream_id: str, name: str) -> Iterator[LakeTable[File]]:
        with self._lakes() as lakes:
            lakes[stream_id].load()
            tables = lakes[stream_id].open.items()
            (table,) = (table for own, table in tables if self.shown(own) == name)
            yield table

    # --- what each format does in its own way -----------------------------------------------------

    @abstractmethod
    def lakes(self) -> AbstractContextManager[Mapping[str, LakeTables[File]]]:
        """Open the place; return the tables of each stream in it, not loaded yet."""

    def shown(self, name: str) -> str | None:
        """Return a table's name as users give it; None of what the stream keeps for itself."""
        return name

    @abstractmethod
    def ends_in(self, tables: LakeTables[File]) -> LakeMoment | None:
        """Return a state and the versions of all tables that end there; None if it has changed."""

    def _moment(self, stored: StoredStream, versions: Mapping[str, int]) -> LakeMoment:
        names = {self.shown(name): version for name, version in versions.items()}
        shown = {name: version for name, version in names.items() if name is not None}
        return LakeMoment(stored.stream_id, stored.state.cursor, shown)

    @abstractmethod
    def _writer(self, stream_id: str) -> Any:
        """Return a target for all tables of a stream, not opened yet."""


@dataclass(frozen=True, slots=True)
class _Side:
    """The side tables of one stream, for reading."""

    tables: LakeTables[Any]

    def status(self) -> dict[str, SideStatus]:
        """Return how much each holds."""
        stored = self.tables.load()
        return {} if stored is None else side_status(stored.side)

    def read(self, table: SideTable) -> pa.Table:
        """Return the rows of one; none, if the stream keeps none."""
        for left in reversed(range(ATTEMPTS)):
            stored = self.tables.load()
            if stored is None:
                break
            reader = SideFiles(self.tables.side)
            reader.open([table])
            try:
                return reader.read(stored.side, table.name)
            except FileNotFoundError:  # the stream has replaced a file since
                if not left:
                    raise
        return table.columns.empty_table()


def rooms_of(columns: pa.Schema) -> dict[str, Room]:
    """Return what the columns of a lake table can hold."""
    return {column.name: lake_room(str(column.type)) for column in columns}


def lake_moment(
    place: str | Path | Mapping[str, str], stream_id: str = "", *, options: Options | None = None
) -> LakeMoment:
    """Return versions of all tables of a stream that end in one block, whatever is committed now.

    Args:
        place: a folder of a lake target, or properties of an Iceberg catalog.
        stream_id: of which stream; left out, the only one that is there.
        options: credentials and addresses of an object store, as the target was given them.

    Raises:
        LakePathError: no stream, or several, have written a lake there.
        NothingStoredError: the stream has not committed anything yet.
        LakeForeignWriteError: the chain forks whenever it looks.
    """
    address: Any = dict(place) if isinstance(place, Mapping) else Place.of(place, options)
    kind = "iceberg" if isinstance(address, dict) else kind_of_lake(address)
    if kind == "iceberg" and isinstance(address, Place):
        address = str(place)
    admin: LakeAdmin[Any] = import_extra(kind, "ADMIN", ".target")(address)
    ids = [stream_id] if stream_id else [stream.id for stream in admin.streams()]
    if len(ids) != 1:
        raise LakePathError("name one of the streams", streams=", ".join(ids) or "none")
    return admin.moment(ids[0])


def kind_of_lake(address: str | Place) -> str:
    """Return what lies at a path: `delta`, `parquet` or `iceberg`. Nothing is made there.

    Raises:
        LakePathError: none of them.
    """
    place = address if isinstance(address, Place) else Place.of(address)
    if place.is_local and (place.local_path / "catalog.db").exists():
        return "iceberg"
    folders = place.folders()
    if any("_delta_log" in place.under(folder).folders() for folder in folders if folder[0] != "_"):
        return "delta"
    if "_headwater" in folders:
        return "parquet"
    raise LakePathError("no stream has written a lake there", path=str(place))
