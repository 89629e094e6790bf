"""Merges changes into tables, a set at a time, under the undo log.

The change log's target and aggregates write through this. A round of changes is loaded where SQL
can select from it, what it is about to change is captured, and a few statements apply it: deletions
before changes, changes before new rows. The changes are called `s`, rows of the table `now`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headwater.changes.declaration import ColumnType
from headwater.errors import ChangeKeyError, DuplicateInsertError
from headwater.targets.sql.changes import (
    ABSENT,
    CHANGING,
    DELETING,
    MAKING,
    MAKING_ABSENT,
    TRANSIENT,
    Column,
    Rounds,
    Shape,
    TableChanges,
)
from headwater.targets.sql.dialect import Session
from headwater.targets.sql.layout import Column as StoredColumn
from headwater.targets.sql.layout import Layout
from headwater.targets.text import Fragment, Part, compose, literal, quote

if TYPE_CHECKING:
    from headwater.targets.sql.undo import UndoLog


@dataclass(frozen=True, slots=True)
class Loaded:
    """Changes that SQL can select from, and the table that they go to.

    `source`: the changes `s`. `found`: the changes `s`, each beside the row that it is about.
    `here`: the condition in `found` that there is such a row. `same`: the condition that a row
    `now` of the table is that row. `lacks`: the condition that the table has no such row.
    `key_json` and `row_json`: key and row in `found` as JSON text, exact when it is read back.
    `images`: the columns whose values stand beside the changes, where the database puts them there.
    """

    changes: TableChanges
    layout: Layout
    source: Fragment
    found: Fragment
    here: Fragment
    same: Fragment
    lacks: Fragment
    key_json: Fragment
    row_json: Fragment
    images: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The columns of `s` that hold the key."""
        return [f"s.key_{at}" for at in range(len(self.changes.shape.key))]


class Merger(ABC):
    """Applies changes to tables of one database. Runs on the driver, inside transactions."""

    types: ClassVar[Mapping[ColumnType, str]]  # of the columns of new tables
    sum_types: ClassVar[tuple[str, str]]  # of sums of long integers, and of integers of any length
    insert_note: ClassVar[Fragment] = Fragment("")  # what an INSERT needs before its values

    def __init__(self, session: Any, undo: UndoLog) -> None:
        self._session = session
        self._undo = undo

    def shape(self, name: str, layout: Layout) -> Shape:
        """Return a table as changes see it; computed columns are left out."""
        stored = [layout.columns[name] for name in layout.stored]
        columns = {
            column.name: Column(
                column.name, column.type, self._kind(column), column.scale, column.default
            )
            for column in stored
        }
        ambiguous = any(self._is_ambiguous(layout.columns[name]) for name in layout.key)
        return Shape(name, layout.name.full, layout.key, columns, ambiguous)

    def rounds(
        self, rounds: Rounds, shapes: Collection[Shape], folded: pa.Table, floor: int
    ) -> Iterator[list[TableChanges]]:
        """Yield folded changes in rounds that may each be applied at once."""
        return rounds.by_block(folded, floor)

    def apply(
        self,
        rounds: Iterable[Sequence[TableChanges]],
        layouts: Mapping[str, Layout],
        floor: int,
    ) -> None:
        """Apply changes to tables, by the names that changes call them.

        What blocks above `floor` change is captured. Tables that refer to others come after them.
        """
        order = list(layouts)
        first = self._undo.first_id(layouts.values())
        for group in rounds:
            with self._coded([layouts[changes.shape.name] for changes in group]):
                group = [
                    self._copied(changes, layouts[changes.shape.name], hot=changes.newest > floor)
                    for changes in sorted(
                        group, key=lambda changes: order.index(changes.shape.name)
                    )
                ]
                loaded = [
                    self._load(changes, layouts[changes.shape.name], at, hot=changes.newest > floor)
                    for at, changes in enumerate(
                        changes for changes in group if changes.frame.num_rows
                    )
                ]
                for table in loaded:
                    _refuse_spellings(self._session, table)
                    _refuse_duplicates(self._session, table)
                self._undo.capture(loaded, floor, first)
                self._merge(loaded)

    def statements(self, loaded: Loaded) -> dict[str, Fragment]:
        """Return the statements that delete, change and make rows; each ends in a condition."""
        changes, kinds, names = loaded.changes, loaded.changes.kinds, list(loaded.changes.steps)
        gaps: dict[str, Part] = {
            "table": loaded.layout.name,
            "source": loaded.source,
            "same": loaded.same,
        }
        statements: dict[str, Fragment] = {}
        if kinds & DELETING:
            statements["gone"] = compose(
                "DELETE FROM {table} AS now USING {source} AS s WHERE {same} AND {these}",
                these=kinds_in(*DELETING),
                **gaps,
            )
        if kinds & CHANGING and names:
            assign = ", ".join(
                f"{quote(name)} = {self._stored(loaded, name, self._held(loaded, name))}"
                for name in names
            )
            statements["changed"] = compose(
                "UPDATE {table} AS now SET {assign} FROM {source} AS s WHERE {same} AND {these}",
                assign=Fragment(assign),
                these=kinds_in(*CHANGING),
                **gaps,
            )
        if kinds & (MAKING | MAKING_ABSENT):
            values = [*loaded.keys, *(self._stored(loaded, name, None) for name in names)]
            statements["made"] = compose(
                "INSERT INTO {table} ({targets}) {note} SELECT {values} FROM {source} AS s "
                "WHERE ({these} OR ({maybe} AND {lacks}))",
                targets=[*changes.shape.key, *names],
                note=self.insert_note,
                values=Fragment(", ".join(values)),
                these=kinds_in(*MAKING),
                maybe=kinds_in(*MAKING_ABSENT),
                lacks=loaded.lacks,
                **gaps,
            )
        return statements

    # --- what each database does in its own way ---------------------------------------------------

    @staticmethod
    def arrange(changes: TableChanges) -> TableChanges:
        """Put changes of final blocks in the order that is cheapest to write. In any thread."""
        return changes

    @abstractmethod
    def _kind(self, column: StoredColumn) -> ColumnType:
        """Return what changes may do with a column."""

    @abstractmethod
    def _is_ambiguous(self, column: StoredColumn) -> bool:
        """Tell whether two spellings of a key in this column may be one value."""

    @abstractmethod
    def _load(self, changes: TableChanges, layout: Layout, at: int, *, hot: bool) -> Loaded:
        """Put changes where SQL can select from them; if they are `hot`, so that capture can."""

    @abstractmethod
    def _merge(self, loaded: Sequence[Loaded]) -> None:
        """Run the statements of one round."""

    @abstractmethod
    def _coded(self, layouts: Sequence[Layout]) -> AbstractContextManager[None]:
        """Raise an error with its code where the database refuses a change."""

    def _copied(self, changes: TableChanges, layout: Layout, *, hot: bool) -> TableChanges:
        """Copy new rows straight into their table, where that is faster; return what is left."""
        return changes

    def _held(self, loaded: Loaded, name: str) -> str:
        """Return what a column holds now, in the type in which it is computed."""
        return f"now.{quote(name)}"

    def _stored(self, loaded: Loaded, name: str, held: str | None) -> str:
        """Return what a column holds afterwards, where it holds `held` now; None: a new row."""
        return loaded.changes.value(name, held)


def kinds_in(*kinds: str) -> Fragment:
    """Return the condition that a change is of one of these kinds."""
    return Fragment(f"s.kind IN ({', '.join(literal(kind) for kind in sorted(kinds))})")


def _refuse_spellings(session: Session, loaded: Loaded) -> None:
    """Refuse two spellings of one key: they were folded apart, and the table has one row."""
    if not loaded.changes.shape.ambiguous:
        return
    rows = session.rows(
        "SELECT {texts} FROM {source} AS s WHERE NOT {twin} GROUP BY {keys} "
        "HAVING count(*) > 1 LIMIT 1",
        texts=Fragment(", ".join(f"{column}::text" for column in loaded.keys)),
        keys=Fragment(", ".join(loaded.keys)),
        source=loaded.source,
        twin=kinds_in(ABSENT),
    )
    for key in rows:
        raise ChangeKeyError(
            "the table takes two keys for the same",
            table=loaded.changes.shape.name,
            key=", ".join(map(str, key)),
        )


def _refuse_duplicates(session: Session, loaded: Loaded) -> None:
    """Refuse rows that came and went within a batch, if they were there before it."""
    if TRANSIENT not in loaded.changes.kinds:
        return
    rows = session.rows(
        "SELECT s.block, {keys} FROM {found} WHERE {transient} AND {here} LIMIT 1",
        keys=Fragment(", ".join(f"{column}::text" for column in loaded.keys)),
        found=loaded.found,
        transient=kinds_in(TRANSIENT),
        here=loaded.here,
    )
    for block, *key in rows:
        raise DuplicateInsertError(
            "a row is inserted while it is there",
            table=loaded.changes.shape.name,
            key=", ".join(map(str, key)),
            block=block,
        )
