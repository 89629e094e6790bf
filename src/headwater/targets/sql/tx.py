"""`Tx`, which `on_data` writes with: set-based changes of declared tables, in one transaction.

Runs on the driver. If anything raises, the whole batch leaves no trace. Each database's `Tx` says
how rows get where a statement can select from them, and what SQL of the user's may do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from headwater.targets.contract import Scope
from headwater.targets.sql.catalog import Layout, Undo
from headwater.targets.sql.dialect import Dialect, Session
from headwater.targets.sql.flow import Store
from headwater.targets.sql.merge.changes import FILL, SET, TableChanges
from headwater.targets.sql.settings import BLOCK_COLUMN
from headwater.targets.sql.text import Fragment, QualifiedName, equal, quote
from headwater.targets.values import TEXTS, Fitting, Tally, no_row_left_out

Held = TypeVar("Held", bound=Session)
Laid = TypeVar("Laid", bound=Layout)


@dataclass(frozen=True, slots=True)
class Source(Generic[Laid]):
    """Rows that SQL can select from: their table, the columns they fill, and the query."""

    layout: Laid
    names: Sequence[str]
    query: Fragment


class BaseTx(ABC, Generic[Held, Laid]):
    """One transaction. `scope` is None in `on_start` and in the hooks of a rollback.

    `session` and `store` are for targets that are built on the database's own.
    """

    dialect: ClassVar[Dialect[Any]]

    def __init__(self, session: Held, store: Store, scope: Scope | None = None) -> None:
        self.session = session
        self.store = store
        self._scope = scope

    def insert(self, table: str, frame: Any) -> None:
        """Add rows. Columns that the frame lacks are null, or have the table's default."""
        name = self.dialect.name(table)
        self.store.catalog.declared(name)
        for rows in self._pieces(frame):
            layout = self.store.catalog.prepare(name, rows.schema, None)
            self._insert(layout, self._fitted(layout, rows))
            del rows  # memory holds one piece at a time

    def upsert(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Add rows, or replace the columns that the frame has where the key exists already.

        `key` is the table's primary key; it may be left out if it was declared, or exists.
        """
        name = self.dialect.name(table)
        declared, existing = self.store.catalog.declared(name), self.store.catalog.layout(name)
        key = tuple(key or declared.key or (existing.key if existing else ()))
        if not key:
            raise self.dialect.errors.key("an upsert needs a key", table=name)
        with self._whole(name, frame, key) as rows:
            layout = rows.layout
            self._capture(rows, layout.key, "UPDATE")
            rest = [one for one in rows.names if one not in layout.key]
            assign = ", ".join(f"{quote(one)} = excluded.{quote(one)}" for one in rest)
            self.session.run(
                "INSERT INTO {table} ({names}) SELECT {names} FROM {source} AS new "
                "ON CONFLICT ({key}) DO {action}",
                prepare=True,
                table=layout.name,
                names=rows.names,
                source=rows.query,
                key=layout.key,
                action=Fragment(f"UPDATE SET {assign}" if rest else "NOTHING"),
            )

    def delete(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Remove the rows that agree with a row of the frame in the columns of `key`.

        `key` may be any columns; left out, it is the table's primary key.
        """
        name, catalog = self.dialect.name(table), self.store.catalog
        catalog.declared(name)
        layout = catalog.layout(name)
        if layout is None:
            return  # a table that does not exist holds none of the rows
        wanted = [catalog.spelled(layout, one) for one in key or layout.key]
        if not wanted or layout.undo is Undo.KEYLESS:
            raise self.dialect.errors.key("a delete needs a table with a primary key", table=name)
        self._refuse(layout, "delete")
        for rows in self._pieces(frame):
            with self._keys(layout, rows, wanted) as found:
                self._capture(found, wanted, "DELETE")
                self.session.run(
                    "DELETE FROM {table} AS old USING {source} AS new WHERE {same}",
                    prepare=True,
                    table=layout.name,
                    source=found.query,
                    same=equal(wanted, "old", "new"),
                )

    def replace_blocks(self, table: str, frame: Any) -> None:
        """Replace the rows of the batch's final blocks; columns that the table lacks are added.

        For the target alone, where the stream's definition has changed.
        """
        name, catalog = self.dialect.name(table), self.store.catalog
        assert self._scope is not None, "rows of a batch are written"
        assert not self._scope.hot, "only final blocks are replaced"
        is_first = True
        for rows in self._pieces(frame):
            if is_first:
                catalog.widen(name, rows.schema)
            layout = catalog.prepare(name, rows.schema, None)
            if is_first:
                self.session.run(
                    "DELETE FROM {table} WHERE {block} > $1 AND {block} <= $2",
                    [self._scope.after, self._scope.block],
                    table=name,
                    block=catalog.spelled(layout, layout.block_column),
                )
            self._insert(layout, self._fitted(layout, rows))
            is_first = False

    def prepare(
        self, table: str, schema: pa.Schema, key: Sequence[str], types: Mapping[str, str]
    ) -> Any:
        """Return a table for rows like these, created if need be: for what is built on this."""
        return self.store.catalog.prepare(self.dialect.name(table), schema, key, types)

    # --- values -----------------------------------------------------------------------------------

    def _fitting(self, layout: Laid, schema: pa.Schema) -> Fitting:
        """Plan how rows are made to fit into a table."""
        block = self.dialect.fold(layout.block_column)
        own = [one for one in schema.names if self.dialect.fold(one) == block]
        return Fitting.plan(
            schema,
            self.store.catalog.rooms(layout, schema.names),
            self.store.altered.policy,
            self.dialect.errors.table,
            own[0] if own else BLOCK_COLUMN,
            -1 if self._scope is None else self._scope.block,
        )

    def _fitted(self, layout: Laid, rows: Any) -> Any:
        """Return rows that fit into a table, as the target's policy says."""
        fitting, tally = self._fitting(layout, rows.schema), Tally()
        rows = fitting.apply(rows, tally) if fitting else rows
        self.store.altered.note(str(layout.name), tally)
        return rows

    def fitted_changes(self, changes: TableChanges, layout: Laid) -> TableChanges:
        """Return changes that fit into a table. None is left out for a value that is set: it is
        replaced, also where rows are to be skipped."""
        rooms = self.store.catalog.rooms(layout, changes.shape.columns)
        names: dict[str, str] = {}
        for one in changes.frame.schema.names:
            place = changes.place_of(one)
            if place is not None and place[0] in ("key", SET, FILL):
                names[one] = place[1].name
        wanted = {one: rooms[name] for one, name in names.items() if rooms[name].form in TEXTS}
        altered, tally = self.store.altered, Tally()
        policy = no_row_left_out(altered.policy)
        error = self.dialect.errors.table
        fitting = Fitting.plan(changes.frame.schema, wanted, policy, error, "block")
        if not fitting:
            return changes
        frame = fitting.apply(changes.frame, tally)
        altered.note(str(layout.name), tally.renamed(names))
        return replace(changes, frame=frame)

    # --- guards -----------------------------------------------------------------------------------

    def _refuse(self, layout: Layout, what: str) -> None:
        if layout.undo is Undo.APPEND_ONLY and self._scope is not None:
            raise self.dialect.errors.append_only(
                f"an append-only table takes no {what}", table=layout.name
            )

    def _require(self, layout: QualifiedName, names: Iterable[str], key: Sequence[str]) -> None:
        """Refuse a frame that lacks columns of the key."""
        own = {self.dialect.fold(one) for one in names}
        lacking = [one for one in key if self.dialect.fold(one) not in own]
        if lacking:
            raise self.dialect.errors.key(
                "the frame lacks columns of the key", table=layout, columns=lacking
            )

    def _refuse_keys(self, layout: Layout, without: int, twice: int) -> None:
        """Refuse rows without a key, and two rows with the same."""
        if without or twice:
            raise self.dialect.errors.key(
                "rows without a key" if without else "a key occurs twice in the frame",
                table=layout.name,
                key=list(layout.key),
                rows=without or twice,
            )

    def _refuse_blocks(
        self, layout: Layout, lowest: int | None, highest: int | None, nulls: int
    ) -> None:
        """Refuse rows of an append-only table that do not belong to the batch's blocks."""
        scope = self._scope
        if layout.undo is not Undo.APPEND_ONLY or scope is None:
            return
        floor = scope.after if scope.hot else -1
        inside = lowest is not None and highest is not None and floor < lowest <= highest
        if nulls or not inside or (highest or 0) > scope.block:
            raise self.dialect.errors.append_only(
                "rows whose block number is not one of the batch's",
                table=layout.name,
                column=layout.block_column,
                rows=f"{lowest}..{highest}",
                batch=f"{scope.after + 1}..{scope.block}",
            )

    # --- what each database does in its own way ---------------------------------------------------

    @abstractmethod
    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Return the rows of a query, which sees what this batch has written so far."""

    @abstractmethod
    def finish(self) -> None:
        """Refuse to go on if the callback that this was given to has ended the transaction."""

    @abstractmethod
    def _pieces(self, frame: Any) -> Iterable[Any]:
        """Yield the rows of a frame, whole or in parts; each has a schema."""

    @abstractmethod
    def _insert(self, layout: Laid, rows: Any) -> None:
        """Add rows."""

    @abstractmethod
    def _whole(
        self, name: QualifiedName, frame: Any, key: Sequence[str]
    ) -> AbstractContextManager[Source[Laid]]:
        """Put all rows of a frame where an upsert can select from them; refuse those it cannot."""

    @abstractmethod
    def _keys(
        self, layout: Laid, rows: Any, wanted: Sequence[str]
    ) -> AbstractContextManager[Source[Laid]]:
        """Put columns of rows where a deletion can select from them."""

    def _capture(self, rows: Source[Laid], columns: Sequence[str], operation: str) -> None:
        """Keep what a statement is about to change, where the database has no triggers that do."""
