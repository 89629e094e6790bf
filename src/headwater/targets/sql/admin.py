"""Administers a database outside a run: each change is one transaction, under a writer's lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.core import PipeState
from headwater.core.rooms import Room
from headwater.errors import NothingStoredError, VerifyError
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
from headwater.targets.schema_file import SchemaFile
from headwater.targets.sql.catalog import CLAIMS
from headwater.targets.sql.database import Database, Store
from headwater.targets.sql.dialect import Session
from headwater.targets.sql.flow import SqlTarget
from headwater.targets.sql.layout import Table, Undo
from headwater.targets.sql.side_tables import StoredSideTables
from headwater.targets.sql.state import CURSORS, CursorTable
from headwater.targets.sql.undo import CHANGE_LOG, EVERY_BLOCK, ChangeLog
from headwater.targets.tables import BLOCK_COLUMN
from headwater.targets.text import compose


class SqlAdmin(Admin):
    """Administers one database; runs in the process of the command, while the stream does not."""

    def __init__(
        self, database: type[Database[Any]], place: str, schema: str | None, table: str
    ) -> None:
        schema = schema or database.dialect.name_type.default_schema
        self.dialect = database.dialect
        self._settings = database.settings_type(schema=schema, table=table)
        self._database = database(place, self._settings)
        self._sync = self._settings.sync
        self._claims = self._sync.suffixed(CLAIMS)

    def streams(self) -> list[StreamStatus]:
        """Return all streams of the database."""
        file = self._database.file
        if file is not None and not file.exists():
            raise NothingStoredError("there is no such file", path=file)
        with self._database.administer(None) as session:
            if not self.dialect.exists(session, self._sync):
                return []
            sql = compose("SELECT id FROM {sync}", sync=self._sync)
            if self.dialect.exists(session, self._claims):  # streams that have lost their state
                sql = compose("{sql} UNION SELECT id FROM {claims}", sql=sql, claims=self._claims)
            ids = session.rows(compose("SELECT DISTINCT id FROM ({sql}) AS s ORDER BY 1", sql=sql))
            return [self._status(session, stream_id) for (stream_id,) in ids]

    def move(
        self, stream_id: str, number: int, *, block_hash: str | None = None, force: bool = False
    ) -> Move:
        """Move a cursor, and the data with it."""
        find_stream(self.streams(), stream_id)
        with self._database.administer(stream_id) as session:
            stored = self._database.stored(session, stream_id)
            move = plan_move(self._status(session, stream_id), number, block_hash, force=force)
            if move.kind is MoveKind.UNDO and not force:
                stored.sync.check_undo(move.number)
            if move.kind is not MoveKind.AHEAD:
                stored.undo.restore(self._layouts(session, stored), move.number)
                stored.side.remove_above(move.number)
            if move.kind is MoveKind.BELOW:
                stored.sync.prune(EVERY_BLOCK)
            stored.sync.roll_back(move.state)
            self._show(session, stored, stream_id, move.state)
        return move

    def reset(self, stream_id: str, *, force: bool = False, keep_data: bool = False) -> None:
        """Forget a stream, its undo data and, unless kept, the rows of its tables."""
        status = find_stream(self.streams(), stream_id)
        shared = {table.name for table in status.tables if table.shared}
        with self._database.administer(stream_id) as session:
            stored = self._database.stored(session, stream_id)
            check_reset(stored.sync.load(), force=force)
            layouts = self._layouts(session, stored)
            stored.undo.remove_all(layouts)
            self._show(session, stored, stream_id, PipeState())
            own = [layout.name for layout in layouts if str(layout.name) not in shared]
            if own and not keep_data:
                self._database.empty(session, own)
            if self.dialect.exists(session, self._claims):
                session.run("DELETE FROM {claims} WHERE id = $1", [stream_id], claims=self._claims)
            stored.side.remove_above(-1)
            stored.config.remove()
            stored.sync.roll_back(PipeState())

    def undo_rows(self, stream_id: str) -> int:
        """Return how many rows snapshots and change logs hold of a stream."""
        with self._database.administer(None) as session:
            stored = self._database.stored(session, stream_id)
            return sum(map(stored.undo.count, self._layouts(session, stored)))

    def read_blocks(self, stream_id: str, table: str, first: int, last: int) -> BlockRows:
        """Return the rows of a table that are of these blocks."""
        name = self.dialect.name(table)
        with self._database.administer(None) as session:
            claimed = [
                layout.block_column
                for layout in self._layouts(session, self._database.stored(session, stream_id))
                if layout.name.folded == name.folded and layout.undo is Undo.APPEND_ONLY
            ]
            block = claimed[0] if claimed else BLOCK_COLUMN
            layout = self.dialect.read_table(session, name)
            if layout is None:
                raise VerifyError("there is no such table", table=name)
            if self.dialect.fold(block) not in map(self.dialect.fold, layout.columns):
                raise VerifyError(
                    "no column with the number of the block", table=name, column=block
                )
            rows = session.arrow(
                "SELECT * FROM {table} WHERE {block} BETWEEN $1::bigint AND $2::bigint",
                [first, last],
                table=name,
                block=block,
            )
            catalog = self._database.stored(session, stream_id).catalog
            return BlockRows(counted(rows), block, catalog.rooms(layout, layout.columns))

    def rooms(self, stream_id: str, table: str) -> dict[str, Room]:
        """Return what the columns of a table can hold; nothing if there is none."""
        with self._database.administer(None) as session:
            layout = self.dialect.read_table(session, self.dialect.name(table))
            catalog = self._database.stored(session, stream_id).catalog
            return catalog.rooms(layout, layout.columns) if layout is not None else {}

    def read_table(self, table: str) -> pa.Table:
        """Return all rows of a table; takes no lock. An aggregate has one row per key.

        Raises:
            VerifyError: there is no such table.
        """
        name = self.dialect.name(table)
        with self._database.administer(None) as session:
            if not self.dialect.exists(session, name):
                raise VerifyError("there is no such table", table=name)
            return session.arrow("SELECT * FROM {table}", table=name)

    def target(self, stream_id: str) -> SqlTarget:
        """Return a target for the stream's side tables: no table of the user's is declared."""
        find_stream(self.streams(), stream_id)
        own = replace(self._settings, id=stream_id)
        return SqlTarget(type(self._database)(self._database.place, own))

    def setup(
        self,
        schema: SchemaFile,
        side_tables: Sequence[SideTable] = (),
        *,
        change_log: bool = False,
    ) -> list[str]:
        """Create the tables of the state, of the stream's own rows, and the user's.

        With `change_log` also those that a `history_target` needs.
        """
        with self._database.administer(None) as session:
            before = self.dialect.tables(session)
            stored = self._database.stored(session, "")
            stored.sync.create()
            stored.catalog.create()
            stored.side.create(side_tables)
            stored.config.create()
            if change_log:
                ChangeLog(self.dialect, self._sync.beside(CHANGE_LOG)).create(session)
                CursorTable(self.dialect, self._sync.beside(CURSORS)).create(session)
            for table in schema.tables:
                declared = self.dialect.declare(
                    Table.of(table.name, key=table.key, types=table.types)
                )
                if not self.dialect.exists(session, declared.name):
                    stored.catalog.create_table(declared, table.schema, None)
            if schema.sql.strip():
                self._database.run_script(session, schema.sql)
            return sorted(map(str, self.dialect.tables(session) - before))

    @contextmanager
    def _side(self, stream_id: str) -> Iterator[StoredSideTables]:
        with self._database.administer(None) as session:
            yield self._database.stored(session, stream_id).side

    def _layouts(self, session: Session, stored: Store) -> list[Any]:
        """Return the stream's tables; the Pipes SDK keeps no list of them.

        A release before claimed none of the tables that have a change log: the log names them.
        """
        layouts = []
        if self.dialect.exists(session, self._claims):
            layouts = stored.catalog.undoable()
        log = self._sync.beside(CHANGE_LOG)
        if not layouts and self.dialect.exists(session, log):
            layouts = stored.undo.unclaimed(log)
        return layouts

    def _show(self, session: Session, stored: Store, stream_id: str, state: PipeState) -> None:
        """Let the tables that show the stream's cursor say where it is now."""
        names = {self._sync.beside(CURSORS)}
        if self.dialect.exists(session, self._claims):
            names |= set(stored.catalog.cursor_tables())
        for name in names:
            if self.dialect.exists(session, name):
                CursorTable(self.dialect, name).show(session, stream_id, state, known=True)

    def _status(self, session: Session, stream_id: str) -> StreamStatus:
        tables: list[TableStatus] = []
        if self.dialect.exists(session, self._claims):
            rows = session.rows(
                "SELECT table_schema, table_name, undo, (SELECT count(*) FROM {claims} AS other"
                " WHERE other.table_schema = own.table_schema"
                " AND other.table_name = own.table_name) "
                "FROM {claims} AS own WHERE id = $1 AND undo <> 'cursors' ORDER BY {order}",
                [stream_id],
                claims=self._claims,
                order=self.dialect.claim_order,
            )
            kind, catalog = type(self._sync), self._database.stored(session, stream_id).catalog
            tables = [
                TableStatus(
                    str(name := kind(schema, table)),
                    undo,
                    writers > 1 or bool(catalog.claims_elsewhere(name)),
                )
                for schema, table, undo, writers in rows
            ]
        log = self._sync.beside(CHANGE_LOG)
        if not tables and self.dialect.exists(session, log):
            names = ChangeLog(self.dialect, log).touched(session, stream_id, -1)
            tables = [TableStatus(str(name), Undo.CHANGE_LOG.value) for name in names]
        state = self._database.stored(session, stream_id).sync.load()
        return StreamStatus(stream_id, state, tuple(tables))
