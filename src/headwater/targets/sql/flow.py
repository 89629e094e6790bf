"""The flow of a target with transactions: rows, cursor, rollback chain and undo change together.

A crash leaves nothing behind, because what is not committed does not exist. How a database is
opened, and what a transaction is, says the `Database` that the target is given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa

from headwater.core import Batch, BlockRange, PipeState
from headwater.core.rooms import Policy
from headwater.core.several import Several
from headwater.errors import EvolveError, InvalidOptionError, StateMissingError
from headwater.targets.contract import Capabilities, Delivery, Scope, SideTable, StoredConfig
from headwater.targets.database import Callbacks, DatabaseTarget, Found
from headwater.targets.sql.aggregate_tables import Aggregates
from headwater.targets.sql.aggregates import Aggregate, Plan
from headwater.targets.sql.database import Database, OpenedStream, Store
from headwater.targets.sql.layout import Layout, Table, Undo
from headwater.targets.sql.side_tables import SideTables
from headwater.targets.sql.undo import KEPT
from headwater.targets.tables import TableOptions, declare_tables
from headwater.targets.text import QualifiedName

PRUNE_EVERY = 25
_BELOW_ALL = -1  # the number below all blocks
_ANY = "SELECT 1 FROM {t} LIMIT 1"
logger = logging.getLogger("headwater.targets")


class SqlTarget(DatabaseTarget):
    """Commits and undoes batches in a database that it is given."""

    def __init__(
        self,
        database: Database[Any],
        tables: Several[str | TableOptions | Table] | None = (),
        aggregates: Iterable[Aggregate] = (),
        callbacks: Callbacks | None = None,
        policy: Policy = Policy.REPLACE,
    ) -> None:
        callbacks, dialect = callbacks or Callbacks(), database.dialect
        super().__init__(callbacks, database.settings.id, policy)
        if callbacks.on_data is not None and tables is None:
            raise dialect.errors.undeclared("on_data is given, but not the tables that it writes")
        declared = [dialect.declare(table) for table in declare_tables(tables or (), Table)]
        self._database = database
        self._aggregates = Aggregates(tuple(aggregates), declared)
        log = next((table.change_log for table in declared if table.change_log), None)
        self._tables = (*declared, *self._aggregates.tables(dialect, log))
        self._commits = self._undo_rows = 0
        self._side_tables: tuple[SideTable, ...] = ()

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It keeps side tables and the configuration, and can be given rows of earlier blocks.

        Aggregates read frames a second time.
        """
        return replace(
            super().capabilities,
            rereads=bool(self._aggregates),
            history=self,
            undo_rows=self._count_undo_rows,
            file=self._database.file,
        )

    def _count_undo_rows(self) -> int:
        return self._undo_rows

    @property
    def plans(self) -> Sequence[Plan]:
        """The tables that sum up outputs, and how: for `verify`, which sums up once more."""
        return self._aggregates.plans

    @property
    def untracked(self) -> list[QualifiedName]:
        """The tables that are declared, and of which nothing is stored: for `verify`."""
        return [table.name for table in self._tables if table.untracked]

    # --- opening ----------------------------------------------------------------------------------

    def recover(self) -> PipeState:
        """Open the database and return the committed state. Transactions leave nothing to repair,
        but the cursor may have been moved, or a callback may have ended one: rows above it go.
        """
        self._connect(self._recover)
        return self._state

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Open the database, and create what is missing."""
        self._side_tables = tuple(tables)
        if self._is_open:
            self._change(lambda: self._store.side.create(self._side_tables))
        else:
            self._connect()

    def close(self) -> None:
        """Close the database. What was not committed is gone."""
        self._database.close()

    def _connect(self, look: Callable[[], None] | None = None) -> None:
        stream = OpenedStream(
            self._id,
            self._tables,
            self._side_tables,
            self._callbacks.on_data is None,
            self._callbacks.on_start,
            self.altered,
            self._adopt,
            self._announce,
            self.pause,
        )
        if not self._is_open:
            self._commits = 0
        self._database.connect(stream, look)

    def _recover(self) -> None:
        self._state = self._store.sync.load()
        self._check_missing_state()
        self._store.side.remove_above(self._state.number)
        self._undo_leftovers()

    # --- the loop's calls -------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Write the batches and their state in one transaction."""
        self._open()
        states = [self._state, *(batch.state for batch in batches[:-1]), state]
        steps = [(*pair, Scope.between(*pair)) for pair in pairwise(states)] if batches else []

        def write() -> None:
            sync = self._store.sync
            self.altered.begin()
            if batches and self._state.cursor is None:
                self._refuse_rows_of_others(batches[0])
            for batch, (before, after, scope) in zip(batches, steps, strict=True):
                self._write(batch.data, scope)
                self._store.side.write(batch.data.side)
                sync.append(after, before)
            if not batches:
                sync.settle(state)
            self._show_state(state)
            if self._commits % PRUNE_EVERY == 0:
                self._prune(state)

        with self._repaired():
            self._database.transaction(write, steps[0][2] if steps else None)
        self._state = state
        self.altered.committed()
        self._commits += 1
        self._store.catalog.cursor = None if state.cursor is None else state.number

    def roll_back(self, state: PipeState) -> None:
        """Restore every table and the state in one transaction."""
        self._open()
        self._state.check_reach(state)
        before, after = self._callbacks.before_rollback, self._callbacks.after_rollback

        def undo() -> None:
            store, tx = self._store, self._database.tx()
            store.sync.check_undo(state.number)
            if before is not None:
                before(tx, state.cursor)
                tx.finish()
            store.undo.restore(store.catalog.undoable(), state.number)
            store.side.remove_above(state.number)
            store.sync.roll_back(state)
            self._show_state(state)
            if after is not None:
                after(tx, state.cursor)
                tx.finish()

        with self._repaired():
            self._database.transaction(undo)
        self._state = state

    def _show_state(self, state: PipeState) -> None:
        """Show other programs the state that a transaction stores, for targets that do."""

    def _check_missing_state(self) -> None:
        """Refuse an empty state while anything else of the stream exists. Nothing is changed.

        What each stream asked for is no sign: it is stored before the first commit.
        """
        if self._state.cursor is not None:
            self._store.catalog.cursor = self._state.number
            self._store.config.adopt()
            return
        undo, layouts = self._store.undo, self._store.catalog.undoable()
        logs = {
            str(undo.log(layout).name(layout))
            for layout in layouts
            if layout.undo in KEPT and undo.holds_above([layout], _BELOW_ALL)
        }
        kept = [*sorted(logs), *self._store.side.held(), *self._filled(layouts)]
        if kept:
            raise StateMissingError(
                "no cursor is stored, but other rows of the stream are",
                stream=self._id,
                state=self._database.settings.table,
                tables=", ".join(kept),
            )

    def _filled(self, layouts: Iterable[Layout]) -> list[str]:
        """Return tables with rows that only a commit can have claimed for the stream.

        A table that was declared is claimed before the first commit, and may hold the user's own.
        """
        if self._callbacks.on_data is not None:
            return []
        declared = {table.name.folded for table in self._tables}
        return [
            str(layout.name)
            for layout in layouts
            if layout.undo is Undo.APPEND_ONLY
            and layout.name.folded not in declared
            and self._store.session.rows(_ANY, t=layout.name)
        ]

    def _refuse_rows_of_others(self, first: Batch[Delivery]) -> None:
        """Refuse rows that a fork would remove, before the first batch: none is the stream's."""
        catalog, header = self._store.catalog, first.headers[0] if first.headers else None
        catalog.cursor = (first.state.number if header is None else header.number) - 1
        for layout in catalog.undoable():
            catalog.refuse_rows(layout)

    def _undo_leftovers(self) -> None:
        """Undo what lies above the cursor though no commit has brought it there.

        A callback that ended its transaction made rows visible without their cursor. Without a
        cursor at all, rows of append-only tables are left alone: they may be the user's own.
        """
        layouts, number = self._store.catalog.undoable(), self._state.number
        if self._state.cursor is None:
            layouts = [layout for layout in layouts if layout.undo is not Undo.APPEND_ONLY]
        if self._store.undo.holds_above(layouts, number):
            logger.warning("rows.undone id=%s above=%d", self._id, number)
            self._store.undo.restore(layouts, number)

    def _change(self, work: Callable[[], None]) -> None:
        """Do something in one transaction; the state stays as it is."""
        self._open()
        with self._repaired():
            self._database.transaction(work)

    @contextmanager
    def _repaired(self) -> Iterator[None]:
        """If a callback has ended the transaction, undo what that left."""
        try:
            yield
        except self._database.ended as error:
            try:
                self._database.transaction(self._undo_leftovers)
            except Exception as failure:  # noqa: BLE001 - the next start does it
                error.add_note(f"Rows above the cursor were not undone yet: {failure}")
            raise

    def _look(self, work: Callable[[], Found]) -> Found:
        results: list[Found] = []
        self._open()
        self._database.look(lambda: results.append(work()))
        return results[-1]

    def _open(self) -> None:
        if not self._database.is_open:
            self.recover()

    def stored_config(self) -> StoredConfig:
        """Return where the text of this stream's configuration is kept."""
        return _Config(
            lambda: self._look(lambda: self._store.config.read()),
            lambda text: self._change(lambda: self._store.config.write(text)),
        )

    # --- blocks that the stream has passed --------------------------------------------------------

    is_atomic: ClassVar[bool] = True

    def begin_fill(self, outputs: Collection[str], tables: Sequence[str] | None) -> Sequence[str]:
        """Refuse an added output whose table holds rows. Tables of `on_data` are the user's."""
        if self._callbacks.on_data is None and tables is None:
            for name in map(self._output_table, outputs):
                if self.holds_rows(name):
                    raise EvolveError(
                        "the table of an output that was added holds rows already; drop or rename "
                        "it",
                        table=name,
                    )
        return ()

    def holds_rows(self, name: QualifiedName) -> bool:
        """Tell whether a table is there and has rows."""

        def look() -> bool:
            exists = self._store.catalog.layout(name) is not None
            return exists and bool(self._store.session.rows(_ANY, t=name))

        return self._look(look)

    def first_block(self, output: str) -> int | None:
        """Return the first block of an output's table; refuse one whose rows cannot be replaced."""
        if self._callbacks.on_data is not None or output in self._aggregates.sources:
            raise EvolveError(
                "rows of an output that on_data writes, or aggregates sum up, cannot be replaced",
                output=output,
            )
        return self._look(lambda: self._first_block(output))

    def _first_block(self, output: str) -> int | None:
        layout = self._store.catalog.layout(self._output_table(output))
        if layout is None:
            return None
        block = self._store.catalog.spelled(layout, layout.block_column)
        known = layout.undo in (Undo.APPEND_ONLY, Undo.KEYED)  # a key: rows are inserted, too
        if not known or block not in layout.columns:
            raise EvolveError(
                "rows of a table that is not undone, or lacks the number of their block, cannot be "
                "replaced; let a stream with an id of its own fill another table",
                table=layout.name,
                column=block,
                undo=layout.undo.value,
            )
        rows = self._store.session.rows(
            "SELECT min({block})::bigint FROM {table}", block=block, table=layout.name
        )
        return self._state.number + 1 if rows[0][0] is None else int(rows[0][0])

    def fill(
        self,
        batches: Sequence[tuple[BlockRange, Batch[Delivery]]],
        config: str,
        *,
        replace: bool,
    ) -> None:
        """Write rows of final blocks and the configuration in one transaction; the state stays.

        If the answer to a COMMIT was lost, the configuration tells that it has succeeded.
        """
        scopes = [
            Scope(batch.state.number, covered.from_block - 1, hot=False)
            for covered, batch in batches
        ]

        def write() -> None:
            self.altered.begin()
            if self._store.config.read() != config:
                for (_, batch), scope in zip(batches, scopes, strict=True):
                    self._write(batch.data, scope, replace=replace)
                self._store.config.write(config)

        self._open()
        with self._repaired():
            self._database.transaction(write, scopes[0])
        self.altered.committed()

    def rename_outputs(self, renamed: Mapping[str, str], begun: str, config: str) -> None:
        """Rename tables and store the configuration, in one transaction.

        Tables of `on_data` have the names that the user's code gives them.
        """

        def change() -> None:
            if self._store.config.read() == config:
                return
            for new, old in renamed.items():
                if self._callbacks.on_data is None:
                    names = self._output_table(old), self._output_table(new)
                    self._store.catalog.rename(*names)
            self._store.config.write(config)

        self._change(change)

    def _output_table(self, output: str) -> QualifiedName:
        """Return the table of an output: a name with a point is not one of a schema."""
        return self._database.dialect.name(_quoted(output))

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Remove rows up to a key and add those that moved, in one transaction."""
        self._change(lambda: self._store.side.settle(name, up_to, moved))

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Read what is committed, also while the stream runs."""
        session = self._database.reader()
        try:
            return session.arrow(sql, params)
        finally:
            session.close()

    def _write(self, delivery: Delivery, scope: Scope, *, replace: bool = False) -> None:
        data, on_data, tx = delivery.data, self._callbacks.on_data, self._database.tx(scope)
        if on_data is None:
            self._check_apart(data)
            for name, frame in data.items():
                (tx.replace_blocks if replace else tx.insert)(_quoted(name), frame)
        else:
            on_data(tx, data, delivery.ctx)
        self._aggregates.write(tx, data, scope)
        tx.finish()

    def _check_apart(self, outputs: Iterable[str]) -> None:
        """Refuse outputs whose names are one name to the database: their rows would be mixed."""
        tables: dict[object, str] = {}
        for output in outputs:
            other = tables.setdefault(self._output_table(output).folded, output)
            if other != output:
                raise InvalidOptionError(
                    "two outputs have one table, for the database takes their names for the same",
                    got=f"{other!r}, {output!r}",
                )

    def _prune(self, state: PipeState) -> None:
        """Remove undo data that no legal fork needs, and count what is left."""
        number = state.prunable(self._database.settings.unfinalized_blocks_retention)
        layouts = self._store.catalog.undoable()
        if number >= 0:
            self._store.sync.prune(number)
            for layout in layouts:
                self._store.undo.prune(layout, number)
        self._undo_rows = sum(map(self._store.undo.count, layouts))

    @property
    def _is_open(self) -> bool:
        return self._database.is_open

    @property
    def _store(self) -> Store:
        return self._database.store

    @property
    def _side(self) -> SideTables:
        return self._store.side


def _quoted(name: str) -> str:
    """Return an output's name as one of a table, which a point does not divide."""
    return f'"{name}"' if "." in name else name


@dataclass(frozen=True, slots=True)
class _Config:
    """The stored configuration, read and written in transactions that are tried again."""

    read: Callable[[], str | None]
    write: Callable[[str], None]
