"""What Iceberg and Delta targets share: the order of a commit, side tables, the definition, trust.

A batch becomes files, files are committed to their tables, and the state says that they count. What
a crash or an error leaves in between is put right by `_open`, which comes before anything else: so
nothing that the target remembers is used after a failure. Runs on the driver, in one thread.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Generic

import pyarrow as pa

from headwater.core import Batch, BlockRange, PipeState
from headwater.core.callbacks import Callback
from headwater.core.rooms import Policy
from headwater.errors import (
    EvolveError,
    InvalidOptionError,
    LakeDiskFullError,
    LakeForeignWriteError,
    LakeWriterError,
)
from headwater.targets.contract import Capabilities, Delivery, Scope, SideTable, StoredConfig
from headwater.targets.database import LEGACY_ID
from headwater.targets.lake.authors import Author, slug
from headwater.targets.lake.paths import (
    Place,
    coded_full_disk,
    coded_storage_errors,
    coded_storage_failures,
)
from headwater.targets.lake.side import SideFiles
from headwater.targets.lake.state import StoredStream
from headwater.targets.lake.tx import BLOCK_NUMBER, Change, File, LakeTable, TableRewritten, Tx
from headwater.targets.side_rows import check_side_table
from headwater.targets.values import Altered

SWEEP_S = 86_400.0
_ATTEMPTS = 5  # at tables that others rewrite
logger = logging.getLogger("headwater.targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSettings:
    """What the settings of Iceberg and Delta have in common."""

    id: str | None = None
    maintain_every: int = 100
    small_file_bytes: int = 16 << 20
    compact_files: int = 16
    compact_bytes: int = 64 << 20
    rewrite_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.id is not None and not self.id.strip():
            raise InvalidOptionError("a stream id cannot be blank", got=repr(self.id))
        if self.maintain_every < 0:
            raise InvalidOptionError("maintain_every: 0 or more", got=self.maintain_every)
        if min(self.compact_files, self.compact_bytes, self.rewrite_bytes) < 2:
            raise InvalidOptionError("compact_files, compact_bytes, rewrite_bytes: 2 or more")


class LakeTarget(ABC, Generic[File]):
    """A target of tables that change in commits.

    `on_step` is called before each step of I/O that has an effect, and `clock` says the seconds;
    both for tests.
    """

    _PASSING: ClassVar[tuple[type[Exception], ...]] = (
        LakeForeignWriteError,
        LakeDiskFullError,
        OSError,
        EOFError,
    )
    """Errors of maintenance between batches that the next round may not meet."""

    _side: SideFiles

    def __init__(
        self, on_data: Callback | None, settings: LakeSettings, policy: Policy = Policy.REPLACE
    ) -> None:
        self.on_step: Callable[[str], None] | None = None
        self.clock: Callable[[], float] = time.monotonic
        self.altered = Altered(policy)
        self._on_data = on_data
        self._given = settings
        self._id = settings.id or LEGACY_ID
        self._stored = StoredStream(self._id)
        self._side_tables: tuple[SideTable, ...] = ()
        self._dirty = True
        self._replaced: LakeWriterError | None = None
        self._commits = 0
        self._swept = self.clock()

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It keeps side tables and the configuration, and can be given rows of earlier blocks."""
        return Capabilities(
            side_tables=self,
            config=self,
            history=self,
            uses_frames=self._on_data is not None,
            altered=self.altered.totals,
        )

    def bind(self, stream_id: str) -> None:
        """Take the stream's id, unless the settings name another."""
        if self._is_open:
            raise InvalidOptionError("a target is bound before it is opened", stream=stream_id)
        self._id = self._given.id or stream_id

    def recover(self) -> PipeState:
        """Return the stored state, after putting back the tables that are ahead of it.

        An earlier writer of the stream can change nothing from here on.

        Raises:
            StateMissingError: no state is left, but tables of the stream are.
            LakeWriterError: another writer has begun meanwhile.
            LakePathError: the storage cannot be reached.
        """
        if self._replaced is not None:
            raise self._replaced
        if self._dirty:
            with self._changing(), coded_storage_errors():
                self._open()
        return self._stored.state

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Write the batches' files, commit them to their tables, and store the state."""
        for left in reversed(range(_ATTEMPTS)):
            self.recover()
            with suppress(TableRewritten), self._changing(again=left > 0):
                self._commit_batches(batches, state)
                break
        if batches:
            self._count_commit()

    def _commit_batches(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        states = [self._stored.state, *(batch.state for batch in batches[:-1]), state]
        changes: dict[str, list[Change[File]]] = {}
        side = self._stored.side
        self.altered.begin()
        for batch, (before, after) in zip(batches, pairwise(states), strict=False):
            for name, one in self._write(batch.data, before, after).items():
                changes.setdefault(name, []).append(one)
            if batch.data.side:
                self._announce("write side rows")
                with coded_storage_failures():
                    side = self._side.add(side, batch.data.side)
        with coded_storage_failures():
            self._store(replace(self._stored, state=state, side=side), changes)
        self.altered.committed()

    def roll_back(self, state: PipeState) -> None:
        """Store the state that the fork leads to, and put the tables back to it."""
        self.recover()
        self._stored.state.check_reach(state)
        with self._changing(), coded_storage_failures():
            self._announce("write side rows")
            side = self._side.remove_above(self._stored.side, state.number)
            stored = replace(self._stored, state=state, side=side)
            self._go_back(stored)
            self._now(stored)

    def close(self) -> None:
        """Let go of what is open. What was not committed is gone."""
        self._dirty, self._replaced = True, None
        self._release()

    def maintain(self) -> dict[str, int]:
        """Do all maintenance that can be done; return how much that was. Not while it writes."""
        for left in reversed(range(_ATTEMPTS)):
            self.recover()
            with (
                suppress(TableRewritten),
                self._changing(again=left > 0),
                coded_storage_failures(),
            ):
                return {**self._maintain(bounded=False), "swept": self._sweep()}
        raise AssertionError("the last attempt returns or raises")

    # --- what the stream keeps for itself ---------------------------------------------------------

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Take the side tables; they are files, which come with their first rows."""
        self._side_tables = tuple(check_side_table(one) for one in tables)
        if self._is_open:
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
        self.recover()
        return self._side.read(self._stored.side, name, after, up_to_block, limit)

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Remove rows up to a key and add those that moved, with the next state in one step."""
        self.recover()
        with self._changing(), coded_storage_failures():
            self._announce("write side rows")
            side = self._side.settle(self._stored.side, name, up_to, moved)
            if side != self._stored.side or not self._has_place:
                self._store(replace(self._stored, side=side), {})

    @property
    def _has_place(self) -> bool:
        """Whether there is a place for what is stored before the first commit."""
        return True

    def stored_config(self) -> StoredConfig:
        """Return where the definition of this stream is kept."""
        return _Config(self._read_config, self._write_config)

    def _read_config(self) -> str | None:
        self.recover()
        return self._stored.config

    def _write_config(self, text: str) -> None:
        self.recover()
        with self._changing(), coded_storage_failures():
            self._store(replace(self._stored, config=text), {})

    # --- blocks that the stream has passed --------------------------------------------------------

    is_atomic: ClassVar[bool] = False

    def begin_fill(self, outputs: Collection[str], tables: Sequence[str] | None) -> Sequence[str]:
        """Refuse an added output whose table holds rows."""
        for output in outputs:
            table = self._output_table(output)
            if tables is None and table is not None and table.live():
                raise EvolveError(
                    "the table of an output that was added holds rows already; drop or rename it",
                    table=output,
                )
        return ()

    def first_block(self, output: str) -> int | None:
        """Return the first block of an output's table; refuse one whose rows cannot be replaced."""
        table = self._output_table(output)
        if table is None:
            return None
        if BLOCK_NUMBER not in table.columns.names:
            raise EvolveError(
                "rows of a table that lacks the number of their block cannot be replaced; let a "
                "stream with an id of its own fill another table",
                table=output,
                column=BLOCK_NUMBER,
            )
        found = table.first_block()
        return self._stored.state.number + 1 if found is None else found

    def fill(
        self,
        batches: Sequence[tuple[BlockRange, Batch[Delivery]]],
        config: str,
        *,
        replace: bool,
    ) -> None:
        """Replace the rows of these blocks, a commit per table, then store the configuration.

        The commits say the block that the stream is at, so nothing that a fork does undoes them.
        """
        self.recover()
        if self._stored.config == config:
            return
        (first, _), (_, last) = batches[0], batches[-1]
        scope = Scope(last.state.number, first.from_block - 1, hot=False)
        self.altered.begin()
        with self._changing():
            tx = self._tx(scope, self._stored.state, widens=replace)
            for covered, batch in batches:
                for output, frame in batch.data.data.items():
                    tx.put_in_place(output, frame, covered)
            changes = {name: [one] for name, one in tx.changes.items() if one}
            self._store(dataclasses.replace(self._stored, config=config), changes)
        self.altered.committed()
        self._count_commit()

    def rename_outputs(self, renamed: Mapping[str, str], begun: str, config: str) -> None:
        """Store that tables are being renamed, rename them, then store the configuration.

        Tables of `on_data` have the names that the user's code gives them.
        """
        self.recover()
        before = self._stored.config
        if before == config:
            return
        with self._changing():
            if self._on_data is None:
                for new, old in renamed.items():
                    self._check_rename(old, new)
                self._store(replace(self._stored, config=begun), {})
                try:
                    for new, old in renamed.items():
                        self._announce(f"rename {old}")
                        self._rename(old, new)
                except EvolveError:  # of a catalog that renames no tables
                    self._store(replace(self._stored, config=before), {})
                    raise
                self._open()
            self._store(replace(self._stored, config=config), {})

    def _output_table(self, output: str) -> LakeTable[File] | None:
        self.recover()
        if self._on_data is not None:
            raise EvolveError(
                "on_data writes tables of its own choice, and no commit spans several of them: a "
                "crash would leave rows that nothing tells from earlier ones; fill the output by a "
                "stream with an id of its own",
                output=output,
            )
        return self._table(output, None)

    # --- steps ------------------------------------------------------------------------------------

    def _write(
        self, delivery: Delivery, before: PipeState, after: PipeState
    ) -> dict[str, Change[File]]:
        """Write the files of one batch; return what it changes of each table."""
        tx = self._tx(Scope.between(before, after), after)
        if self._on_data is None:
            for name, frame in delivery.data.items():
                tx.insert(name, frame)
        else:
            self._on_data(tx, delivery.data, delivery.ctx)
        return {name: one for name, one in tx.changes.items() if one}

    def _tx(self, scope: Scope, state: PipeState, *, widens: bool = False) -> Tx[File]:
        """Return what writes one batch; its commits say `state`."""
        room = self._given.rewrite_bytes
        author = Author(slug(self._id), self._stored.epoch)
        announce, altered = self._announce, self.altered
        return Tx(self._table, author, scope, state, room, announce, altered, widens=widens)

    def _count_commit(self) -> None:
        self._commits += 1
        every = self._given.maintain_every
        if every and self._commits % every == 0:
            self._maintain_a_little()

    def _store(self, stored: StoredStream, changes: Mapping[str, Sequence[Change[File]]]) -> None:
        self._commit(stored, changes)
        self._now(stored)

    def _now(self, stored: StoredStream) -> None:
        """Note what is stored; files of side tables that it has ceased to name are deleted."""
        before, self._stored = self._stored, stored
        if stored.side != before.side:
            self._announce("delete side files")
            self._side.discard(before.side, stored.side)

    def _open_side(self, place: Place) -> None:
        self._side = SideFiles(place, self._stored.epoch)
        self._side.open(self._side_tables)

    def _sweep_side(self) -> None:
        """Delete the files of side tables that writers before this one have left."""
        self._announce("sweep side files")
        self._side.sweep(self._stored.side)

    def _maintain_a_little(self) -> None:
        """Maintain between two batches; what fails in passing is tried again next time.

        Files that nothing names are looked for once a day: that lists the whole table.
        """
        self._announce("maintain")
        try:
            with self._changing():
                done = self._maintain(bounded=True)
                if self.clock() - self._swept >= SWEEP_S:
                    self._swept = self.clock()
                    done["swept"] = self._sweep()
        except self._PASSING:
            logger.warning("maintenance.failed id=%s", self._id, exc_info=True)
        else:
            logger.info("maintenance.done id=%s %s", self._id, done)

    @contextmanager
    def _changing(self, *, again: bool = False) -> Iterator[None]:
        """Surround a change: after a failure nothing that is remembered is used any more.

        `again` says that a change is tried again if others have rewritten the table meanwhile.
        """
        self._dirty = True
        try:
            with coded_full_disk():
                yield
        except TableRewritten as error:
            if again:
                raise
            raise LakeForeignWriteError("others rewrite the tables all the time") from error
        except LakeWriterError as error:
            self._replaced = error
            raise
        self._dirty = False

    def _announce(self, step: str) -> None:
        if self.on_step is not None:
            self.on_step(step)

    # --- what each format does in its own way -----------------------------------------------------

    @property
    @abstractmethod
    def _is_open(self) -> bool:
        """Whether tables are open, under the stream's id."""

    @abstractmethod
    def _open(self) -> None:
        """Open everything, or open it again after a failure: then all tables end where the state
        does, and no earlier writer can change them.
        """

    @abstractmethod
    def _release(self) -> None:
        """Let go of what is open."""

    @abstractmethod
    def _table(self, name: str, schema: pa.Schema | None) -> LakeTable[File] | None:
        """Return a declared table; it is created for columns, if some are given."""

    @abstractmethod
    def _check_rename(self, old: str, new: str) -> None:
        """Make sure that a table of the stream can be given a new name. Nothing is changed.

        Raises:
            EvolveError: it cannot.
        """

    @abstractmethod
    def _rename(self, old: str, new: str) -> None:
        """Give a table of the stream a new name, if there is one of the old name.

        Raises:
            EvolveError: the place renames no tables at all.
        """

    @abstractmethod
    def _commit(self, stored: StoredStream, changes: Mapping[str, Sequence[Change[File]]]) -> None:
        """Commit changes to their tables, and what is stored."""

    @abstractmethod
    def _go_back(self, stored: StoredStream) -> None:
        """Commit what is stored, and put the tables back to it."""

    @abstractmethod
    def _maintain(self, *, bounded: bool) -> dict[str, int]:
        """Maintain the tables: all that can be done, or as much as the settings allow at once."""

    @abstractmethod
    def _sweep(self) -> int:
        """Delete old files that nothing names; return how many those were."""


@dataclass(frozen=True, slots=True)
class _Config:
    """The stored definition of a stream."""

    read: Callable[[], str | None]
    write: Callable[[str], None]
