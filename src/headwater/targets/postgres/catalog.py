"""The tables of a stream in PostgreSQL: capture by triggers, and keys that are built later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from psycopg.errors import DuplicateSchema, DuplicateTable, UniqueViolation

from headwater.errors import PostgresSizeError
from headwater.targets.postgres.session import Session, TryAgain
from headwater.targets.postgres.triggers import Tracked, Triggers
from headwater.targets.postgres.types import bare_type, new_column_type
from headwater.targets.sql.catalog import Catalog
from headwater.targets.sql.dialect import Dialect
from headwater.targets.sql.layout import Layout, Table, Undo
from headwater.targets.text import QualifiedName, compose

if TYPE_CHECKING:
    from headwater.targets.postgres.target import PostgresSettings

_PAGE_ROW, _ROW_HEAD = 8_160, 32  # bytes
_WIDTHS = {
    "boolean": 1, "smallint": 2, "integer": 4, "real": 4, "date": 4, "bigint": 8, "uuid": 16,
    "double precision": 8, "timestamp with time zone": 8, "timestamp without time zone": 8,
}  # fmt: skip
"""Bytes of a value in its row. Those of any other type can be moved out of it, which leaves 18."""


class PostgresCatalog(Catalog):
    """Knows a stream's tables, and has their changes kept by triggers."""

    def __init__(
        self,
        session: Session,
        dialect: Dialect,
        settings: PostgresSettings,
        stream_id: str,
        declared: Iterable[Table],
        *,
        automatic: bool,
    ) -> None:
        super().__init__(session, dialect, settings, stream_id, declared, automatic=automatic)
        self._triggers = Triggers(session, stream_id, settings.schema)
        self.defers_indexes = settings.defer_indexes
        self._looked = False
        self._without_images: set[tuple[str, str]] = set()

    def take_turn(self) -> None:
        """Wait until no other process installs triggers in this database."""
        self._triggers.take_turn()

    def install(self) -> None:
        """Look at every declared table that exists, claim it, and keep its changes from now on."""
        self._triggers.take_turn()
        for declared in self._declared.values():
            layout = self.layout(declared.name)
            if layout is not None and layout.undo is Undo.KEYED and not self._shared(layout.name):
                self._triggers.adopt(layout, self._sync)
        self._looked = True

    def is_known(self, name: QualifiedName, root: QualifiedName | None) -> bool | None:
        """Tell whether a relation may be written; None: a partition that has no triggers yet."""
        if name.folded in self._declared:
            return True
        self._look()
        for layout in self._layouts.values():
            if name in layout.partitions or name == layout.name.snapshots:
                return True
        parent = None if root is None else self._layouts.get(root.folded)
        if parent is None:
            return False
        return True if parent.undo is Undo.NONE else None

    def forget(self) -> None:
        """Look at everything again."""
        super().forget()
        self._triggers.tracked.clear()
        self._looked = False

    def refresh(self, gone: Iterable[int] = ()) -> None:
        """Look at every declared table again, and keep the changes of new partitions too.

        What was tracked before is still asked for, unless it is known to be gone.
        """
        super().forget()
        for oid in gone:
            del self._triggers.tracked[oid]
        self._look()

    def tracked(self) -> dict[int, Tracked]:
        """Return the relations whose changes are kept, by oid."""
        if not self._looked:
            self._look()
        return self._triggers.tracked

    def _look(self) -> None:
        for table in list(self._declared.values()):
            self.layout(table.name)
        self._looked = True

    def build(self, layout: Layout) -> Layout:
        """Build the key and the indexes of a table that were put off."""
        declared = self.declared(layout.name)
        if layout.key:
            self._session.run(
                "ALTER TABLE {table} ADD PRIMARY KEY ({key})", table=layout.name, key=layout.key
            )
        self._index(declared, layout.undo)
        self._session.run(
            "UPDATE {claims} SET deferred = false "
            "WHERE id = $1 AND table_schema = $2 AND table_name = $3",
            [self._id, layout.name.schema, layout.name.name],
            claims=self._claims,
        )
        self._look_again_at(layout.name)
        rebuilt = self.layout(layout.name)
        assert rebuilt is not None, "it was just there"
        return rebuilt

    def build_all(self) -> None:
        """Build whatever was put off; called before the first block that a fork can undo."""
        for layout in self.undoable():
            if layout.deferred:
                self.build(layout)

    # --- what PostgreSQL does in its own way ------------------------------------------------------

    def create_table(self, declared: Table, schema: pa.Schema, key: Sequence[str] | None) -> Undo:
        """Create a table; where another stream has just done so, look at it instead."""
        self._refuse_width(declared, schema)
        try:
            undo = super().create_table(declared, schema, key)
        except (DuplicateTable, DuplicateSchema, UniqueViolation) as error:
            if isinstance(error, UniqueViolation) and error.diag.schema_name != "pg_catalog":
                raise
            raise TryAgain(f"{declared.name} was created meanwhile") from error
        if not self.defers_indexes or undo is Undo.NONE:
            self._index(declared, undo)
            return undo
        layout = self._dialect.read_table(self._session, declared.name)
        assert layout is not None, "it was just created"
        layout = replace(layout, key=declared.key or tuple(key or ()), deferred=True)
        self._claim(layout.undone(undo, declared.block_column))
        return undo

    def _refuse_width(self, declared: Table, schema: pa.Schema) -> None:
        """Refuse a table whose rows may not fit into a page, however its texts are moved out."""
        kinds = [declared.types.get(field.name) or new_column_type(field) for field in schema]
        width = (
            _ROW_HEAD + len(kinds) // 8 + sum(_WIDTHS.get(bare_type(kind), 18) for kind in kinds)
        )
        if width > _PAGE_ROW:
            raise PostgresSizeError(
                "rows with so many columns may not fit into a page of PostgreSQL; divide them "
                "among several tables",
                table=declared.name,
                columns=len(kinds),
                bytes=width,
                room=_PAGE_ROW,
            )

    def _undo(self, declared: Table, key: Sequence[str], folded: Iterable[str]) -> Undo:
        """Keep images also of an append-only table that the Pipes SDK tracks: it knows no other."""
        undo = super()._undo(declared, key, folded)
        if undo is not Undo.APPEND_ONLY or not key:
            return undo
        tracked = self._dialect.exists(self._session, declared.name.snapshots)
        return Undo.KEYED if tracked else undo

    def _claim(self, layout: Layout) -> None:
        """Store how the table is undone; one that was append-only may have images from now on."""
        if layout.undo is Undo.KEYED and self.declared(layout.name).append_only:
            changed = self._session.run(
                "UPDATE {claims} SET undo = 'keyed', key_columns = $4 WHERE {same_table} "
                "AND id = $3 AND undo = 'append_only'",
                [*layout.name.folded, self._id, json.dumps(layout.key)],
                claims=self._claims,
                same_table=self._dialect.same_table,
            )
            if changed:
                self._without_images.add(layout.name.folded)
        super()._claim(layout)

    def _note(self, layout: Layout) -> bool:
        return layout.deferred

    def _as_claimed(self, layout: Layout, key: tuple[str, ...], note: Any) -> Layout:
        layout = replace(layout, shared=self._shared(layout.name))
        return replace(layout, key=key, deferred=True) if note else layout

    def _with_own_claim(self, layout: Layout) -> Layout:
        rows = self._session.rows(
            "SELECT key_columns::text, deferred FROM {claims} WHERE {same_table} AND id = $3",
            [*layout.name.folded, self._id],
            claims=self._claims,
            same_table=self._dialect.same_table,
        )
        for key, deferred in rows:
            layout = self._as_claimed(layout, tuple(json.loads(key)), deferred)
        return layout

    def _index(self, declared: Table, undo: Undo) -> None:
        blocks = ((declared.block_column,),) if undo is Undo.APPEND_ONLY else ()
        for names in dict.fromkeys((*blocks, *declared.indexes)):
            self._session.run("CREATE INDEX ON {table} ({names})", table=declared.name, names=names)

    def _find(self, declared: Table) -> Layout | None:
        """Look at a table, claim it, and have its changes captured."""
        layout = super()._find(declared)
        if layout is not None:
            self._triggers.install(layout)
        if layout is not None and layout.name.folded in self._without_images:
            self._triggers.copy_rows(layout, self._sync)
            self._without_images.discard(layout.name.folded)
        return layout

    def _shared(self, name: QualifiedName) -> bool:
        """Tell whether another stream has written the table, or may have."""
        sql = compose(
            "SELECT FROM {claims} AS other WHERE {same_table} AND other.id <> $3 "
            "AND EXISTS (SELECT FROM {sync} AS s WHERE s.id = other.id) LIMIT 1",
            claims=self._claims,
            same_table=self._dialect.same_table,
            sync=self._sync,
        )
        return bool(self._session.rows(sql, [*name.folded, self._id]))
