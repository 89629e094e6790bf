"""Iceberg as a target: files first, then a snapshot per block in each table, then the state.

There is no commit over several tables. So the state, which is stored last, is the commit point; and
a rollback stores it first. At any moment a crash leaves, at worst, tables ahead of the state, and
every start puts these back to the snapshot of the state's cursor: that moves a reference, whatever
the size of the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.snapshots import Operation

from headwater.core import Batch, PipeState
from headwater.core.callbacks import Callback
from headwater.errors import (
    InvalidOptionError,
    LakeForeignWriteError,
    LakeUnsupportedError,
    LakeWriterError,
    StateMissingError,
)
from headwater.targets.contract import Capabilities, Delivery, Scope, SideTable, StoredConfig
from headwater.targets.database import LEGACY_ID, OnData
from headwater.targets.iceberg.maintenance import Maintenance
from headwater.targets.iceberg.settings import CatalogName, IcebergSettings, Table, table
from headwater.targets.iceberg.snapshots import TableChange, ancestors, block_of
from headwater.targets.iceberg.state_table import StateTable
from headwater.targets.iceberg.tables import StreamTable, StreamTables
from headwater.targets.iceberg.tx import BatchFiles, Tx
from headwater.targets.lake.side import SideFiles
from headwater.targets.lake.state import StoredStream, position
from headwater.targets.side_rows import check_side_table
from headwater.targets.tables import TableOptions, declare_tables

_ATTEMPTS = 5  # at a table that others compact
logger = logging.getLogger("headwater.targets.iceberg")


def iceberg_target(
    catalog: str | Path | Mapping[str, str] | Catalog,
    *,
    tables: Iterable[str | TableOptions | Table],
    on_data: OnData[Tx] | None = None,
    aggregates: Iterable[object] = (),
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
        settings: the stream id, the namespace, how much is kept and rewritten.
    """
    if tuple(aggregates):
        raise LakeUnsupportedError("lake targets keep no aggregates")
    declared = declare_tables(tables, Table, table)
    if not declared:
        raise InvalidOptionError('tables names every table that is written: tables=["transfers"]')
    callback = Callback.optional("on_data", on_data, "tx, data", "tx, data, ctx")
    return IcebergTarget(catalog, declared, callback, settings or IcebergSettings())


@dataclass(frozen=True, slots=True)
class _Config:
    """The stored definition of a stream."""

    read: Callable[[], str | None]
    write: Callable[[str], None]


class IcebergTarget:
    """Made by `iceberg_target`. `on_step` is called before each step of I/O that has an effect."""

    def __init__(
        self,
        catalog: str | Path | Mapping[str, str] | Catalog,
        tables: Sequence[Table],
        on_data: Callback | None,
        settings: IcebergSettings,
    ) -> None:
        self.on_step: Callable[[str], None] | None = None
        self._given = catalog if isinstance(catalog, Catalog) else CatalogName.of(catalog)
        self._declared = tables
        self._on_data = on_data
        self._settings = settings
        self._id = settings.id or LEGACY_ID
        self._catalog: Catalog | None = None
        self._side_tables: tuple[SideTable, ...] = ()
        self._dirty = False
        self._replaced: LakeWriterError | None = None
        self._commits = 0

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It keeps side tables and the configuration."""
        return Capabilities(side_tables=self, config=self)

    def bind(self, stream_id: str) -> None:
        """Take the stream's id, unless the settings name another."""
        if self._catalog is not None:
            raise InvalidOptionError("a target is bound before it is opened", stream=stream_id)
        self._id = self._settings.id or stream_id

    def recover(self) -> PipeState:
        """Return the stored state, after putting back the tables that are ahead of it.

        An earlier writer of the stream can change nothing from here on.

        Raises:
            StateMissingError: there is no state, but tables of the stream.
            LakeWriterError: another writer has begun meanwhile.
        """
        self._refuse_if_replaced()
        if self._catalog is None:
            self._open()
        elif self._dirty:
            self._guarded(self._state.check)
            self._repair()
        return self._stored.state

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Write the batches' files, commit them to their tables, then store the state."""
        self._ready()
        states = [self._stored.state, *(batch.state for batch in batches[:-1]), state]
        self._dirty = True
        changes: dict[str, list[BatchFiles]] = {}
        side = self._stored.side
        for batch, (before, after) in zip(batches, pairwise(states), strict=False):
            for name, one in self._write(batch.data, before, after).items():
                changes.setdefault(name, []).append(one)
            side = self._side.add(side, batch.data.side)
        for name, several in changes.items():
            self._commit_table(self._table(name), several)
        self._store(replace(self._stored, state=state, side=side))
        self._dirty = False
        self._commits += bool(batches)
        every = self._settings.maintain_every
        if batches and every and self._commits % every == 0:
            self._maintain()

    def roll_back(self, state: PipeState) -> None:
        """Store the state that the fork leads to, then put the tables back to it."""
        self._ready()
        self._stored.state.check_reach(state)
        self._dirty = True
        side = self._side.remove_above(self._stored.side, state.number)
        self._store(replace(self._stored, state=state, side=side))
        self._put_back(None)
        self._dirty = False

    def close(self) -> None:
        """Let go of the catalog; the caller's own stays open."""
        catalog, self._catalog = self._catalog, None
        self._dirty, self._replaced = False, None
        if catalog is not None and catalog is not self._given:
            catalog.close()

    def maintain(self) -> dict[str, int]:
        """Expire, compact and sweep all that can be; return what was done. Not while it writes."""
        self._ready()
        done = self._maintenance(bounded=False).run()
        return {**done, "swept": self._maintenance(bounded=False).sweep()}

    # --- what the stream keeps for itself ---------------------------------------------------------

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Take the side tables; they are files, which come with their first rows."""
        self._side_tables = tuple(check_side_table(one) for one in tables)
        if self._catalog is not None:
            self._side.open(tables)

    def read_side_table(
        self,
        name: str,
        *,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return committed rows in the order of their keys."""
        self._ready()
        return self._side.read(self._stored.side, name, after, up_to_block, limit)

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Remove rows up to a key and add those that moved, with the next state in one step."""
        self._ready()
        side = self._side.settle(self._stored.side, name, up_to, moved)
        if side != self._stored.side:
            self._store(replace(self._stored, side=side))

    def stored_config(self) -> StoredConfig:
        """Return where the definition of this stream is kept."""
        return _Config(self._read_config, self._write_config)

    def _read_config(self) -> str | None:
        self._ready()
        return self._stored.config

    def _write_config(self, text: str) -> None:
        self._ready()
        self._store(replace(self._stored, config=text))

    # --- opening ----------------------------------------------------------------------------------

    def _ready(self) -> None:
        self._refuse_if_replaced()
        if self._catalog is None or self._dirty:
            self.recover()

    def _refuse_if_replaced(self) -> None:
        if self._replaced is not None:
            raise self._replaced

    def _open(self) -> None:
        given = self._given
        catalog = given.open() if isinstance(given, CatalogName) else given
        try:
            self._state = StateTable(catalog, self._settings.namespace, self._id)
            self._tables = StreamTables(catalog, self._settings.namespace, self._id, self._declared)
            found = self._state.load()
            if found.epoch == 0:
                self._check_missing_state()
            self._announce("take over")
            self._state.take_over()
            self._side = SideFiles(self._state.place)
            self._side.open(self._side_tables)
            self._repair()
        except BaseException:
            if catalog is not given:
                catalog.close()
            raise
        self._catalog = catalog

    def _repair(self) -> None:
        """Make all tables end where the state does; no earlier writer can commit to them then."""
        self._tables.load()
        fence = position(self._id, self._stored.epoch, self._stored.state)
        self._put_back(fence)
        self._announce("sweep side files")
        self._side.sweep(self._stored.side)
        self._guarded(self._state.check)
        self._dirty = False

    def _check_missing_state(self) -> None:
        """Refuse an empty state while tables of the stream hold blocks."""
        for one in self._tables.load():
            snapshot = one.stored.current_snapshot()
            block = None if snapshot is None else block_of(snapshot)
            if block is not None and block[0] >= 0:
                raise StateMissingError(
                    "no cursor is stored, but tables of the stream are",
                    stream=self._id,
                    state=self._state.name,
                    tables=one.name,
                )

    @property
    def _stored(self) -> StoredStream:
        return self._state.stored

    # --- changing ---------------------------------------------------------------------------------

    def _write(
        self, delivery: Delivery, before: PipeState, after: PipeState
    ) -> dict[str, BatchFiles]:
        """Write the files of one batch; return what it changes of each table."""
        scope = Scope.between(before, after)
        tx = Tx(
            self._tables,
            self._id,
            self._stored.epoch,
            scope,
            after,
            self._settings.rewrite_bytes,
            self._announce,
        )
        if self._on_data is None:
            for name, frame in delivery.data.items():
                tx.insert(name, frame)
        else:
            self._on_data(tx, delivery.data, delivery.ctx)
        return tx.changes

    def _table(self, name: str) -> StreamTable:
        found = self._tables.get(name, None, self._stored.epoch)
        assert found is not None, "its files are written"
        return found

    def _commit_table(self, table: StreamTable, several: Sequence[BatchFiles]) -> None:
        """Add a snapshot for each batch, all in one commit; again if files were only rewritten."""
        for attempt in range(_ATTEMPTS):
            change = TableChange(table.stored)
            for one in several:
                said = position(self._id, self._stored.epoch, one.state)
                if one.removed:
                    change.overwrite(list(one.added.values()), list(one.removed.values()), said)
                elif one.added:
                    change.append(list(one.added.values()), said)
            if not change:
                break
            self._announce(f"commit {table.name}")
            try:
                change.commit()
            except CommitFailedException:
                change.abandon()
                self._accept_rewrite(table, several, last=attempt + 1 == _ATTEMPTS)
            else:
                break
        table.committed()

    def _accept_rewrite(
        self, table: StreamTable, several: Sequence[BatchFiles], *, last: bool
    ) -> None:
        """Load a table again that was changed; refuse any change but a rewrite of files."""
        base = table.stored.current_snapshot()
        self._guarded(self._state.check)
        self._tables.reload(table)
        for one in ancestors(table.stored):
            if base is not None and one.snapshot_id == base.snapshot_id:
                if last or any(batch.removed for batch in several):
                    break
                return
            if one.summary is None or one.summary.operation is not Operation.REPLACE:
                break
        raise LakeForeignWriteError(
            "the table was changed while the stream wrote it", table=table.name
        )

    def _put_back(self, fence: Mapping[str, str] | None) -> None:
        for one in self._tables.opened():
            self._announce(f"put back {one.name}")
            for _ in range(_ATTEMPTS):
                try:
                    undone = one.put_back(self._stored.state, fence)
                    break
                except CommitFailedException:
                    self._guarded(self._state.check)
                    self._tables.reload(one)
            else:
                raise LakeForeignWriteError(
                    "the table is changed by others all the time", table=one.name
                )
            if undone:
                logger.info("table.back table=%s block=%d", one.name, self._stored.state.number)

    def _store(self, stored: StoredStream) -> None:
        """Store the state: the commit point. Files of side tables that it dropped are deleted."""
        before = self._stored.side
        self._announce("store state")
        self._guarded(lambda: self._state.store(stored))
        if stored.side != before:
            self._announce("delete side files")
            self._side.discard(before, stored.side)

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do something that finds out whether this writer was replaced, and remember if it was."""
        try:
            work()
        except LakeWriterError as error:
            self._replaced = error
            raise

    def _maintain(self) -> None:
        """Maintain a little between two batches; what fails there is tried again next time."""
        self._announce("maintain")
        try:
            done = self._maintenance(bounded=True).run()
        except Exception:
            logger.warning("maintenance.failed id=%s", self._id, exc_info=True)
            self._dirty = True
            return
        logger.info("maintenance.done id=%s %s", self._id, done)

    def _maintenance(self, *, bounded: bool) -> Maintenance:
        return Maintenance(self._tables.opened(), self._stored, self._settings, bounded=bounded)

    def _announce(self, step: str) -> None:
        if self.on_step is not None:
            self.on_step(step)
