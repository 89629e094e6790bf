"""Shows the streams of a lake target to operators: `headwater status`, `cursor show`, `verify`.

Runs in the process of the command, beside a stream that runs: it reads what is committed and takes
nothing over. A cursor is not moved from outside: files of final blocks never change, and those of
hot ones belong to the writer. What each format does in its own way is in its own `admin.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockCursor
from headwater.core.rooms import lake_room
from headwater.errors import LakeCommandError, LakePathError, LakeUnsupportedError, VerifyError
from headwater.targets.admin import BlockRows, StreamStatus, TableStatus, find_stream
from headwater.targets.compare import counted
from headwater.targets.contract import SideTable
from headwater.targets.extras import import_extra
from headwater.targets.lake.paths import Place
from headwater.targets.lake.side import Files, SideFiles
from headwater.targets.lake.state import StoredStream
from headwater.targets.side_rows import SideStatus

BLOCK_COLUMN = "block_number"
_ATTEMPTS = 5  # readings of files that a running stream may replace meanwhile


@dataclass(frozen=True, slots=True)
class LakeMoment:
    """One moment of all tables of a stream: the block, and the version of each that ends there.

    A version is a snapshot's id in Iceberg, a number in Delta. The block is None at the beginning.
    """

    stream_id: str
    block: BlockCursor | None
    versions: Mapping[str, int]


class LakeAdmin(ABC):
    """Reads one place. `undo` is the word for how the format takes back hot blocks."""

    undo: str

    def __init__(self, address: str, schema: str | None, table: str) -> None:
        self._address = address

    def streams(self) -> list[StreamStatus]:
        """Return all streams that have stored something here."""
        return [
            StreamStatus(
                one.stream_id,
                one.state,
                tuple(TableStatus(name, self.undo) for name in sorted(self._tables(one.stream_id))),
            )
            for one in sorted(self._stored(), key=lambda one: one.stream_id)
        ]

    def undo_rows(self, stream_id: str) -> int | None:
        """Return None: no rows are kept for undoing hot blocks, but files or snapshots."""
        return None

    def read_blocks(self, stream_id: str, table: str, first: int, last: int) -> BlockRows:
        """Return the rows of a table that are of these blocks."""
        find_stream(self.streams(), stream_id)
        names = self._tables(stream_id)
        found = [one for one in names if one == table or one.rpartition(".")[2] == table]
        if len(found) != 1:
            raise VerifyError(
                "there is no such table of the stream", table=table, tables=", ".join(sorted(names))
            )
        rows = self._rows(stream_id, found[0], first, last)
        if BLOCK_COLUMN not in rows.column_names:
            raise VerifyError(
                "no column with the number of the block", table=table, column=BLOCK_COLUMN
            )
        block = pc.field(BLOCK_COLUMN)
        found = rows.filter((block >= first) & (block <= last))
        rooms = {one.name: lake_room(str(one.type)) for one in rows.schema}
        return BlockRows(counted(found), BLOCK_COLUMN, rooms)

    def side_tables(self, stream_id: str) -> dict[str, SideStatus]:
        """Return how much each side table holds of a stream."""
        find_stream(self.streams(), stream_id)
        return {}

    def read_side_table(self, stream_id: str, table: SideTable) -> pa.Table:
        """Return a stream's rows of a side table; none, if it keeps none."""
        find_stream(self.streams(), stream_id)
        for attempt in range(_ATTEMPTS):
            found = self._side_files(stream_id)
            if found is None:
                break
            reader = SideFiles(found[0])
            reader.open([table])
            try:
                return reader.read(found[1], table.name)
            except FileNotFoundError:  # the stream has replaced a file since
                if attempt == _ATTEMPTS - 1:
                    raise
        return table.columns.empty_table()

    def _side_files(self, stream_id: str) -> tuple[Place, Files] | None:
        """Return where a stream keeps its side tables, and their files; None if it keeps none."""
        return None

    def moment(self, stream_id: str) -> LakeMoment:
        """Return a moment at which all tables end in one block; refuse if there are no versions."""
        raise LakeUnsupportedError("files of Parquet have no versions", stream=stream_id)

    # --- what is not done from outside ------------------------------------------------------------

    def move(
        self, stream_id: str, number: int, *, block_hash: str | None = None, force: bool = False
    ) -> NoReturn:
        """Refuse: the stream itself goes back, on a fork."""
        self._refuse("moves no cursor", stream_id)

    def reset(self, stream_id: str, *, force: bool = False, keep_data: bool = False) -> NoReturn:
        """Refuse: a folder is deleted, or a table is dropped, by what made it."""
        self._refuse("forgets no stream", stream_id)

    def target(self, stream_id: str) -> NoReturn:
        """Refuse."""
        self._refuse("writes no side tables", stream_id)

    def setup(
        self, schema: Any, side_tables: Sequence[SideTable] = (), *, change_log: bool = False
    ) -> NoReturn:
        """Refuse: tables are made by the stream."""
        self._refuse("creates no tables", "")

    def _refuse(self, what: str, stream_id: str) -> NoReturn:
        place = str(Place.of(self._address)) if self._address else ""
        raise LakeCommandError(f"this command {what} of a lake", stream=stream_id, place=place)

    # --- what each format does in its own way -----------------------------------------------------

    @abstractmethod
    def _stored(self) -> Iterable[StoredStream]:
        """Return what is stored of each stream."""

    @abstractmethod
    def _tables(self, stream_id: str) -> list[str]:
        """Return the names of a stream's tables."""

    @abstractmethod
    def _rows(self, stream_id: str, table: str, first: int, last: int) -> pa.Table:
        """Return rows of a table: all that are of these blocks, maybe others too."""


def lake_moment(place: str | Path | Mapping[str, str], stream_id: str = "") -> LakeMoment:
    """Return versions of all tables of a stream that end in one block, whatever is committed now.

    Args:
        place: a folder of `delta_target` or `iceberg_target`, or properties of an Iceberg catalog.
        stream_id: of which stream; left out, the only one that is there.

    Raises:
        LakePathError: no stream, or several, have written a lake there.
        LakeForeignWriteError: the chain forks whenever it looks.
    """
    given: Any = dict(place) if isinstance(place, Mapping) else str(place)
    kind = "iceberg" if isinstance(given, dict) else kind_of_lake(given)
    admin: LakeAdmin = import_extra(kind, "ADMIN", ".admin")(given, None, "")
    found = [stream_id] if stream_id else [one.id for one in admin.streams()]
    if len(found) != 1:
        raise LakePathError("name one of the streams", streams=", ".join(found) or "none")
    return admin.moment(found[0])


def kind_of_lake(address: str) -> str:
    """Return what lies at a path: `delta`, `parquet` or `iceberg`. Nothing is made there.

    Raises:
        LakePathError: none of them.
    """
    place = Place.of(address)
    if place.is_local and (place.local_path / "catalog.db").exists():
        return "iceberg"
    folders = place.folders()
    if any("_delta_log" in place.under(one).folders() for one in folders if one[0] != "_"):
        return "delta"
    if "_headwater" in folders:
        return "parquet"
    raise LakePathError("no stream has written a lake there", path=str(place))
