"""`Tx`, which `on_data` writes PostgreSQL with: rows by COPY, and any SQL.

Undo data is kept by triggers, so any SQL may change a tracked table. Rows of a Spark DataFrame stay
on the executors while the blocks are final. A batch that meets a conflict or loses its connection
is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.postgres.staging import Distributed, Staging
from headwater.targets.postgres.transfer import (
    copy_in,
    key_faults,
    plan_transfer,
)
from headwater.targets.postgres.triggers import APPEND_ONLY, REFUSED
from headwater.targets.postgres.types import find_nul, to_table
from headwater.targets.sql.database import Store
from headwater.targets.sql.layout import Layout
from headwater.targets.sql.tokens import STANDARD, shortened
from headwater.targets.sql.tx import BaseTx, Ends, Source
from headwater.targets.text import Fragment

_ENDS = {"COMMIT", "END", "ABORT", "ROLLBACK", "BEGIN", "START"}
_DDL = {"CREATE", "ALTER", "DROP", "ATTACH", "DETACH"}


class Tx(BaseTx):
    """One transaction. `scope` is None in `on_start` and in the hooks of a rollback.

    `staging` is None where rows are hot, or no batch is written; `check` looks at what callbacks
    have done.
    """

    def __init__(
        self,
        store: Store,
        check: Callable[[], None],
        scope: Scope | None = None,
        staging: Staging | None = None,
    ) -> None:
        super().__init__(store, scope)
        self._check = check
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

    def _run(self, sql: str, params: Sequence[object]) -> psycopg.RawCursor[tuple[Any, ...]]:
        refuse_transaction_control(sql)
        with _coded():
            cursor: psycopg.RawCursor[tuple[Any, ...]] = self.session.execute(sql, params)
        if may_change_tables(sql):
            self.store.catalog.refresh()
        return cursor

    # --- how PostgreSQL takes rows: by COPY, from this process or from executors ------------------

    def _pieces(self, frame: Any) -> tuple[pa.Table | Distributed]:
        """Return the rows of a frame: in memory, or left on the executors while blocks are final.

        The rows of a hot block are few, and a Spark job of its own would cost more than they do.
        """
        rows = None if self._staging is None else executor_rows(frame)
        if self._staging is not None and rows is not None and rows.reaches_driver:
            return (Distributed(self._staging, rows),)
        return (to_arrow(frame),)

    def _add(self, layout: Layout, rows: pa.Table | Distributed) -> Ends | None:
        """Copy rows into the table, or through a temporary one where the server reads a value."""
        transfer = plan_transfer(rows.schema, layout)
        if not transfer.direct:
            with self._source(layout, rows) as source:
                self.session.run(
                    "INSERT INTO {table} ({names}) SELECT {names} FROM {source} AS new",
                    table=layout.name,
                    names=transfer.names,
                    source=source.query,
                )
        elif not isinstance(rows, pa.Table):
            with _coded(layout, rows):
                publish = partial(copy_in, self.session, layout.name, transfer)
                rows.stage(transfer, layout.block_column, publish)
        elif rows.num_rows:
            with _coded(layout, rows):
                copy_in(self.session, layout.name, transfer, rows, layout.key)
        known = isinstance(rows, pa.Table) or not rows.num_rows
        return None if known else rows.blocks

    @contextmanager
    def _source(self, layout: Layout, rows: pa.Table | Distributed) -> Iterator[Source]:
        """Put rows into a temporary table."""
        with _coded(layout, rows):
            transfer = plan_transfer(rows.schema, layout)
            staged = not isinstance(rows, pa.Table)
            sent = rows.stage(transfer, layout.block_column, None) if staged else rows
            query = transfer.read(self.session.temporary.fill(transfer, sent))
            yield Source(layout, rows.schema.names, query)

    def _together(
        self, layout: Layout, pieces: Iterator[pa.Table | Distributed]
    ) -> AbstractContextManager[Source]:
        """Put all rows of a frame into a temporary table; keys on executors the server compares."""
        (rows,) = pieces
        faults = key_faults(rows, list(layout.key)) if isinstance(rows, pa.Table) else (0, 0)
        if any(faults):
            return nullcontext(Source(layout, rows.schema.names, Fragment(""), *faults))
        return self._source(layout, rows)

    def finish(self) -> None:
        """Ask the server whether the transaction is still ours, and a fork can undo it."""
        self._check()


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
    statements = [[token.text for token in tokens] for tokens in STANDARD.statements(sql)]
    if any("ATOMIC" in words for words in statements):
        return  # the body of a function, whose END ends nothing else
    for words in statements:
        two = words[:2]
        ends = words[0] in _ENDS and not ("ROLLBACK" in two and "TO" in words[:3])
        if ends or two == ["PREPARE", "TRANSACTION"]:
            raise PostgresStatementError(f"{words[0]} is not allowed {where}", sql=shortened(sql))


def may_change_tables(sql: str) -> bool:
    """Tell whether SQL may create or alter tables, so that what is known of them is stale."""
    return any(token.text in _DDL for token in STANDARD.tokens(sql))
