"""`Tx`, which `on_data` writes DuckDB with: rows from Arrow, and SQL that says what it changes.

DuckDB has no triggers, so these methods keep the undo data themselves, and only of blocks that a
fork can undo. The tables that SQL of the user's changes are read from its text before it runs: a
guard against accidents, which reads words, not grammar. Writes inside a `WITH` count, whatever
DuckDB calls the statement, and so do those that `EXPLAIN ANALYZE` runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
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
from headwater.targets.duckdb.dialect import DEFAULT_SCHEMA, TableName, as_stored, scannable
from headwater.targets.frames import bounded_tables, to_arrow
from headwater.targets.sql.database import Store
from headwater.targets.sql.layout import Layout, Undo
from headwater.targets.sql.tokens import STANDARD, Token, shortened
from headwater.targets.sql.tx import BaseTx, Source
from headwater.targets.text import Fragment, QualifiedName, columns, compose, equal, quote

Scans = dict[tuple[QualifiedName, pa.Schema], tuple[Layout, list[str], Fragment]]
READING = {"SELECT", "EXPLAIN", "MULTI", "RELATION"}
ALLOWED = READING | {"INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "DROP", "ALTER", "COPY"}
ALLOWED |= {"SET", "VARIABLE_SET"}
_DROPPABLE = {"TABLE", "VIEW", "INDEX", "MACRO", "FUNCTION", "SEQUENCE", "TYPE"}
_FILLERS = {"ONLY", "IF", "NOT", "EXISTS", "TABLE"}


class Tx(BaseTx):
    """One transaction. `scope` is None in `on_start` and in the hooks of a rollback.

    `scans` remembers how columns of frames are read into those of tables.
    """

    def __init__(self, store: Store, scans: Scans, scope: Scope | None = None) -> None:
        super().__init__(store, scope)
        self._scans = scans
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
        named = [TableName.parse(table) for table in tables]
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

    # --- how DuckDB takes rows: from Arrow, and keeps itself what a fork has to undo --------------

    def _remember(self) -> None:
        """Note which transaction this is before SQL of the user's runs in it."""
        if self._identity is None:
            self._identity = self.session.identity()

    def finish(self) -> None:
        """Refuse to go on if a callback has ended the transaction.

        `EXPLAIN ANALYZE COMMIT` passes for a statement that reads.
        """
        if self._identity is not None and self._identity != self.session.identity():
            raise DuckDBTransactionError("the transaction was ended by a callback")

    def _pieces(self, frame: Any) -> Iterable[pa.Table]:
        """Return the rows of a frame; those of final blocks on executors in bounded tables."""
        final = self._scope is not None and not self._scope.hot
        return self._bounded(frame) if final else (scannable(to_arrow(frame)),)

    def _bounded(self, frame: Any) -> Iterator[pa.Table]:
        for rows in map(scannable, bounded_tables(frame)):
            yield rows
            del rows  # memory holds one piece at a time
            self.session.trim()

    def _add(self, layout: Layout, rows: pa.Table) -> None:
        """Add rows; of a hot block it is kept that they came."""
        with self._source(layout, rows) as source, _refused_keys(layout):
            block = self._hot_block(layout)
            if block is not None:
                self.store.undo.inserted(layout, block, source.names, source.query)
            self.session.run(
                "INSERT INTO {table} ({names}) SELECT {names} FROM {source} AS new",
                table=layout.name,
                names=source.names,
                source=source.query,
            )

    @contextmanager
    def _source(self, layout: Layout, rows: pa.Table) -> Iterator[Source]:
        """Let statements select from rows, in the types of the table's columns."""
        known = self._scans.get((layout.name, rows.schema))
        if known is None or known[0] is not layout:
            known = self._scans[layout.name, rows.schema] = layout, *self._read_as(layout, rows)
        _, names, values = known
        with self.session.frame(rows) as view:
            query = compose("(SELECT {values} FROM {view})", values=values, view=view)
            yield Source(layout, names, query)

    def _read_as(self, layout: Layout, rows: pa.Table) -> tuple[list[str], Fragment]:
        """Return the columns that rows fill, and how they are read from a frame."""
        names, values = [], []
        for field in rows.schema:
            name = self.store.catalog.spelled(layout, field.name)
            kind = layout.columns[name].type
            names.append(name)
            values.append(f"{as_stored(quote(field.name), field.type, kind)} AS {quote(name)}")
        return names, Fragment(", ".join(values))

    @contextmanager
    def _together(self, layout: Layout, pieces: Iterator[pa.Table]) -> Iterator[Source]:
        """The same for a whole frame, by a temporary table if it comes in parts."""
        first, second = next(pieces), next(pieces, None)
        if second is None:
            with self._source(layout, first) as rows:
                yield self._counted(rows)
            return
        table = f"__headwater_rows_{layout.name.name}"
        what = "CREATE TEMP TABLE {table} AS FROM {query}"
        for data in chain([first, second], pieces):
            with self._source(layout, data) as rows:
                self.session.run(what, table=table, query=rows.query)
                what = "INSERT INTO {table} FROM {query}"
        yield self._counted(Source(layout, rows.names, compose("(FROM {table})", table=table)))
        self.session.run("DROP TABLE {table}", table=table)

    def _counted(self, rows: Source) -> Source:
        """Count rows without a key, and those whose key another row has."""
        key = rows.layout.key
        missing = " OR ".join(f"{quote(column)} IS NULL" for column in key)
        total, distinct, without = self.session.rows(
            "SELECT count(*), count(DISTINCT ({key})), count(*) FILTER (WHERE {missing}) "
            "FROM {source} AS new",
            key=Fragment(f"row({columns(key)})"),
            missing=Fragment(missing),
            source=rows.query,
        )[0]
        return replace(rows, without=without, twice=total - distinct)

    def _capture(self, rows: Source, columns: Sequence[str], operation: str) -> None:
        """Keep the rows that a statement is about to change, and note those that it adds."""
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

    def _hot_block(self, layout: Layout) -> int | None:
        """Return the block whose undo data must be kept for this table, if any."""
        if self._scope is None or not self._scope.hot:
            return None
        return self._scope.block if layout.undo in (Undo.KEYED, Undo.KEYLESS) else None

    # --- guards -----------------------------------------------------------------------------------

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
            if not free and name.folded not in {table.folded for table in named}:
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
    words = [token.text for token in tokens]
    tables: list[QualifiedName] = []
    for index, word in enumerate(words):
        start = _target(words, index, word)
        if start is not None:
            name = _name(tokens, start)
            if name is None:
                raise UntraceableWriteError(
                    "cannot tell which table this changes", sql=shortened(sql)
                )
            tables.append(name)
    return tables


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
