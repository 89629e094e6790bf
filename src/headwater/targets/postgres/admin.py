"""Administers a PostgreSQL database outside a run, under the locks of stream and Pipes SDK."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from headwater.errors import CursorMoveError, PostgresLockError, SchemaFileError
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.store import PostgresSettings
from headwater.targets.postgres.target import PostgresTarget
from headwater.targets.postgres.tx import refuse_transaction_control
from headwater.targets.sql.admin import SqlAdmin
from headwater.targets.sql.text import Fragment, QualifiedName, compose


class PostgresAdmin(SqlAdmin[Session]):
    """Administers one database."""

    target_type = PostgresTarget
    _settings: PostgresSettings

    @contextmanager
    def _transaction(self, stream_id: str | None) -> Iterator[Session]:
        settings = self._settings
        lock = None if stream_id is None else f"{settings.schema}.{settings.table}/{stream_id}"
        session = Session(self._place, lock, 0, "serializable")
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

    def _empty(self, session: Session, names: Sequence[QualifiedName]) -> None:
        """Remove all rows at once: the tables may refer to each other."""
        listed = ", ".join(compose("{name}", name=name) for name in names)
        try:
            session.run("TRUNCATE {tables}", tables=Fragment(listed))
        except psycopg.Error as error:
            raise CursorMoveError(
                "the stream's tables cannot be emptied; do it yourself, and keep the data here",
                tables=", ".join(map(str, names)),
                reason=" ".join(str(error).split()),
            ) from error

    def _run(self, session: Session, sql: str) -> None:
        refuse_transaction_control(sql, "in a schema file")
        try:
            session.run(sql)
        except psycopg.Error as error:
            reason = str(error).splitlines()[0]
            raise SchemaFileError("a statement failed", reason=reason) from error


ADMIN = PostgresAdmin
