"""The tables of a stream: what was declared, what exists, and how a fork undoes each.

A table is undone in one of two ways. *Append-only*: its rows carry their block number and go by it.
*Keyed*: before-images per primary key. Which one was used is stored beside the state, so a stream
that was restarted with other declarations still undoes what it has written, and two streams cannot
tread on each other unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from headwater.errors import (
    PostgresAppendOnlyError,
    PostgresKeyError,
    PostgresTableError,
    PrimaryKeyMissingError,
    UntrackedTableError,
)
from headwater.targets.postgres.encode import encoder
from headwater.targets.postgres.frames import castable, check_decimals, column_type
from headwater.targets.postgres.layout import Layout, read_layout
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.settings import Table
from headwater.targets.postgres.sql import Fragment, TableName, columns, compose, quote
from headwater.targets.postgres.sync_table import exists, make_schema
from headwater.targets.postgres.triggers import Triggers
from headwater.targets.sql.catalog import ClaimedTables, Undo
from headwater.targets.sql.text import QualifiedName


class Catalog(ClaimedTables[Table, Layout]):
    """Knows a stream's tables. It caches; `forget` after a transaction that failed."""

    table = Table
    undeclared = UntrackedTableError
    refused = PostgresTableError
    other_key = PostgresKeyError
    not_shared = PostgresAppendOnlyError
    _session: Session

    def __init__(
        self,
        session: Session,
        stream_id: str,
        claims: TableName,
        declared: Iterable[Table],
        triggers: Triggers,
        *,
        automatic: bool,
        defer_indexes: bool,
    ) -> None:
        super().__init__(session, stream_id, claims, declared, automatic=automatic)
        self._triggers = triggers
        self._defer_indexes = defer_indexes

    def create(self) -> None:
        """Create the table that says how each table is undone."""
        if not exists(self._session, self._claims):
            self._session.run(
                compose(
                    "CREATE TABLE {claims} (id TEXT, table_schema TEXT, table_name TEXT, "
                    "undo TEXT NOT NULL, key_columns JSONB NOT NULL, block_column TEXT NOT NULL, "
                    "deferred BOOLEAN NOT NULL, PRIMARY KEY (id, table_schema, table_name))",
                    claims=self._claims,
                )
            )

    def install(self) -> None:
        """Look at every declared table that exists, claim it, and keep its changes from now on."""
        self._triggers.take_turn()
        for declared in self._declared.values():
            layout = self.layout(declared.name)
            if layout is not None and layout.undo is Undo.KEYED and not self._shared(layout.name):
                self._triggers.adopt(layout)

    def is_known(self, name: TableName, root: TableName | None) -> bool | None:
        """Tell whether a relation may be written; None: a partition that has no triggers yet."""
        if name.folded in self._declared:
            return True
        self._look()
        for layout in self._layouts.values():
            if name in layout.partitions or name == layout.name.snapshots:
                return True
        parent = None if root is None else self.cached(root)
        if parent is None:
            return False
        return True if parent.undo is Undo.NONE else None

    def cached(self, name: TableName) -> Layout | None:
        """Return what is known of a table without asking the server."""
        return self._layouts.get(name.folded)

    def refresh(self) -> None:
        """Look at every declared table again, and keep the changes of new partitions too."""
        self.forget()
        self._look()

    def _look(self) -> None:
        for one in list(self._declared.values()):
            self.layout(one.name)

    def prepare(
        self,
        name: QualifiedName,
        schema: pa.Schema,
        key: Sequence[str] | None,
        types: Mapping[str, str] | None = None,
    ) -> Layout:
        """Return the table for a frame's rows; if the write relies on its key, that is built."""
        layout = super().prepare(name, schema, key, types)
        return self.build(layout) if key is not None else layout

    def build(self, layout: Layout) -> Layout:
        """Build the key and the indexes of a table that were put off."""
        if not layout.deferred:
            return layout
        declared = self.declared(layout.name)
        if layout.key:
            self._session.run(
                compose(
                    "ALTER TABLE {table} ADD PRIMARY KEY ({key})",
                    table=layout.name,
                    key=layout.key,
                )
            )
        self._index(declared, layout.undo)
        self._session.run(
            compose(
                "UPDATE {claims} SET deferred = false "
                "WHERE id = $1 AND table_schema = $2 AND table_name = $3",
                claims=self._claims,
            ),
            [self._id, layout.name.schema, layout.name.name],
        )
        del self._layouts[layout.name.folded]
        rebuilt = self.layout(layout.name)
        assert rebuilt is not None, "it was just there"
        return rebuilt

    def build_all(self) -> None:
        """Build whatever was put off; called before the first block that a fork can undo."""
        for layout in self.undoable():
            self.build(layout)

    def undoable(self) -> list[Layout]:
        """Return every table that this stream has ever claimed and that still exists."""
        found = []
        for name, undo, key, block_column, deferred in list(self._claimed()):
            layout = read_layout(self._session, name)
            if layout is not None:
                layout = layout.undone_by(undo, block_column, deferred=deferred)
                if deferred:
                    layout = _with_key(layout, key)
                found.append(layout)
        return found

    # --- what exists ------------------------------------------------------------------------------

    def create_table(self, declared: Table, schema: pa.Schema, key: Sequence[str] | None) -> None:
        """Create a table for rows of this schema."""
        key = declared.key or tuple(key or ())
        names = set(schema.names)
        indexed = [one for index in declared.indexes for one in index]
        lacking = [one for one in (*key, *declared.types, *indexed) if one not in names]
        if lacking:
            raise PostgresTableError(
                "columns that the frame lacks", table=declared.name, columns=lacking
            )
        self._refuse_names(declared.name, schema)
        undo = self._undo(declared, key, names)
        if undo is Undo.KEYED and not key:
            raise PrimaryKeyMissingError("a table without a primary key", table=declared.name)
        parts = [
            f"{quote(one.name)} {declared.types.get(one.name) or column_type(one)}"
            for one in schema
        ]
        deferred = self._defer_indexes and undo is not Undo.NONE
        if key and not deferred:
            parts.append(f"PRIMARY KEY ({columns(key)})")
        make_schema(self._session, declared.name.schema)
        self._session.run(
            compose(
                "CREATE TABLE {table} ({parts})",
                table=declared.name,
                parts=Fragment(", ".join(parts)),
            )
        )
        if deferred:
            layout = read_layout(self._session, declared.name)
            assert layout is not None, "it was just created"
            self._claim(
                _with_key(layout, key).undone_by(undo, declared.block_column, deferred=True)
            )
        else:
            self._index(declared, undo)

    def _index(self, declared: Table, undo: Undo) -> None:
        blocks = ((declared.block_column,),) if undo is Undo.APPEND_ONLY else ()
        for names in dict.fromkeys((*blocks, *declared.indexes)):
            self._session.run(
                compose("CREATE INDEX ON {table} ({names})", table=declared.name, names=names)
            )

    def _undo(self, declared: Table, key: Sequence[str], names: Iterable[str]) -> Undo:
        if declared.untracked:
            return Undo.NONE
        append_only = declared.append_only
        if append_only is None:
            append_only = self._automatic and not key and declared.block_column in names
        return Undo.APPEND_ONLY if append_only else Undo.KEYED

    def _find(self, declared: Table) -> Layout | None:
        """Decide how the table is undone, claim it, and install what keeps its changes."""
        layout = read_layout(self._session, declared.name)
        if layout is None:
            return None
        claimed = {name: (key, deferred) for name, _, key, _, deferred in self._claimed()}
        key, deferred = claimed.get(layout.name, ((), False))
        if deferred:
            layout = _with_key(layout, key)
        if declared.key and set(declared.key) != set(layout.key):
            raise PostgresTableError(
                "the table's primary key is not the declared one",
                table=declared.name,
                declared=list(declared.key),
                key=list(layout.key),
            )
        undo = self._undo(declared, layout.key, layout.columns)
        layout = layout.undone_by(undo, declared.block_column, deferred=deferred)
        if undo is Undo.KEYED and not layout.key:
            raise PrimaryKeyMissingError("a table without a primary key", table=declared.name)
        blocks = layout.columns.get(declared.block_column)
        if undo is Undo.APPEND_ONLY and (
            blocks is None or blocks.bare not in ("smallint", "integer", "bigint", "numeric")
        ):
            raise PostgresTableError(
                "an append-only table needs an integer column with the number of the block",
                table=declared.name,
                column=declared.block_column,
                type=None if blocks is None else blocks.type,
            )
        if undo is not Undo.NONE:
            self._claim(layout)
            self._triggers.install(layout)
        return layout

    def _claimed(self) -> Iterator[tuple[TableName, Undo, tuple[str, ...], str, bool]]:
        rows = self._session.rows(
            compose(
                "SELECT table_schema, table_name, undo, key_columns::text, block_column, deferred "
                "FROM {claims} WHERE id = $1 ORDER BY 1, 2",
                claims=self._claims,
            ),
            [self._id],
        )
        for schema, name, undo, key, block_column, deferred in rows:
            yield (
                TableName(schema, name),
                Undo(undo),
                tuple(json.loads(key)),
                block_column,
                deferred,
            )

    def _shared(self, name: TableName) -> bool:
        return bool(set(self._claimants(name)) - {self._id})

    def _remark(self, layout: Layout) -> bool:
        return layout.deferred

    def _compare(self, layout: Layout, schema: pa.Schema) -> None:
        """Refuse a frame whose columns the table lacks or cannot hold."""
        self._refuse_names(layout.name, schema)
        for field in schema:
            target = layout.columns.get(field.name)
            if target is None or target.generated:
                raise PostgresTableError(
                    "the table lacks a column of the frame, or computes it itself",
                    table=layout.name,
                    column=field.name,
                )
            if encoder(field.type, target.bare) is None and not castable(field.type, target.bare):
                raise PostgresTableError(
                    "a column of the table cannot hold the frame's values",
                    table=layout.name,
                    column=field.name,
                    frame=column_type(field),
                    found=target.type,
                )
            check_decimals(field, target.digits, target.scale, layout.name)


def _with_key(layout: Layout, key: Sequence[str]) -> Layout:
    return replace(layout, key=tuple(key))
