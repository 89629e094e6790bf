"""The flow of a target with transactions: rows, cursor, rollback chain and undo change together.

A crash leaves nothing behind, because what is not committed does not exist. What a transaction is,
and how a database is opened, is up to the targets that derive from this one.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import pyarrow as pa

from headwater.address import Address
from headwater.core import Batch, BlockRange, PipeState
from headwater.core.rooms import Policy
from headwater.errors import EvolveError, HeadwaterError, StateMissingError
from headwater.targets.contract import Capabilities, Delivery, Scope, SideTable, StoredConfig
from headwater.targets.database import Callbacks, DatabaseTarget
from headwater.targets.side_rows import stored_id
from headwater.targets.sql.aggregates.declaration import Aggregate, Plan
from headwater.targets.sql.aggregates.writer import Aggregates
from headwater.targets.sql.catalog import Catalog, Layout, Undo
from headwater.targets.sql.dialect import Dialect, Session
from headwater.targets.sql.merge.merger import Merger
from headwater.targets.sql.settings import StateSettings, Table, table
from headwater.targets.sql.side_tables import ConfigTable, SideTables
from headwater.targets.sql.state import Newest, SyncTable
from headwater.targets.sql.text import QualifiedName
from headwater.targets.sql.undo import KEPT, UndoLog
from headwater.targets.tables import TableOptions, declare_tables
from headwater.targets.values import Altered

PRUNE_EVERY = 25
_BELOW_ALL = -1  # of all blocks
Held = TypeVar("Held", bound=Session)
logger = logging.getLogger("headwater.targets")


@dataclass(frozen=True, slots=True)
class Store:
    """All that is kept of one stream in one database. Nothing is read before it is used."""

    session: Any
    sync: SyncTable
    catalog: Catalog[Any, Any]
    undo: UndoLog[Any, Any]
    merger: Merger[Any, Any]
    side: SideTables
    config: ConfigTable
    altered: Altered = field(default_factory=Altered)

    @classmethod
    def of(
        cls,
        session: Any,
        settings: StateSettings,
        stream_id: str,
        catalog: Catalog[Any, Any],
        merger: Merger[Any, Any],
        undo: UndoLog[Any, Any],
        altered: Altered | None = None,
    ) -> Self:
        """Return what is kept of a stream. Nothing is read or created yet."""
        dialect, schema = catalog.dialect, settings.schema
        own_id = stored_id(settings.table, stream_id)
        return cls(
            session,
            SyncTable(session, dialect, settings.sync, stream_id),
            catalog,
            undo,
            merger,
            SideTables(session, dialect, schema, own_id),
            ConfigTable(session, dialect, schema, own_id, stream_id),
            altered or Altered(),
        )


class SqlTarget(DatabaseTarget, Generic[Held]):
    """Commits and undoes batches.

    `on_state` is called with each state that a commit or a rollback stores, inside its transaction,
    for targets built on this one: the session, the stream's id and the state.
    """

    dialect: ClassVar[Dialect[Any]]
    settings_type: ClassVar[type[StateSettings]]
    open_store: ClassVar[Callable[..., Store]]
    _store: Store
    ended: ClassVar[type[HeadwaterError]]  # a callback has ended the transaction

    def __init__(
        self,
        place: str | Path | Address,
        tables: Iterable[str | TableOptions | Table] | None,
        aggregates: Iterable[Aggregate],
        callbacks: Callbacks,
        settings: StateSettings | None,
        policy: Policy = Policy.REPLACE,
    ) -> None:
        self._settings = settings or self.settings_type()
        super().__init__(callbacks, self._settings.id, policy)
        if callbacks.on_data is not None and tables is None:
            raise self.dialect.errors.undeclared(
                "on_data is given, but not the tables that it writes"
            )
        declared = [self.dialect.declare(one) for one in declare_tables(tables or (), Table, table)]
        self.on_state: Callable[[Held, str, PipeState], None] | None = None
        self._place = self.dialect.locate(place)
        self._aggregates = Aggregates(tuple(aggregates), declared)
        log = next((one.change_log for one in declared if one.change_log), None)
        self._tables = (*declared, *self._aggregates.tables(self.dialect, log))
        self._commits = self._undo_rows = 0
        self._session: Held | None = None
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
        return [one.name for one in self._tables if one.untracked]

    @property
    def aggregated(self) -> set[str]:
        """The outputs that aggregates sum up."""
        return self._aggregates.sources

    @abstractmethod
    def recover(self) -> PipeState:
        """Open the database and return the committed state."""

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Write the batches and their state in one transaction."""
        session = self._opened()

        states = [self._state, *(batch.state for batch in batches[:-1]), state]
        scopes = [Scope.between(*pair) for pair in pairwise(states)] if batches else []

        def write() -> Newest | None:
            newest = None
            self.altered.begin()
            if batches and self._state.cursor is None:
                self._refuse_rows_of_others(batches[0])
            for batch, scope, pair in zip(batches, scopes, pairwise(states), strict=False):
                self._write(batch.data, scope)
                self._store.side.write(batch.data.side)
                newest = self._store.sync.append(pair[1], pair[0])
            if not batches:
                newest = self._store.sync.settle(state)
            if self.on_state is not None:
                self.on_state(session, self._id, state)
            if self._commits % PRUNE_EVERY == 0:
                self._prune(state)
            return newest

        self._change_whole(write, state, scopes[0] if scopes else None)
        self.altered.committed()
        self._commits += 1
        self._store.catalog.cursor = None if state.cursor is None else state.number

    def roll_back(self, state: PipeState) -> None:
        """Restore every table and the state in one transaction."""
        session = self._opened()
        self._state.check_reach(state)

        def undo() -> Newest | None:
            self._store.sync.check_undo(state.number)
            tx = self._tx()
            if self._callbacks.before_rollback is not None:
                self._callbacks.before_rollback(tx, state.cursor)
                tx.finish()
            self._store.undo.restore(self._store.catalog.undoable(), state.number)
            self._store.side.remove_above(state.number)
            newest = self._store.sync.roll_back(state)
            if self.on_state is not None:
                self.on_state(session, self._id, state)
            if self._callbacks.after_rollback is not None:
                self._callbacks.after_rollback(tx, state.cursor)
                tx.finish()
            return newest

        self._change_whole(undo, state)

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
            str(undo.log(one).name(one))
            for one in layouts
            if one.undo in KEPT and undo.holds_above([one], _BELOW_ALL)
        }
        kept = [*sorted(logs), *self._store.side.held(), *self._filled(layouts)]
        if kept:
            raise StateMissingError(
                "no cursor is stored, but other rows of the stream are",
                stream=self._id,
                state=self._settings.table,
                tables=", ".join(kept),
            )

    def _filled(self, layouts: Iterable[Layout]) -> list[str]:
        """Return tables with rows that only a commit can have claimed for the stream.

        A table that was declared is claimed before the first commit, and may hold the user's own.
        """
        if self._callbacks.on_data is not None:
            return []
        declared = {one.name.folded for one in self._tables}
        return [
            str(one.name)
            for one in layouts
            if one.undo is Undo.APPEND_ONLY
            and one.name.folded not in declared
            and self._store.session.rows("SELECT 1 FROM {t} LIMIT 1", t=one.name)
        ]

    def _refuse_rows_of_others(self, first: Batch[Delivery]) -> None:
        """Refuse rows that a fork would remove, before the first batch: none is the stream's."""
        catalog, header = self._store.catalog, first.headers[0] if first.headers else None
        catalog.cursor = (first.state.number if header is None else header.number) - 1
        for layout in catalog.undoable():
            catalog.refuse_rows(layout)

    def _undo_leftovers(self) -> Newest | None:
        """Undo what lies above the cursor though no commit has brought it there.

        A callback that ended its transaction made rows visible without their cursor. Without a
        cursor at all, rows of append-only tables are left alone: they may be the user's own.
        """
        layouts, number = self._store.catalog.undoable(), self._state.number
        if self._state.cursor is None:
            layouts = [one for one in layouts if one.undo is not Undo.APPEND_ONLY]
        if self._store.undo.holds_above(layouts, number):
            logger.warning("rows.undone id=%s above=%d", self._id, number)
            self._store.undo.restore(layouts, number)
        return self._newest()

    def _change_whole(
        self, work: Callable[[], Newest | None], state: PipeState, first: Scope | None = None
    ) -> None:
        """Do something in one transaction; if a callback has ended it, undo what that left."""
        try:
            self._change(work, state, first)
        except self.ended as error:
            try:
                self._change(self._undo_leftovers, self._state)
            except Exception as failure:  # noqa: BLE001 - the next start does it
                error.add_note(f"Rows above the cursor were not undone yet: {failure}")
            raise

    def close(self) -> None:
        """Close the database. What was not committed is gone."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def stored_config(self) -> StoredConfig:
        """Return where the text of this stream's configuration is kept."""
        return _Config(
            lambda: self._look(lambda: self._store.config.read()),
            lambda text: self._keep(lambda: self._store.config.write(text)),
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
            return exists and bool(self._opened().rows("SELECT 1 FROM {t} LIMIT 1", t=name))

        return self._look(look)

    def first_block(self, output: str) -> int | None:
        """Return the first block of an output's table; refuse one whose rows cannot be replaced."""
        if self._callbacks.on_data is not None or output in self.aggregated:
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
        rows = self._opened().rows(
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
        self._opened()
        scopes = [
            Scope(batch.state.number, one.from_block - 1, hot=False) for one, batch in batches
        ]

        def write() -> Newest | None:
            self.altered.begin()
            if self._store.config.read() != config:
                for (_, batch), scope in zip(batches, scopes, strict=True):
                    self._write(batch.data, scope, replace=replace)
                self._store.config.write(config)
            return self._newest()

        self._change_whole(write, self._state, scopes[0])
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

        self._keep(change)

    def _output_table(self, output: str) -> QualifiedName:
        """Return the table of an output: a name with a point is not one of a schema."""
        return self.dialect.name(_quoted(output))

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Remove rows up to a key and add those that moved, in one transaction."""
        self._keep(lambda: self._store.side.settle(name, up_to, moved))

    def _keep(self, work: Callable[[], None]) -> None:
        """Change what the stream keeps for itself, in one transaction; the state stays as it is."""
        self._opened()

        def change() -> Newest | None:
            work()
            return self._newest()

        self._change(change, self._state)

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Read what is committed, also while the stream runs."""
        session = self._reader()
        try:
            return session.arrow(sql, params)
        finally:
            session.close()

    def _newest(self) -> Newest | None:
        """Return the newest row of state, for a database where a change compares it."""
        return None

    def _opened(self) -> Held:
        if self._session is None:
            self.recover()
        assert self._session is not None, "recover opens it"
        return self._session

    def _write(self, delivery: Delivery, scope: Scope, *, replace: bool = False) -> None:
        data, on_data = delivery.data, self._callbacks.on_data
        with self._batch(scope) as tx:
            if on_data is None:
                for name, frame in data.items():
                    (tx.replace_blocks if replace else tx.insert)(_quoted(name), frame)
            else:
                on_data(tx, data, delivery.ctx)
            self._aggregates.write(tx, data, scope)

    def _prune(self, state: PipeState) -> None:
        """Remove undo data that no legal fork needs, and count what is left."""
        number = state.prunable(self._settings.unfinalized_blocks_retention)
        layouts = self._store.catalog.undoable()
        if number >= 0:
            self._store.sync.prune(number)
            for layout in layouts:
                self._store.undo.prune(layout, number)
        self._undo_rows = sum(map(self._store.undo.count, layouts))

    @property
    def _is_open(self) -> bool:
        return self._session is not None

    @property
    def _side(self) -> SideTables:
        return self._store.side

    # --- what each database does in its own way ---------------------------------------------------

    @abstractmethod
    def _change(
        self, work: Callable[[], Newest | None], state: PipeState, first: Scope | None = None
    ) -> None:
        """Do something in one transaction that leads to a state; `first` it writes that batch."""

    @abstractmethod
    def _batch(self, scope: Scope) -> AbstractContextManager[Any]:
        """Yield the `tx` in which a batch is written."""

    @abstractmethod
    def _tx(self) -> Any:
        """Return the `tx` of a callback that writes no batch."""

    @abstractmethod
    def _reader(self) -> Session:
        """Open a session of its own, which only reads."""


def _quoted(name: str) -> str:
    """Return an output's name as one of a table, which a point does not divide."""
    return f'"{name}"' if "." in name else name


@dataclass(frozen=True, slots=True)
class _Config:
    """The stored configuration, read and written in transactions that are tried again."""

    read: Callable[[], str | None]
    write: Callable[[str], None]
