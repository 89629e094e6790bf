"""Batches of a stream into tables of a lake, whatever the format.

A batch becomes files at once; they count with the commit that names them. Runs on the driver, in
one thread; rows of final blocks that lie on executors become files there.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

from headwater.core import Batch, BlockRange, PipeState
from headwater.core.callbacks import Callback
from headwater.core.rooms import Policy
from headwater.errors import EvolveError, LakeDiskFullError, LakeForeignWriteError
from headwater.targets.contract import Capabilities, Delivery, Scope
from headwater.targets.database import OnData
from headwater.targets.lake.maintenance import Maintenance
from headwater.targets.lake.merge import add_aggregates
from headwater.targets.lake.paths import coded_storage_failures
from headwater.targets.lake.settings import LakeSettings, Table, TableSettings
from headwater.targets.lake.stream import LakeStream
from headwater.targets.lake.table import (
    ATTEMPTS,
    BLOCK_NUMBER,
    Change,
    File,
    LakeTable,
    TableRewritten,
)
from headwater.targets.lake.tx import Tx
from headwater.targets.sql.aggregates import Plan
from headwater.targets.values import Altered, check_policy

SWEEP_S = 86_400.0
_PASSING = (LakeForeignWriteError, LakeDiskFullError, OSError, EOFError)
"""Errors of maintenance between batches that the next round may not meet."""
logger = logging.getLogger("headwater.targets")


class LakeTarget(LakeStream[File]):
    """A target of lake tables in a place. `clock` says the seconds, for tests."""

    def __init__(
        self,
        place: Any,
        declared: Mapping[str, Table],
        on_data: OnData[Tx[File]] | None,
        settings: LakeSettings,
        unrepresentable: str = Policy.REPLACE,
        plans: Sequence[Plan] = (),
    ) -> None:
        super().__init__(settings)
        self.place = place
        self.plans = plans  # the tables that sum up outputs, and how
        self._declared = declared
        self.clock: Callable[[], float] = time.monotonic
        self.altered = Altered(check_policy(unrepresentable))
        self._on_data = Callback.optional("on_data", on_data, "tx, data", "tx, data, ctx")
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

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Write the batches' files, commit them to their tables, and store the state."""
        for left in reversed(range(ATTEMPTS)):
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
            for name, change in self._write(batch, before, after).items():
                changes.setdefault(name, []).append(change)
            if batch.data.side and self.capabilities.side_tables is not None:
                self._announce("write side rows")
                with coded_storage_failures():
                    side = self._side.add(side, batch.data.side)
        with coded_storage_failures():
            self._store(replace(self._stored, state=state, side=side), changes)
        self.altered.committed()

    def maintain(self) -> dict[str, int]:
        """Do all maintenance that can be done; return how much that was. Not while it writes."""
        for left in reversed(range(ATTEMPTS)):
            self.recover()
            with (
                suppress(TableRewritten),
                self._changing(again=left > 0),
                coded_storage_failures(),
            ):
                work = self._maintenance(bounded=False)
                return {**work.run(), "swept": work.sweep()}
        raise AssertionError("the last attempt returns or raises")

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
        first = table.first_block()
        return self._stored.state.number + 1 if first is None else first

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
            changes = {name: [change] for name, change in tx.changes.items() if change}
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
                    self._opened.check_rename(old, new)
                self._store(replace(self._stored, config=begun), {})
                try:
                    for new, old in renamed.items():
                        self._announce(f"rename {old}")
                        self._opened.rename(old, new)
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
        return self._opened.get(output, None, self._stored)

    def _write(
        self, batch: Batch[Delivery], before: PipeState, after: PipeState
    ) -> dict[str, Change[File]]:
        """Write the files of one batch; return what it changes of each table."""
        delivery = batch.data
        far = self._opened.begin(batch, after)
        tx = self._tx(Scope.between(before, after), after, far=far)
        if self._on_data is None:
            for name, frame in delivery.data.items():
                tx.insert(name, frame)
        else:
            self._on_data(tx, delivery.data, delivery.ctx)
        add_aggregates(tx, self.plans, delivery.data, after.number)
        return {name: change for name, change in tx.changes.items() if change}

    def _tx(
        self, scope: Scope, state: PipeState, *, far: bool = True, widens: bool = False
    ) -> Tx[File]:
        """Return what writes one batch; its commits say `state`."""
        settings = self._settings
        return Tx(
            self._opened,
            self._stored,
            scope,
            state,
            settings.rewrite_bytes if isinstance(settings, TableSettings) else 0,
            self._announce,
            self.altered,
            self._declared,
            far=far,
            widens=widens,
        )

    def _count_commit(self) -> None:
        """Maintain between two batches, now and then; what fails in passing is tried again later.

        Files that nothing names are looked for once a day: that lists the whole table.
        """
        self._commits += 1
        settings = self._settings
        every = settings.maintain_every if isinstance(settings, TableSettings) else 0
        if not every or self._commits % every:
            return
        self._announce("maintain")
        try:
            with self._changing():
                work = self._maintenance(bounded=True)
                done = work.run()
                if self.clock() - self._swept >= SWEEP_S:
                    self._swept = self.clock()
                    done["swept"] = work.sweep()
        except _PASSING:
            logger.warning("maintenance.failed id=%s", self._id, exc_info=True)
        else:
            logger.info("maintenance.done id=%s %s", self._id, done)

    def _maintenance(self, *, bounded: bool) -> Maintenance[File]:
        tables = self._opened
        announce = self._announce
        return Maintenance(tables, self._stored, self._settings, announce, bounded, tables.check)
