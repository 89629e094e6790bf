"""`Tx`, which `on_data` writes DuckDB with: rows from Arrow, and SQL that says what it changes.

DuckDB has no triggers, so these methods keep the undo data themselves, and only of blocks that a
fork can undo. The tables that SQL of the user's changes are read from its text before it runs: a
guard against accidents, which reads words, not grammar. Writes inside a `WITH` count, whatever
DuckDB calls the statement, and so do those that `EXPLAIN ANALYZE` runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import duckdb
import pyarrow as pa

from headwater.errors import (
    AppendOnlyError,
    DuckDBTransactionError,
    TableKeyError,
    UntraceableWriteError,
)
from headwater.targets.contract import Scope
from headwater.targets.duckdb.dialect import DEFAULT_SCHEMA, DUCKDB, TableName
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.store import DuckDBStore
from headwater.targets.duckdb.types import as_stored, scannable
from headwater.targets.frames import block_range, bounded_tables, to_arrow
from headwater.targets.sql.catalog import Layout, Undo
from headwater.targets.sql.text import Fragment, QualifiedName, columns, compose, equal, quote
from headwater.targets.sql.tokens import STANDARD, Token, shortened
from headwater.targets.sql.tx import BaseTx, Source

Rows = Source[Layout]


READING = {"SELECT", "EXPLAIN", "MULTI", "RELATION"}
ALLOWED = READING | {"INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "DROP", "ALTER", "COPY"}
ALLOWED |= {"SET", "VARIABLE_SET"}
_DROPPABLE = {"TABLE", "VIEW", "INDEX", "MACRO", "FUNCTION", "SEQUENCE", "TYPE"}
_FILLERS = {"ONLY", "IF", "NOT", "EXISTS", "TABLE"}


class Tx(BaseTx[Session, Layout]):
    """One transaction. `scope` is None in `on_start` and in the hooks of a rollback."""

    dialect = DUCKDB
    store: DuckDBStore

    def __init__(self, session: Session, store: DuckDBStore, scope: Scope | None = None) -> None:
        super().__init__(session, store, scope)
        self._identity: int | None = None

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Return the rows of a query, which sees what this batch has written so far."""
        self._remember()
        statements = self.session.statements(sql)
        kinds = [kind for kind, _ in statements]
        if len(kinds) != 1 or kinds[0] not in READING or changed_tables(sql):
            raise UntraceableWriteError("tx.query takes one statement that only reads", kinds=kinds)
        return self.session.arrow(sql, params)

    def execute(
        self, sql: str, params: Sequence[object] = (), *, tables: Sequence[str] = ()
    ) -> None:
        """Run SQL, one statement if it has parameters.

        While a fork may undo the block, SQL may change a tracked table only if `tables` names it.
        Then the whole table is compared before and after, which is exact but costs its size.
        """
        self._remember()
        statements = self.session.statements(sql)
        named = [TableName.parse(one) for one in tables]
        ddl = False
        for kind, text in statements:
            self._refuse_statement(kind, text, named)
            ddl = ddl or kind in ("CREATE", "ALTER", "DROP")
        with ExitStack() as stack:
            for name in named:
                stack.enter_context(self._compared(name))
            for _, text in statements:
                self.session.run(text, params)
        if ddl:
            self.store.catalog.forget()

    def finish(self) -> None:
        """Refuse to go on if the callback that this was given to has ended the transaction.

        Called by the target. `EXPLAIN ANALYZE COMMIT` passes for a statement that reads.
        """
        if self._identity is not None and self._identity != self.session.identity():
            raise DuckDBTransactionError("the transaction was ended by a callback")

    # --- guards -----------------------------------------------------------------------------------

    def _remember(self) -> None:
        """Note which transaction this is before SQL of the user's runs in it."""
        if self._identity is None:
            self._identity = self.session.identity()

    def _hot_block(self, layout: Layout) -> int | None:
        """Return the block whose undo data must be kept for this table, if any."""
        if self._scope is None or not self._scope.hot:
            return None
        return self._scope.block if layout.undo in (Undo.KEYED, Undo.KEYLESS) else None

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
            declared = self.store.catalog.declared(name)
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
            self.session.rows(
                "SELECT 1 FROM duckdb_tables() WHERE temporary AND lower(table_name) = ?",
                [name.folded[1]],
            )
        )

    # --- frames -----------------------------------------------------------------------------------

    def _pieces(self, frame: Any) -> Iterator[pa.Table]:
        """Yield the rows of a frame; those of final blocks on executors in bounded tables."""
        final = self._scope is not None and not self._scope.hot
        if not final:
            yield scannable(to_arrow(frame))
            return
        for rows in map(scannable, bounded_tables(frame)):
            yield rows
            del rows  # memory holds one piece at a time
            self.session.trim()

    def _insert(self, layout: Layout, rows: pa.Table) -> None:
        self._check_blocks(layout, rows)
        with self._scanned(layout, rows) as found, _refused_keys(layout):
            block = self._hot_block(layout)
            if block is not None:
                self.store.undo.inserted(layout, block, found.names, found.query)
            self.session.run(
                "INSERT INTO {table} ({names}) SELECT {names} FROM {source} AS new",
                table=layout.name,
                names=found.names,
                source=found.query,
            )

    @contextmanager
    def _whole(self, name: QualifiedName, frame: Any, key: Sequence[str]) -> Iterator[Rows]:
        """Put a frame in front of its table whole, by a temporary table if it comes in parts."""
        pieces = self._pieces(frame)
        first, second = next(pieces), next(pieces, None)
        self._require(name, first.schema.names, key)
        layout = self.store.catalog.prepare(name, first.schema, key)
        self._refuse(layout, "upsert")
        if second is None:
            with self._scanned(layout, self._fitted(layout, first)) as rows:
                self._check_key(rows)
                yield rows
            return
        table = f"__headwater_rows_{name.name}"
        what = "CREATE TEMP TABLE {table} AS FROM {query}"
        for data in chain([first, second], pieces):
            with self._scanned(layout, self._fitted(layout, data)) as rows:
                self.session.run(what, table=table, query=rows.query)
                what = "INSERT INTO {table} FROM {query}"
        whole = Source(layout, rows.names, compose("(FROM {table})", table=table))
        self._check_key(whole)
        yield whole
        self.session.run("DROP TABLE {table}", table=table)

    @contextmanager
    def _keys(self, layout: Layout, rows: pa.Table, wanted: Sequence[str]) -> Iterator[Rows]:
        self._require(layout.name, rows.column_names, wanted)
        spelled = [self.store.catalog.spelled(layout, one) for one in rows.column_names]
        data = rows.select([at for at, one in enumerate(spelled) if one in wanted])
        self.store.catalog.prepare(layout.name, data.schema, None)
        with self._scanned(layout, self._fitted(layout, data)) as found:
            yield found

    @contextmanager
    def _scanned(self, layout: Layout, rows: pa.Table) -> Iterator[Rows]:
        """Let statements select from rows, in the types of the table's columns."""
        names, values = [], []
        for field in rows.schema:
            name = self.store.catalog.spelled(layout, field.name)
            kind = layout.columns[name].type
            names.append(name)
            values.append(f"{as_stored(quote(field.name), field.type, kind)} AS {quote(name)}")
        with self.session.frame(rows) as view:
            query = compose(
                "(SELECT {values} FROM {view})", values=Fragment(", ".join(values)), view=view
            )
            yield Source(layout, names, query)

    def _check_key(self, rows: Rows) -> None:
        """Refuse rows without a key, and two rows with the same."""
        key = rows.layout.key
        missing = " OR ".join(f"{quote(one)} IS NULL" for one in key)
        total, distinct, without = self.session.rows(
            "SELECT count(*), count(DISTINCT ({key})), count(*) FILTER (WHERE {missing}) "
            "FROM {source} AS new",
            key=Fragment(f"row({columns(key)})"),
            missing=Fragment(missing),
            source=rows.query,
        )[0]
        self._refuse_keys(rows.layout, without, total - distinct)

    def _check_blocks(self, layout: Layout, rows: pa.Table) -> None:
        """Refuse rows of an append-only table that do not belong to the batch's blocks."""
        own = [one for one in rows.column_names if one.lower() == layout.block_column.lower()]
        if layout.undo is not Undo.APPEND_ONLY or not rows.num_rows:
            return
        ends, nulls = block_range(rows.column(own[0])) if own else ((), rows.num_rows)
        lowest, highest = ends or (None, None)
        self._refuse_blocks(layout, lowest, highest, nulls)

    def _capture(self, rows: Rows, columns: Sequence[str], operation: str) -> None:
        layout, block = rows.layout, self._hot_block(rows.layout)
        if block is None:
            return
        met = compose(
            "{table} AS old WHERE EXISTS (FROM {source} AS new WHERE {same})",
            table=layout.name,
            source=rows.query,
            same=equal(columns, "old", "new"),
        )
        self.store.undo.changed(layout, block, operation, met)
        if operation == "UPDATE":
            self.store.undo.inserted(layout, block, rows.names, rows.query)

    @contextmanager
    def _compared(self, name: QualifiedName) -> Iterator[None]:
        """Keep what the statements inside change of a table, by comparing all of it."""
        layout = self.store.catalog.layout(name)
        if layout is None or self._scope is None or layout.undo is Undo.NONE:
            yield
            return
        append_only = layout.undo is Undo.APPEND_ONLY
        if not self._scope.hot and not append_only:
            yield
            return
        before = f"__headwater_before_{name.name}"
        self.session.run("CREATE TEMP TABLE {before} AS FROM {table}", before=before, table=name)
        yield
        if append_only:
            self._check_appended(layout, before)
        else:
            self.store.undo.compared(layout, self._scope.block, before)
        self.session.run("DROP TABLE {before}", before=before)

    def _check_appended(self, layout: Layout, before: str) -> None:
        changes = "FROM {one} EXCEPT ALL FROM {other}"
        gone = self.session.rows(f"{changes} LIMIT 1", one=before, other=layout.name)
        if gone:
            raise AppendOnlyError("SQL changed or removed rows", table=layout.name)
        self._check_blocks(layout, self.session.arrow(changes, one=layout.name, other=before))


@contextmanager
def _refused_keys(layout: Layout) -> Iterator[None]:
    try:
        yield
    except duckdb.ConstraintException as error:
        reason = str(error).splitlines()[0]
        raise TableKeyError("the table refuses a row", table=layout.name, reason=reason) from error


# --- what a statement changes ---------------------------------------------------------------------


def changed_tables(sql: str) -> list[QualifiedName]:
    """Return the tables that one statement writes, alters or drops, in the order of mention."""
    tokens = STANDARD.tokens(sql)
    words = [one.text for one in tokens]
    found: list[QualifiedName] = []
    for index, word in enumerate(words):
        start = _target(words, index, word)
        if start is not None:
            name = _name(tokens, start)
            if name is None:
                raise UntraceableWriteError(
                    "cannot tell which table this changes", sql=shortened(sql)
                )
            found.append(name)
    return found


def _target(tokens: Sequence[str], index: int, word: str) -> int | None:
    """Return where the name of the changed table begins, if this word begins a change."""
    after = [*tokens[index + 1 : index + 8], *[""] * 7]
    before = tokens[index - 1] if index else ""
    match word:
        case "INSERT" if "INTO" in after[:3] and before != "THEN":
            return index + 2 + after.index("INTO")
        case "UPDATE" if before not in ("DO", "THEN", "FOR", "ON", ".") and after[0] not in "(,)":
            return index + 1 + (after[0] == "ONLY")
        case "DELETE" if after[0] == "FROM":
            return index + 2
        case "MERGE" if after[0] == "INTO":
            return index + 2
        case "TRUNCATE" if index == 0 or before in ("ANALYZE", "EXPLAIN"):
            return _skip_fillers(tokens, index + 1)
    return _first_word_target(tokens, word, after) if index == 0 else None


def _first_word_target(tokens: Sequence[str], word: str, after: Sequence[str]) -> int | None:
    match word:
        case "COPY" if after[0] != "(" and "FROM" in tokens:
            return 1
        case "ALTER" if after[0] == "TABLE":
            return _skip_fillers(tokens, 1)
        case "DROP":
            if after[0] not in _DROPPABLE or "CASCADE" in tokens or "," in tokens:
                raise UntraceableWriteError(
                    "drop one table at a time, and nothing that contains tables",
                    sql=shortened(" ".join(tokens)),
                )
            return _skip_fillers(tokens, 1) if after[0] == "TABLE" else None
        case "CREATE" if list(after[:3]) == ["OR", "REPLACE", "TABLE"]:
            return _skip_fillers(tokens, 3)
    return None


def _skip_fillers(tokens: Sequence[str], start: int) -> int:
    while start < len(tokens) and tokens[start] in _FILLERS:
        start += 1
    return start


def _name(tokens: Sequence[Token], start: int) -> TableName | None:
    """Read up to three parts with dots; the last two are schema and table."""
    parts: list[str] = []
    while start < len(tokens) and tokens[start].is_name:
        parts.append(tokens[start].name)
        if start + 1 >= len(tokens) or tokens[start + 1].text != ".":
            return TableName(parts[-2] if len(parts) > 1 else DEFAULT_SCHEMA, parts[-1])
        start += 2
    return None
