"""What `on_data` writes with: set-based changes of declared tables, all in one transaction.

DuckDB has no triggers, so these methods keep the undo data themselves, and only while a fork can
still strike. Runs on the driver. If anything raises, the whole batch leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import (
    AppendOnlyError,
    DuckDBTransactionError,
    TableKeyError,
    UntraceableWriteError,
)
from headwater.targets.contract import Scope
from headwater.targets.duckdb.catalog import DuckDBCatalog
from headwater.targets.duckdb.dialect import TableName
from headwater.targets.duckdb.merge import DuckDBMerger
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.statements import ALLOWED, READING, changed_tables
from headwater.targets.duckdb.types import INTEGER_TYPES, check_integers, scannable
from headwater.targets.duckdb.undo import DuckDBUndoLog
from headwater.targets.frames import bounded_tables, to_arrow
from headwater.targets.sql.catalog import Layout, Undo
from headwater.targets.sql.text import Fragment, QualifiedName, columns, compose, equal, quote
from headwater.targets.sql.tokens import STANDARD


@dataclass(frozen=True, slots=True)
class _Rows:
    """A frame in front of its table: the columns it fills, and the query that casts its values."""

    layout: Layout
    names: list[str]
    source: Fragment


class TxStore(Protocol):
    """The part of a stream's store that writes tables."""

    @property
    def catalog(self) -> DuckDBCatalog:
        """The tables of the stream."""
        ...

    @property
    def undo(self) -> DuckDBUndoLog:
        """What captures changes."""
        ...

    @property
    def merger(self) -> DuckDBMerger:
        """What applies changes to tables."""
        ...


class Tx:
    """One transaction. `scope` is None in `on_start` and in the hooks of a rollback."""

    def __init__(self, session: Session, store: TxStore, scope: Scope | None) -> None:
        self._session = session
        self._catalog = store.catalog
        self._undo = store.undo
        self.store = store
        self._scope = scope
        self._identity: int | None = None

    def insert(self, table: str, frame: Any) -> None:
        """Add rows. Columns that the frame lacks are null, or have the table's default."""
        for data in self._tables(frame):
            self._insert(table, data)

    def _insert(self, table: str, data: pa.Table) -> None:
        with self._rows(table, data, None) as rows:
            layout, hot = rows.layout, self._hot_block(rows.layout)
            if hot is not None:
                self._undo.inserted(layout, hot, rows.names, rows.source)
            with _refused_keys(layout):
                self._session.run(
                    compose(
                        "INSERT INTO {table} ({names}) SELECT {names} FROM {source} AS new",
                        table=layout.name,
                        names=rows.names,
                        source=rows.source,
                    )
                )

    def upsert(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Add rows, or replace the columns that the frame has where the key exists already.

        `key` is the table's primary key; it may be left out if it was declared.
        """
        name = TableName.parse(table)
        key = tuple(key or self._catalog.declared(name).key)
        existing = self._catalog.layout(name)
        key = key or (existing.key if existing else ())
        if not key:
            raise TableKeyError("an upsert needs a key", table=table)
        with self._whole(table, frame, key) as rows:
            layout, hot = rows.layout, self._hot_block(rows.layout)
            self._refuse(layout, "upsert")
            self._check_key(rows)
            if hot is not None:
                same = equal(layout.key, "old", "new")
                self._undo.changed(layout, hot, "UPDATE", self._matching(rows, same))
                self._undo.inserted(layout, hot, rows.names, rows.source)
            rest = [one for one in rows.names if one not in layout.key]
            assign = ", ".join(f"{quote(one)} = excluded.{quote(one)}" for one in rest)
            self._session.run(
                compose(
                    "INSERT INTO {table} ({names}) SELECT {names} FROM {source} AS new "
                    "ON CONFLICT ({key}) DO {action}",
                    table=layout.name,
                    names=rows.names,
                    source=rows.source,
                    key=layout.key,
                    action=Fragment(f"UPDATE SET {assign}" if rest else "NOTHING"),
                )
            )

    def delete(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Remove the rows that agree with a row of the frame in the columns of `key`.

        `key` may be any columns; left out, it is the table's primary key.
        """
        name = TableName.parse(table)
        layout = self._catalog.layout(name)
        if layout is None:
            self._catalog.declared(name)
            return  # a table that does not exist holds none of the rows
        if not layout.key and layout.undo is not Undo.NONE:
            raise TableKeyError("a delete needs a table with a primary key", table=table)
        wanted = [self._catalog.spelled(layout, one) for one in key or layout.key]
        for data in self._tables(frame):
            self._delete(table, layout, wanted, data)

    def _delete(self, table: str, layout: Layout, wanted: list[str], data: pa.Table) -> None:
        own = {one.lower() for one in data.column_names}
        lacking = [one for one in wanted if one.lower() not in own]
        if lacking or not wanted:
            raise TableKeyError("the frame lacks columns of the key", table=table, columns=lacking)
        positions = [
            index
            for index, one in enumerate(data.column_names)
            if self._catalog.spelled(layout, one) in wanted
        ]
        with self._rows(table, data.select(positions), None, checked=False) as rows:
            self._refuse(layout, "delete")
            hot = self._hot_block(layout)
            same = equal(wanted, "old", "new")
            if hot is not None:
                self._undo.changed(layout, hot, "DELETE", self._matching(rows, same))
            self._session.run(
                compose(
                    "DELETE FROM {table} AS old WHERE EXISTS (FROM {source} AS new WHERE {same})",
                    table=layout.name,
                    source=rows.source,
                    same=same,
                )
            )

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Return the rows of a query, which sees what this batch has written so far."""
        self._remember()
        statements = self._session.statements(sql)
        kinds = [kind for kind, _ in statements]
        if len(kinds) != 1 or kinds[0] not in READING or changed_tables(sql):
            raise UntraceableWriteError("tx.query takes one statement that only reads", kinds=kinds)
        return self._session.arrow(sql, params)

    def execute(
        self, sql: str, params: Sequence[object] = (), *, tables: Sequence[str] = ()
    ) -> None:
        """Run SQL, one statement if it has parameters.

        While a fork may strike, SQL may change a tracked table only if `tables` names it: then the
        whole table is compared before and after, which is exact but costs its size.
        """
        self._remember()
        statements = self._session.statements(sql)
        named = [TableName.parse(one) for one in tables]
        ddl = False
        for kind, text in statements:
            self._refuse_statement(kind, text, named)
            ddl = ddl or kind in ("CREATE", "ALTER", "DROP")
        with ExitStack() as stack:
            for name in named:
                stack.enter_context(self._compared(name))
            for _, text in statements:
                self._session.run(text, params)
        if ddl:
            self._catalog.forget()

    def prepare(
        self, table: str, schema: pa.Schema, key: Sequence[str], types: Mapping[str, str]
    ) -> Layout:
        """Return a table for rows like these, created if need be: for what is built on this."""
        return self._catalog.prepare(TableName.parse(table), schema, key, types)

    def finish(self) -> None:
        """Refuse to go on if the callback that this was given to has ended the transaction.

        Called by the target. `EXPLAIN ANALYZE COMMIT` passes for a statement that reads.
        """
        if self._identity is not None and self._identity != self._session.identity():
            raise DuckDBTransactionError("the transaction was ended by a callback")

    @property
    def session(self) -> Session:
        """The connection, for targets that are built on this one."""
        return self._session

    # --- guards -----------------------------------------------------------------------------------

    def _remember(self) -> None:
        """Note which transaction this is before SQL of the user's runs in it."""
        if self._identity is None:
            self._identity = self._session.identity()

    def _hot_block(self, layout: Layout) -> int | None:
        """Return the block whose undo data must be kept for this table, if any."""
        if self._scope is None or not self._scope.hot:
            return None
        return self._scope.block if layout.undo in (Undo.KEYED, Undo.KEYLESS) else None

    def _refuse(self, layout: Layout, what: str) -> None:
        if layout.undo is Undo.APPEND_ONLY and self._scope is not None:
            raise AppendOnlyError(f"an append-only table takes no {what}", table=layout.name)

    def _refuse_statement(self, kind: str, sql: str, named: Sequence[QualifiedName]) -> None:
        """Refuse what would escape the undo log, or the transaction."""
        if kind == "TRANSACTION":
            first = STANDARD.tokens(sql)[0].text
            raise UntraceableWriteError(f"{first} is not allowed inside on_data", sql=sql.strip())
        if self._scope is None:
            return
        if kind not in ALLOWED:
            raise UntraceableWriteError("this kind of statement has no place here", kind=kind)
        for name in changed_tables(sql):
            if self._is_temporary(name):
                continue
            declared = self._catalog.declared(name)
            free = declared.untracked or not self._scope.hot
            if not free and name.folded not in {one.folded for one in named}:
                raise UntraceableWriteError(
                    "SQL changes a tracked table while a fork may still undo the block",
                    table=name,
                    block=self._scope.block,
                )
            if not free and kind in ("ALTER", "DROP", "CREATE"):
                raise UntraceableWriteError("a fork cannot undo this", kind=kind, table=name)

    def _is_temporary(self, name: QualifiedName) -> bool:
        return bool(
            self._session.rows(
                "SELECT 1 FROM duckdb_tables() WHERE temporary AND lower(table_name) = ?",
                [name.folded[1]],
            )
        )

    def _check_key(self, rows: _Rows) -> None:
        """Refuse rows without a key, and two rows with the same."""
        key = rows.layout.key
        missing = " OR ".join(f"{quote(one)} IS NULL" for one in key)
        total, distinct, without = self._session.rows(
            compose(
                "SELECT count(*), count(DISTINCT ({key})), count(*) FILTER (WHERE {missing}) "
                "FROM {source} AS new",
                key=Fragment(f"row({columns(key)})"),
                missing=Fragment(missing),
                source=rows.source,
            )
        )[0]
        if without or total != distinct:
            raise TableKeyError(
                "rows without a key" if without else "a key occurs twice in the frame",
                table=rows.layout.name,
                key=list(key),
                rows=without or total - distinct,
            )

    def _check_blocks(self, layout: Layout, frame: pa.Table) -> None:
        """Refuse rows of an append-only table that do not belong to the batch's blocks."""
        scope = self._scope
        if layout.undo is not Undo.APPEND_ONLY or scope is None or not frame.num_rows:
            return
        own = [one for one in frame.column_names if one.lower() == layout.block_column.lower()]
        values = frame.column(own[0]) if own else pa.nulls(1, pa.int64())
        lowest, highest = pc.min_max(values).values()
        lowest, highest = lowest.as_py(), highest.as_py()
        floor = scope.after if scope.hot else -1
        if values.null_count or lowest <= floor or highest > scope.block:
            raise AppendOnlyError(
                "rows whose block number is not one of the batch's",
                table=layout.name,
                column=layout.block_column,
                rows=f"{lowest}..{highest}",
                batch=f"{scope.after + 1}..{scope.block}",
            )

    # --- frames -----------------------------------------------------------------------------------

    def _tables(self, frame: Any) -> Iterator[pa.Table]:
        """Yield the rows of a frame; those of final blocks on executors in bounded tables."""
        final = self._scope is not None and not self._scope.hot
        yield from bounded_tables(frame) if final else (to_arrow(frame),)

    @contextmanager
    def _whole(self, table: str, frame: Any, key: Sequence[str]) -> Iterator[_Rows]:
        """Put a frame in front of its table whole, by a temporary table if it comes in several."""
        tables = self._tables(frame)
        first, second = next(tables), next(tables, None)
        if second is None:
            with self._rows(table, first, key) as rows:
                yield rows
            return
        name = f"__headwater_rows_{TableName.parse(table).name}"
        made = False
        for data in chain([first, second], tables):
            with self._rows(table, data, key) as rows:
                what = (
                    "INSERT INTO {name} FROM {source}"
                    if made
                    else ("CREATE TEMP TABLE {name} AS FROM {source}")
                )
                self._session.run(compose(what, name=name, source=rows.source))
                made = True
        yield _Rows(rows.layout, rows.names, compose("(FROM {name})", name=name))
        self._session.run(compose("DROP TABLE {name}", name=name))

    @contextmanager
    def _rows(
        self, table: str, frame: pa.Table, key: Sequence[str] | None, *, checked: bool = True
    ) -> Iterator[_Rows]:
        """Put rows in front of their table."""
        data = scannable(frame)
        layout = self._catalog.prepare(TableName.parse(table), data.schema, key)
        lacking = [one for one in key or () if one.lower() not in _lowered(data.column_names)]
        if lacking:
            raise TableKeyError("the frame lacks columns of the key", table=table, columns=lacking)
        if checked:
            self._check_blocks(layout, data)
        names, values = [], []
        for field in data.schema:
            name = self._catalog.spelled(layout, field.name)
            kind = layout.columns[name].type
            if INTEGER_TYPES.fullmatch(kind):
                check_integers(data, field.name, kind)
            names.append(name)
            values.append(f"CAST({quote(field.name)} AS {kind}) AS {quote(name)}")
        with self._session.frame(data) as view:
            source = compose(
                "(SELECT {values} FROM {view})", values=Fragment(", ".join(values)), view=view
            )
            yield _Rows(layout, names, source)

    def _matching(self, rows: _Rows, same: Fragment) -> Fragment:
        """Return the rows `old` of the table that the frame meets."""
        return compose(
            "{table} AS old WHERE EXISTS (FROM {source} AS new WHERE {same})",
            table=rows.layout.name,
            source=rows.source,
            same=same,
        )

    @contextmanager
    def _compared(self, name: QualifiedName) -> Iterator[None]:
        """Keep what the statements inside change of a table, by comparing all of it."""
        layout = self._catalog.layout(name)
        if layout is None or self._scope is None or layout.undo is Undo.NONE:
            yield
            return
        append_only = layout.undo is Undo.APPEND_ONLY
        if not self._scope.hot and not append_only:
            yield
            return
        before = f"__headwater_before_{name.name}"
        self._session.run(
            compose("CREATE TEMP TABLE {before} AS FROM {table}", before=before, table=name)
        )
        yield
        if append_only:
            self._check_appended(layout, before)
        else:
            self._undo.compared(layout, self._scope.block, before)
        self._session.run(compose("DROP TABLE {before}", before=before))

    def _check_appended(self, layout: Layout, before: str) -> None:
        changes = "FROM {one} EXCEPT ALL FROM {other}"
        gone = self._session.rows(
            compose(f"{changes} LIMIT 1", one=before, other=layout.name),
        )
        if gone:
            raise AppendOnlyError("SQL changed or removed rows", table=layout.name)
        self._check_blocks(
            layout, self._session.arrow(compose(changes, one=layout.name, other=before))
        )


@contextmanager
def _refused_keys(layout: Layout) -> Iterator[None]:
    try:
        yield
    except duckdb.ConstraintException as error:
        reason = str(error).splitlines()[0]
        raise TableKeyError("the table refuses a row", table=layout.name, reason=reason) from error


def _lowered(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}
