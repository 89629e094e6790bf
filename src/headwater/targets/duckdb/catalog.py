"""The tables of a stream: what was declared, what exists, and how a fork undoes each.

A table is undone in one of three ways. *Append-only*: its rows carry their block number and go by
it. *Keyed*: before-images per primary key. *Keyless*: its inserted rows are kept a second time and
taken out again, as often as they were put in. Which one was used is stored beside the state, so a
restarted stream can undo tables that it has not written yet; two streams cannot tread on each other
unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import pyarrow as pa

from headwater.errors import (
    AppendOnlyError,
    TableKeyError,
    TableSchemaError,
    UndeclaredTableError,
)
from headwater.targets.duckdb.frames import column_type, fits
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.settings import Table
from headwater.targets.duckdb.sql import Fragment, TableName, columns, compose, quote

RESERVED = "___sqd__"


class Undo(StrEnum):
    """How a fork undoes a table."""

    APPEND_ONLY = "append_only"
    KEYED = "keyed"
    KEYLESS = "keyless"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as it is: its columns with their types, its primary key, how it is undone."""

    name: TableName
    types: dict[str, str]
    key: tuple[str, ...]
    undo: Undo
    block_column: str

    def column(self, name: str) -> str:
        """Return the column's own spelling of a name; DuckDB ignores case."""
        return next((one for one in self.types if one.lower() == name.lower()), name)


class Catalog:
    """Knows a stream's tables. It caches; `forget` after a transaction that failed."""

    def __init__(
        self,
        session: Session,
        stream_id: str,
        claims: TableName,
        declared: Iterable[Table],
        *,
        automatic: bool,
    ) -> None:
        self._session = session
        self._id = stream_id
        self._claims = claims
        self._declared = {one.name.folded: one for one in declared}
        self._automatic = automatic
        self._layouts: dict[tuple[str, str], Layout] = {}
        self._checked: set[tuple[tuple[str, str], pa.Schema]] = set()

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

    def forget(self) -> None:
        """Look at everything again."""
        self._layouts.clear()
        self._checked.clear()

    def declared(self, name: TableName) -> Table:
        """Return a declaration; refuse a table that nobody declared."""
        found = self._declared.get(name.folded)
        if found is None and self._automatic:
            found = self._declared[name.folded] = Table(name)
        if found is None:
            raise UndeclaredTableError(
                "a table that was not declared", table=name, declared=self._names()
            )
        return found

    def is_declared(self, name: TableName) -> bool:
        """Tell whether a table may be written."""
        return name.folded in self._declared

    def layout(self, name: TableName) -> Layout | None:
        """Return how a declared table is now; None while it does not exist."""
        if name.folded not in self._layouts:
            declared = self.declared(name)
            found = read_table(self._session, declared.name)
            if found is None:
                return None
            self._settle(declared, *found)
        return self._layouts[name.folded]

    def prepare(
        self,
        name: TableName,
        schema: pa.Schema,
        key: Sequence[str] | None,
        types: Mapping[str, str] | None = None,
    ) -> Layout:
        """Return the table for a frame's rows: created if need be, compared if it exists.

        `key` is the primary key that the write relies on, `types` are column types of a new table
        where nobody has declared others.
        """
        layout = self.layout(name)
        if layout is None:
            declared = self.declared(name)
            declared = replace(declared, types={**(types or {}), **declared.types})
            self.create_table(declared, schema, key)
            layout = self.layout(name)
            assert layout is not None, "it was just created"
        if (name.folded, schema) not in self._checked:
            self._compare(layout, schema)
            self._checked.add((name.folded, schema))
        if key is not None and {one.lower() for one in key} != {one.lower() for one in layout.key}:
            raise TableKeyError(
                "the table has another primary key, or none",
                table=name,
                wanted=list(key),
                key=list(layout.key),
            )
        return layout

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
                found.append(Layout(name, types, tuple(json.loads(key)), Undo(undo), block_column))
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

    def _settle(self, declared: Table, types: dict[str, str], key: tuple[str, ...]) -> None:
        """Decide how the table is undone, and claim it."""
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
        layout = Layout(declared.name, types, key, undo, declared.block_column)
        if undo is not Undo.NONE:
            self._claim(layout)
        self._layouts[declared.name.folded] = layout

    def _claim(self, layout: Layout) -> None:
        """Store how the table is undone; refuse what contradicts an earlier claim."""
        rows = self._session.rows(
            compose(
                "SELECT id, undo FROM {claims} "
                "WHERE lower(table_schema) = ? AND lower(table_name) = ?",
                claims=self._claims,
            ),
            layout.name.folded,
        )
        claims = dict(rows)
        mine = claims.pop(self._id, None)
        if mine not in (None, layout.undo.value):
            raise TableSchemaError(
                "the table was declared otherwise when it was first written",
                table=layout.name,
                then=mine,
                now=layout.undo.value,
            )
        if claims and Undo.APPEND_ONLY in (layout.undo, *claims.values()):
            raise AppendOnlyError(
                "an append-only table cannot be shared by two streams",
                table=layout.name,
                streams=sorted([*claims, self._id]),
            )
        if mine is None:
            order = list(self._declared)
            self._session.run(
                compose("INSERT INTO {claims} VALUES (?, ?, ?, ?, ?, ?, ?)", claims=self._claims),
                [
                    self._id,
                    layout.name.schema,
                    layout.name.name,
                    layout.undo.value,
                    json.dumps(layout.key),
                    layout.block_column,
                    order.index(layout.name.folded),
                ],
            )

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

    def _refuse_names(self, name: TableName, schema: pa.Schema) -> None:
        names = [field.name.lower() for field in schema]
        twice = {one for one in names if names.count(one) > 1}
        reserved = {one for one in names if one.startswith(RESERVED)}
        if twice or reserved or not names:
            raise TableSchemaError(
                "a frame needs columns whose names differ, also without regard to case, and do "
                f"not begin with {RESERVED}",
                table=name,
                columns=sorted(twice | reserved),
            )

    def _names(self) -> list[str]:
        return [str(one.name) for one in self._declared.values()]


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
