"""Administers a DuckDB file outside a run.

DuckDB lets one process at a time open a file, so while a stream runs elsewhere not even looking is
possible: `DuckDBFileError` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from headwater.errors import NothingStoredError, SchemaFileError
from headwater.targets.admin import StreamStatus
from headwater.targets.duckdb.session import Session, open_session
from headwater.targets.duckdb.store import DuckDBSettings
from headwater.targets.duckdb.target import DuckDBTarget
from headwater.targets.sql.admin import SqlAdmin
from headwater.targets.sql.text import QualifiedName
from headwater.targets.sql.tokens import STANDARD


class DuckDBAdmin(SqlAdmin[Session]):
    """Administers one file."""

    target_type = DuckDBTarget
    _settings: DuckDBSettings

    def streams(self) -> list[StreamStatus]:
        """Return all streams of the file."""
        if not Path(self._place).exists():
            raise NothingStoredError("there is no such file", path=self._place)
        return super().streams()

    @contextmanager
    def _transaction(self, stream_id: str | None) -> Iterator[Session]:
        stream = None if stream_id is None else (*self._sync.folded, stream_id)
        session = open_session(self._place, self._settings.config, stream, "admin")
        try:
            with session.transaction():
                yield session
        finally:
            session.close()

    def _empty(self, session: Session, names: Sequence[QualifiedName]) -> None:
        for name in reversed(names):
            session.run("DELETE FROM {table}", table=name)

    def _run(self, session: Session, sql: str) -> None:
        try:
            for kind, text in session.statements(sql):
                if kind == "TRANSACTION":
                    raise SchemaFileError(
                        f"{STANDARD.tokens(text)[0].text} is not allowed in a schema file",
                        sql=text.strip(),
                    )
                session.run(text)
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise SchemaFileError("a statement failed", reason=reason) from error


ADMIN = DuckDBAdmin
