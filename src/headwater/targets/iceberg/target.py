"""Iceberg as a target: files first, then a snapshot per block in each table, then the state.

There is no commit over several tables. So the state, which is stored last, is the commit point; and
a rollback stores it first. At any moment a crash leaves, at worst, tables ahead of the state, and
every start puts these back to the snapshot of the state's cursor: that moves a reference, whatever
the size of the table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation

from headwater.core import PipeState
from headwater.core.callbacks import Callback
from headwater.core.rooms import Policy
from headwater.errors import (
    InvalidOptionError,
    LakeForeignWriteError,
    LakeUnsupportedError,
    StateMissingError,
    UndeclaredLakeTableError,
)
from headwater.targets.database import OnData
from headwater.targets.iceberg.maintenance import Maintenance
from headwater.targets.iceberg.settings import CatalogName, IcebergSettings, Table, table
from headwater.targets.iceberg.snapshots import TableChange, ancestors, block_of
from headwater.targets.iceberg.state_table import StateTable
from headwater.targets.iceberg.tables import StreamTable, StreamTables
from headwater.targets.lake.state import StoredStream, position
from headwater.targets.lake.target import LakeTarget
from headwater.targets.lake.tx import Change, TableRewritten, Tx
from headwater.targets.tables import TableOptions, declare_tables
from headwater.targets.values import check_policy

_ATTEMPTS = 5  # at a table that others compact
_EXPIRED_AT_ONCE = 16  # snapshots
logger = logging.getLogger("headwater.targets.iceberg")


def iceberg_target(
    catalog: str | Path | Mapping[str, str] | Catalog,
    *,
    tables: Iterable[str | TableOptions | Table],
    on_data: OnData[Tx[DataFile]] | None = None,
    aggregates: Iterable[object] = (),
    unrepresentable: str = "replace",
    settings: IcebergSettings | None = None,
) -> IcebergTarget:
    """Write a stream to Iceberg tables.

    Args:
        catalog: a directory, which then holds tables and catalog; the name of a catalog that
            pyiceberg is configured with; properties as pyiceberg takes them, such as
            `{"type": "rest", "uri": …}`; or a catalog of pyiceberg's, which stays open.
        tables: every table that is written, as a name or `table(...)`.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called for each batch; again if
            the batch had to be repeated. Left out, each output is inserted into the table of its
            own name.
        aggregates: not offered: aggregate in the engine that reads the tables.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, the namespace, how much is kept and rewritten.
    """
    if tuple(aggregates):
        raise LakeUnsupportedError("lake targets keep no aggregates")
    declared = declare_tables(tables, Table, table)
    if not declared:
        raise InvalidOptionError('tables names every table that is written: tables=["transfers"]')
    callback = Callback.optional("on_data", on_data, "tx, data", "tx, data, ctx")
    policy = check_policy(unrepresentable)
    return IcebergTarget(catalog, declared, callback, settings or IcebergSettings(), policy)


class IcebergTarget(LakeTarget[DataFile]):
    """Made by `iceberg_target`."""

    _state: StateTable
    _tables: StreamTables
    _PASSING = (
        *LakeTarget._PASSING,
        CommitFailedException,
        CommitStateUnknownException,
    )

    def __init__(
        self,
        catalog: str | Path | Mapping[str, str] | Catalog,
        tables: Sequence[Table],
        on_data: Callback | None,
        settings: IcebergSettings,
        policy: Policy = Policy.REPLACE,
    ) -> None:
        super().__init__(on_data, settings, policy)
        self._named = catalog if isinstance(catalog, Catalog) else CatalogName.of(catalog)
        self._declared = tables
        self._settings = settings
        self._catalog: Catalog | None = None

    # --- opening ----------------------------------------------------------------------------------

    @property
    def _is_open(self) -> bool:
        return self._catalog is not None

    def _open(self) -> None:
        """Take the stream over; after a failure, unless another writer has done so, go on."""
        if self._catalog is not None:
            self._stored = self._state.check()
            self._repair()
            return
        named = self._named
        catalog = named.open() if isinstance(named, CatalogName) else named
        try:
            self._state = StateTable(catalog, self._settings.namespace, self._id)
            self._tables = StreamTables(catalog, self._settings.namespace, self._id, self._declared)
            if self._state.load().epoch == 0:
                self._check_missing_state()
            self._announce("take over")
            self._stored = self._state.take_over()
            self._open_side(self._state.place)
            self._repair()
        except BaseException:
            if catalog is not named:
                catalog.close()
            raise
        self._catalog = catalog

    def _release(self) -> None:
        """Let go of the catalog; the caller's own stays open."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None and catalog is not self._named:
            catalog.close()

    def _repair(self) -> None:
        """Make all tables end where the state does; no earlier writer can commit to them then."""
        self._tables.load()
        self._state.check()  # what was loaded is of no later writer, and commits build on it
        state = self._stored.state
        self._put_back(state, position(self._id, self._stored.epoch, state))
        self._sweep_side()
        self._state.check()

    def _check_missing_state(self) -> None:
        """Refuse an empty state while tables of the stream hold blocks."""
        for one in self._tables.load():
            snapshot = one.stored.current_snapshot()
            block = None if snapshot is None else block_of(snapshot)
            if block is not None and block[0] >= 0:
                if self._state.load().epoch:  # another start has begun meanwhile
                    return
                raise StateMissingError(
                    "no cursor is stored, but tables of the stream are",
                    stream=self._id,
                    state=self._state.name,
                    tables=one.name,
                )

    # --- changing ---------------------------------------------------------------------------------

    def _table(self, name: str, schema: pa.Schema | None) -> StreamTable | None:
        tables, epoch, check = self._tables, self._stored.epoch, self._state.check
        if name not in tables.declared:
            raise UndeclaredLakeTableError("a table is written that was not declared", table=name)
        found = tables.get(name, None, epoch, check)
        if schema is not None and found is None:
            self._announce(f"create table {name}")
        elif schema is not None and found is not None and found.widens(schema):
            check()
        return tables.get(name, schema, epoch, check)

    def _check_rename(self, old: str, new: str) -> None:
        self._tables.check_rename(old, new)

    def _rename(self, old: str, new: str) -> None:
        self._tables.rename(old, new)

    def _commit(
        self, stored: StoredStream, changes: Mapping[str, Sequence[Change[DataFile]]]
    ) -> None:
        """Commit each table, then the state: the commit point."""
        for name, several in changes.items():
            table = self._table(name, None)
            assert table is not None, "its files are written"
            self._commit_table(table, several)
        self._announce("store state")
        self._state.store(stored)

    def _go_back(self, stored: StoredStream) -> None:
        self._announce("store state")
        self._state.store(stored)
        self._put_back(stored.state)

    def _commit_table(self, table: StreamTable, several: Sequence[Change[DataFile]]) -> None:
        """Add a snapshot for each batch, all in one commit; again if files were only rewritten.

        Snapshots that nothing needs any more expire with it: so there are never many.
        """
        for attempt in range(_ATTEMPTS):
            change = TableChange(table.stored)
            try:
                self._add(change, several)
                if not change:
                    break
                change.expire(self._expired(table))
                self._announce(f"commit {table.name}")
                change.commit()
            except CommitFailedException:
                change.abandon()
                self._accept_rewrite(table, several, last=attempt + 1 == _ATTEMPTS)
            else:
                break
        table.committed()

    def _add(self, change: TableChange, several: Sequence[Change[DataFile]]) -> None:
        for one in several:
            said = position(self._id, self._stored.epoch, one.state)
            if one.removed:
                change.overwrite(list(one.added.values()), list(one.removed.values()), said)
            elif one.added:
                change.append(list(one.added.values()), said)

    def _expired(self, table: StreamTable) -> list[int]:
        """Return the snapshots that a commit lets expire, once there are some: those still there.

        `headwater maintain` may have let some expire meanwhile, which moves no reference.
        """
        if not self._settings.maintain_every:
            return []
        gone = self._maintenance(bounded=True).expired(table.stored)
        if len(gone) < _EXPIRED_AT_ONCE:
            return []
        there = {one.snapshot_id for one in self._tables.seen(table).metadata.snapshots}
        return [one for one in gone if one in there]

    def _accept_rewrite(
        self, table: StreamTable, several: Sequence[Change[DataFile]], *, last: bool
    ) -> None:
        """Load a table again that was changed; refuse any change but a rewrite of files."""
        base = table.stored.current_snapshot()
        self._tables.reload(table)
        self._state.check()
        for newer, one in enumerate(ancestors(table.stored)):
            if base is not None and one.snapshot_id == base.snapshot_id:
                if last or (newer and any(batch.removed for batch in several)):
                    raise TableRewritten(table.name)
                return
            if one.summary is None or one.summary.operation is not Operation.REPLACE:
                break
        raise LakeForeignWriteError(
            "the table was changed while the stream wrote it", table=table.name
        )

    def _put_back(self, state: PipeState, fence: Mapping[str, str] | None = None) -> None:
        for one in self._tables.opened():
            self._announce(f"put back {one.name}")
            for _ in range(_ATTEMPTS):
                try:
                    undone = one.put_back(state, fence)
                    break
                except CommitFailedException:
                    self._tables.reload(one)
                    self._state.check()
            else:
                raise LakeForeignWriteError(
                    "the table is changed by others all the time", table=one.name
                )
            if undone:
                logger.info("table.back table=%s block=%d", one.name, state.number)

    def _maintain(self, *, bounded: bool) -> dict[str, int]:
        """Expire snapshots and compact files."""
        try:
            return self._maintenance(bounded=bounded).run()
        except CommitFailedException as error:
            self._state.check()
            raise TableRewritten(self._id) from error

    def _sweep(self) -> int:
        return self._maintenance(bounded=True).sweep([self._state.table])

    def _maintenance(self, *, bounded: bool) -> Maintenance:
        return Maintenance(
            self._tables.opened(), self._stored, self._settings, bounded, self._state.check
        )
