"""The tables of a stream: what was declared, what exists, and how a fork undoes each.

A table is undone in one of three ways. *Append-only*: its rows carry their block number and go by
it. *Keyed*: before-images per primary key. *Keyless*: its inserted rows are kept a second time and
taken out again, as often as they were put in. Which one was used is stored beside the state, so a
restarted stream can undo tables that it has not written yet; two streams cannot tread on each other
unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.errors import (
    AppendOnlyError,
    TableKeyError,
    TableSchemaError,
    UndeclaredTableError,
)
from headwater.targets.duckdb.frames import column_type, fits
from headwater.targets.duckdb.settings import Table
from headwater.targets.duckdb.sql import Fragment, TableName, columns, compose, quote
from headwater.targets.sql.catalog import ClaimedTables, LaidTable, Undo
from headwater.targets.sql.session import Session


@dataclass(frozen=True, slots=True)
class Layout(LaidTable):
    """A table as it is: its columns with their types, its primary key, how it is undone."""

    name: TableName
    types: dict[str, str]

    def column(self, name: str) -> str:
        """Return the column's own spelling of a name; DuckDB ignores case."""
        return next((one for one in self.types if one.lower() == name.lower()), name)


class Catalog(ClaimedTables[Table, Layout]):
    """Knows a stream's tables. It caches; `forget` after a transaction that failed."""

    table = Table
    undeclared = UndeclaredTableError
    refused = TableSchemaError
    other_key = TableKeyError
    not_shared = AppendOnlyError
    differ = "differ, also without regard to case,"
    same_table = Fragment("lower(table_schema) = $1 AND lower(table_name) = $2")

    def create(self) -> None:
        """Create the table that says how each table is undone."""
        self._session.run(
            compose(
                """
                CREATE TABLE IF NOT EXISTS {claims} (
                    id VARCHAR, table_schema VARCHAR, table_name VARCHAR, undo VARCHAR,
                    key_columns JSON, block_column VARCHAR, position INTEGER,
                    PRIMARY KEY (id, table_schema, table_name)
                )
                """,
                claims=self._claims,
            )
        )

    def undoable(self) -> list[Layout]:
        """Return every table that this stream has ever claimed, in the order of declaration."""
        rows = self._session.rows(
            compose(
                "SELECT table_schema, table_name, undo, key_columns::VARCHAR, block_column "
                "FROM {claims} WHERE id = ? ORDER BY position, table_schema, table_name",
                claims=self._claims,
            ),
            [self._id],
        )
        found = []
        for schema, table, undo, key, block_column in rows:
            name = TableName(schema, table)
            types, _ = read_table(self._session, name) or ({}, ())
            if types:
                found.append(Layout(name, tuple(json.loads(key)), Undo(undo), block_column, types))
        return found

    # --- what exists ------------------------------------------------------------------------------

    def create_table(self, declared: Table, schema: pa.Schema, key: Sequence[str] | None) -> None:
        """Create a table for rows of this schema."""
        key = declared.key or tuple(key or ())
        names = {field.name.lower() for field in schema}
        lacking = [one for one in (*key, *declared.types) if one.lower() not in names]
        if lacking:
            raise TableSchemaError(
                "columns that the frame lacks", table=declared.name, columns=lacking
            )
        self._refuse_names(declared.name, schema)
        types = {column.lower(): kind for column, kind in declared.types.items()}
        parts = [
            f"{quote(one.name)} {types.get(one.name.lower()) or column_type(one)}" for one in schema
        ]
        if key:
            parts.append(f"PRIMARY KEY ({columns(key)})")
        self._session.run(
            compose("CREATE SCHEMA IF NOT EXISTS {schema}", schema=declared.name.schema)
        )
        self._session.run(
            compose(
                "CREATE TABLE {table} ({parts})",
                table=declared.name,
                parts=Fragment(", ".join(parts)),
            )
        )

    def _find(self, declared: Table) -> Layout | None:
        """Look at a table, decide how it is undone, and claim it."""
        found = read_table(self._session, declared.name)
        if found is None:
            return None
        types, key = found
        wanted = {one.lower() for one in declared.key}
        if wanted and wanted != {one.lower() for one in key}:
            raise TableSchemaError(
                "the table's primary key is not the declared one",
                table=declared.name,
                declared=list(declared.key),
                key=list(key),
            )
        given = {column.lower(): kind for column, kind in types.items()}
        blocks = given.get(declared.block_column.lower())
        append_only = declared.append_only
        if append_only is None:
            append_only = self._automatic and not key and blocks is not None
        undo = Undo.APPEND_ONLY if append_only else Undo.KEYED if key else Undo.KEYLESS
        if declared.untracked:
            undo = Undo.NONE
        if undo is Undo.APPEND_ONLY and (blocks is None or not blocks.endswith(("INT", "INTEGER"))):
            raise TableSchemaError(
                "an append-only table needs an integer column with the number of the block",
                table=declared.name,
                column=declared.block_column,
                type=blocks,
            )
        layout = Layout(declared.name, key, undo, declared.block_column, types)
        if undo is not Undo.NONE:
            self._claim(layout)
        return layout

    def _remark(self, layout: Layout) -> int:
        """Children are declared after their parents."""
        return list(self._declared).index(layout.name.folded)

    def _compare(self, layout: Layout, schema: pa.Schema) -> None:
        """Refuse a frame whose columns the table lacks or cannot hold."""
        self._refuse_names(layout.name, schema)
        for field in schema:
            target = layout.types.get(layout.column(field.name))
            source = column_type(field)
            if target is None or not fits(source, target, field.type):
                raise TableSchemaError(
                    "the table lacks a column of the frame"
                    if target is None
                    else "a column of the table cannot hold the frame's values",
                    table=layout.name,
                    column=field.name,
                    frame=source,
                    found=target,
                )

    def _fold(self, column: str) -> str:
        return column.lower()


def read_table(session: Session, name: TableName) -> tuple[dict[str, str], tuple[str, ...]] | None:
    """Return the types of a table's columns, and its primary key; None if there is none."""
    types = session.rows(
        "SELECT column_name, data_type FROM duckdb_columns() "
        "WHERE database_name = current_database() AND lower(schema_name) = ? "
        "AND lower(table_name) = ? ORDER BY column_index",
        name.folded,
    )
    if not types:
        return None
    keys = session.rows(
        "SELECT constraint_column_names FROM duckdb_constraints() "
        "WHERE database_name = current_database() AND lower(schema_name) = ? "
        "AND lower(table_name) = ? AND constraint_type = 'PRIMARY KEY'",
        name.folded,
    )
    return dict(types), tuple(keys[0][0]) if keys else ()
