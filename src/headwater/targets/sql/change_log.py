"""Prepares and applies what a change-log target keeps beside its tables: the log, the cursor.

`Hooks` are the callbacks of the database's own target: that one keeps the state, runs transactions
and undoes forks; these prepare the tables and apply changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headwater.changes import TableSchema
from headwater.core import DEFAULT_CAP, BlockCursor, PipeState
from headwater.core.cursor import UNKNOWN_HASH
from headwater.errors import (
    InvalidOptionError,
    PrimaryKeyNeededError,
    TableDeclarationError,
    TableMismatchError,
    UnknownTableError,
)
from headwater.targets.sql.changes import Rounds, Shape, TableChanges
from headwater.targets.sql.database import Store
from headwater.targets.sql.dialect import Dialect, Session
from headwater.targets.sql.layout import Layout, Table
from headwater.targets.sql.merger import Merger
from headwater.targets.sql.state import CURSORS, CursorTable
from headwater.targets.sql.undo import CHANGE_LOG, ChangeLog
from headwater.targets.text import Fragment, QualifiedName, quote

FinalOf = Callable[[str], BlockCursor | None]
"""Returns the block that was final when an endpoint's cursor was made, if it can be told."""
CURSORS_SIDE = "substreams_cursors"  # the side table in which a stream keeps them
logger = logging.getLogger("headwater.targets")


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
        self, dialect: Dialect, names: Names, schema: str, final_of: FinalOf | None = None
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
            self._sink.take_over(tx.store)
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

    def on_state(self, store: Store, state: PipeState) -> None:
        """Show the cursor, and forget what became final. Called by every commit and rollback."""
        session, stream_id = store.session, store.sync.stream_id
        text = None if self._sink is None else cursor_at(store, state.number)
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


class SinkTables:
    """Shares a database with substreams-sink-sql: goes on where it stopped, and can be followed.

    The sink keeps one row per module in `cursors`: the module's hash, the endpoint's cursor, the
    block. A stream whose id is that hash keeps the same row, in the same form, so the sink can go
    on after any commit. When the row says something else than our own state, the sink has written
    since: its block becomes the state, and its rows of the change log become ours.
    """

    def __init__(self, cursors: QualifiedName, log: QualifiedName, final_of: FinalOf) -> None:
        self._cursors = cursors
        self._log = log
        self._final_of = final_of

    def take_over(self, store: Store) -> None:
        """Go on where the sink stopped, if it has written since. Doing it again changes nothing."""
        session, stream_id = store.session, store.sync.stream_id
        session.run("ALTER TABLE {log} ALTER COLUMN stream_id SET DEFAULT ''", log=self._log)
        rows = session.rows(
            "SELECT cursor, block_num, block_id FROM {cursors} WHERE id = $1",
            [stream_id],
            cursors=self._cursors,
        )
        state = store.sync.load()
        if not rows or not rows[0][0]:
            return
        cursor, number, block_hash = rows[0]
        if state.number == number and cursor_at(store, number) == cursor:
            return
        chain = self._chain(session, stream_id, BlockCursor(number, block_hash or None), cursor)
        final = chain[0] if self._final_of(cursor) else None
        store.side.remove_above(-1)
        store.sync.replace(PipeState(chain[-1], final, chain))
        row = {"block_number": number, "ordinal": 0, "block_hash": block_hash, "cursor": cursor}
        store.side.write({CURSORS_SIDE: pa.table({name: [one] for name, one in row.items()})})
        session.run(
            "UPDATE {log} SET stream_id = $1 WHERE stream_id = ''", [stream_id], log=self._log
        )
        logger.warning("sink.taken_over id=%s block=%d final=%s", stream_id, number, final)

    def _chain(
        self, session: Any, stream_id: str, block: BlockCursor, cursor: str
    ) -> tuple[BlockCursor, ...]:
        """Return what a fork can go back to: every number that the sink's log reaches.

        Its rows say what each block did, whatever its hash. The sink removes those of blocks that
        the endpoint's message calls final, while the cursor names the block before the last of
        these: what is next to that and has no row is final too.
        """
        final = self._final_of(cursor)
        rows = session.rows(
            "SELECT min(block_num), bool_or(block_num = $2::bigint) FROM {log} "
            "WHERE stream_id IN ('', $1::text)",
            [stream_id, -1 if final is None else final.number + 1],
            log=self._log,
        )
        lowest, has_next = rows[0]
        if final is None:
            first = block.number if lowest is None else max(0, lowest - 1)
            floor: tuple[BlockCursor, ...] = ()
        elif final.number + (not has_next) >= block.number:
            return (block,)
        else:
            floor = (final,) if has_next else (BlockCursor(final.number + 1, UNKNOWN_HASH),)
            first = floor[0].number + 1
        first = max(first, block.number - DEFAULT_CAP)
        between = (BlockCursor(one, UNKNOWN_HASH) for one in range(first, block.number))
        return (*floor, *between, block)


def cursor_at(store: Store, number: int) -> str | None:
    """Return the endpoint's cursor of a block that is stored."""
    found = store.side.read(CURSORS_SIDE, (number - 1, 2**62), number)
    return found["cursor"][0].as_py() if found.num_rows else None
