"""Operating on a DuckDB file outside a run: each change is one transaction, under a writer's lock.

DuckDB lets one process at a time open a file, so while a stream runs elsewhere not even looking is
possible: `DuckDBFileError` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from headwater.core import PipeState
from headwater.errors import CursorMoveError, SchemaFileError
from headwater.targets.base import SideTable
from headwater.targets.duckdb.catalog import Catalog
from headwater.targets.duckdb.config_table import ConfigTable
from headwater.targets.duckdb.session import Session, open_session
from headwater.targets.duckdb.settings import DuckDBSettings, table
from headwater.targets.duckdb.side_tables import SideTables
from headwater.targets.duckdb.sql import DEFAULT_SCHEMA, TableName, compose
from headwater.targets.duckdb.sync_table import SyncTable
from headwater.targets.duckdb.undo import UndoLog
from headwater.targets.operate import (
    Move,
    MoveKind,
    StreamStatus,
    TableStatus,
    check_reset,
    find_stream,
    plan_move,
)
from headwater.targets.schema_file import SchemaFile
from headwater.targets.side_rows import stored_id

_EVERY = 2**62  # above any block


def operator(path: str, schema: str | None, table: str) -> DuckDBOperator:
    """Return who operates on a file. Called by `headwater.targets.operate`."""
    return DuckDBOperator(path, DuckDBSettings(schema=schema or DEFAULT_SCHEMA, table=table))


class DuckDBOperator:
    """Operates on one file; runs in the operator's own process."""

    def __init__(self, path: str | Path, settings: DuckDBSettings) -> None:
        self._path = path
        self._settings = settings
        self._claims = settings.sync.suffixed("__tables")

    def streams(self) -> list[StreamStatus]:
        """Return all streams of the file."""
        if not Path(self._path).exists():
            raise CursorMoveError("there is no such file", path=self._path)
        with self._session(None) as session, session.transaction():
            if not _exists(session, self._settings.sync):
                return []
            ids = session.rows(
                compose("SELECT DISTINCT id FROM {sync} ORDER BY 1", sync=self._settings.sync)
            )
            return [self._status(session, one) for (one,) in ids]

    def move(
        self, stream_id: str, number: int, *, block_hash: str | None = None, force: bool = False
    ) -> Move:
        """Move a cursor, and the data with it."""
        find_stream(self.streams(), stream_id)
        with self._session(stream_id) as session, session.transaction():
            sync = SyncTable(session, self._settings.sync, stream_id)
            move = plan_move(self._status(session, stream_id), number, block_hash, force=force)
            if move.kind is not MoveKind.AHEAD:
                undo = UndoLog(session, stream_id)
                layouts = self._catalog(session, stream_id).undoable()
                for layout in reversed(layouts):
                    undo.remove(layout, move.number)
                for layout in layouts:
                    undo.restore(layout, move.number)
                self._side(session, stream_id).remove_above(move.number)
            if move.kind is MoveKind.BELOW:
                sync.prune(_EVERY)
            sync.roll_back(move.state)
        return move

    def reset(self, stream_id: str, *, force: bool = False, keep_data: bool = False) -> None:
        """Forget a stream, its undo data and, unless kept, the rows of its tables."""
        status = find_stream(self.streams(), stream_id)
        shared = {one.name for one in status.tables if one.shared}
        with self._session(stream_id) as session, session.transaction():
            sync = SyncTable(session, self._settings.sync, stream_id)
            undo = UndoLog(session, stream_id)
            check_reset(sync.load(), force=force)
            for layout in reversed(self._catalog(session, stream_id).undoable()):
                undo.prune(layout, _EVERY)
                if not keep_data and str(layout.name) not in shared:
                    session.run(compose("DELETE FROM {table}", table=layout.name))
            session.run(
                compose("DELETE FROM {claims} WHERE id = ?", claims=self._claims), [stream_id]
            )
            self._side(session, stream_id).remove_above(-1)
            ConfigTable(session, self._settings.schema, stream_id).remove()
            sync.roll_back(PipeState())

    def setup(self, schema: SchemaFile, side_tables: Sequence[SideTable] = ()) -> list[str]:
        """Create the tables of the state, of the stream's own rows, and the user's."""
        with self._session(None) as session, session.transaction():
            catalog = self._catalog(session, "")
            before = _tables(session)
            SyncTable(session, self._settings.sync, "").create()
            catalog.create()
            self._side(session, "").create(side_tables)
            ConfigTable(session, self._settings.schema, "").create()
            for one in schema.tables:
                declared = table(one.name, key=one.key, types=one.types)
                if not _exists(session, declared.name):
                    catalog.create_table(declared, one.schema, None)
            self._run(session, schema.sql)
            return sorted(_tables(session) - before)

    def _run(self, session: Session, sql: str) -> None:
        try:
            for kind, text in session.statements(sql) if sql.strip() else ():
                if kind == "TRANSACTION":
                    raise SchemaFileError("the transaction is not yours to end", sql=text.strip())
                session.run(text)
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise SchemaFileError("a statement failed", reason=reason) from error

    @contextmanager
    def _session(self, stream_id: str | None) -> Iterator[Session]:
        """Open the file; with an id, take the place of the stream's writer."""
        stream = None if stream_id is None else (*self._settings.sync.folded, stream_id)
        session = open_session(self._path, self._settings.config, stream, "operator")
        try:
            yield session
        finally:
            session.close()

    def _status(self, session: Session, stream_id: str) -> StreamStatus:
        tables: list[TableStatus] = []
        if _exists(session, self._claims):
            rows = session.rows(
                compose(
                    "SELECT table_schema, table_name, undo, (SELECT count(*) FROM {claims} AS other"
                    " WHERE other.table_schema = own.table_schema"
                    " AND other.table_name = own.table_name) "
                    "FROM {claims} AS own WHERE id = ? ORDER BY position, 1, 2",
                    claims=self._claims,
                ),
                [stream_id],
            )
            tables = [
                TableStatus(str(TableName(schema, name)), undo, writers > 1)
                for schema, name, undo, writers in rows
            ]
        state = SyncTable(session, self._settings.sync, stream_id).load()
        return StreamStatus(stream_id, state, tuple(tables))

    def _catalog(self, session: Session, stream_id: str) -> Catalog:
        return Catalog(session, stream_id, self._claims, (), automatic=True)

    def _side(self, session: Session, stream_id: str) -> SideTables:
        kept_as = stored_id(self._settings.table, stream_id)
        return SideTables(session, self._settings.schema, kept_as)


def _exists(session: Session, name: TableName) -> bool:
    return ".".join(name.folded) in _tables(session, fold=True)


def _tables(session: Session, *, fold: bool = False) -> set[str]:
    rows = session.rows(
        "SELECT schema_name, table_name FROM duckdb_tables() "
        "WHERE database_name = current_database()"
    )
    names = [TableName(*row) for row in rows]
    return {".".join(one.folded) if fold else str(one) for one in names}
