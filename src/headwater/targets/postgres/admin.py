"""Operating on a PostgreSQL database outside a run: under the stream's lock and the Pipes SDK's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from headwater.errors import CursorMoveError, PostgresLockError, SchemaFileError
from headwater.targets.postgres.catalog import Catalog
from headwater.targets.postgres.config_table import ConfigTable
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.settings import PostgresSettings, table
from headwater.targets.postgres.side_tables import SideTables
from headwater.targets.postgres.sql import DEFAULT_SCHEMA, Fragment, compose
from headwater.targets.postgres.statements import refuse_transaction_control
from headwater.targets.postgres.sync_table import SyncTable, exists
from headwater.targets.postgres.transfer import TemporaryTables
from headwater.targets.postgres.triggers import Triggers
from headwater.targets.postgres.undo import UndoLog
from headwater.targets.side_rows import stored_id
from headwater.targets.sql.admin import RelationalOperator, Stored
from headwater.targets.sql.text import QualifiedName


def operator(dsn: str, schema: str | None, table: str) -> PostgresOperator:
    """Return who operates on a database. Called by `headwater.targets.admin`."""
    return PostgresOperator(dsn, PostgresSettings(schema=schema or DEFAULT_SCHEMA, table=table))


class PostgresOperator(RelationalOperator[Session]):
    """Operates on one database; runs in the operator's own process."""

    order = Fragment("1, 2")
    tables = (
        "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n "
        "ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND n.nspname NOT LIKE 'pg\\_%' "
        "AND n.nspname <> 'information_schema'"
    )

    def __init__(self, dsn: str, settings: PostgresSettings) -> None:
        super().__init__(settings.sync, table)
        self._dsn = dsn
        self._settings = settings

    @contextmanager
    def _transaction(self, stream_id: str | None) -> Iterator[Session]:
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

    def _stored(self, session: Session, stream_id: str) -> Stored:
        settings = self._settings
        kept_as = stored_id(settings.table, stream_id)
        return Stored(
            SyncTable(session, settings.sync, stream_id),
            Catalog(
                session,
                stream_id,
                settings.sync.suffixed("__tables"),
                (),
                Triggers(session, stream_id, settings.schema),
                automatic=True,
                defer_indexes=False,
            ),
            UndoLog(session, stream_id),
            SideTables(session, TemporaryTables(session), settings.schema, kept_as),
            ConfigTable(session, settings.schema, stream_id),
        )

    def _exists(self, session: Session, name: QualifiedName) -> bool:
        return exists(session, name)

    def _empty(self, session: Session, names: Sequence[QualifiedName]) -> None:
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

    def _run(self, session: Session, sql: str) -> None:
        refuse_transaction_control(sql)
        try:
            session.run(sql)
        except psycopg.Error as error:
            reason = str(error).splitlines()[0]
            raise SchemaFileError("a statement failed", reason=reason) from error
