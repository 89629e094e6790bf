"""Administers a target outside a run: shows streams, moves cursors, creates tables.

The commands of `headwater` call `open_admin(address)`, whatever the database. This module decides
what a move does; the databases' `admin.py` carry it out in one transaction, under the lock that a
running stream holds. ClickHouse has neither: there the state is stored first, and a running stream
stops.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from headwater.core import BlockCursor, PipeState
from headwater.core.rooms import Room
from headwater.errors import CursorMoveError, InvalidOptionError, NothingStoredError
from headwater.targets.contract import Delivery, SideTable, Target
from headwater.targets.extras import import_extra
from headwater.targets.schema_file import SchemaFile
from headwater.targets.side_rows import SideStatus

APPEND_ONLY = "append_only"
FINAL_ONLY = "final_only"  # of files that hold final blocks alone
COLLAPSING, REPLACING, DELETION = "collapsing", "replacing", "deletion"  # of ClickHouse's engines
_TAKEN = {"postgres": "postgresql://…", "duckdb": "the path of a DuckDB file"}
_PAIRS = re.compile(  # how an address in libpq's form begins
    r"\s*(host|hostaddr|port|dbname|user|password|passfile|service|options|application_name"
    r"|connect_timeout|client_encoding|target_session_attrs|(ssl|gss|keepalives)\w*)\s*="
)
UNKNOWN_TABLES = (
    "no table of the stream is known here, so none would follow: untracked ones stay as they are"
)


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table that a stream writes, how a fork undoes it, and whether other streams write it.

    `own_rows` says that a column tells the stream's rows from those of others.
    """

    name: str
    undo: str
    shared: bool = False
    own_rows: bool = False

    @property
    def is_repaired(self) -> bool:
        """Whether every start removes the stream's rows above its cursor."""
        return self.undo in (COLLAPSING, REPLACING, DELETION, FINAL_ONLY)

    @property
    def goes_by_block(self) -> bool:
        """Whether each row says its block, so that rows of final blocks can be taken back, too."""
        return self.undo == APPEND_ONLY or self.is_repaired


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream as it is stored: its state and its tables."""

    id: str
    state: PipeState
    tables: tuple[TableStatus, ...] = ()


class BlockRows(NamedTuple):
    """Rows of a range of blocks; column `headwater_count` says how often each row counts.

    `rooms` are what the table's columns can hold.
    """

    rows: pa.Table
    block_column: str
    rooms: Mapping[str, Room]


class MoveKind(StrEnum):
    """Kinds of moves of a cursor."""

    UNDO = "undo"  # to a block that a fork could go back to
    BELOW = "below"  # below what can be undone exactly
    AHEAD = "ahead"  # forward: blocks are left out


@dataclass(frozen=True, slots=True)
class Move:
    """A planned move: its kind, and the state that it leads to."""

    kind: MoveKind
    state: PipeState

    @property
    def number(self) -> int:
        """The block to go on after."""
        assert self.state.cursor is not None, "a cursor is moved to a block"
        return self.state.cursor.number


class Admin(ABC):
    """Administers one place. It changes nothing of a stream that runs: the stream holds a lock.

    ClickHouse and lakes have no locks: there a stream that runs stops (E2016, E2603). Whatever only
    looks takes no lock.
    """

    @abstractmethod
    def streams(self) -> list[StreamStatus]:
        """Return all streams that have stored something."""

    @abstractmethod
    def move(
        self, stream_id: str, number: int, *, block_hash: str | None = None, force: bool = False
    ) -> Move:
        """Move a cursor, and the data with it as far as it can be undone."""

    @abstractmethod
    def reset(self, stream_id: str, *, force: bool = False, keep_data: bool = False) -> None:
        """Forget a stream; its tables are emptied, unless others write them too."""

    @abstractmethod
    def read_blocks(self, stream_id: str, table: str, first: int, last: int) -> BlockRows:
        """Return a stream's rows of a table that are of these blocks.

        Raises:
            VerifyError: there is no such table, or it does not say which block a row is of.
        """

    @abstractmethod
    def target(self, stream_id: str) -> Target[Delivery]:
        """Return a target, not opened yet, that writes nothing but the stream's side tables."""

    @abstractmethod
    def setup(
        self,
        schema: SchemaFile,
        side_tables: Sequence[SideTable] = (),
        *,
        change_log: bool = False,
    ) -> list[str]:
        """Create what is missing; return the names of the tables that were created.

        With `change_log` also the tables that a `history_target` keeps for itself.
        """

    @abstractmethod
    def _side(self, stream_id: str) -> AbstractContextManager[Any]:
        """Open the side tables of a stream for reading: `status()` and `read(table)`."""

    def side_tables(self, stream_id: str) -> dict[str, SideStatus]:
        """Return how much each side table holds of a stream."""
        find_stream(self.streams(), stream_id)
        with self._side(stream_id) as side:
            status: dict[str, SideStatus] = side.status()
        return status

    def read_side_table(self, stream_id: str, table: SideTable) -> pa.Table:
        """Return a stream's rows of a side table that exists."""
        with self._side(stream_id) as side:
            return side.read(table)

    def undo_rows(self, stream_id: str) -> int | None:
        """Return how many rows are kept for undoing hot blocks; None where none are needed."""
        return None


def open_admin(address: str, *, schema: str | None = None, table: str = "sync") -> Admin:
    """Return what administers a place: `postgresql://…`, libpq's `key=value` form, `http://…` of a
    ClickHouse server, a file, or the folder of a lake. Nothing is changed yet.

    `schema` (ClickHouse: the database) and `table` say where the state is kept, if not in the
    default place.
    """
    admin: Admin
    kind = kind_of(address)
    if kind in ("postgres", "duckdb"):
        from headwater.targets.sql.admin import SqlAdmin

        return SqlAdmin(import_extra(kind, "DATABASE", ".target"), address, schema, table)
    module = ".admin" if kind == "clickhouse" else ".target"
    admin = import_extra(kind, "ADMIN", module)(address, schema, table)
    return admin


def kind_of(address: str) -> str:
    """Return which kind of place an address names: `postgres`, `clickhouse`, `duckdb` (a file),
    or the format of a lake: `iceberg`, `delta` or `parquet` (a folder).

    Raises:
        InvalidOptionError: it is an address of something else.
    """
    match scheme := _scheme(address):
        case "postgresql" | "postgres":
            return "postgres"
        case "http" | "https":
            return "clickhouse"
        case "" if not _PAIRS.match(address):
            return _kind_of_lake(address) if Path(address).is_dir() else "duckdb"
        case "":
            return "postgres"
        case "s3" | "s3a" | "file" | "gs" | "abfs" | "abfss" | "hdfs" | "memory":
            return _kind_of_lake(address)
        case _:
            raise InvalidOptionError(
                "an address begins with postgresql://, or with http:// or https:// (ClickHouse); a "
                "DuckDB file and the folder of a lake are given by their path",
                got=f"{scheme}://",
            )


def _kind_of_lake(address: str) -> str:
    """Return which format a folder holds; asked for only where there is one."""
    lake_format: str = import_extra("lake", "kind_of_lake", ".admin")(address)
    return lake_format


def check_address(address: str | Path, *kinds: str) -> None:
    """Refuse the address of something else than these kinds. Called where a target is made.

    Raises:
        InvalidOptionError: it names a place that the target cannot write.
    """
    scheme = _scheme(str(address))
    if scheme and not ("postgres" in kinds and scheme in ("postgres", "postgresql")):
        takes = " or ".join(_TAKEN[kind] for kind in kinds)
        raise InvalidOptionError(f"this target takes {takes}", got=f"{scheme}://")


def _scheme(address: str) -> str:
    scheme, separator, _ = address.partition("://")
    known = separator and scheme.isascii() and scheme.replace("+", "").isalnum()
    return scheme.lower() if known else ""


def find_stream(streams: Sequence[StreamStatus], stream_id: str) -> StreamStatus:
    """Return a stream by its id.

    Raises:
        NothingStoredError: there is none.
    """
    for stream in streams:
        if stream.id == stream_id:
            return stream
    known = ", ".join(stream.id for stream in streams) or "none"
    raise NothingStoredError("no such stream is stored here", stream=stream_id, known=known)


def plan_move(
    stream: StreamStatus, number: int, block_hash: str | None = None, *, force: bool = False
) -> Move:
    """Decide what moving a cursor to a block means. Pure.

    Down to the oldest block that a fork could go back to, the newest stored block at or below the
    number is taken: what lies between two of them holds no rows of the stream.

    Below that, rows go by their block. Where tables hold others, as sums do, it is refused: what
    final blocks did to them is not kept anywhere, would stay, and would be done once more.

    Raises:
        CursorMoveError: nothing is stored, only `force` allows it, or rows could not follow.
    """
    state, points = stream.state, stream.state.landing_points()
    if state.cursor is None or not points:
        raise CursorMoveError("nothing is committed yet, so there is no cursor to move")
    wanted = BlockCursor(number, block_hash)
    if points[0].number <= number <= state.cursor.number:
        landing = next(point for point in reversed(points) if point.number <= number)
        if block_hash is not None and landing.hash != wanted.hash:
            raise CursorMoveError("another block is stored there", wanted=wanted, stored=landing)
        if not stream.tables and landing != state.cursor and not force:
            raise CursorMoveError(UNKNOWN_TABLES, stream=stream.id)
        return Move(MoveKind.UNDO, state.rewind(landing))
    if not force:
        below = number < points[0].number
        raise CursorMoveError(
            "that lies below what can be undone" if below else "that would leave out blocks",
            wanted=number,
            cursor=state.cursor,
            oldest=points[0],
        )
    if number < state.cursor.number:
        kept = [table.name for table in stream.tables if not table.goes_by_block]
        if kept:
            raise CursorMoveError(
                "what final blocks did to these tables is not kept, so it would stay and be done "
                "once more, and sums would count twice; headwater cursor reset --force begins anew",
                wanted=number,
                oldest=points[0],
                tables=", ".join(kept),
            )
        return Move(MoveKind.BELOW, PipeState(wanted, None, (wanted,)))
    final = state.finalized
    chain = (wanted,) if final is None else (final, wanted)
    return Move(MoveKind.AHEAD, PipeState(wanted, final, chain))


def check_reset(state: PipeState, *, force: bool) -> None:
    """Refuse to give up final data without `force`.

    Raises:
        CursorMoveError: there is some.
    """
    if state.finalized is not None and not force:
        raise CursorMoveError(
            "that gives up final data", cursor=state.cursor, finalized=state.finalized
        )


def explain_move(move: Move, stream: StreamStatus) -> list[str]:
    """Say what a move does, in sentences."""
    cursor, number = stream.state.cursor, move.number
    said = [f"The cursor of {stream.id} goes from {cursor} to {move.state.cursor}."]
    if move.kind is MoveKind.AHEAD:
        first = 0 if cursor is None else cursor.number + 1
        return [*said, f"Blocks {first:,} to {number:,} are never read; no table is changed."]
    said.append(f"Reading goes on with block {number + 1:,}.")
    if not stream.tables:
        said.append(f"{UNKNOWN_TABLES[0].upper()}{UNKNOWN_TABLES[1:]}.")
    for table in stream.tables:
        if table.undo == DELETION:
            said.append(
                f"{table.name}: the rows of blocks above {number:,} are deleted; materialized "
                "views on it keep theirs."
            )
        else:
            said.append(f"{table.name}: what blocks above {number:,} did is undone.")
    return said


def explain_reset(stream: StreamStatus, *, keep_data: bool) -> list[str]:
    """Say what a reset does, in sentences."""
    cursor = stream.state.cursor
    since = "which has committed nothing" if cursor is None else f"from {cursor} down"
    said = [f"{stream.id} is forgotten, {since}: it begins anew."]
    if not stream.tables:
        said.append(f"{UNKNOWN_TABLES[0].upper()}{UNKNOWN_TABLES[1:]}.")
    for table in stream.tables:
        if keep_data and table.is_repaired:
            fate = "they are removed" if table.own_rows else "it is refused (E2015)"
            said.append(
                f"{table.name}: keeps its rows; when the stream starts on it again, {fate}."
            )
        elif keep_data:
            said.append(f"{table.name}: keeps its rows, and the stream adds them once more.")
        elif table.own_rows:
            said.append(f"{table.name}: loses the rows of this stream, and keeps those of others.")
        elif table.shared:
            said.append(f"{table.name}: keeps its rows, because other streams write it too.")
        else:
            said.append(f"{table.name}: is emptied.")
    return said
