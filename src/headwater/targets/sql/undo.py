"""The undo log: keeps what hot blocks change, and puts it back after a fork.

One engine works on two forms of the log, both real tables that other programs read and write.
*Snapshots*: each table has `<table>__snapshots`, with its columns, the operation, the block and the
stream, as the Pipes SDK keeps them. *Change log*: all tables share `substreams_history`, with keys
and rows as JSON, as the Substreams sink keeps them. For an inserted row both forms keep only its
key; for any other row, what it held. Per row the oldest image above a block counts.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headwater.core import DEFAULT_CAP, BlockCursor, PipeState
from headwater.core.cursor import UNKNOWN_HASH
from headwater.errors import TableMismatchError
from headwater.targets.sql.changes import ABSENT, DELETE, MAKING, MAKING_ABSENT, TRANSIENT
from headwater.targets.sql.dialect import Dialect
from headwater.targets.sql.layout import RESERVED, Layout, Undo
from headwater.targets.sql.merger import Loaded, kinds_in
from headwater.targets.text import Fragment, QualifiedName, compose, literal

if TYPE_CHECKING:
    from headwater.targets.sql.database import Store

OPERATION = RESERVED + "operation"
BLOCK = RESERVED + "block_number"
STREAM = RESERVED + "id"
PLACE = RESERVED + "place"  # of an image among those of its block
CHANGE_LOG = "substreams_history"
_WIDE_ID = "a 64-bit id"
_PLAIN = re.compile("[a-z_][a-z0-9_]*")  # a name that needs no quotes after a dot
KEPT = (Undo.KEYED, Undo.KEYLESS, Undo.CHANGE_LOG)
EVERY_BLOCK = 2**62  # above any
FinalOf = Callable[[str], BlockCursor | None]
"""Returns the block that was final when an endpoint's cursor was made, if it can be told."""
CURSORS_SIDE = "substreams_cursors"  # the side table in which a stream keeps them
logger = logging.getLogger("headwater.targets")


class Log(ABC):
    """One form of the log. In its statements `$1` is the stream and `$2` a block."""

    stream: ClassVar[str]
    block: ClassVar[str]

    @abstractmethod
    def name(self, layout: Layout) -> QualifiedName:
        """Return the table that holds the log of a table."""

    @abstractmethod
    def images(self, session: Any, layout: Layout, stream_id: str) -> Fragment:
        """Return the query of each row's oldest image above a block: its columns and `OPERATION`.

        `INSERT` as the operation says that there was no such row.
        """

    def of(self, layout: Layout) -> Fragment:
        """Return the condition that tells a table's rows of the log from others."""
        return Fragment("true")

    def above(self, layout: Layout) -> Fragment:
        """Return the condition that a row of the log is the stream's, and above the block."""
        return self._where(layout, ">")

    def forget(self, layout: Layout) -> Fragment:
        """Return the statement that removes what lies above the block."""
        return compose(
            "DELETE FROM {log} WHERE {above}", log=self.name(layout), above=self.above(layout)
        )

    def prune(self, layout: Layout) -> Fragment:
        """Return the statement that removes what lies at or below the block."""
        return compose(
            "DELETE FROM {log} WHERE {below}",
            log=self.name(layout),
            below=self._where(layout, "<="),
        )

    def _where(self, layout: Layout, operator: str) -> Fragment:
        return compose(
            "{stream} = $1::text AND {block} {operator} $2::bigint AND {of}",
            stream=self.stream,
            block=self.block,
            operator=Fragment(operator),
            of=self.of(layout),
        )


class Snapshots(Log):
    """A log beside each table, with the same columns."""

    stream, block = STREAM, BLOCK

    def name(self, layout: Layout) -> QualifiedName:
        """Return `<table>__snapshots`."""
        return layout.name.snapshots

    def images(self, session: Any, layout: Layout, stream_id: str) -> Fragment:
        """Return the query of each row's oldest image above a block."""
        return compose(
            "SELECT DISTINCT ON ({key}) {names}, {operation} FROM {log} WHERE {above} "
            "ORDER BY {key}, {block}",
            key=layout.key,
            names=layout.stored,
            operation=OPERATION,
            log=self.name(layout),
            above=self.above(layout),
            block=BLOCK,
        )


class ChangeLog(Log):
    """One log for all tables, whose rows are JSON."""

    stream, block = "stream_id", "block_num"
    columns: ClassVar = ("id", "op", "table_name", "pk", "prev_value", "block_num", "stream_id")

    def __init__(self, dialect: Dialect, name: QualifiedName) -> None:
        self._dialect = dialect
        self._name = name

    def create(self, session: Any) -> None:
        """Create the table if it is not there; refuse one that is something else.

        One that the Substreams sink has made, whose ids are narrow and which knows no streams, is
        given what it lacks. Rows that it holds belong to no stream, and stay as they are.
        """
        dialect = self._dialect
        if not dialect.exists(session, self._name):
            self._create(session)
        lacking = self._lacking(session)
        if lacking and set(lacking) <= {"stream_id", _WIDE_ID}:
            dialect.widen_change_log(session, self._name, lambda: self._create(session))
            lacking = self._lacking(session)
        if lacking:
            raise TableMismatchError(
                "this is not a change log of ours",
                table=self._name.full,
                lacking=", ".join(lacking),
            )

    def _create(self, session: Any) -> None:
        session.run(
            "CREATE TABLE {log} (id {id} PRIMARY KEY, op {letter}, table_name {text}, "
            "pk {text}, prev_value {text}, block_num BIGINT, stream_id {text} NOT NULL)",
            log=self._name,
            id=self._dialect.change_id,
            letter=self._dialect.letter,
            text=Fragment(self._dialect.text),
        )
        session.run(
            "CREATE INDEX {index} ON {log} ({columns})",
            index=self._name.suffixed("_block_num").name,
            log=self._name,
            columns=self._dialect.change_index,
        )

    def _lacking(self, session: Any) -> list[str]:
        columns = self._dialect.read_table(session, self._name).columns
        narrow = "id" in columns and columns["id"].type.lower() != "bigint"
        return [*(name for name in self.columns if name not in columns), *[_WIDE_ID] * narrow]

    def name(self, layout: Layout) -> QualifiedName:
        """Return the one table."""
        return self._name

    def of(self, layout: Layout) -> Fragment:
        """Return the condition that tells a table's rows of the log from others.

        The sink quotes every name; releases up to 0.2 left out quotes that are needed.
        """
        names = (literal(layout.name.full), literal(layout.name.quoted))
        return Fragment(f"table_name IN ({', '.join(names)})")

    def images(self, session: Any, layout: Layout, stream_id: str) -> Fragment:
        """Return the query of each row's oldest image; newer columns keep what they hold.

        Keys are compared as values: one may be spelled in several ways, as the sink has it and as
        releases up to 0.2 did. Of each spelling only the oldest image is read.
        """
        pk = Fragment(f"pk{self._dialect.bytewise}")
        kept = compose(
            "SELECT DISTINCT ON ({pk}) pk, op, prev_value, block_num, id FROM {log} WHERE {above} "
            "ORDER BY {pk}, block_num, id",
            pk=pk,
            log=self._name,
            above=self.above(layout),
        )
        return compose(
            "SELECT DISTINCT ON ({key}) {names}, {operation} FROM (SELECT {values}, "
            "CASE kept.op WHEN 'I' THEN 'INSERT' ELSE kept.op END AS {operation}, "
            "kept.block_num AS {block}, kept.id AS {place} FROM {read}) AS image "
            "ORDER BY {key}, {block}, {place}",
            key=layout.key,
            names=layout.stored,
            values=self._dialect.image_values(layout),
            operation=OPERATION,
            block=BLOCK,
            place=PLACE,
            read=self._dialect.read_images(session, layout, kept, self._name, stream_id),
        )

    def rows(self, loaded: Loaded, floor: int) -> Fragment:
        """Return the query of what changes are about to find, for blocks above `floor`."""
        return compose(
            "SELECT s.place, CASE WHEN NOT {here} THEN 'I' WHEN {deletes} THEN 'D' ELSE 'U' END "
            "AS op, {name} AS table_name, {pk} AS pk, CASE WHEN {here} THEN {row} END "
            "AS prev_value, s.block FROM {found} WHERE s.block > {floor} "
            "AND CASE WHEN {here} THEN NOT {leaves} ELSE {makes} END",
            here=loaded.here,
            deletes=kinds_in(DELETE),
            name=literal(_spelled(loaded.layout.name)),
            pk=loaded.key_json,
            row=loaded.row_json,
            found=loaded.found,
            floor=Fragment(str(floor)),
            makes=kinds_in(*MAKING, *MAKING_ABSENT),
            leaves=kinds_in(ABSENT, TRANSIENT),
        )

    def touched(self, session: Any, stream_id: str, number: int) -> list[QualifiedName]:
        """Return the tables that a stream changed above a block, also those no longer declared."""
        rows = session.rows(
            "SELECT DISTINCT table_name FROM {log} WHERE stream_id = $1 AND block_num > $2 "
            "ORDER BY 1",
            [stream_id, number],
            log=self._name,
        )
        return [self._dialect.name(name) for (name,) in rows]


def _spelled(name: QualifiedName) -> str:
    """Return a table as the log calls it: a statement takes it as it is, as the sink's do."""
    plain = _PLAIN.fullmatch(name.schema) and _PLAIN.fullmatch(name.name)
    return name.full if plain else name.quoted


class UndoLog(ABC):
    """The undo data of one stream. Runs on the driver, inside a transaction."""

    def __init__(self, session: Any, dialect: Dialect, stream_id: str) -> None:
        self._session = session
        self._dialect = dialect
        self._id = stream_id
        self._snapshots = Snapshots()

    def log(self, layout: Layout) -> Log:
        """Return the form in which a table's log is kept."""
        if layout.undo is Undo.CHANGE_LOG:
            return ChangeLog(self._dialect, self._dialect.name(layout.block_column))
        return self._snapshots

    def restore(self, layouts: Sequence[Layout], number: int) -> None:
        """Put every table back to what it was at a block, and forget what came after.

        Also tables that only a change log names: they are no longer declared, or were written by a
        release that claimed none.
        """
        known = {layout.name.folded for layout in layouts}
        unclaimed: dict[tuple[str, str], Layout] = {}
        for log in {layout.block_column for layout in layouts if layout.undo is Undo.CHANGE_LOG}:
            for layout in self.unclaimed(self._dialect.name(log), number):
                if layout.name.folded not in known:
                    unclaimed[layout.name.folded] = layout
        self._restore([*unclaimed.values(), *layouts], number)

    def unclaimed(self, log: QualifiedName, number: int = -1) -> list[Layout]:
        """Return the tables whose changes above a block a change log holds."""
        names = ChangeLog(self._dialect, log).touched(self._session, self._id, number)
        return [self._unclaimed(name, log.full) for name in names]

    def holds_above(self, layouts: Sequence[Layout], number: int) -> bool:
        """Tell whether there is anything to restore: images, or rows of append-only tables."""
        parts = ["$1::text IS NULL", "$2::bigint IS NULL"]
        for layout in layouts:
            log = self.log(layout)
            if layout.undo is Undo.APPEND_ONLY:
                table, above = layout.name, compose("{b} > $2::bigint", b=layout.block_column)
            else:
                table, above = log.name(layout), log.above(layout)
            if layout.deferred or not self._exists(table):
                continue  # without its index the whole table would be read
            parts.append(compose("EXISTS (SELECT 1 FROM {t} WHERE {above})", t=table, above=above))
        sql = " OR ".join(parts)
        return bool(self._session.rows(f"SELECT {sql}", [self._id, number])[0][0])

    def prune(self, layout: Layout, number: int) -> None:
        """Forget what lies at or below a number."""
        log = self.log(layout)
        if layout.undo in KEPT and self._exists(log.name(layout)):
            self._session.run(log.prune(layout), [self._id, number])

    def count(self, layout: Layout) -> int:
        """Return how many rows the log holds of a table."""
        log = self.log(layout)
        if layout.undo not in KEPT or not self._exists(log.name(layout)):
            return 0
        ((rows,),) = self._session.rows(
            "SELECT count(*) FROM {log} WHERE {above}",
            [self._id, -1],
            log=log.name(layout),
            above=log.above(layout),
        )
        return int(rows)

    def remove_all(self, layouts: Sequence[Layout]) -> None:
        """Forget all undo data of the stream, also of other tables that a change log names."""
        for layout in layouts:
            self.prune(layout, EVERY_BLOCK)
        for log in {layout.block_column for layout in layouts if layout.undo is Undo.CHANGE_LOG}:
            self._session.run(
                "DELETE FROM {log} WHERE stream_id = $1", [self._id], log=self._dialect.name(log)
            )

    def first_id(self, layouts: Iterable[Layout]) -> int | None:
        """Return the first free id of the change log, where the database does not number rows."""
        logs = {layout.block_column for layout in layouts if layout.undo is Undo.CHANGE_LOG}
        if not logs or not self._dialect.numbers_changes:
            return None
        ((newest,),) = self._session.rows(
            "SELECT max(id) FROM {log}", log=self._dialect.name(logs.pop())
        )
        return int(newest or 0) + 1

    def capture(self, loaded: Sequence[Loaded], floor: int, first: int | None) -> None:
        """Keep what a round of a merge is about to change, for blocks above `floor`."""
        hot = [table for table in loaded if table.changes.newest > floor]
        changes = [table for table in hot if table.layout.undo is Undo.CHANGE_LOG]
        if changes:
            log = ChangeLog(self._dialect, self._dialect.name(changes[0].layout.block_column))
            numbered = first is not None
            self._session.run(
                "INSERT INTO {log} ({id} op, table_name, pk, prev_value, block_num, stream_id) "
                "SELECT {place} op, table_name, pk, prev_value, block, $1::text "
                "FROM ({rows}) AS kept ORDER BY place",
                [self._id],
                log=log.name(changes[0].layout),
                id=Fragment("id," if numbered else ""),
                place=Fragment(f"{first} + place," if numbered else ""),
                rows=Fragment(" UNION ALL ".join(log.rows(table, floor) for table in changes)),
            )
        for table in hot:
            if table.layout.undo is Undo.KEYED:
                self._capture_rows(table)

    def _unclaimed(self, name: QualifiedName, log: str) -> Layout:
        layout: Layout | None = self._dialect.read_table(self._session, name)
        if layout is None or not layout.key:
            raise TableMismatchError("a table that must be restored is gone", table=name.full)
        return layout.undone(Undo.CHANGE_LOG, log)

    def _exists(self, name: QualifiedName) -> bool:
        return self._dialect.exists(self._session, name)

    # --- what each database does in its own way ---------------------------------------------------

    @abstractmethod
    def _restore(self, layouts: Sequence[Layout], number: int) -> None:
        """Put tables back from their images."""

    @abstractmethod
    def _capture_rows(self, loaded: Loaded) -> None:
        """Keep the rows that a merge meets in snapshots, unless triggers do."""


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
        store.side.write({CURSORS_SIDE: pa.table({name: [value] for name, value in row.items()})})
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
        between = (BlockCursor(number, UNKNOWN_HASH) for number in range(first, block.number))
        return (*floor, *between, block)


def cursor_at(store: Store, number: int) -> str | None:
    """Return the endpoint's cursor of a block that is stored."""
    rows = store.side.read(CURSORS_SIDE, (number - 1, 2**62), number)
    return rows["cursor"][0].as_py() if rows.num_rows else None
