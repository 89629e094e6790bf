"""`Tx`, which `on_data` writes with: set-based changes of declared tables, in one transaction.

Runs on the driver. If anything raises, the whole batch leaves no trace. How rows get where a
statement can select from them, and what SQL of the user's may do, each database's own `Tx` says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from headwater.targets.contract import Scope
from headwater.targets.frames import block_range
from headwater.targets.sql.changes import FILL, SET, TableChanges
from headwater.targets.sql.database import Store
from headwater.targets.sql.layout import Layout, Undo
from headwater.targets.text import Fragment, QualifiedName, equal, quote
from headwater.targets.values import TEXTS, Fitting, Tally, no_row_left_out

Ends = tuple[int | None, int | None, int]  # lowest and highest block of rows, and rows without one


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that SQL can select from: their table, the columns they fill, and the query.

    `without` and `twice` count rows whose key is null, and whose key another row has, too.
    """

    layout: Layout
    names: Sequence[str]
    query: Fragment
    without: int = 0
    twice: int = 0


class BaseTx(ABC):
    """One transaction. `scope` is None in `on_start` and in the hooks of a rollback.

    `session` and `store` are for targets that are built on the database's own.
    """

    def __init__(self, store: Store, scope: Scope | None = None) -> None:
        self.session = store.session
        self.store = store
        self._scope = scope
        self._dialect = store.dialect

    def insert(self, table: str, frame: Any) -> None:
        """Add rows. Columns that the frame lacks are null, or have the table's default."""
        name = self.store.catalog.named(table)
        for rows in self._pieces(frame):
            self._insert(self.store.catalog.prepare(name, rows.schema, None), rows)
            del rows  # memory holds one piece at a time

    def upsert(self, table: str, frame: Any, key: Sequence[str] | None = None) -> None:
        """Add rows, or replace the columns that the frame has where the key exists already.

        `key` is the table's primary key; it may be left out if it was declared, or exists.
        """
        catalog = self.store.catalog
        name = catalog.named(table)
        declared, existing = catalog.declared(name), catalog.layout(name)
        key = tuple(key or declared.key or (existing.key if existing else ()))
        if not key:
            raise self._dialect.errors.key("an upsert needs a key", table=name)
        pieces = iter(self._pieces(frame))
        first = next(pieces)
        self._require(name, first.schema.names, key)
        layout = catalog.prepare(name, first.schema, key)
        self._refuse(layout, "upsert")
        fitted = (self._fitted(layout, piece) for piece in chain([first], pieces))
        with self._together(layout, fitted) as rows:
            self._refuse_keys(rows)
            self._capture(rows, layout.key, "UPDATE")
            rest = [column for column in rows.names if column not in layout.key]
            assign = ", ".join(f"{quote(column)} = excluded.{quote(column)}" for column in rest)
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
        catalog = self.store.catalog
        name = catalog.named(table)
        layout = catalog.layout(name)
        if layout is None:
            return  # a table that does not exist holds none of the rows
        wanted = [catalog.spelled(layout, column) for column in key or layout.key]
        if not wanted or layout.undo is Undo.KEYLESS:
            raise self._dialect.errors.key("a delete needs a table with a primary key", table=name)
        self._refuse(layout, "delete")
        for rows in self._pieces(frame):
            names = rows.schema.names
            self._require(name, names, wanted)
            rows = rows.select(
                [column for column in names if catalog.spelled(layout, column) in wanted]
            )
            rows = self._fitted(layout, rows)
            layout = catalog.build(layout) if layout.deferred else layout
            catalog.prepare(name, rows.schema, None)
            with self._source(layout, rows) as source:
                self._capture(source, wanted, "DELETE")
                self.session.run(
                    "DELETE FROM {table} AS old USING {source} AS new WHERE {same}",
                    prepare=True,
                    table=layout.name,
                    source=source.query,
                    same=equal(wanted, "old", "new"),
                )

    def replace_blocks(self, table: str, frame: Any) -> None:
        """Replace the rows of the batch's final blocks; columns that the table lacks are added.

        For the target alone, where the stream's definition has changed.
        """
        catalog, scope = self.store.catalog, self._scope
        name = catalog.named(table)
        assert scope is not None, "rows of a batch are written"
        assert not scope.hot, "only final blocks are replaced"
        is_first = True
        for rows in self._pieces(frame):
            if is_first:
                catalog.widen(name, rows.schema)
            layout = catalog.prepare(name, rows.schema, None)
            if is_first:
                self.session.run(
                    "DELETE FROM {table} WHERE {block} > $1 AND {block} <= $2",
                    [scope.after, scope.block],
                    table=name,
                    block=catalog.spelled(layout, layout.block_column),
                )
            self._insert(layout, rows)
            is_first = False

    def prepare(
        self, table: str, schema: pa.Schema, key: Sequence[str], types: Mapping[str, str]
    ) -> Layout:
        """Return a table for rows like these, created if need be: for what is built on this."""
        layout: Layout = self.store.catalog.prepare(self._dialect.name(table), schema, key, types)
        return layout

    # --- how one database takes rows --------------------------------------------------------------

    @abstractmethod
    def finish(self) -> None:
        """Refuse to go on if what callbacks have done cannot be committed. Called by the target."""

    @abstractmethod
    def _pieces(self, frame: Any) -> Iterable[Any]:
        """Return the rows of a frame, whole or in parts; each has a schema."""

    @abstractmethod
    def _add(self, layout: Layout, rows: Any) -> Ends | None:
        """Add rows; return between which blocks they lie, if that is known only now."""

    @abstractmethod
    def _source(self, layout: Layout, rows: Any) -> AbstractContextManager[Source]:
        """Put rows where a statement can select from them."""

    @abstractmethod
    def _together(self, layout: Layout, pieces: Iterator[Any]) -> AbstractContextManager[Source]:
        """The same for all rows of a frame at once, whose keys are counted."""

    def _capture(  # noqa: B027 - triggers do it, where a database has them
        self, rows: Source, columns: Sequence[str], operation: str
    ) -> None:
        """Keep what a statement is about to change, where the database has no triggers that do."""

    # --- values -----------------------------------------------------------------------------------

    def _insert(self, layout: Layout, rows: Any) -> None:
        rows = self._fitted(layout, rows)
        if isinstance(rows, pa.Table):
            self._check_blocks(layout, rows)
        ends = self._add(layout, rows)
        if ends is not None:
            self._refuse_blocks(layout, *ends)

    def _fitted(self, layout: Layout, rows: Any) -> Any:
        """Return rows that fit into a table, as the target's policy says."""
        altered = self.store.altered
        fitting = self.store.catalog.fitting(layout, rows.schema, altered.policy)
        if not fitting:
            return rows
        fitting = replace(fitting, block=-1 if self._scope is None else self._scope.block)
        note = partial(altered.note, str(layout.name))
        if not isinstance(rows, pa.Table):
            return rows.fitted(fitting, note)
        tally = Tally()
        rows = fitting.apply(rows, tally)
        note(tally)
        return rows

    def fitted_changes(self, changes: TableChanges, layout: Layout) -> TableChanges:
        """Return changes that fit into a table. None is left out for a value that is set: it is
        replaced, also where rows are to be skipped."""
        rooms = self.store.catalog.rooms(layout, changes.shape.columns)
        names: dict[str, str] = {}
        for field in changes.frame.schema.names:
            place = changes.place_of(field)
            if place is not None and place[0] in ("key", SET, FILL):
                names[field] = place[1].name
        wanted = {field: rooms[name] for field, name in names.items() if rooms[name].form in TEXTS}
        altered, tally = self.store.altered, Tally()
        policy = no_row_left_out(altered.policy)
        error = self._dialect.errors.table
        fitting = Fitting.plan(changes.frame.schema, wanted, policy, error, "block")
        if not fitting:
            return changes
        frame = fitting.apply(changes.frame, tally)
        altered.note(str(layout.name), tally.renamed(names))
        return replace(changes, frame=frame)

    # --- guards -----------------------------------------------------------------------------------

    def _refuse(self, layout: Layout, what: str) -> None:
        if layout.undo is Undo.APPEND_ONLY and self._scope is not None:
            raise self._dialect.errors.append_only(
                f"an append-only table takes no {what}", table=layout.name
            )

    def _require(self, layout: QualifiedName, names: Iterable[str], key: Sequence[str]) -> None:
        """Refuse a frame that lacks columns of the key."""
        own = {self._dialect.fold(name) for name in names}
        lacking = [column for column in key if self._dialect.fold(column) not in own]
        if lacking:
            raise self._dialect.errors.key(
                "the frame lacks columns of the key", table=layout, columns=lacking
            )

    def _refuse_keys(self, rows: Source) -> None:
        """Refuse rows without a key, and two rows with the same."""
        if rows.without or rows.twice:
            raise self._dialect.errors.key(
                "rows without a key" if rows.without else "a key occurs twice in the frame",
                table=rows.layout.name,
                key=list(rows.layout.key),
                rows=rows.without or rows.twice,
            )

    def _check_blocks(self, layout: Layout, rows: pa.Table) -> None:
        """Refuse rows of an append-only table that do not belong to the batch's blocks."""
        if layout.undo is not Undo.APPEND_ONLY or self._scope is None or not rows.num_rows:
            return
        column = layout.block_column
        if column not in rows.column_names:
            fold = self._dialect.fold
            column = next((name for name in rows.column_names if fold(name) == fold(column)), "")
        ends, nulls = block_range(rows.column(column)) if column else ((), rows.num_rows)
        lowest, highest = ends or (None, None)
        self._refuse_blocks(layout, lowest, highest, nulls)

    def _refuse_blocks(
        self, layout: Layout, lowest: int | None, highest: int | None, nulls: int
    ) -> None:
        scope = self._scope
        if layout.undo is not Undo.APPEND_ONLY or scope is None:
            return
        floor = scope.after if scope.hot else -1
        inside = lowest is not None and highest is not None and floor < lowest <= highest
        if nulls or not inside or (highest or 0) > scope.block:
            raise self._dialect.errors.append_only(
                "rows whose block number is not one of the batch's",
                table=layout.name,
                column=layout.block_column,
                rows=f"{lowest}..{highest}",
                batch=f"{scope.after + 1}..{scope.block}",
            )
