"""What `on_data` writes with: set-based changes of declared tables, all in one transaction.

Undo data is kept by triggers, so any SQL may change a tracked table. Runs on the driver; rows of a
Spark DataFrame stay on the executors while the blocks are final. If anything raises, the whole
batch leaves no trace. A batch that meets a conflict or loses its connection is written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import psycopg
import pyarrow as pa
from psycopg.errors import CardinalityViolation, NotNullViolation, UniqueViolation

from headwater.errors import (
    PostgresAppendOnlyError,
    PostgresKeyError,
    PostgresStatementError,
    PostgresTableError,
)
from headwater.targets.contract import Scope
from headwater.targets.frames import block_range, executor_rows, to_arrow
from headwater.targets.postgres.catalog import PostgresCatalog
from headwater.targets.postgres.dialect import TableName
from headwater.targets.postgres.layout import Layout
from headwater.targets.postgres.merge import PostgresMerger
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.staging import Distributed, Staging
from headwater.targets.postgres.statements import (
    may_change_tables,
    refuse_transaction_control,
    to_table,
)
from headwater.targets.postgres.transfer import (
    Transfer,
    copy_in,
    missing_keys,
    plan_transfer,
    repeated_keys,
)
from headwater.targets.postgres.triggers import APPEND_ONLY, REFUSED
from headwater.targets.postgres.types import find_nul
from headwater.targets.sql.catalog import Undo
from headwater.targets.sql.text import Fragment, QualifiedName, compose, equal, quote


class TxStore(Protocol):
    """The part of a stream's store that writes tables."""

    @property
    def catalog(self) -> PostgresCatalog:
        """The tables of the stream."""
        ...

    @property
    def merger(self) -> PostgresMerger:
        """What applies changes to tables."""
        ...


class Tx:
    """One transaction. `scope` is None in `on_start` and in the hooks of a rollback."""

    def __init__(
        self,
        session: Session,
        store: TxStore,
        staging: Staging | None = None,
        scope: Scope | None = None,
    ) -> None:
        self._session = session
        self._catalog = store.catalog
        self.store = store
        self._staging = staging
        self._scope = scope

    def insert(self, table: str, frame: Any) -> None:
        """Add rows. Columns that the frame lacks are null, or have the table's default."""
        name = TableName.parse(table)
        self._catalog.declared(name)
        self._insert(name, self._rows_of(frame))

    def upsert(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Add rows, or replace the columns that the frame has where the key exists already.

        `key` is the table's primary key; it may be left out if it was declared, or exists.
        """
        name = TableName.parse(table)
        self._catalog.declared(name)
        self._upsert(name, self._rows_of(frame), key)

    def delete(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Remove the rows that agree with a row of the frame in the columns of `key`.

        `key` may be any columns; left out, it is the table's primary key.
        """
        name = TableName.parse(table)
        self._catalog.declared(name)
        self._delete(name, self._rows_of(frame), key)

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Return the rows of a query, which sees what this batch has written so far.

        Parameters are `$1`, `$2`, …. Integers too wide for Arrow come as decimal text.
        """
        return to_table(self._run(sql, params))

    def execute(self, sql: str, params: Sequence[object] = ()) -> int:
        """Run SQL, one statement if it has parameters (`$1`, …); return how many rows it touched.

        Whatever it changes of tracked tables is undone by a fork, except TRUNCATE, which is
        refused while a fork may strike.
        """
        return int(self._run(sql, params).rowcount)

    def prepare(
        self, table: str, schema: pa.Schema, key: Sequence[str], types: Mapping[str, str]
    ) -> Layout:
        """Return a table for rows like these, created if need be: for what is built on this."""
        return self._catalog.prepare(TableName.parse(table), schema, key, types)

    @property
    def session(self) -> Session:
        """The connection, for targets that are built on this one."""
        return self._session

    def finish(self) -> None:
        """Refuse to go on if the callback that this was given to has ended the transaction."""
        self._session.check()

    # --- writing ----------------------------------------------------------------------------------

    def _rows_of(self, frame: Any) -> Any:
        """Return the rows of a frame: in memory, or left on the executors while blocks are final.

        The rows of a hot block are few, and a Spark job of its own would cost more than they do.
        """
        final = self._scope is not None and not self._scope.hot
        rows = executor_rows(frame) if final else None
        if self._staging is not None and rows is not None and rows.reaches_driver:
            return self._staging.distributed(rows)
        return to_arrow(frame)

    def _insert(self, name: QualifiedName, frame: pa.Table | Distributed) -> None:
        layout = self._catalog.prepare(name, frame.schema, None)
        transfer = plan_transfer(frame.schema, layout)
        with _coded(layout, frame):
            if isinstance(frame, pa.Table):
                self._check_blocks(layout, frame)
                if transfer.direct:
                    self._copy_in(layout.name, frame, transfer)
                    return
            elif transfer.direct:
                frame.stage(
                    transfer,
                    layout.block_column,
                    lambda rows: copy_in(self._session, layout.name, transfer, rows),
                )
                self._check_blocks(layout, frame)
                return
            source = self._source(layout, frame)
            self._check_blocks(layout, frame)
            self._session.run(
                compose(
                    "INSERT INTO {table} ({names}) SELECT {names} FROM {source} AS new",
                    table=layout.name,
                    names=transfer.names,
                    source=source,
                )
            )

    def _upsert(
        self, name: QualifiedName, frame: pa.Table | Distributed, key: Sequence[str] | None
    ) -> None:
        existing = self._catalog.layout(name)
        key = tuple(key or self._catalog.declared(name).key or (existing.key if existing else ()))
        if not key:
            raise PostgresKeyError("an upsert needs a key", table=name)
        self._require(name, frame, key)
        layout = self._catalog.prepare(name, frame.schema, key)
        self._refuse(layout, "upsert")
        if isinstance(frame, pa.Table):
            _check_key(layout, frame)
        rest = [one for one in frame.schema.names if one not in layout.key]
        assign = ", ".join(f"{quote(one)} = excluded.{quote(one)}" for one in rest)
        with _coded(layout, frame):
            self._session.run(
                compose(
                    "INSERT INTO {table} ({names}) SELECT {names} FROM {source} AS new "
                    "ON CONFLICT ({key}) DO {action}",
                    table=layout.name,
                    names=frame.schema.names,
                    source=self._source(layout, frame),
                    key=layout.key,
                    action=Fragment(f"UPDATE SET {assign}" if rest else "NOTHING"),
                )
            )

    def _delete(
        self, name: QualifiedName, frame: pa.Table | Distributed, key: Sequence[str] | None
    ) -> None:
        layout = self._catalog.layout(name)
        if layout is None:
            return  # a table that does not exist holds none of the rows
        wanted = list(key or layout.key)
        if not wanted:
            raise PostgresKeyError("a delete needs a key", table=name)
        self._require(name, frame, wanted)
        frame = frame.select(wanted)
        layout = self._catalog.build(layout)
        self._catalog.prepare(name, frame.schema, None)
        self._refuse(layout, "delete")
        with _coded(layout, frame):
            self._session.run(
                compose(
                    "DELETE FROM {table} AS old USING {source} AS new WHERE {same}",
                    table=layout.name,
                    source=self._source(layout, frame),
                    same=equal(wanted, "old", "new"),
                )
            )

    def _copy_in(self, name: QualifiedName, frame: pa.Table, transfer: Transfer) -> None:
        if frame.num_rows:
            rows = transfer.encode(frame.schema, frame.to_batches())
            copy_in(self._session, name, transfer, rows)

    def _source(self, layout: Layout, frame: pa.Table | Distributed) -> Fragment:
        """Put a frame where a statement can select from it; return the query that does."""
        transfer = plan_transfer(frame.schema, layout)
        if isinstance(frame, pa.Table):
            rows: Iterable[bytes | memoryview] = transfer.encode(frame.schema, frame.to_batches())
        else:
            rows = frame.stage(transfer, layout.block_column, None)
        table = self._session.temporary.fill(transfer, rows)
        return compose("(SELECT {values} FROM {table})", values=transfer.values(), table=table)

    # --- guards -----------------------------------------------------------------------------------

    def _run(self, sql: str, params: Sequence[object]) -> psycopg.RawCursor[tuple[Any, ...]]:
        refuse_transaction_control(sql)
        with _coded():
            cursor = self._session.result(sql, params)
        if may_change_tables(sql):
            self._catalog.refresh()
        return cursor

    def _refuse(self, layout: Layout, what: str) -> None:
        if layout.undo is Undo.APPEND_ONLY and self._scope is not None:
            raise PostgresAppendOnlyError(
                f"an append-only table takes no {what}", table=layout.name
            )

    @staticmethod
    def _require(name: QualifiedName, frame: pa.Table | Distributed, key: Sequence[str]) -> None:
        lacking = [one for one in key if one not in frame.schema.names]
        if lacking:
            raise PostgresKeyError(
                "the frame lacks columns of the key", table=name, columns=lacking
            )

    def _check_blocks(self, layout: Layout, frame: pa.Table | Distributed) -> None:
        """Refuse rows of an append-only table that do not belong to the batch's blocks."""
        scope, column = self._scope, layout.block_column
        if layout.undo is not Undo.APPEND_ONLY or scope is None or not frame.num_rows:
            return
        lowest, highest, nulls = None, None, frame.num_rows
        if isinstance(frame, Distributed):
            lowest, highest, nulls = frame.blocks
        elif column in frame.column_names:
            ends, nulls = block_range(frame.column(column))
            lowest, highest = ends or (None, None)
        floor = scope.after if scope.hot else -1
        inside = lowest is not None and highest is not None and floor < lowest <= highest
        if nulls or not inside or (highest or 0) > scope.block:
            raise PostgresAppendOnlyError(
                "rows whose block number is not one of the batch's",
                table=layout.name,
                column=column,
                rows=f"{lowest}..{highest}",
                batch=f"{scope.after + 1}..{scope.block}",
            )


def _check_key(layout: Layout, frame: pa.Table) -> None:
    """Refuse rows without a key, and two rows with the same."""
    key = list(layout.key)
    without, twice = missing_keys(frame, key), repeated_keys(frame, key)
    if without or twice:
        raise PostgresKeyError(
            "rows without a key" if without else "a key occurs twice in the frame",
            table=layout.name,
            key=key,
            rows=without or twice,
        )


@contextmanager
def _coded(
    layout: Layout | None = None, frame: pa.Table | Distributed | None = None
) -> Iterator[None]:
    """Give the refusals of triggers, and of tables that a frame does not fit, their codes."""
    try:
        yield
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0]
        if error.sqlstate == REFUSED:
            raise PostgresStatementError("a fork could not undo this", what=reason) from error
        if error.sqlstate == APPEND_ONLY:
            raise PostgresAppendOnlyError("rows would be changed", what=reason) from error
        if layout is None:
            raise
        if isinstance(error, UniqueViolation | CardinalityViolation):
            raise PostgresKeyError(
                "the table refuses a row", table=layout.name, reason=reason
            ) from error
        if isinstance(error, psycopg.DataError | NotNullViolation):
            column = find_nul(frame) if isinstance(frame, pa.Table) else None
            raise PostgresTableError(
                "the table refuses a value" if column is None
                else "PostgreSQL cannot store a text that holds the character 0",
                table=layout.name, column=column, reason=reason,
            ) from error  # fmt: skip
        raise
