"""Delta tables as a target: rows, cursor, high-water mark and rollback chain in one commit.

The first table of a stream leads: its commits carry the state. A stream with one table commits
rows and state in one atomic step. With several, the others commit first and the leader last, which
is the commit point; a rollback begins with the leader. So a crash leaves, at worst, tables ahead of
the leader, and every start puts these back. A rollback removes the files of orphaned blocks and
adds what they had replaced, in one commit per table, whatever the size of the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from headwater.core import Batch, PipeState
from headwater.core.callbacks import Callback
from headwater.errors import (
    InvalidOptionError,
    LakeUnsupportedError,
    LakeWriterError,
    StateMissingError,
)
from headwater.targets.contract import Capabilities, Delivery, Scope, SideTable, StoredConfig
from headwater.targets.database import LEGACY_ID, OnData
from headwater.targets.delta.changes import BatchChange, Net
from headwater.targets.delta.maintenance import Maintenance
from headwater.targets.delta.tables import StreamTable, StreamTables, Table, table
from headwater.targets.delta.tx import Tx
from headwater.targets.lake.files import slug
from headwater.targets.lake.paths import Options, Place
from headwater.targets.lake.side import SideFiles
from headwater.targets.lake.state import STATE, StoredStream, position
from headwater.targets.side_rows import check_side_table
from headwater.targets.tables import TableOptions, declare_tables

_ATTEMPTS = 5  # at a table that an earlier writer still commits to
logger = logging.getLogger("headwater.targets.delta")


@dataclass(frozen=True, slots=True)
class DeltaSettings:
    """Where the state is kept, and how much is kept and rewritten.

    Args:
        id: the stream's id, if it is to be another than that of the stream.
        maintain_every: after so many commits small files of final blocks are compacted; 0 leaves
            that to `headwater maintain`.
        small_file_bytes: files below are compacted, once there are `compact_files` of them.
        compact_files: how many small files are worth a rewrite.
        compact_bytes: at most so much is rewritten between two batches.
        rewrite_bytes: `upsert` and `delete` rewrite at most so much for one batch.
        retention_hours: files that the table has ceased to name are kept so long for readers and
            time travel; those that a rollback needs are kept in any case.
    """

    id: str | None = None
    maintain_every: int = 100
    small_file_bytes: int = 16 << 20
    compact_files: int = 16
    compact_bytes: int = 64 << 20
    rewrite_bytes: int = 256 << 20
    retention_hours: int = 168

    def __post_init__(self) -> None:
        if self.id is not None and not self.id.strip():
            raise InvalidOptionError("a stream id cannot be blank", got=repr(self.id))
        if self.maintain_every < 0 or self.retention_hours < 0:
            raise InvalidOptionError("maintain_every, retention_hours: 0 or more")
        if min(self.compact_files, self.compact_bytes, self.rewrite_bytes) < 2:
            raise InvalidOptionError("compact_files, compact_bytes, rewrite_bytes: 2 or more")


def delta_target(
    path: str | Path,
    *,
    tables: Iterable[str | TableOptions | Table] | None = None,
    on_data: OnData[Tx] | None = None,
    aggregates: Iterable[object] = (),
    options: Options | None = None,
    settings: DeltaSettings | None = None,
) -> DeltaTarget:
    """Write a stream to Delta tables.

    Args:
        path: a directory or `s3://bucket/prefix`, with a folder per table.
        tables: every table that `on_data` writes, as a name or `table(...)`. Without `on_data`,
            only those that need more than their name.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called for each batch. Left out,
            each output is inserted into the table of its own name.
        aggregates: not offered: aggregate in the engine that reads the tables.
        options: credentials and addresses of an object store (`s3.endpoint`, `s3.region`,
            `s3.access-key-id`, `s3.secret-access-key`); left out, those of the environment.
        settings: the stream id, how much is kept and rewritten.
    """
    if tuple(aggregates):
        raise LakeUnsupportedError("lake targets keep no aggregates")
    if on_data is not None and tables is None:
        raise InvalidOptionError("on_data is given, but not the tables that it writes")
    declared = declare_tables(tables or (), Table, table)
    return DeltaTarget(
        Place.of(path, options),
        {one.name: one for one in declared},
        Callback.optional("on_data", on_data, "tx, data", "tx, data, ctx"),
        settings or DeltaSettings(),
    )


class DeltaTarget:
    """Made by `delta_target`. `on_step` is called before each step of I/O that has an effect."""

    def __init__(
        self,
        place: Place,
        tables: Mapping[str, Table],
        on_data: Callback | None,
        settings: DeltaSettings,
    ) -> None:
        self.on_step: Callable[[str], None] | None = None
        self._place = place
        self._declared = tables
        self._on_data = on_data
        self._settings = settings
        self._id = settings.id or LEGACY_ID
        self._tables: StreamTables | None = None
        self._stored = StoredStream(self._id)
        self._side_tables: tuple[SideTable, ...] = ()
        self._replaced: LakeWriterError | None = None
        self._commits = 0

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It keeps side tables and the configuration."""
        return Capabilities(side_tables=self, config=self)

    def bind(self, stream_id: str) -> None:
        """Take the stream's id, unless the settings name another."""
        if self._tables is not None:
            raise InvalidOptionError("a target is bound before it is opened", stream=stream_id)
        self._id = self._settings.id or stream_id

    def recover(self) -> PipeState:
        """Return the stored state, after putting back the tables that are ahead of it.

        An earlier writer of the stream can change nothing from here on.

        Raises:
            StateMissingError: no commit with a state is left, but tables of the stream are.
            LakeWriterError: another writer has begun meanwhile.
        """
        if self._replaced is not None:
            raise self._replaced
        if self._tables is None:
            self._open()
        return self._stored.state

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Write the batches' files, then commit them: the table that leads comes last."""
        tables = self._opened()
        states = [self._stored.state, *(batch.state for batch in batches[:-1]), state]
        changes: dict[str, list[BatchChange]] = {}
        side = self._stored.side
        with self._whole():
            for batch, (before, after) in zip(batches, pairwise(states), strict=False):
                for name, one in self._write(tables, batch.data, before, after).items():
                    changes.setdefault(name, []).append(one)
                if batch.data.side:
                    self._announce("write side rows")
                    side = self._side.add(side, batch.data.side)
            self._store(replace(self._stored, state=state, side=side), changes)
        self._commits += bool(batches)
        every = self._settings.maintain_every
        if batches and every and self._commits % every == 0:
            self._maintenance(bounded=True).compact()

    def roll_back(self, state: PipeState) -> None:
        """Commit the state that the fork leads to and the way back of the table that leads; then
        the others' way back.
        """
        tables = self._opened()
        self._stored.state.check_reach(state)
        with self._whole():
            self._announce("write side rows")
            side = self._side.remove_above(self._stored.side, state.number)
            stored = replace(self._stored, state=state, side=side)
            lead = tables.make_lead(self._said(stored, lead=True))
            self._put_back(lead, stored)
            self._stored = stored
            for one in tables.open.values():
                if one is not lead:
                    self._put_back(one, stored)

    def close(self) -> None:
        """Let go of the tables. What was not committed is gone."""
        self._tables, self._replaced = None, None

    def maintain(self) -> dict[str, int]:
        """Compact, checkpoint and sweep all that can be; return what was done."""
        self._opened()
        with self._whole():
            return self._maintenance(bounded=False).run()

    # --- what the stream keeps for itself ---------------------------------------------------------

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Take the side tables; they are files, which come with their first rows."""
        self._side_tables = tuple(check_side_table(one) for one in tables)
        if self._tables is not None:
            self._side.open(self._side_tables)

    def read_side_table(
        self,
        name: str,
        *,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return committed rows in the order of their keys."""
        self._opened()
        return self._side.read(self._stored.side, name, after, up_to_block, limit)

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Remove rows up to a key and add those that moved, with the next state in one step."""
        self._opened()
        with self._whole():
            self._announce("write side rows")
            side = self._side.settle(self._stored.side, name, up_to, moved)
            if side != self._stored.side:
                self._store(replace(self._stored, side=side), {})

    def stored_config(self) -> StoredConfig:
        """Return where the definition of this stream is kept."""
        return _Config(self._read_config, self._write_config)

    def _read_config(self) -> str | None:
        self._opened()
        return self._stored.config

    def _write_config(self, text: str) -> None:
        tables, stored = self._opened(), replace(self._stored, config=text)
        if tables.lead is None:  # nothing is stored yet: it comes with the first commit
            self._stored = stored
            return
        with self._whole():
            self._store(stored, {})

    # --- opening ----------------------------------------------------------------------------------

    def _opened(self) -> StreamTables:
        self.recover()
        assert self._tables is not None, "recover opens them"
        return self._tables

    def _open(self) -> None:
        tables = StreamTables(
            self._place,
            self._id,
            self._declared,
            automatic=self._on_data is None,
            announce=self._announce,
        )
        tables.load()
        self._stored = self._load(tables)
        self._side = SideFiles(self._place.under(f"_headwater/{slug(self._id)}"))
        self._side.open(self._side_tables)
        lead = tables.lead
        for one in sorted(tables.open.values(), key=lambda one: one is not lead):
            self._claim(one)
        self._announce("sweep side files")
        self._side.sweep(self._stored.side)
        self._tables = tables

    def _load(self, tables: StreamTables) -> StoredStream:
        """Return what is stored, for an epoch of this writer's own."""
        lead = tables.lead
        if lead is None:
            if tables.open:
                raise StateMissingError(
                    "no table of the stream has its state", stream=self._id, tables=[*tables.open]
                )
            return StoredStream(self._id, epoch=1)
        said = next((one for one in lead.said() if STATE in one), None)
        if said is None:
            raise StateMissingError(
                "no commit with the stream's state is left", stream=self._id, table=lead.name
            )
        stored = StoredStream.from_properties(said)
        return replace(stored, epoch=stored.epoch + 1)

    def _claim(self, one: StreamTable) -> None:
        """Put a table back to the state's cursor, in a commit that no earlier writer has seen."""
        for attempt in range(_ATTEMPTS):
            one.read_undo(self._stored.state.undo_floor)
            self._announce(f"claim {one.name}")
            try:
                self._put_back(one, self._stored, always=True)
            except LakeWriterError:
                if one.is_lead or attempt + 1 == _ATTEMPTS:
                    raise
                one.reload()
            else:
                return

    # --- changing ---------------------------------------------------------------------------------

    def _write(
        self, tables: StreamTables, delivery: Delivery, before: PipeState, after: PipeState
    ) -> dict[str, BatchChange]:
        """Write the files of one batch; return what it changes of each table."""
        tx = Tx(
            tables,
            self._id,
            Scope.between(before, after),
            self._said(self._stored, lead=True),
            self._settings.rewrite_bytes,
            self._announce,
        )
        if self._on_data is None:
            for name, frame in delivery.data.items():
                tx.insert(name, frame)
        else:
            self._on_data(tx, delivery.data, delivery.ctx)
        return {name: one for name, one in tx.changes.items() if one}

    def _store(self, stored: StoredStream, changes: Mapping[str, Sequence[BatchChange]]) -> None:
        """Commit changes to their tables, and what is stored with the last one."""
        assert self._tables is not None, "a target recovers before it stores anything"
        lead = self._tables.make_lead(self._said(self._stored, lead=True))
        for name, several in changes.items():
            if name != lead.name:
                self._commit(self._tables.open[name], several, self._said(stored))
        self._commit(lead, changes.get(lead.name, ()), self._said(stored, lead=True))
        floor = stored.state.undo_floor
        for one in self._tables.open.values():
            one.forget_up_to(floor)
        before, self._stored = self._stored, stored
        self._announce("discard side rows")
        self._side.discard(before.side, stored.side)

    def _commit(
        self, one: StreamTable, changes: Sequence[BatchChange], said: Mapping[str, str]
    ) -> None:
        self._announce(f"commit {one.name}")
        one.commit(Net.of(changes), said, changes)
        one.undo += changes

    def _put_back(self, one: StreamTable, stored: StoredStream, *, always: bool = False) -> None:
        net = one.put_back(stored.state.number)
        if not (net or always or one.is_lead):
            return
        self._announce(f"put back {one.name}")
        one.commit(net, self._said(stored, lead=one.is_lead))
        one.files = None
        if net:
            logger.info("table.back table=%s block=%d", one.name, stored.state.number)

    def _said(self, stored: StoredStream, *, lead: bool = False) -> dict[str, str]:
        """Return what a commit says of itself: its block; that of the leader, the whole state."""
        if lead:
            return stored.to_properties()
        return position(stored.stream_id, stored.epoch, stored.state)

    def _maintenance(self, *, bounded: bool) -> Maintenance:
        assert self._tables is not None, "a target recovers before it is maintained"
        tables = [
            (one, self._said(self._stored, lead=one.is_lead)) for one in self._tables.open.values()
        ]
        return Maintenance(
            tables, self._id, self._stored.state.undo_floor, self._settings, self._announce,
            bounded=bounded,
        )  # fmt: skip

    def _whole(self) -> _Whole:
        return _Whole(self)

    def _failed(self, error: BaseException) -> None:
        """Trust nothing after a failure: the next call opens the tables again."""
        self._tables = None
        if isinstance(error, LakeWriterError):
            self._replaced = error

    def _announce(self, step: str) -> None:
        if self.on_step is not None:
            self.on_step(step)


@dataclass(frozen=True, slots=True)
class _Whole:
    """Surrounds a change: after a failure what the target remembers is not used any more."""

    target: DeltaTarget

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.target._failed(error)


@dataclass(frozen=True, slots=True)
class _Config:
    """The stored definition of a stream."""

    read: Callable[[], str | None]
    write: Callable[[str], None]
