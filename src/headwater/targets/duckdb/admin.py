"""Operating on a DuckDB file outside a run.

DuckDB lets one process at a time open a file, so while a stream runs elsewhere not even looking is
possible: `DuckDBFileError` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from headwater.errors import CursorMoveError, SchemaFileError
from headwater.targets.admin import StreamStatus
from headwater.targets.duckdb.catalog import Catalog
from headwater.targets.duckdb.config_table import ConfigTable
from headwater.targets.duckdb.session import Session, open_session
from headwater.targets.duckdb.settings import DuckDBSettings, table
from headwater.targets.duckdb.side_tables import SideTables
from headwater.targets.duckdb.sql import DEFAULT_SCHEMA, Fragment, compose
from headwater.targets.duckdb.sync_table import SyncTable
from headwater.targets.duckdb.undo import UndoLog
from headwater.targets.side_rows import stored_id
from headwater.targets.sql.admin import RelationalOperator, Stored
from headwater.targets.sql.text import QualifiedName


def operator(path: str, schema: str | None, table: str) -> DuckDBOperator:
    """Return who operates on a file. Called by `headwater.targets.admin`."""
    return DuckDBOperator(path, DuckDBSettings(schema=schema or DEFAULT_SCHEMA, table=table))


class DuckDBOperator(RelationalOperator[Session]):
    """Operates on one file; runs in the operator's own process."""

    order = Fragment("position, 1, 2")
    tables = (
        "SELECT schema_name, table_name FROM duckdb_tables() "
        "WHERE database_name = current_database()"
    )

    def __init__(self, path: str | Path, settings: DuckDBSettings) -> None:
        super().__init__(settings.sync, table)
        self._path = path
        self._settings = settings

    def streams(self) -> list[StreamStatus]:
        """Return all streams of the file."""
        if not Path(self._path).exists():
            raise CursorMoveError("there is no such file", path=self._path)
        return super().streams()

    @contextmanager
    def _transaction(self, stream_id: str | None) -> Iterator[Session]:
        stream = None if stream_id is None else (*self._sync.folded, stream_id)
        session = open_session(self._path, self._settings.config, stream, "operator")
        try:
            with session.transaction():
                yield session
        finally:
            session.close()

    def _stored(self, session: Session, stream_id: str) -> Stored:
        settings = self._settings
        return Stored(
            SyncTable(session, settings.sync, stream_id),
            Catalog(session, stream_id, settings.sync.suffixed("__tables"), (), automatic=True),
            UndoLog(session, stream_id),
            SideTables(session, settings.schema, stored_id(settings.table, stream_id)),
            ConfigTable(session, settings.schema, stream_id),
        )

    def _exists(self, session: Session, name: QualifiedName) -> bool:
        return name.folded in {one.folded for one in self._tables(session)}

    def _empty(self, session: Session, names: Sequence[QualifiedName]) -> None:
        for name in reversed(names):
            session.run(compose("DELETE FROM {table}", table=name))

    def _run(self, session: Session, sql: str) -> None:
        try:
            for kind, text in session.statements(sql):
                if kind == "TRANSACTION":
                    raise SchemaFileError("the transaction is not yours to end", sql=text.strip())
                session.run(text)
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise SchemaFileError("a statement failed", reason=reason) from error
