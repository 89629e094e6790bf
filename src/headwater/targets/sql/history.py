"""Changes into tables, with a change log that undoes them: PostgreSQL or DuckDB as a target.

Four phases: while a block can still be reorganized, the rows before its changes are written to
`substreams_history`; a fork is a rollback to a safe cursor; the rows above it are put back to what
the change log says, a set at a time; and what is final is forgotten. All of it happens in the
transaction that also changes the tables and stores the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes import CHANGES_SCHEMA, TableSchema, check, fold
from headwater.core import Batch, BlockCursor, BlockRange, PipeState
from headwater.core.rooms import Policy
from headwater.core.several import Several
from headwater.errors import (
    ChangeBlockError,
    ChangeFormError,
    EvolveError,
    InvalidOptionError,
    PrimaryKeyNeededError,
    TableDeclarationError,
    UnknownTableError,
)
from headwater.targets.admin import check_address, kind_of
from headwater.targets.contract import Capabilities, Delivery
from headwater.targets.database import Callbacks
from headwater.targets.extras import import_extra
from headwater.targets.frames import executor_rows
from headwater.targets.sql.aggregates import Aggregate
from headwater.targets.sql.changes import Rounds, Shape, TableChanges
from headwater.targets.sql.database import Database
from headwater.targets.sql.flow import SqlTarget
from headwater.targets.sql.layout import Layout, Table
from headwater.targets.sql.merger import Merger
from headwater.targets.sql.state import CURSORS, CursorTable
from headwater.targets.sql.undo import CHANGE_LOG, ChangeLog, FinalOf, SinkTables, cursor_at
from headwater.targets.text import Fragment, QualifiedName, quote
from headwater.targets.values import check_policy

if TYPE_CHECKING:
    from headwater.targets.duckdb import DuckDBSettings
    from headwater.targets.postgres import PostgresSettings


def history_target(
    place: str | Path,
    *,
    tables: Several[str | TableSchema],
    history_table: str = CHANGE_LOG,
    cursors_table: str = CURSORS,
    aggregates: Iterable[Aggregate] = (),
    settings: PostgresSettings | DuckDBSettings | None = None,
    shared_with_sink: FinalOf | None = None,
    unrepresentable: str = "replace",
) -> HistoryTarget:
    """Apply a stream of changes to tables of PostgreSQL or DuckDB.

    The stream's transforms return tables of changes (`headwater.changes`): every frame of a batch
    is one, and they are applied together, by block and ordinal.

    Args:
        place: `postgresql://…` or libpq's `key=value` form, or the path of a DuckDB file.
        tables: every table that changes may name: a `TableSchema`, which is created if it is
            missing, or the name of a table that exists. All need a primary key.
        history_table: where the rows before their change are kept.
        cursors_table: where the cursor is shown, one row per stream.
        aggregates: tables that sum up outputs, made by `aggregate(...)`. An output that is not a
            table of changes may only be their source.
        settings: those of the database's own target: the stream id, the schema, the state's table.
        shared_with_sink: for a Substreams stream whose id is its module's hash: go on where
            substreams-sink-sql stopped in this database, and keep `cursors` in its form, so that it
            can go on too. `headwater.substreams.cursor_text.final_block` is what it takes.
        unrepresentable: what is done with a text that a column cannot hold: `"replace"`, `"null"`
            or `"stop"`. No change is left out, so `"skip"` replaces, too.
    """
    declared = _checked_names(tables, history_table, cursors_table)
    check_address(place, "postgres", "duckdb")
    extra = "duckdb" if isinstance(place, Path) else kind_of(place)
    kind: type[Database[Any]] = import_extra(extra, "DATABASE", ".target")
    if settings is not None and not isinstance(settings, kind.settings_type):
        raise InvalidOptionError(
            f"this database takes {kind.settings_type.__name__}", got=type(settings).__name__
        )
    policy, database = check_policy(unrepresentable), kind(place, settings)
    log, cursors = map(database.settings.sync.beside, (history_table, cursors_table))
    return HistoryTarget(database, declared, log, cursors, aggregates, policy, shared_with_sink)


def _checked_names(
    tables: Iterable[str | TableSchema], change_log: str, cursors: str
) -> tuple[str | TableSchema, ...]:
    """Check what the user gave."""
    declared = tuple(tables)
    names = [_table_name(table) for table in declared]
    if isinstance(tables, str) or not declared or len(set(names)) < len(names):
        raise TableDeclarationError(
            "tables= takes a list of names and TableSchemas, each table once", tables=names
        )
    if change_log == cursors or {change_log, cursors} & set(names):
        raise InvalidOptionError(
            "the tables of the target itself need names of their own",
            history_table=change_log,
            cursors_table=cursors,
        )
    return declared


def _table_name(table: str | TableSchema) -> str:
    """Return the name by which changes call a table."""
    return table if isinstance(table, str) else table.name


@dataclass(frozen=True, slots=True)
class Folded:
    """The folded changes of a batch, and the blocks between which they lie.

    Worked out ahead, they are `laid_out` as frames too, for the tables as `shapes` has them. A fork
    may undo blocks above `floor`, which the commit knows.
    """

    rows: pa.Table
    blocks: tuple[int, int] | None = None
    laid_out: Sequence[TableChanges] | None = None
    shapes: Mapping[str, Shape] | None = None
    floor: int = 0


class HistoryTarget(SqlTarget):
    """Made by `history_target`. All calls come from one thread; it may be opened again after close.

    Its tables have a change log instead of snapshots. Tables are prepared by its `on_start`, and
    changes applied by its `on_data`. `_shapes` are the tables as changes see them, by the names
    that changes call them; another start replaces them all, since another thread may use them.
    """

    def __init__(
        self,
        database: Database[Any],
        tables: Sequence[str | TableSchema],
        log: QualifiedName,
        cursors: QualifiedName,
        aggregates: Iterable[Aggregate],
        policy: Policy,
        final_of: FinalOf | None,
    ) -> None:
        dialect = database.dialect
        own = [Table(name, untracked=True) for name in (log, cursors)]
        named = [dialect.declare(_table_name(table)) for table in tables]
        declared = [*own, *(replace(table, change_log=log.full) for table in named)]
        callbacks = Callbacks.check(self._apply_changes, self._prepare_tables)
        super().__init__(database, declared, aggregates, callbacks, policy)
        self._dialect, self._given = dialect, tables
        self._log, self._change_log = log, ChangeLog(dialect, log)
        self._cursors, self._shown = cursors, CursorTable(dialect, cursors)
        self._sink = SinkTables(cursors, log, final_of) if final_of else None
        self._shapes: dict[str, Shape] = {}
        self._layouts: dict[str, Layout] = {}
        self._rounds = Rounds({})
        self._arrange: Callable[[TableChanges], TableChanges] = Merger.arrange
        self._fillable: frozenset[str] = frozenset()

    # --- inside transactions ----------------------------------------------------------------------

    def _prepare_tables(self, tx: Any) -> None:
        """Create what is missing, and look at the tables. Doing it again changes nothing."""
        session, dialect = tx.session, self._dialect
        dialect.make_schema(session, self._log.schema)
        self._change_log.create(session)
        self._shown.create(session)
        shapes: dict[str, Shape] = {}
        self._layouts.clear()
        for declared in self._given:
            name = _table_name(declared)
            self._create(tx, declared)
            layout = tx.store.catalog.layout(dialect.name(name))
            if layout is None:
                raise self._unknown(session, dialect.name(name))
            if not layout.key:
                raise PrimaryKeyNeededError(
                    "a table without a primary key",
                    table=layout.name.full,
                    columns=", ".join(layout.columns),
                )
            self._layouts[name] = layout
            shapes[name] = tx.store.merger.shape(name, layout).agreed(declared)
        tx.store.catalog.claim_cursors(self._cursors)
        if self._sink is not None:
            self._sink.take_over(tx.store)
        dialect.check_change_log_tables(session, [layout.name for layout in self._layouts.values()])
        self._arrange = tx.store.merger.arrange
        self._rounds, self._shapes = Rounds(shapes), shapes

    def _create(self, tx: Any, declared: str | TableSchema) -> None:
        name = self._dialect.name(_table_name(declared))
        if isinstance(declared, str) or self._dialect.exists(tx.session, name):
            return
        types = tx.store.merger.types
        parts = [f"{quote(column)} {types[kind]}" for column, kind in declared.columns.items()]
        self._dialect.make_schema(tx.session, name.schema)
        tx.session.run(
            "CREATE TABLE {table} ({parts}, PRIMARY KEY ({key}))",
            table=name,
            parts=Fragment(", ".join(parts)),
            key=declared.key,
        )

    def _unknown(self, session: Any, name: QualifiedName) -> UnknownTableError:
        tables = sorted(
            table.name
            for table in self._dialect.tables(session)
            if table.folded[0] == name.folded[0]
        )
        return UnknownTableError(
            "the database has no such table", table=name.full, known=", ".join(tables) or "none"
        )

    def _apply_changes(self, tx: Any, data: object, work: Folded | None) -> None:
        """Apply the changes of a commit; again if its transaction has to be tried again."""
        if work is None:
            return
        merger = tx.store.merger
        rounds: Iterable[Sequence[TableChanges]] = [work.laid_out] if work.laid_out else []
        if work.laid_out is None:
            rounds = merger.rounds(self._rounds, self._shapes.values(), work.rows, work.floor)
        fitted = (
            [tx.fitted_changes(changes, self._layouts[changes.shape.name]) for changes in group]
            for group in rounds
        )
        merger.apply(fitted, self._layouts, work.floor)

    def _show_state(self, state: PipeState) -> None:
        """Show the cursor, and forget what became final. Called by every commit and rollback."""
        store, stream_id = self._store, self._id
        text = None if self._sink is None else cursor_at(store, state.number)
        self._shown.show(store.session, stream_id, state, text=text)
        store.session.run(
            "DELETE FROM {log} WHERE stream_id = $1 AND block_num <= $2",
            [stream_id, state.undo_floor],
            prepare=True,
            log=self._log,
        )

    # --- the loop's calls -------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """Those of every SQL target; changes are folded where they lie."""
        return replace(
            super().capabilities,
            prepare_batch=self.prepare_batch,
            prepare_rows=self.prepare_rows,
        )

    def prepare_rows(self, tables: Mapping[str, pa.Table]) -> Folded | None:
        """Check, fold and lay out changes of final blocks ahead of their batch, in any thread.

        Depends on the shapes of the tables alone, which only a start reads. None: nothing is
        prepared ahead, since the target is not open or aggregates read the changes as well.
        """
        shapes = self._shapes
        if not shapes or self._aggregates.sources:
            return None
        changes = _checked(tables, shapes)
        blocks = _ends(changes)
        last = blocks[1] if blocks else 0
        rows = fold(changes, finalized=last)
        return Folded(rows, blocks, self._lay_out(rows, last), shapes)

    def _lay_out(self, folded: pa.Table, last: int) -> list[TableChanges]:
        """Return the frames of folded changes of final blocks up to `last`. In any thread."""
        rounds = self._rounds.by_block(folded, last)
        return [self._arrange(changes) for group in rounds for changes in group]

    def prepare_batch(self, batch: Batch[Delivery]) -> Batch[Delivery]:
        """Return a batch whose changes are checked; those of final blocks are folded by executors.

        Called by the loop when a batch is transformed; `commit` takes what it returns.
        """
        if not self._shapes:
            self.recover()
        shapes, ahead = self._shapes, batch.data.ahead
        if isinstance(ahead, Folded) and ahead.shapes is shapes and not batch.state.is_hot:
            return batch.with_data(Delivery({}, ahead, batch.data.side))
        data, sources = batch.data.data, self._aggregates.sources
        frames = {
            name: frame
            for name, frame in data.items()
            if name not in sources or not _lacking(frame)
        }
        far = [] if batch.state.is_hot else [executor_rows(frame) for frame in frames.values()]
        if far and all(rows is not None and rows.reaches_driver for rows in far):
            from headwater.spark.folding import fold_on_executors

            for name, frame in frames.items():
                _refuse_other_frames(name, frame)
            changes, tables = list(frames.values()), _schemas(shapes)
            prepared: Any = Folded(*fold_on_executors(changes, tables, batch.state.number))
        else:
            prepared = _checked(frames, shapes)
        summed = {name: frame for name, frame in data.items() if name in sources}
        return batch.with_data(Delivery(summed, prepared, batch.data.side))

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Apply the batches and store their state in one transaction.

        Changes of several batches are applied together; hot blocks can still be undone one by one.
        """
        before = self._state.cursor
        for batch in batches:
            _refuse_blocks(batch.data.ctx, before, batch.state.cursor)
            before = batch.state.cursor
        folded: list[Batch[Delivery]] = []
        if batches:
            works = _works([batch.data.ctx for batch in batches], state.undo_floor)
            folded = [
                batch.with_data(Delivery(batch.data.data, work, batch.data.side))
                for batch, work in zip(batches, works, strict=True)
            ]
        super().commit(folded, state)

    # --- blocks that the stream has passed --------------------------------------------------------

    def begin_fill(self, outputs: Collection[str], tables: Sequence[str] | None) -> Sequence[str]:
        """Return the tables that are empty: only there no change of a later block comes first."""
        if tables is None:
            names = {name: layout.name for name, layout in self._layouts.items()}
            tables = sorted(name for name, table in names.items() if not self.holds_rows(table))
        self._fillable = frozenset(tables)
        return tables

    def first_block(self, output: str) -> int | None:
        """Refuse: what changes made of a row is in no block of its own."""
        raise EvolveError(
            "rows that changes have made cannot be replaced block by block; give the stream a new "
            "id and other tables",
            output=output,
        )

    def fill(
        self,
        batches: Sequence[tuple[BlockRange, Batch[Delivery]]],
        config: str,
        *,
        replace: bool,
    ) -> None:
        """Apply changes of final blocks to tables that nothing else has written, with how far."""
        prepared = [batch.data.ctx for _, batch in batches]
        self._check_tables(prepared)
        for (covered, batch), changes in zip(batches, prepared, strict=True):
            before = BlockCursor(covered.from_block - 1) if covered.from_block else None
            _refuse_blocks(changes, before, batch.state.cursor)
        works = _works(prepared, self._state.number)
        folded = [
            (covered, batch.with_data(Delivery(batch.data.data, work, batch.data.side)))
            for (covered, batch), work in zip(batches, works, strict=True)
        ]
        super().fill(folded, config, replace=replace)

    def _check_tables(self, prepared: Sequence[pa.Table | Folded]) -> None:
        """Refuse changes to tables that others have written."""
        for changes in prepared:
            rows = changes.rows if isinstance(changes, Folded) else changes
            others = sorted(set(pc.unique(rows["table"]).to_pylist()) - self._fillable)
            if others:
                raise EvolveError(
                    "an output that was added changes a table that held rows: changes of earlier "
                    "blocks would come after later ones; let it write tables of its own",
                    tables=", ".join(others),
                )


def _works(prepared: Sequence[pa.Table | Folded], floor: int) -> list[Folded | None]:
    """Return what each batch of a commit does; changes on the driver are folded all together."""
    if any(isinstance(changes, Folded) for changes in prepared):
        return [
            replace(changes, floor=floor)
            if isinstance(changes, Folded)
            else Folded(fold(changes, finalized=floor), floor=floor)
            for changes in prepared
        ]
    joined = Folded(fold(pa.concat_tables(prepared), finalized=floor), floor=floor)
    return [joined, *[None] * (len(prepared) - 1)]


def _lacking(frame: Any) -> list[str]:
    """Return the columns that a frame lacks to be a table of changes."""
    names = frame.column_names if isinstance(frame, pa.Table) else frame.columns
    return [name for name in CHANGES_SCHEMA.names if name not in names]


def _refuse_other_frames(name: str, frame: Any) -> None:
    missing = _lacking(frame)
    if missing:
        raise ChangeFormError(
            "a frame is not a table of changes", frame=name, missing=", ".join(missing)
        )


def _to_arrow(name: str, frame: Any) -> pa.Table:
    """Return a frame of changes as Arrow; a Spark DataFrame is collected on the driver."""
    table = frame if isinstance(frame, pa.Table) else frame.toArrow()
    _refuse_other_frames(name, table)
    return table.select(CHANGES_SCHEMA.names).cast(CHANGES_SCHEMA)


def _schemas(shapes: Mapping[str, Shape]) -> list[TableSchema]:
    return [shape.schema() for shape in shapes.values()]


def _checked(frames: Mapping[str, Any], shapes: Mapping[str, Shape]) -> pa.Table:
    """Return the changes of all frames together, compared with the tables."""
    arrow = [_to_arrow(name, frame) for name, frame in frames.items()]
    changes = pa.concat_tables(arrow) if arrow else CHANGES_SCHEMA.empty_table()
    return check(changes, _schemas(shapes))


def _ends(changes: pa.Table) -> tuple[int, int] | None:
    """Return the lowest and the highest block of changes; None if there are none."""
    ends = pc.min_max(changes["block_number"])
    return (ends["min"].as_py(), ends["max"].as_py()) if changes.num_rows else None


def _refuse_blocks(
    changes: pa.Table | Folded, before: BlockCursor | None, cursor: BlockCursor | None
) -> None:
    """Refuse changes of blocks that the batch does not hold: a fork would undo them wrongly."""
    blocks = changes.blocks if isinstance(changes, Folded) else _ends(changes)
    if blocks is None or cursor is None:
        return
    lowest, highest = blocks
    first = 0 if before is None else before.number + 1
    if lowest < first or highest > cursor.number:
        raise ChangeBlockError(
            "changes of blocks that are not the batch's",
            changes=f"{lowest}..{highest}",
            batch=f"{first}..{cursor.number}",
        )
