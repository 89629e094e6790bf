"""Knows the tables of a stream: what was declared, what exists, and how a fork undoes each.

The target stores beside the state how it undoes a table, as a claim. So a stream that was restarted
with other declarations still undoes what it has written, and two streams cannot write one table in
ways that contradict each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.core.rooms import Form, Policy, Room
from headwater.errors import EvolveError, PrimaryKeyMissingError
from headwater.targets.contract import NEW_COLUMN
from headwater.targets.sql.dialect import Dialect
from headwater.targets.sql.layout import RESERVED, Layout, Table, Undo
from headwater.targets.sql.state import StateSettings
from headwater.targets.tables import BLOCK_COLUMN
from headwater.targets.text import Fragment, QualifiedName, columns, compose, quote
from headwater.targets.values import Fitting

CLAIMS = "__tables"
"""The suffix of the table of claims; before it stands the name of the table of state."""
_CLAIMED = {"id", "table_schema", "table_name", "undo", "block_column"}


class Catalog:
    """Knows a stream's tables. It caches; `forget` after a transaction that failed.

    With `defers_indexes` a new table gets its key and its indexes later.
    """

    defers_indexes = False

    def __init__(
        self,
        session: Any,
        dialect: Dialect,
        settings: StateSettings,
        stream_id: str,
        declared: Iterable[Table],
        *,
        automatic: bool,
    ) -> None:
        self.cursor: int | None = None  # the stream's, once it is known
        self._session = session
        self._dialect = dialect
        self._id = stream_id
        self._sync = settings.sync
        self._claims = settings.sync.suffixed(CLAIMS)
        self._declared = {table.name.folded: table for table in declared}
        self._automatic = automatic
        self._names: dict[str, QualifiedName] = {}
        self._layouts: dict[tuple[str, str], Layout] = {}
        self._rooms: dict[tuple[str, str], tuple[Layout, dict[str, Room]]] = {}
        self._ready: dict[tuple[QualifiedName, pa.Schema], Layout] = {}
        self._fittings: dict[tuple[QualifiedName, pa.Schema], Fitting] = {}

    def forget(self) -> None:
        """Look at everything again."""
        self._layouts.clear()
        self._ready.clear()
        self._fittings.clear()

    def create(self) -> None:
        """Create the table of claims if it is not there."""
        if not self._dialect.exists(self._session, self._claims):
            self._session.run(
                "CREATE TABLE {claims} (id {text}, table_schema {text}, table_name {text}, "
                "undo {text} NOT NULL, key_columns {json} NOT NULL, "
                "block_column {text} NOT NULL, {note}, "
                "PRIMARY KEY (id, table_schema, table_name))",
                claims=self._claims,
                text=Fragment(self._dialect.text),
                json=Fragment(self._dialect.json),
                note=Fragment(self._dialect.claim_note),
            )

    def named(self, text: str) -> QualifiedName:
        """Return the name of a declared table, as users write it; refuse any other."""
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = self._dialect.name(text)
        self.declared(name)
        return name

    def declared(self, name: QualifiedName) -> Table:
        """Return a declaration; refuse a table that was not declared."""
        table = self._declared.get(name.folded)
        if table is None and self._automatic:
            table = self._declared[name.folded] = Table(name)
        if table is None:
            declared = [str(other.name) for other in self._declared.values()]
            raise self._dialect.errors.undeclared(
                "a table that was not declared", table=name, declared=declared
            )
        return table

    def layout(self, name: QualifiedName) -> Layout | None:
        """Return how a declared table is now; None while it does not exist."""
        layout = self._layouts.get(name.folded) or self._find(self.declared(name))
        if layout is not None:
            self._layouts[name.folded] = layout
        return layout

    def prepare(
        self,
        name: QualifiedName,
        schema: pa.Schema,
        key: Sequence[str] | None,
        types: Mapping[str, str] | None = None,
    ) -> Layout:
        """Return the table for a frame's rows: created if need be, compared if it exists.

        `key` is the primary key that the write relies on, `types` are column types of a new table
        that its declaration does not name.
        """
        layout = self._ready.get((name, schema))
        if layout is None:
            layout = self._ready[name, schema] = self._made_ready(name, schema, key, types or {})
        if key is None:
            return layout
        fold = self._dialect.fold
        if set(map(fold, key)) != set(map(fold, layout.key)):
            raise self._dialect.errors.key(
                "the table has another primary key, or none",
                table=name,
                wanted=list(key),
                key=list(layout.key),
            )
        return self.build(layout) if layout.deferred else layout

    def _made_ready(
        self,
        name: QualifiedName,
        schema: pa.Schema,
        key: Sequence[str] | None,
        types: Mapping[str, str],
    ) -> Layout:
        layout = self.layout(name)
        if layout is None:
            declared = self.declared(name)
            self.create_table(replace(declared, types={**types, **declared.types}), schema, key)
            layout = self.layout(name)
            assert layout is not None, "it was just created"
        self._compare(layout, schema)
        return layout

    def fitting(self, layout: Layout, schema: pa.Schema, policy: Policy) -> Fitting:
        """Return how rows are made to fit into a table."""
        known = self._fittings.get((layout.name, schema))
        if known is None:
            block = self._dialect.fold(layout.block_column)
            own = (name for name in schema.names if self._dialect.fold(name) == block)
            known = self._fittings[layout.name, schema] = Fitting.plan(
                schema,
                self.rooms(layout, schema.names),
                policy,
                self._dialect.errors.table,
                next(own, BLOCK_COLUMN),
            )
        return known

    def rooms(self, layout: Layout, names: Iterable[str]) -> dict[str, Room]:
        """Return what the columns of a table can hold, by the names that a frame gives them."""
        known = self._rooms.get(layout.name.folded)
        if known is None or known[0] is not layout:
            known = self._rooms[layout.name.folded] = layout, self._all_rooms(layout)
        spellings = {name: self.spelled(layout, name) for name in names}
        return {
            name: known[1][spelling] for name, spelling in spellings.items() if spelling in known[1]
        }

    def _all_rooms(self, layout: Layout) -> dict[str, Room]:
        rooms = {column.name: self._dialect.room(column) for column in layout.columns.values()}
        declared = self._declared.get(layout.name.folded)
        planned = () if declared is None else tuple((False, index) for index in declared.indexes)
        for unique, names in ((True, layout.key), *layout.indexes, *planned):
            index = [self.spelled(layout, name) for name in names]
            long = [name for name in index if rooms[name].form in (Form.TEXT, Form.BYTES)]
            for name in index:
                size, share = rooms[name].size, self._dialect.longest_key
                if share is not None and name in long:
                    share //= len(long)
                    size = share if size is None else min(size, share)
                rooms[name] = replace(rooms[name], size=size, unique=rooms[name].unique or unique)
        return {
            name: replace(room, required=name in layout.key or layout.columns[name].required)
            for name, room in rooms.items()
        }

    def spelled(self, layout: Layout, column: str) -> str:
        """Return the table's own spelling of a column's name."""
        if column in layout.columns:
            return column
        fold = self._dialect.fold
        return next((name for name in layout.columns if fold(name) == fold(column)), column)

    def undoable(self) -> list[Layout]:
        """Return every table that this stream has ever claimed and that still exists."""
        rows = self._session.rows(
            "SELECT table_schema, table_name, undo, key_columns::text, block_column, {note} "
            "FROM {claims} WHERE id = $1 AND undo <> 'cursors' ORDER BY {order}",
            [self._id],
            claims=self._claims,
            note=self._dialect.claim_note.split()[0],
            order=self._dialect.claim_order,
        )
        layouts = []
        for schema, table, undo, key, block_column, note in rows:
            layout = self._dialect.read_table(self._session, self._dialect.name_type(schema, table))
            if layout is not None:
                layout = layout.undone(Undo(undo), block_column)
                layouts.append(self._as_claimed(layout, tuple(json.loads(key)), note))
        return layouts

    def claim_cursors(self, name: QualifiedName) -> None:
        """Note that a table shows the stream's cursor, for what moves it outside a run."""
        layout = self._dialect.read_table(self._session, name)
        self._claim(layout.undone(Undo.CURSORS, "block_num"))

    def cursor_tables(self) -> list[QualifiedName]:
        """Return the tables that show the stream's cursor."""
        rows = self._session.rows(
            "SELECT table_schema, table_name FROM {claims} WHERE id = $1 AND undo = 'cursors'",
            [self._id],
            claims=self._claims,
        )
        return [self._dialect.name_type(*row) for row in rows]

    # --- creating ---------------------------------------------------------------------------------

    def create_table(self, declared: Table, schema: pa.Schema, key: Sequence[str] | None) -> Undo:
        """Create a table for rows of this schema; return how a fork will undo it."""
        fold, key = self._dialect.fold, declared.key or tuple(key or ())
        names = {fold(name) for name in schema.names}
        indexed = [name for index in declared.indexes for name in index]
        lacking = [name for name in (*key, *declared.types, *indexed) if fold(name) not in names]
        if lacking:
            raise self._dialect.errors.table(
                "columns that the frame lacks", table=declared.name, columns=lacking
            )
        self._refuse_names(declared.name, schema)
        undo = self._undo(declared, key, names)
        parts = [
            f"{quote(field.name)} {self._dialect.declared_type(declared, field)}"
            for field in schema
        ]
        if key and not (self.defers_indexes and undo is not Undo.NONE):
            parts.append(f"PRIMARY KEY ({columns(key)})")
        self._dialect.make_schema(self._session, declared.name.schema)
        self._session.run(
            "CREATE TABLE {table} ({parts})", table=declared.name, parts=Fragment(", ".join(parts))
        )
        return undo

    def widen(self, name: QualifiedName, schema: pa.Schema) -> None:
        """Add the columns of a frame that a table lacks."""
        layout, declared = self.layout(name), self.declared(name)
        if layout is None:
            return
        for field in schema:
            if self.spelled(layout, field.name) not in layout.columns:
                kind = self._dialect.declared_type(declared, field)
                self._session.run(
                    "ALTER TABLE {table} ADD COLUMN {column} {kind}",
                    table=name,
                    column=field.name,
                    kind=Fragment(kind),
                )
                self._look_again_at(name)

    def rename(self, old: QualifiedName, new: QualifiedName) -> None:
        """Give a table of this stream another name, in the database and in its claim."""
        if self._dialect.read_table(self._session, old) is None:
            return  # no row of it has come yet, or the transforms name it otherwise
        undo = self._claimants(old).get(self._id)
        if undo is None:
            return
        if undo != Undo.APPEND_ONLY or self._dialect.exists(self._session, new):
            raise EvolveError(
                "only an append-only table can be renamed, to a name that is free",
                table=old,
                undo=undo,
                new=new,
            )
        self._session.run("ALTER TABLE {old} RENAME TO {new}", old=old, new=new.name)
        self._session.run(
            "UPDATE {claims} SET table_name = $4 WHERE {same_table} AND id = $3",
            [*old.folded, self._id, new.name],
            claims=self._claims,
            same_table=self._dialect.same_table,
        )
        self.forget()

    def _undo(self, declared: Table, key: Sequence[str], folded: Iterable[str]) -> Undo:
        """Decide how a fork undoes a table, from its key and its columns."""
        if declared.change_log is not None:
            return Undo.CHANGE_LOG
        if declared.untracked:
            return Undo.NONE
        append_only = declared.append_only
        if append_only is None:
            blocks = self._dialect.fold(declared.block_column)
            append_only = self._automatic and not key and blocks in folded
        if append_only:
            return Undo.APPEND_ONLY
        if key:
            return Undo.KEYED
        if not self._dialect.undoes_keyless:
            raise PrimaryKeyMissingError("a table without a primary key", table=declared.name)
        return Undo.KEYLESS

    def _refuse_names(self, name: QualifiedName, schema: pa.Schema) -> None:
        names = [self._dialect.fold(column) for column in schema.names]
        self._dialect.check_columns(name, schema.names)
        twice = {column for column in names if names.count(column) > 1}
        reserved = {column for column in names if column.startswith(RESERVED)}
        if twice or reserved or not names:
            raise self._dialect.errors.table(
                f"a frame needs columns whose names {self._dialect.differ} and do not begin with "
                f"{RESERVED}",
                table=name,
                columns=sorted(twice | reserved),
            )

    # --- finding ----------------------------------------------------------------------------------

    def _find(self, declared: Table) -> Layout | None:
        """Look at a table, decide how it is undone, and claim it."""
        layout: Layout | None = self._dialect.read_table(self._session, declared.name)
        if layout is None:
            return None
        layout, fold = self._with_own_claim(layout), self._dialect.fold
        if declared.key and set(map(fold, declared.key)) != set(map(fold, layout.key)):
            raise self._dialect.errors.table(
                "the table's primary key is not the declared one",
                table=declared.name,
                declared=list(declared.key),
                key=list(layout.key),
            )
        undo = self._undo(declared, layout.key, set(map(fold, layout.columns)))
        layout = layout.undone(undo, declared.change_log or declared.block_column)
        blocks = layout.columns.get(self.spelled(layout, declared.block_column))
        integers = self._dialect.integers
        if undo is Undo.APPEND_ONLY and not (blocks and integers.fullmatch(blocks.bare)):
            raise self._dialect.errors.table(
                "an append-only table needs an integer column with the number of the block",
                table=declared.name,
                column=declared.block_column,
                type=blocks and blocks.type,
            )
        if undo is not Undo.NONE:
            self._claim(layout)
        return layout

    def _compare(self, layout: Layout, schema: pa.Schema) -> None:
        """Refuse a frame whose columns the table lacks or cannot hold."""
        self._refuse_names(layout.name, schema)
        for field in schema:
            target = layout.columns.get(self.spelled(layout, field.name))
            if target is None or target.generated:
                raise self._dialect.errors.table(
                    f"the table lacks a column of the frame, or computes it itself; {NEW_COLUMN}",
                    table=layout.name,
                    column=field.name,
                )
            if not self._dialect.can_hold(target, field):
                raise self._dialect.errors.table(
                    "a column of the table cannot hold the frame's values",
                    table=layout.name,
                    column=field.name,
                    frame=self._dialect.column_type(field),
                    found=target.type,
                )

    # --- claims -----------------------------------------------------------------------------------

    def _claimants(self, name: QualifiedName) -> dict[str, str]:
        """Return the streams that have claimed a table, and how each undoes it."""
        query = "SELECT id, undo FROM {claims} WHERE {same_table}"
        sql = compose(query, claims=self._claims, same_table=self._dialect.same_table)
        return dict(self._session.rows(sql, name.folded))

    def claims_elsewhere(self, name: QualifiedName, log: str = "") -> list[tuple[str, str, str]]:
        """Return claims to a table of streams whose state is in another table: where, id, undo.

        Also those of this stream's id to any table with the same change log.
        """
        others: list[tuple[str, str, str]] = []
        for claims in self._dialect.tables_ending(self._session, CLAIMS):
            if claims.folded == self._claims.folded:
                continue
            layout = self._dialect.read_table(self._session, claims)
            if layout is None or not layout.columns.keys() >= _CLAIMED:
                continue  # a table of the user's
            rows = self._session.rows(
                "SELECT id, undo FROM {claims} WHERE ({same_table}) "
                "OR (id = $3 AND undo = 'change_log' AND block_column = $4)",
                [*name.folded, self._id, log],
                claims=claims,
                same_table=self._dialect.same_table,
            )
            others += [(str(claims), *row) for row in rows]
        return others

    def _claim(self, layout: Layout) -> None:
        """Store how the table is undone; refuse what contradicts an earlier claim."""
        claims = self._claimants(layout.name)
        mine = claims.pop(self._id, None)
        log = layout.block_column if layout.undo is Undo.CHANGE_LOG else ""
        for where, stream_id, undo in self.claims_elsewhere(layout.name, log):
            if stream_id == self._id:
                raise self._dialect.errors.in_use(
                    "a stream of the same id, whose state is in another table, writes here too",
                    table=layout.name,
                    stream=stream_id,
                    claimed_in=where,
                )
            claims[stream_id] = undo
        if mine not in (None, layout.undo.value):
            raise self._dialect.errors.table(
                "the table was declared otherwise when it was first written",
                table=layout.name,
                then=mine,
                now=layout.undo.value,
            )
        if claims and Undo.APPEND_ONLY in (layout.undo, *claims.values()):
            raise self._dialect.errors.append_only(
                "an append-only table cannot be shared by two streams",
                table=layout.name,
                streams=sorted([*claims, self._id]),
            )
        if mine is None:
            self.refuse_rows(layout)
            whose = (self._id, layout.name.schema, layout.name.name, layout.undo.value)
            what = (json.dumps(layout.key), layout.block_column, self._note(layout))
            sql = "INSERT INTO {claims} VALUES ($1, $2, $3, $4, $5, $6, $7)"
            self._session.run(sql, [*whose, *what], claims=self._claims)

    def refuse_rows(self, layout: Layout) -> None:
        """Refuse rows above the cursor: none is the stream's in a table that it has not claimed."""
        if layout.undo is Undo.APPEND_ONLY and self.cursor is not None:
            block = self.spelled(layout, layout.block_column)
            sql = "SELECT 1 FROM {t} WHERE {b} > $1 LIMIT 1"
            if self._session.rows(sql, [self.cursor], t=layout.name, b=block):
                said = "the table holds rows of others, of blocks that the stream has not reached"
                raise self._dialect.errors.append_only(said, table=layout.name, cursor=self.cursor)

    def _look_again_at(self, name: QualifiedName) -> None:
        """Forget a table: it was altered."""
        self._layouts.pop(name.folded, None)
        self._ready.clear()
        self._fittings.clear()

    # --- what a database may do in its own way ----------------------------------------------------

    def build(self, layout: Layout) -> Layout:
        """Build what was put off of a table that is deferred, where a database can put it off."""
        raise NotImplementedError

    def _note(self, layout: Layout) -> object:
        """Return what the last column of a claim says: children are declared after parents."""
        return list(self._declared).index(layout.name.folded)

    def _as_claimed(self, layout: Layout, key: tuple[str, ...], note: object) -> Layout:
        """Return a table with what its claim says of it."""
        return replace(layout, key=key)

    def _with_own_claim(self, layout: Layout) -> Layout:
        """Return a declared table with what an earlier claim of this stream says of it."""
        return layout
