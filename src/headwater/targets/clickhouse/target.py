"""ClickHouse as a target: data first, then the cursor; what lies above the cursor is taken back.

There are no transactions. A commit is the row of state that follows the data; a rollback is the row
of state that precedes the undo. So at any moment a crash leaves, at worst, rows above the stored
cursor, and every start removes these before anything is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, ClassVar

import pyarrow as pa

from headwater.core import Batch, BlockCursor, BlockRange, PipeState
from headwater.core.callbacks import NamedCallback
from headwater.core.rooms import Policy
from headwater.core.several import Several
from headwater.errors import (
    ClickHouseConnectionError,
    ClickHouseDatabaseError,
    EvolveError,
    RollbackHandlerMissingError,
    StateMissingError,
)
from headwater.targets.clickhouse.catalog import Catalog
from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.layout import Table
from headwater.targets.clickhouse.side_tables import LeasedConfig, SideTables
from headwater.targets.clickhouse.sql import TableName
from headwater.targets.clickhouse.state import ClickHouseSettings, Lease, SyncTable
from headwater.targets.clickhouse.store import Inserts, Params, Store
from headwater.targets.clickhouse.transfer import Attempts, TryAgain
from headwater.targets.clickhouse.undo import Undo
from headwater.targets.contract import Capabilities, Delivery, Scope, SideTable
from headwater.targets.database import (
    Callbacks,
    DatabaseTarget,
    Found,
    OnData,
    OnRollback,
    OnStart,
)
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.tables import TableOptions, declare_tables
from headwater.targets.values import check_policy

ROLLBACK_ARGUMENTS = ("type", "store", "cursor", "safe_cursor")

_BATCH_ATTEMPTS = 8  # of a batch that came apart; not of a server that is away
logger = logging.getLogger("headwater.targets.clickhouse")


def clickhouse_target(
    client_or_url: ClickHouseClient | str,
    *,
    tables: Several[str | TableOptions | Table] | None = None,
    on_data: OnData[Store] | None = None,
    on_start: OnStart[Store] | None = None,
    on_rollback: Callable[..., object] | None = None,
    on_before_rollback: OnRollback[Store] | None = None,
    on_after_rollback: OnRollback[Store] | None = None,
    unrepresentable: str = "replace",
    settings: ClickHouseSettings | None = None,
) -> ClickHouseTarget:
    """Write a stream to ClickHouse.

    Args:
        client_or_url: `http://user:password@host:8123/database?setting=value`, or a client. The
            caller's client stays open.
        tables: every table that `on_data` writes, as a name or `table(...)`. The target undoes
            forks and repairs crashes in these by itself. Without `on_data`, only those that need
            more than their name.
        on_data: `on_data(store, data)` or `on_data(store, data, ctx)`, called for each batch; again
            if what it wrote had to be removed. Left out, each output is inserted into the table of
            its own name.
        on_start: `on_start(store)`, called once before anything is read.
        on_rollback: called with those of `type`, `store`, `cursor` and `safe_cursor` that it has
            parameters for: at every start with a stored cursor (`type="offset_check"`), and after
            a fork (`"blockchain_fork"`). Everything above `safe_cursor.number` must go; what is
            named in `tables` has gone already.
        on_before_rollback: `on_before_rollback(store, cursor)`, called before the target removes
            what lies above a cursor: after a fork, and at every start with a stored cursor, because
            a crash may have interrupted the removal. The same names as for other targets.
        on_after_rollback: the same, after what is named in `tables` has gone.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, where the state is kept and for how long.
    """
    undo = (on_rollback, on_before_rollback, on_after_rollback)
    if on_data is not None and tables is None and not any(undo):
        raise RollbackHandlerMissingError("on_data is given, but nothing that undoes a fork")
    callbacks = Callbacks.check(
        on_data, on_start, on_before_rollback, on_after_rollback, writer="store"
    )
    policy = check_policy(unrepresentable)
    declared = None if tables is None else declare_tables(tables, Table)
    return ClickHouseTarget(
        client_or_url, declared, callbacks, on_rollback, settings or ClickHouseSettings(), policy
    )


class ClickHouseTarget(DatabaseTarget):
    """Made by `clickhouse_target`.

    `clock` says the time of this machine, in seconds since 1970: rows of state carry it, and stay
    in order whatever it says.
    """

    _is_open = False

    def __init__(
        self,
        client_or_url: ClickHouseClient | str,
        tables: Sequence[Table] | None,
        callbacks: Callbacks,
        on_rollback: Callable[..., object] | None,
        settings: ClickHouseSettings,
        policy: Policy = Policy.REPLACE,
    ) -> None:
        super().__init__(callbacks, settings.id, policy)
        self.clock: Callable[[], float] = time.time
        client = client_or_url
        self._client = ClickHouseClient(client) if isinstance(client, str) else client.copy()
        self._client.attempts, self._client.wait_s = settings.attempts, settings.wait_s
        self._tables = tables
        self._on_rollback = (
            None
            if on_rollback is None
            else NamedCallback("on_rollback", on_rollback, ROLLBACK_ARGUMENTS)
        )
        self._settings = settings
        self._is_started = self._dirty = False

    def recover(self) -> PipeState:
        """Return the stored state, after removing what lies above its cursor.

        An earlier writer of the stream can change nothing from here on.

        Raises:
            StateMissingError: there is no state, but the stream has committed before.
            ClickHouseWriterError: another writer has begun meanwhile.
        """
        self._open()
        self._dirty = True
        self._lease.begin(self._is_known)
        return self._load()

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Write the batches, then the row of state that makes them count."""
        self._ready()
        states = [*(batch.state for batch in batches[:-1]), state]
        self._dirty = True
        self._try(lambda: self._write_all(batches, states))
        if state.cursor is not None:
            self._sync.append(states, self._state)
            if self._lease.is_new:  # from here on a missing state is an error
                self._lease.renew(is_new=False)
        self.altered.committed()
        self._state, self._dirty = state, False
        self._catalog.begin(None if state.cursor is None else state.number)

    def _try(self, write: Callable[[], None]) -> None:
        """Write batches; again if what was written cannot be trusted."""
        for attempt in range(tries := self._settings.attempts or _BATCH_ATTEMPTS):
            self.altered.begin()
            try:
                write()
                break
            except TryAgain as reason:
                logger.warning("batch.again id=%s reason=%s", self._id, reason)
                self._lease.renew()
                self._repair(self._state, hook=False)
                if attempt + 1 == tries:
                    raise ClickHouseConnectionError(
                        "a batch was begun too often", stream=self._id, reason=reason
                    ) from reason

    def roll_back(self, state: PipeState) -> None:
        """Store the state that the fork leads to, then remove what lies above its cursor."""
        self._ready()
        self._state.check_reach(state)
        orphaned = self._state.cursor
        self._dirty = True
        if state.cursor is not None:
            self._sync.roll_back(state)
        self._state = state
        self._repair(state, orphaned, "blockchain_fork")
        self._dirty = False

    def close(self) -> None:
        """Close the connections; the caller's own client stays as it is."""
        self._is_open = self._is_started = False
        self._client.close()

    def query(self, sql: str, params: Params | None = None) -> pa.Table:
        """Read what is stored; `<table>_live` shows the rows that count."""
        return self._client.query(sql, params)

    # --- rows for the stream itself ---------------------------------------------------------------

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Create the side tables that are missing."""
        self._open()
        self._own_rows.create(tables)

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Remove this stream's rows up to a key, then add rows; the next start completes it."""
        self._own_rows.settle(self._store(), name, up_to, moved)

    def stored_config(self) -> LeasedConfig:
        """Return where the definition of this stream is kept."""
        self._open()
        return self._config

    # --- blocks that the stream has passed --------------------------------------------------------

    is_atomic: ClassVar[bool] = False

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It keeps side tables and the configuration, and can be given rows of earlier blocks."""
        return replace(super().capabilities, history=self)

    def begin_fill(self, outputs: Collection[str], tables: Sequence[str] | None) -> Sequence[str]:
        """Refuse an added output whose table holds rows."""
        for output in outputs:
            self._check_automatic(output)
            if tables is None:
                self._catalog.check_new(self._table(output))
        return ()

    def first_block(self, output: str) -> int | None:
        """Return the first block of an output's table; refuse one whose rows cannot be replaced."""
        self._check_automatic(output)
        return self._catalog.first_block(self._table(output), self._state.number + 1)

    def fill(
        self,
        batches: Sequence[tuple[BlockRange, Batch[Delivery]]],
        config: str,
        *,
        replace: bool,
    ) -> None:
        """Replace the rows of these blocks, then store the configuration."""
        self._ready()
        if self._config.read() == config:
            return
        self._dirty = True
        self._try(lambda: self._write_again(batches, widen=replace))
        self._config.write(config)
        self.altered.committed()
        self._dirty = False

    def rename_outputs(self, renamed: Mapping[str, str], begun: str, config: str) -> None:
        """Store that tables are being renamed, rename them, then store the configuration.

        Tables of `on_data` have the names that the user's code gives them.
        """
        self._ready()
        if self._config.read() == config:
            return
        if self._callbacks.on_data is None:
            tables = [(self._table(old), self._table(new)) for new, old in renamed.items()]
            for old, new in tables:
                self._catalog.check_rename(old, new)
            self._config.write(begun)
            for old, new in tables:  # one that has its name already was renamed before a crash
                self._catalog.rename(old, new)
        self._config.write(config)

    def _write_again(
        self, batches: Sequence[tuple[BlockRange, Batch[Delivery]]], *, widen: bool
    ) -> None:
        """Replace the rows of the batches' blocks, in the tables of their outputs.

        There are no transactions, so every step can be repeated: first goes what a table has of
        the blocks, be it of an earlier definition or of an attempt that a crash has ended.
        """
        for covered, batch in batches:
            scope = Scope(batch.state.number, covered.from_block - 1, hot=False)
            for output, frame in batch.data.data.items():
                name, far = self._table(output), executor_rows(frame)
                rows = to_arrow(frame) if far is None else frame
                if widen:
                    self._catalog.widen(name, rows.schema if far is None else far.schema)
                layout = self._catalog.admitted(name)
                if layout is not None:
                    self._undo.between(layout, scope.after, scope.block)
                    self._catalog.forget_versions()
                self._store(scope).insert(str(name), rows)

    def _table(self, output: str) -> TableName:
        return self._catalog.parse(_table_of(output))

    def _check_automatic(self, output: str) -> None:
        self._ready()
        if self._callbacks.on_data is not None:
            raise EvolveError(
                "on_data writes tables of its own choice, and ClickHouse has no transactions: a "
                "crash would leave rows that nothing tells from earlier ones; fill the output by a "
                "stream with an id of its own",
                output=output,
            )

    # --- opening ----------------------------------------------------------------------------------

    def _ready(self) -> None:
        """Open if that was not done; repair what a failed call has left, if the lease holds."""
        if not self._is_open or not self._lease.number:
            self.recover()
        elif self._dirty:
            self._lease.renew()
            self._load()

    def _load(self) -> PipeState:
        """Read the state, and make the tables agree with it. The lease was just begun."""
        state = self._sync.load()
        if state.cursor is None and self._adopt(self._sync.adopt_legacy):
            state = self._sync.load()
        if state.cursor is None and not self._lease.is_new:
            raise StateMissingError(
                "the stream has committed before, but no state is stored", stream=self._id
            )
        if state.cursor is not None and self._lease.is_new:
            self._lease.renew(is_new=False)
        self._state = state
        self._catalog.begin(None if state.cursor is None else state.number)
        if state.cursor is not None:
            self._config.adopt()
            self._catalog.adopt_side_rows()
        self._inserts.begin()
        if self._callbacks.on_start is not None and not self._is_started:
            self._callbacks.on_start(self._store())
        self._is_started = True
        self._own_rows.complete(self._store())
        self._repair(state)
        self._lease.check()
        self._dirty = False
        return state

    def _is_known(self) -> bool:
        """Tell whether anything of the stream is stored beside its state."""
        return self._catalog.knows_something() or self._config.read() is not None

    def _open(self) -> None:
        """Open the server, once, and create what is missing."""
        if self._is_open:
            return
        settings = self._settings
        self._client = client = self._client.copy(self.pause, self._announce)
        sync = TableName(settings.database or client.database, settings.table)
        self._lease = lease = Lease(client, sync, self._id)
        self._sync = SyncTable(lease, settings.max_rows, self.clock)
        attempts = Attempts(client, sync.suffixed("__attempts"))
        self._inserts = Inserts(lease, attempts, settings.insert_rows, self.altered)
        self._undo = Undo(lease)
        self._config = LeasedConfig(lease)
        self._catalog = Catalog(
            lease,
            self._tables or (),
            automatic=self._callbacks.on_data is None,
            managed=self._callbacks.on_data is None or self._tables is not None,
        )
        self._own_rows = SideTables(self._catalog, lease)
        kept: tuple[Any, ...] = (self._sync, self._catalog, lease, attempts, self._own_rows)
        creates: dict[str, Callable[[], None]] = {table.name.name: table.create for table in kept}
        there = client.existing(sync.database, creates)
        for database in {} if there else {client.database, sync.database}:
            if database not in (known := client.databases()):
                raise ClickHouseDatabaseError(
                    "there is no such database; nothing was created",
                    database=database,
                    nearest=", ".join(get_close_matches(database, known)) or "none",
                )
        for name, create in creates.items():
            if name not in there:
                create()
        self._is_open = True

    def _store(self, scope: Scope | None = None) -> Store:
        return Store(self._inserts, self._catalog, self._undo, scope)

    # --- changing ---------------------------------------------------------------------------------

    def _repair(
        self,
        state: PipeState,
        orphaned: BlockCursor | None = None,
        kind: str = "offset_check",
        *,
        hook: bool = True,
    ) -> None:
        """Remove every row above the cursor, and begin a new generation of tokens."""
        self._inserts.begin()
        number, hook = state.number, hook and state.cursor is not None
        if hook and self._callbacks.before_rollback is not None:
            self._callbacks.before_rollback(self._store(), state.cursor)
        for layout in self._catalog.tracked():
            removed = self._undo.above(layout, number)
            if removed:
                logger.info("rows.removed table=%s above=%d rows=%d", layout.name, number, removed)
        self._catalog.forget_versions()
        if hook and self._on_rollback is not None:
            self._on_rollback(
                type=kind,
                store=self._store(),
                cursor=orphaned or state.cursor,
                safe_cursor=state.cursor,
            )
        if hook and self._callbacks.after_rollback is not None:
            self._callbacks.after_rollback(self._store(), state.cursor)

    def _write_all(self, batches: Sequence[Batch[Delivery]], states: Sequence[PipeState]) -> None:
        before = self._state
        for batch, after in zip(batches, states, strict=False):
            self._write(batch.data, before, after)
            before = after

    def _write(self, delivery: Delivery, before: PipeState, after: PipeState) -> None:
        scope = Scope.between(before, after)
        store = self._store(scope)
        data: Mapping[str, Any] = delivery.data
        if self._callbacks.on_data is None:
            for name, frame in data.items():
                store.insert(_table_of(name), frame)
        else:
            self._callbacks.on_data(store, data, delivery.ctx)
        # of a factory that was added, creations of all earlier blocks come with its first batch
        self._own_rows.write(self._store(replace(scope, after=-1)), delivery.side)

    @property
    def _side(self) -> SideTables:
        return self._own_rows

    def _look(self, work: Callable[[], Found]) -> Found:
        self._open()
        return work()


def _table_of(output: str) -> str:
    """Return the table of an output: a name with a point is not one of a database."""
    return f"`{output}`" if "." in output else output
