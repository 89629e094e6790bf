"""Prepares and applies what a change-log target keeps beside its tables: the log, the cursor.

`Hooks` are the callbacks of the database's own target: that one keeps the state, runs transactions
and undoes forks; these prepare the tables and apply changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headwater.changes import TableSchema
from headwater.core import PipeState
from headwater.errors import (
    InvalidOptionError,
    PrimaryKeyNeededError,
    TableDeclarationError,
    TableMismatchError,
    UnknownTableError,
)
from headwater.targets.sql.catalog import Layout
from headwater.targets.sql.change_log.sink import FinalOf, SinkTables
from headwater.targets.sql.dialect import Dialect, Session
from headwater.targets.sql.merge.changes import Rounds, Shape, TableChanges
from headwater.targets.sql.merge.merger import Merger
from headwater.targets.sql.settings import Table
from headwater.targets.sql.state import CURSORS, CursorTable
from headwater.targets.sql.text import Fragment, QualifiedName, quote
from headwater.targets.sql.undo import CHANGE_LOG, ChangeLog


@dataclass(frozen=True, slots=True)
class Names:
    """The tables of a change-log target. A name alone stands for one that exists."""

    tables: tuple[str | TableSchema, ...]
    change_log: str = CHANGE_LOG
    cursors: str = CURSORS

    @classmethod
    def of(cls, tables: Iterable[str | TableSchema], change_log: str, cursors: str) -> Names:
        """Check what the user gave."""
        given = tuple(tables)
        names = [table_name(one) for one in given]
        if isinstance(tables, str) or not given or len(set(names)) < len(names):
            raise TableDeclarationError(
                "tables= takes a list of names and TableSchemas, each table once", tables=names
            )
        if change_log == cursors or {change_log, cursors} & set(names):
            raise InvalidOptionError(
                "the tables of the target itself need names of their own",
                history_table=change_log,
                cursors_table=cursors,
            )
        return cls(given, change_log, cursors)


def table_name(given: str | TableSchema) -> str:
    """Return the name by which changes call a table."""
    return given if isinstance(given, str) else given.name


@dataclass(frozen=True, slots=True)
class Work:
    """The folded changes of a commit; a fork may undo blocks above `floor`.

    `laid_out` is what they come to as frames, if that was worked out ahead.
    """

    folded: pa.Table
    floor: int
    laid_out: Sequence[TableChanges] | None = None


class Hooks:
    """Functions that the database's own target calls, on the driver, inside its transactions.

    `shapes` are the tables as changes see them, by the names that changes call them. Another start
    replaces them all, since another thread may use them.
    """

    def __init__(
        self, dialect: Dialect[Any], names: Names, schema: str, final_of: FinalOf | None = None
    ) -> None:
        self.shapes: dict[str, Shape] = {}
        self.log = dialect.name_type(schema, names.change_log)
        self._dialect = dialect
        self._names = names
        self._change_log = ChangeLog(dialect, self.log)
        self._cursors = dialect.name_type(schema, names.cursors)
        self._shown = CursorTable(dialect, self._cursors)
        self._sink = SinkTables(self._cursors, self.log, final_of) if final_of else None
        self.layouts: dict[str, Layout] = {}
        self._rounds = Rounds({})
        self._arrange: Callable[[TableChanges], TableChanges] = Merger.arrange

    def tables(self) -> list[Table]:
        """Return the declarations of all tables, for the database's own target."""
        mine = [
            replace(self._dialect.declare(table_name(one)), change_log=self.log.full)
            for one in self._names.tables
        ]
        own = [Table(one, untracked=True) for one in (self.log, self._cursors)]
        return [*own, *mine]

    def on_start(self, tx: Any) -> None:
        """Create what is missing, and look at the tables. Doing it again changes nothing."""
        session = tx.session
        self._dialect.make_schema(session, self.log.schema)
        self._change_log.create(session)
        self._shown.create(session)
        shapes: dict[str, Shape] = {}
        self.layouts.clear()
        for declared in self._names.tables:
            name = table_name(declared)
            self._create(tx, declared)
            layout = tx.store.catalog.layout(self._dialect.name(name))
            if layout is None:
                raise self._unknown(session, self._dialect.name(name))
            if not layout.key:
                raise PrimaryKeyNeededError(
                    "a table without a primary key",
                    table=layout.name.full,
                    columns=", ".join(layout.columns),
                )
            self.layouts[name] = layout
            shapes[name] = agreed(tx.store.merger.shape(name, layout), declared)
        tx.store.catalog.claim_cursors(self._cursors)
        if self._sink is not None:
            self._sink.take_over(tx, tx.store.sync.stream_id)
        self._dialect.check_change_log_tables(session, [one.name for one in self.layouts.values()])
        self._arrange = tx.store.merger.arrange
        self._rounds, self.shapes = Rounds(shapes), shapes

    def on_data(self, tx: Any, data: object, work: Work | None) -> None:
        """Apply the changes of a commit; again if its transaction has to be tried again."""
        if work is not None:
            merger = tx.store.merger
            rounds: Iterable[Sequence[TableChanges]] = [work.laid_out] if work.laid_out else []
            if work.laid_out is None:
                shapes = self.shapes.values()
                rounds = merger.rounds(self._rounds, shapes, work.folded, work.floor)
            fitted = (
                [tx.fitted_changes(one, self.layouts[one.shape.name]) for one in several]
                for several in rounds
            )
            merger.apply(fitted, self.layouts, work.floor)

    def lay_out(self, folded: pa.Table, last: int) -> list[TableChanges]:
        """Return the frames of folded changes of final blocks up to `last`. In any thread."""
        rounds = self._rounds.by_block(folded, last)
        return [self._arrange(one) for changes in rounds for one in changes]

    def on_state(self, session: Session, stream_id: str, state: PipeState) -> None:
        """Show the cursor, and forget what became final. Called by every commit and rollback."""
        text = None if self._sink is None else self._sink.cursor_at(state.number)
        self._shown.show(session, stream_id, state, text=text)
        session.run(
            "DELETE FROM {log} WHERE stream_id = $1 AND block_num <= $2",
            [stream_id, state.undo_floor],
            prepare=True,
            log=self.log,
        )

    def _create(self, tx: Any, declared: str | TableSchema) -> None:
        name = self._dialect.name(table_name(declared))
        if isinstance(declared, str) or self._dialect.exists(tx.session, name):
            return
        types = tx.store.merger.types
        parts = [f"{quote(one)} {types[kind]}" for one, kind in declared.columns.items()]
        self._dialect.make_schema(tx.session, name.schema)
        tx.session.run(
            "CREATE TABLE {table} ({parts}, PRIMARY KEY ({key}))",
            table=name,
            parts=Fragment(", ".join(parts)),
            key=declared.key,
        )

    def _unknown(self, session: Session, name: QualifiedName) -> UnknownTableError:
        tables = sorted(
            one.name for one in self._dialect.tables(session) if one.folded[0] == name.folded[0]
        )
        return UnknownTableError(
            "the database has no such table", table=name.full, known=", ".join(tables) or "none"
        )


def agreed(shape: Shape, declared: str | TableSchema) -> Shape:
    """Return a table as it is, with what its declaration says of it.

    Raises:
        TableMismatchError: the two contradict each other; the table's names are listed.
    """
    if isinstance(declared, str):
        return shape
    if set(declared.key) != set(shape.key):
        raise TableMismatchError(
            "the table's primary key is not the declared one",
            table=shape.name,
            declared=", ".join(declared.key),
            key=", ".join(shape.key) or "none",
        )
    columns = dict(shape.columns)
    for name, kind in declared.columns.items():
        held = columns.get(name)
        wider = held is not None and (held.kind, kind) == ("decimal", "integer")
        if held is None or not (held.kind == kind or wider):
            raise TableMismatchError(
                "the table lacks a declared column"
                if held is None
                else "a column holds another kind of values than declared",
                table=shape.name,
                column=name,
                declared=kind,
                found=", ".join(shape.columns) if held is None else held.type,
            )
        columns[name] = replace(held, kind=kind)
    return replace(shape, columns=columns)
