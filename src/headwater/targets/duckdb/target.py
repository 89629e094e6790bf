"""A DuckDB file as a target: rows, cursor and rollback chain in one transaction.

DuckDB is embedded: nothing to install, nothing to run. One process writes a file, on the driver;
while a stream runs elsewhere not even looking is possible: `DuckDBFileError` says so. A crash
leaves nothing behind, because what is not committed does not exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from headwater.address import Address
from headwater.core.several import Several
from headwater.errors import (
    DuckDBTransactionError,
    SchemaFileError,
)
from headwater.targets.admin import check_address
from headwater.targets.contract import Scope
from headwater.targets.database import Callbacks, OnData, OnRollback, OnStart
from headwater.targets.duckdb.dialect import DEFAULT_SCHEMA, DUCKDB, TableName
from headwater.targets.duckdb.merge import DuckDBMerger
from headwater.targets.duckdb.session import MEMORY, Session, open_session
from headwater.targets.duckdb.tx import Scans, Tx
from headwater.targets.duckdb.undo import DuckDBUndoLog
from headwater.targets.sql.aggregates import Aggregate
from headwater.targets.sql.database import Database, OpenedStream
from headwater.targets.sql.flow import PRUNE_EVERY, SqlTarget
from headwater.targets.sql.layout import Table
from headwater.targets.sql.state import StateSettings
from headwater.targets.sql.tokens import STANDARD
from headwater.targets.tables import TableOptions
from headwater.targets.text import QualifiedName
from headwater.targets.values import check_policy

_MEMORIES = itertools.count(1)


@dataclass(frozen=True, slots=True)
class DuckDBSettings(StateSettings):
    """Where and under which id the state is kept.

    `id` overrides the stream's own. Undo data is kept for `unfinalized_blocks_retention` blocks
    below the finalized one. `config` is passed to DuckDB (`{"memory_limit": "2GB"}`); it
    may hold keys, so no text shows it. Without a `memory_limit`, a backfill keeps 64 MB of the file
    in memory.
    """

    schema: str = DEFAULT_SCHEMA
    config: Mapping[str, str | bool | int | float | list[str]] = field(
        default_factory=dict, repr=False
    )
    name_type = TableName


class DuckDBDatabase(Database[Session]):
    """A DuckDB file. Targets of this process that write it share its connection."""

    dialect = DUCKDB
    settings_type = DuckDBSettings
    ended = DuckDBTransactionError
    undo_type = DuckDBUndoLog
    merger_type = DuckDBMerger

    def __init__(self, place: str | Path | Address, settings: DuckDBSettings | None = None) -> None:
        super().__init__(place, settings)
        is_file = str(self.place) != MEMORY
        self.file = Path(self.place) if is_file else None
        self._memory = "" if is_file else f":memory:{next(_MEMORIES)}"  # of this target alone
        self._scans: Scans = {}
        self._batches = 0  # since it was opened

    def connect(self, stream: OpenedStream, look: Callable[[], None] | None = None) -> None:
        """Open the file unless it is open, create what is missing, and let the user prepare it."""
        if self._session is None:
            self._open(stream)
        if look is not None:
            with self._changing(self.store.session):
                look()

    def _open(self, stream: OpenedStream) -> None:
        session = self._session_for(stream.id, stream.announce)
        self.store = store = self.stored(
            session, stream.id, stream.tables, automatic=stream.automatic, altered=stream.altered
        )
        try:
            with self._changing(session):
                store.sync.create()
                store.catalog.create()
                store.side.create(stream.side_tables)
                if stream.on_start is not None:
                    tx = Tx(store, self._scans)
                    stream.on_start(tx)
                    tx.finish()
        except BaseException:
            session.close()
            raise
        self._session, self._batches = session, 0

    def _session_for(
        self, stream_id: str | None, on_statement: Callable[[str], None] | None = None
    ) -> Session:
        """Open a session; with an id, as the one writer of that stream."""
        stream = None if stream_id is None else (*self.settings.sync.folded, stream_id)
        return open_session(self.place, self.settings.config, stream, self._memory, on_statement)

    @contextmanager
    def _changing(self, session: Session) -> Iterator[None]:
        """Run in one transaction; after a failure trust nothing that was remembered of it."""
        try:
            with session.transaction():
                yield
        except BaseException:
            self.store.catalog.forget()
            self.store.undo.forget()
            raise

    def transaction(self, work: Callable[[], None], first: Scope | None = None) -> None:
        """Do the work in one transaction."""
        session = self.store.session
        with self._changing(session):
            work()
        if first is not None and (not first.hot or self._batches % PRUNE_EVERY == 0):
            session.trim()
        self._batches += first is not None

    def look(self, work: Callable[[], None]) -> None:
        """Read without a transaction, which would wait for those of other streams."""
        work()

    def tx(self, scope: Scope | None = None) -> Tx:
        """Return the `tx` of a batch, or of a callback that writes none."""
        return Tx(self.store, self._scans, scope)

    def reader(self) -> Session:
        """Share the connection of the file: no other process could read it meanwhile."""
        return self._session_for(None)

    # --- outside a run ----------------------------------------------------------------------------

    @contextmanager
    def administer(self, stream_id: str | None) -> Iterator[Session]:
        """Open a transaction; with an id, as the one writer of that stream."""
        session = self._session_for(stream_id)
        try:
            with session.transaction():
                yield session
        finally:
            session.close()

    def empty(self, session: Session, names: Sequence[QualifiedName]) -> None:
        """Remove all rows, those of children before those of their parents."""
        for name in reversed(names):
            session.run("DELETE FROM {table}", table=name)

    def run_script(self, session: Session, sql: str) -> None:
        """Run the statements of a schema file."""
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


class DuckDBTarget(SqlTarget):
    """Made by `duckdb_target`. All calls come from one thread; it may be opened again."""


def duckdb_target(
    path: str | Path,
    *,
    tables: Several[str | TableOptions | Table] | None = None,
    on_data: OnData[Tx] | None = None,
    on_start: OnStart[Tx] | None = None,
    on_before_rollback: OnRollback[Tx] | None = None,
    on_after_rollback: OnRollback[Tx] | None = None,
    aggregates: Iterable[Aggregate] = (),
    unrepresentable: str = "replace",
    settings: DuckDBSettings | None = None,
) -> DuckDBTarget:
    """Write a stream to a DuckDB file.

    Args:
        path: the file, created if need be; `:memory:` for one that is gone with the target.
        tables: every table that `on_data` writes, as a name or `table(...)`; parents before
            children. Without `on_data`, only those that need more than their name.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called once per batch, inside its
            transaction. Left out, each output is inserted into the table of its own name.
        on_start: `on_start(tx)`, called once before anything is read, in a transaction.
        on_before_rollback: `on_before_rollback(tx, cursor)`, called inside the transaction that
            undoes a fork, before any table is; for what the target does not track.
        on_after_rollback: the same, after all tables were restored.
        aggregates: tables that sum up outputs, made by `aggregate(...)`, after `on_data`.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, where the state is kept, for how long undo data is.
    """
    check_address(path, "duckdb")
    callbacks = Callbacks.check(on_data, on_start, on_before_rollback, on_after_rollback)
    policy = check_policy(unrepresentable)
    return DuckDBTarget(DuckDBDatabase(path, settings), tables, aggregates, callbacks, policy)


DATABASE = DuckDBDatabase
