"""`Tx`, which `on_data` writes PostgreSQL with: rows by COPY, and any SQL.

Undo data is kept by triggers, so any SQL may change a tracked table. Rows of a Spark DataFrame stay
on the executors while the blocks are final. A batch that meets a conflict or loses its connection
is written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

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
from headwater.targets.postgres.dialect import POSTGRES
from headwater.targets.postgres.layout import Layout
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.staging import Distributed, Staging
from headwater.targets.postgres.store import PostgresStore
from headwater.targets.postgres.transfer import (
    copy_in,
    copy_table,
    missing_keys,
    plan_transfer,
    repeated_keys,
)
from headwater.targets.postgres.triggers import APPEND_ONLY, REFUSED
from headwater.targets.postgres.types import find_nul, to_table
from headwater.targets.sql.text import Fragment, QualifiedName, compose
from headwater.targets.sql.tokens import STANDARD, shortened
from headwater.targets.sql.tx import BaseTx, Source

_ENDS = {"COMMIT", "END", "ABORT", "ROLLBACK", "BEGIN", "START"}
_DDL = {"CREATE", "ALTER", "DROP", "ATTACH", "DETACH"}


class Tx(BaseTx[Session, Layout]):
    """One transaction. `scope` is None in `on_start` and in the hooks of a rollback."""

    dialect = POSTGRES
    store: PostgresStore

    def __init__(
        self,
        session: Session,
        store: PostgresStore,
        staging: Staging | None = None,
        scope: Scope | None = None,
    ) -> None:
        super().__init__(session, store, scope)
        self._staging = staging

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Return the rows of a query, which sees what this batch has written so far.

        Parameters are `$1`, `$2`, …. Integers too wide for Arrow come as decimal text.
        """
        return to_table(self._run(sql, params))

    def execute(self, sql: str, params: Sequence[object] = ()) -> int:
        """Run SQL, one statement if it has parameters (`$1`, …); return how many rows it touched.

        Whatever it changes of tracked tables is undone by a fork, except TRUNCATE, which is
        refused while a fork may undo the block.
        """
        return int(self._run(sql, params).rowcount)

    def finish(self) -> None:
        """Refuse to go on if the callback that this was given to has ended the transaction."""
        self.session.check()

    def _run(self, sql: str, params: Sequence[object]) -> psycopg.RawCursor[tuple[Any, ...]]:
        refuse_transaction_control(sql)
        with _coded():
            cursor = self.session.result(sql, params)
        if may_change_tables(sql):
            self.store.catalog.refresh()
        return cursor

    # --- writing ----------------------------------------------------------------------------------

    def _pieces(self, frame: Any) -> Iterable[pa.Table | Distributed]:
        """Yield the rows of a frame: in memory, or left on the executors while blocks are final.

        The rows of a hot block are few, and a Spark job of its own would cost more than they do.
        """
        final = self._scope is not None and not self._scope.hot
        rows = executor_rows(frame) if final else None
        if self._staging is not None and rows is not None and rows.reaches_driver:
            yield self._staging.distributed(rows)
        else:
            yield to_arrow(frame)

    def _insert(self, layout: Layout, rows: pa.Table | Distributed) -> None:
        transfer = plan_transfer(rows.schema, layout)
        with _coded(layout, rows):
            if not transfer.direct:
                source = self._source(layout, rows)
                self._check_blocks(layout, rows)
                self.session.run(
                    "INSERT INTO {table} ({names}) SELECT {names} FROM {source} AS new",
                    table=layout.name,
                    names=transfer.names,
                    source=source,
                )
            elif isinstance(rows, pa.Table):
                self._check_blocks(layout, rows)
                if rows.num_rows:
                    copy_table(self.session, layout.name, transfer, rows, layout.key)
            else:
                rows.stage(
                    transfer,
                    layout.block_column,
                    lambda sent: copy_in(self.session, layout.name, transfer, sent),
                )
                self._check_blocks(layout, rows)

    def _fitted(self, layout: Layout, rows: pa.Table | Distributed) -> pa.Table | Distributed:
        if isinstance(rows, pa.Table):
            return super()._fitted(layout, rows)
        fitting = self._fitting(layout, rows.schema)
        note = partial(self.store.altered.note, str(layout.name))
        return rows.fitted(fitting, note) if fitting else rows

    @contextmanager
    def _whole(
        self, name: QualifiedName, frame: Any, key: Sequence[str]
    ) -> Iterator[Source[Layout]]:
        (rows,) = self._pieces(frame)
        self._require(name, rows.schema.names, key)
        layout = self.store.catalog.prepare(name, rows.schema, key)
        self._refuse(layout, "upsert")
        rows = self._fitted(layout, rows)
        if isinstance(rows, pa.Table):
            columns = list(layout.key)
            self._refuse_keys(layout, missing_keys(rows, columns), repeated_keys(rows, columns))
        with _coded(layout, rows):
            yield Source(layout, rows.schema.names, self._source(layout, rows))

    @contextmanager
    def _keys(self, layout: Layout, rows: Any, wanted: Sequence[str]) -> Iterator[Source[Layout]]:
        self._require(layout.name, rows.schema.names, wanted)
        rows = self._fitted(layout, rows.select(wanted))
        layout = self.store.catalog.build(layout)
        self.store.catalog.prepare(layout.name, rows.schema, None)
        with _coded(layout, rows):
            yield Source(layout, wanted, self._source(layout, rows))

    def _source(self, layout: Layout, rows: pa.Table | Distributed) -> Fragment:
        """Put rows where a statement can select from them; return the query that does."""
        transfer = plan_transfer(rows.schema, layout)
        if isinstance(rows, pa.Table):
            sent: Iterable[bytes | memoryview] = transfer.encode(rows.schema, rows.to_batches())
        else:
            sent = rows.stage(transfer, layout.block_column, None)
        table = self.session.temporary.fill(transfer, sent)
        return compose("(SELECT {values} FROM {table})", values=transfer.values(), table=table)

    def _check_blocks(self, layout: Layout, rows: pa.Table | Distributed) -> None:
        """Refuse rows of an append-only table that do not belong to the batch's blocks."""
        if not rows.num_rows:
            return
        lowest, highest, nulls = None, None, rows.num_rows
        if isinstance(rows, Distributed):
            lowest, highest, nulls = rows.blocks
        elif layout.block_column in rows.column_names:
            ends, nulls = block_range(rows.column(layout.block_column))
            lowest, highest = ends or (None, None)
        self._refuse_blocks(layout, lowest, highest, nulls)


@contextmanager
def _coded(
    layout: Layout | None = None, rows: pa.Table | Distributed | None = None
) -> Iterator[None]:
    """Give the refusals of triggers, and of tables that a frame does not fit, their codes."""
    try:
        yield
    except PostgresTableError as error:
        if layout is not None:
            error.facts = {"table": layout.name, **error.facts}
        raise
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
            column = find_nul(rows) if isinstance(rows, pa.Table) else None
            raise PostgresTableError(
                "the table refuses a value" if column is None
                else "PostgreSQL cannot store a text that holds the character 0",
                table=layout.name, column=column, reason=reason,
            ) from error  # fmt: skip
        raise


def refuse_transaction_control(sql: str, where: str = "inside on_data") -> None:
    """Refuse SQL that would begin or end a transaction; savepoints are free."""
    statements = [[one.text for one in each] for each in STANDARD.statements(sql)]
    if any("ATOMIC" in words for words in statements):
        return  # the body of a function, whose END ends nothing else
    for words in statements:
        two = words[:2]
        ends = words[0] in _ENDS and not ("ROLLBACK" in two and "TO" in words[:3])
        if ends or two == ["PREPARE", "TRANSACTION"]:
            raise PostgresStatementError(f"{words[0]} is not allowed {where}", sql=shortened(sql))


def may_change_tables(sql: str) -> bool:
    """Tell whether SQL may create or alter tables, so that what is known of them is stale."""
    return any(one.text in _DDL for one in STANDARD.tokens(sql))
