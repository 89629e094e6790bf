"""Operating on a PostgreSQL database outside a run: each change is one transaction, under the lock
that a running stream holds, and under the Pipes SDK's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from headwater.core import PipeState
from headwater.errors import CursorMoveError, PostgresLockError, SchemaFileError
from headwater.targets.base import SideTable
from headwater.targets.operate import (
    Move,
    MoveKind,
    StreamStatus,
    TableStatus,
    check_reset,
    find_stream,
    plan_move,
)
from headwater.targets.postgres.catalog import Catalog
from headwater.targets.postgres.config_table import ConfigTable
from headwater.targets.postgres.layout import Undo
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.settings import PostgresSettings, table
from headwater.targets.postgres.side_tables import SideTables
from headwater.targets.postgres.sql import DEFAULT_SCHEMA, Fragment, TableName, compose
from headwater.targets.postgres.statements import refuse_transaction_control
from headwater.targets.postgres.sync_table import SyncTable, exists
from headwater.targets.postgres.transfer import TemporaryTables
from headwater.targets.postgres.triggers import Triggers
from headwater.targets.postgres.undo import UndoLog
from headwater.targets.schema_file import SchemaFile
from headwater.targets.side_rows import stored_id

_EVERY = 2**62  # above any block
_TABLES = (
    "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n "
    "ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND n.nspname NOT LIKE 'pg\\_%' "
    "AND n.nspname <> 'information_schema'"
)


def operator(dsn: str, schema: str | None, table: str) -> PostgresOperator:
    """Return who operates on a database. Called by `headwater.targets.operate`."""
    return PostgresOperator(dsn, PostgresSettings(schema=schema or DEFAULT_SCHEMA, table=table))


class PostgresOperator:
    """Operates on one database; runs in the operator's own process."""

    def __init__(self, dsn: str, settings: PostgresSettings) -> None:
        self._dsn = dsn
        self._settings = settings
        self._claims = settings.sync.suffixed("__tables")

    def streams(self) -> list[StreamStatus]:
        """Return all streams of the database."""
        with self._transaction(None) as session:
            if not exists(session, self._settings.sync):
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
        with self._transaction(stream_id) as session:
            sync = SyncTable(session, self._settings.sync, stream_id)
            move = plan_move(self._status(session, stream_id), number, block_hash, force=force)
            if move.kind is not MoveKind.AHEAD:
                layouts = self._catalog(session, stream_id).undoable()
                UndoLog(session, stream_id).restore(layouts, move.number)
                self._side(session, stream_id).remove_above(move.number)
            if move.kind is MoveKind.BELOW:
                sync.prune(_EVERY)
            sync.roll_back(move.state)
        return move

    def reset(self, stream_id: str, *, force: bool = False, keep_data: bool = False) -> None:
        """Forget a stream, its undo data and, unless kept, the rows of its tables."""
        status = find_stream(self.streams(), stream_id)
        shared = {one.name for one in status.tables if one.shared}
        with self._transaction(stream_id) as session:
            sync = SyncTable(session, self._settings.sync, stream_id)
            check_reset(sync.load(), force=force)
            layouts = self._catalog(session, stream_id).undoable()
            for layout in layouts:
                UndoLog(session, stream_id).prune(layout, _EVERY)
            own = [one.name for one in layouts if str(one.name) not in shared]
            if own and not keep_data:
                self._empty(session, own)
            if exists(session, self._claims):
                session.run(
                    compose("DELETE FROM {claims} WHERE id = $1", claims=self._claims), [stream_id]
                )
            self._side(session, stream_id).remove_above(-1)
            ConfigTable(session, self._settings.schema, stream_id).remove()
            sync.roll_back(PipeState())

    def setup(self, schema: SchemaFile, side_tables: Sequence[SideTable] = ()) -> list[str]:
        """Create the tables of the state, of the stream's own rows, and the user's."""
        with self._transaction(None) as session:
            before = _tables(session)
            catalog = self._catalog(session, "")
            SyncTable(session, self._settings.sync, "").create()
            catalog.create()
            self._side(session, "").create(side_tables)
            ConfigTable(session, self._settings.schema, "").create()
            for one in schema.tables:
                declared = table(one.name, key=one.key, types=one.types)
                if not exists(session, declared.name):
                    catalog.create_table(declared, one.schema, None)
            if schema.sql.strip():
                self._run(session, schema.sql)
            return sorted(map(str, _tables(session) - before))

    def _run(self, session: Session, sql: str) -> None:
        refuse_transaction_control(sql)
        try:
            session.run(sql)
        except psycopg.Error as error:
            reason = str(error).splitlines()[0]
            raise SchemaFileError("a statement failed", reason=reason) from error

    def _empty(self, session: Session, names: Sequence[TableName]) -> None:
        """Remove all rows at once: the tables may refer to each other."""
        listed = ", ".join(compose("{name}", name=name) for name in names)
        try:
            session.run(compose("TRUNCATE {tables}", tables=Fragment(listed)))
        except psycopg.Error as error:
            raise CursorMoveError(
                "the stream's tables cannot be emptied; do it yourself, and keep the data here",
                tables=", ".join(map(str, names)),
                reason=" ".join(str(error).split()),
            ) from error

    @contextmanager
    def _transaction(self, stream_id: str | None) -> Iterator[Session]:
        """Open a transaction; with an id, as the one writer of that stream."""
        settings = self._settings
        lock = None if stream_id is None else f"{settings.schema}.{settings.table}/{stream_id}"
        session = Session(self._dsn, lock, 0, "serializable")
        try:
            session.connect()
            with session.transaction():
                if stream_id is not None:
                    ((mine, *_),) = session.rows(
                        "SELECT pg_try_advisory_xact_lock(hashtext($1)::bigint), "
                        "set_config('sqd.snapshot_enabled', 'false', true)",
                        [stream_id],
                    )
                    if not mine:
                        raise PostgresLockError("another writer is writing", stream=stream_id)
                yield session
        finally:
            session.close()

    def _status(self, session: Session, stream_id: str) -> StreamStatus:
        tables: list[TableStatus] = []
        if exists(session, self._claims):
            rows = session.rows(
                compose(
                    "SELECT table_schema, table_name, undo, (SELECT count(*) FROM {claims} AS other"
                    " WHERE other.table_schema = own.table_schema"
                    " AND other.table_name = own.table_name) "
                    "FROM {claims} AS own WHERE id = $1 ORDER BY 1, 2",
                    claims=self._claims,
                ),
                [stream_id],
            )
            tables = [
                TableStatus(str(TableName(schema, name)), Undo(undo).value, writers > 1)
                for schema, name, undo, writers in rows
            ]
        state = SyncTable(session, self._settings.sync, stream_id).load()
        return StreamStatus(stream_id, state, tuple(tables))

    def _catalog(self, session: Session, stream_id: str) -> Catalog:
        triggers = Triggers(session, stream_id, self._settings.schema)
        claims = self._claims
        return Catalog(
            session, stream_id, claims, (), triggers, automatic=True, defer_indexes=False
        )

    def _side(self, session: Session, stream_id: str) -> SideTables:
        kept_as = stored_id(self._settings.table, stream_id)
        return SideTables(session, TemporaryTables(session), self._settings.schema, kept_as)


def _tables(session: Session) -> set[TableName]:
    return {TableName(*row) for row in session.rows(_TABLES)}
