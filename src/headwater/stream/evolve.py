"""Brings a stream's tables from an earlier definition to the present one: what was added is filled.

    portal_stream(id="usdc", outputs={"transfers": …, "approvals": …}, on_config_change="evolve")

Called once by a run, on the driver, before it begins. What differs is worked out from the stored
configuration (`plan_evolution`, pure); of several targets, for each by its own. Then, each step one
change of the target:

1. Outputs that the user has renamed get their new name.
2. The stream goes back to the high-water mark, if anything is to be filled: the hot blocks are read
   again with all outputs.
3. What was added is read from its first block to the high-water mark and written, batch by batch,
   each together with how far it got. Added columns, and another version of what transforms make of
   an output, replace the rows of the same blocks.
4. The new configuration is stored; the run goes on behind the high-water mark.

After a crash the next start goes on with the step that was under way, behind the last batch that
was filled. Until then the earlier definition can go on, too, except where rows are being replaced
in a target without transactions: there a batch may be missing, so its rows must be filled first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headwater.core import Batch, BlockCursor, BlockRange, PipeState
from headwater.core.ranges import merge_ranges
from headwater.errors import EvolveError
from headwater.runtime import ALONE, Runtime
from headwater.spark.frames import frames
from headwater.stream.config import Config, Filling
from headwater.stream.run import Run
from headwater.stream.user_code import Frames, Step
from headwater.targets.contract import (
    Capabilities,
    Delivery,
    FillsHistory,
    StoredConfig,
    Target,
    branches,
)
from headwater.targets.frames import bounded_tables, to_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.stream.portal import PortalStream
    from headwater.stream.portal_run import PortalRun

logger = logging.getLogger("headwater.stream")


@dataclass(frozen=True, slots=True)
class Evolution:
    """What a definition has more than the stored one: new names (to old ones), outputs, columns.

    `remade` are outputs whose rows are replaced: they have more columns, another version, or rows
    of children that count from another point.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    remade: tuple[str, ...] = ()


def plan_evolution(before: Config, now: Config, renamed: Mapping[str, str]) -> Evolution:
    """Return what leads from one definition to another.

    `renamed` is what the user says: new names to old ones. A pair whose old name is not stored any
    more was done before.

    Raises:
        EvolveError: an output was removed, or asks for other rows, or lost or changed a column; or
            another renaming has begun.
    """
    moved = {
        new: old
        for new, old in {**renamed, **before.renaming}.items()
        if old in before.outputs and new in now.outputs
    }
    left = [f"{old}={new}" for new, old in before.renaming.items() if moved.get(new) != old]
    if left:
        raise EvolveError(
            "tables are half renamed; finish it first, with the new names", renamed=", ".join(left)
        )
    for new, old in moved.items():
        if old in now.outputs or new in before.outputs:
            raise EvolveError("both names of a renamed output are in use", new=new, old=old)
    stored = rename(before, moved)
    gone = sorted(set(stored.outputs) - set(now.outputs))
    if gone:
        raise EvolveError("outputs were removed", removed=", ".join(gone))
    changed = [
        name
        for name in now.outputs
        if stored.outputs.get(name, now.outputs[name]) != now.outputs[name]
    ]
    for name in changed:
        if name not in stored.columns:
            raise EvolveError(
                "an output has changed, and what it asked for was stored by an earlier release, "
                "which cannot tell how",
                output=name,
            )
        stored_columns, wanted = stored.columns[name].items(), now.columns[name].items()
        same_columns = len(stored_columns) == len(wanted)
        same_version = stored.version(name) == now.version(name)
        is_same = same_columns and same_version and stored.since(name) == now.since(name)
        if stored.rows.get(name) != now.rows[name]:
            raise EvolveError(
                "an output asks for other rows than its table was filled with: its event, its "
                "contracts or another filter of it is not what it was",
                output=name,
            )
        if not stored_columns <= wanted:
            raise EvolveError(
                "an output has lost columns, or their types have changed",
                output=name,
                columns_gone=", ".join(sorted(dict(stored_columns - wanted))),
            )
        if is_same:
            raise EvolveError("an output is read in another way than before", output=name)
    added = [name for name in now.outputs if name not in stored.outputs]
    return Evolution(moved, tuple(added), tuple(changed))


def rename(config: Config, renamed: Mapping[str, str]) -> Config:
    """Return a configuration in which outputs have new names."""
    names = {old: new for new, old in renamed.items()}

    def moved(part: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in part.items()}

    filling = config.filling
    return Config(
        moved(config.outputs),
        moved(config.firsts),
        moved(config.rows),
        moved(config.columns),
        None if filling is None else replace(filling, outputs=moved(filling.outputs)),
    )


def evolve(stream: PortalStream, target: Target[Delivery], filler: PortalRun) -> None:
    """Bring what the target holds to the stream's definition; do nothing if it is there already.

    `filler` is the run that is about to begin: it knows the portal, and makes the runs that fill.

    Raises:
        EvolveError: the definition differs in another way, or the target cannot do it.
    """
    plans = [_planned(stream, branch, filler) for branch, _ in branches(target, PipeState())]
    for work in plans:
        if work is not None:
            work.run()


def _planned(stream: PortalStream, target: Target[Delivery], filler: PortalRun) -> _Evolving | None:
    """Return what is to be done to one target; None if nothing is."""
    keeps, history = target.capabilities.config, target.capabilities.history
    state = target.recover()
    if keeps is None or state.cursor is None:
        return None
    stored = keeps.stored_config()
    text, now = stored.read(), Config.of(stream.outputs, stream.versions)
    if text is None or not now.differences(Config.load(text)):
        return None
    plan = plan_evolution(Config.load(text), now, stream.renamed)
    if history is None:
        raise EvolveError(
            "this target cannot be given rows of blocks that it has passed; give what is new a "
            "stream with an id of its own, which may write the same place",
            target=type(target).__name__,
        )
    return _Evolving(stream, target, history, stored, filler, now, plan)


@dataclass(frozen=True, slots=True)
class _Evolving:
    """The steps of one evolution of one target."""

    stream: PortalStream
    target: Target[Delivery]
    history: FillsHistory
    stored: StoredConfig
    filler: PortalRun
    now: Config
    plan: Evolution

    def run(self) -> None:
        """Do all steps."""
        if self.plan.renamed:
            self.rename(self.plan.renamed)
        for name in self.plan.remade:  # first: tables then have the columns of empty frames, too
            self.fill((name,), self.target.recover(), replaces=True)
        self.fill(self.plan.added, self.target.recover(), replaces=False)

    def rename(self, renamed: Mapping[str, str]) -> None:
        """Give outputs their new names, in the target and in what is stored of them."""
        stored = self._held()
        begun = replace(stored, renaming=renamed)
        self.history.rename_outputs(renamed, begun.dump(), rename(stored, renamed).dump())
        shown = " ".join(f"{old}={new}" for new, old in renamed.items())
        logger.warning("config.renamed id=%s %s", self.stream.id, shown)

    def fill(self, names: Collection[str], state: PipeState, *, replaces: bool) -> None:
        """Fill outputs up to the high-water mark, and store that they are as defined now."""
        if not names:
            return
        stored = self._held()
        wanted = {name: self.now.outputs[name] for name in names}
        if stored.filling is not None and stored.filling.outputs != wanted:
            raise EvolveError(
                "another backfill has begun; finish it first, with the outputs it was begun for",
                begun=", ".join(sorted(stored.filling.outputs)),
                filled_to=stored.filling.cursor,
                wanted=", ".join(sorted(wanted)),
            )
        final = self._final(state)
        firsts = {name: self.history.first_block(name) for name in names if replaces}
        ranges, emptied = {}, False
        for name in names:
            specs, first = self.stream.outputs[name].ranges, firsts.get(name)
            several = self.filler.blocks_up_to(specs, final.number, first)
            if replaces and first is not None and (first > final.number or not several):
                several, emptied = (BlockRange(final.number, final.number),), True
            if several and (first is not None or not replaces):
                ranges[name] = several
        if ranges:
            self._check_transforms(ranges)
            tables: Sequence[str] = ()
            if not replaces:
                known = None if stored.filling is None else stored.filling.tables
                tables = self.history.begin_fill(list(ranges), known)
            if stored.filling is None:
                must_end = replaces and not self.history.is_atomic
                begun = Filling(wanted, must_end=must_end, tables=tuple(tables))
                stored = replace(stored, filling=begun)
                self.stored.write(stored.dump())
            if state.cursor != final:
                self.target.roll_back(state.rewind(final))
            self._read(ranges, stored, final, replaces=replaces, emptied=emptied)
        done = Config(
            {**stored.outputs, **wanted},
            stored.firsts,
            {**stored.rows, **{name: self.now.rows[name] for name in wanted}},
            {**stored.columns, **{name: self.now.columns[name] for name in wanted}},
        )
        self.stored.write(done.dump())
        logger.warning("config.evolved id=%s outputs=%s", self.stream.id, ",".join(sorted(wanted)))
        self.filler.filled(None)

    def _read(
        self,
        ranges: Mapping[str, tuple[BlockRange, ...]],
        held: Config,
        final: BlockCursor,
        *,
        replaces: bool,
        emptied: bool,
    ) -> None:
        """Read the blocks and write their rows, from where an earlier run has stopped.

        `emptied`: no row is wanted, but the table needs the columns.
        """
        stream, shown = self.stream, ", ".join(sorted(ranges))
        others = {
            name: output.schema.empty_table()
            for name, output in stream.outputs.items()
            if name not in ranges
        }
        run: Run
        filled = replace(
            stream,
            outputs={name: output for name, output in stream.outputs.items() if name in ranges},
            steps=(_beside(others, lambda: run.session), *stream.steps) if stream.steps else (),
            extensions=(),
            on_config_change="ignore",
            undo_buffer=0,
        )
        target = _Filled(
            self.target,
            self.history,
            held,
            merge_ranges(block_range for several in ranges.values() for block_range in several),
            others={} if stream.steps else frames(others, lambda: run.session),
            outputs=set(ranges),
            replaces=replaces,
            emptied=emptied,
        )
        logger.warning("config.filling id=%s outputs=%s to=%s", stream.id, shown, final)
        with self.filler.filling(filled, target, ranges) as run:
            for event in run.steps():
                at = max(event.state.number, 0)
                self.filler.filled(f"filling {shown}: block {at:,} of {final.number:,}")

    def _held(self) -> Config:
        text = self.stored.read()
        assert text is not None, "there is something to evolve from"
        return Config.load(text)

    def _final(self, state: PipeState) -> BlockCursor:
        if state.finalized is None or state.cursor is None:
            raise EvolveError(
                "no finalized block is known, so there is no place to fill up to", at=state.cursor
            )
        return min(state.finalized, state.cursor, key=lambda cursor: cursor.number)

    def _check_transforms(self, names: Collection[str]) -> None:
        if any(step.has_hooks for step in self.stream.steps):
            raise EvolveError(
                "a transformer with start, fork or stop may keep state, which earlier blocks would "
                "confuse",
                outputs=", ".join(sorted(names)),
            )


def _beside(others: Mapping[str, Any], session: Callable[[], SparkSession]) -> Step:
    """Return a transform that adds the outputs which are not filled, without rows.

    The user's transforms then find every output that they know.
    """

    def add(data: Frames) -> Frames:
        return {**frames(others, session), **data}

    return Step(add)


@dataclass
class _Filled:
    """The target of a run that fills: it has a cursor of its own, kept with the configuration."""

    target: Target[Delivery]
    history: FillsHistory
    config: Config
    ranges: Sequence[BlockRange]
    others: Mapping[str, Any]
    outputs: Collection[str]
    replaces: bool
    emptied: bool

    def __post_init__(self) -> None:
        assert self.config.filling is not None, "it has begun"
        self.filling = self.config.filling
        cursor = self.filling.cursor
        self.state = PipeState() if cursor is None else PipeState(cursor, cursor, (cursor,))

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It stores nothing for the stream itself."""
        can = self.target.capabilities
        return Capabilities(rereads=can.rereads, prepare_batch=can.prepare_batch)

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Need no id: the target that is filled has it."""

    def recover(self) -> PipeState:
        """Return how far an earlier run has come."""
        return self.state

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Write the rows, with how far they go."""
        if batches:
            assert state.cursor is not None, "a batch ends in a block"
            filling = replace(self.filling, cursor=state.cursor)
            config = replace(self.config, filling=filling)
            filled, before = [], self.state.number
            for batch in batches:
                covered = self._covered(before, batch.state.number)
                filled.append((covered, batch.with_data(self._chosen(batch.data))))
                before = batch.state.number
            self.history.fill(filled, config.dump(), replace=self.replaces)
        self.state = state

    def roll_back(self, state: PipeState) -> None:
        """Do nothing: all blocks are final."""
        raise AssertionError("a final block was rolled back")

    def close(self) -> None:
        """Leave the target open: the stream goes on with it."""

    def _covered(self, before: int, last: int) -> BlockRange:
        """Return the blocks of a batch: those behind the one before, in the range it belongs to."""
        if self.emptied:  # rows stay
            return BlockRange(last + 1, last + 1)
        own = next(block_range for block_range in self.ranges if last in block_range)
        return BlockRange(max(own.from_block, before + 1), last)

    def _chosen(self, delivery: Delivery) -> Delivery:
        """Return the rows to write: those of the outputs' own tables, where rows are replaced."""
        if not self.replaces and self.history.is_atomic:
            return replace(delivery, data={**self.others, **delivery.data})
        missing = sorted(set(self.outputs) - set(delivery.data))
        if missing:
            raise EvolveError(
                "the transforms leave no rows under the name of an output that is to be filled",
                outputs=", ".join(missing),
            )
        if not self.replaces:
            self._check_others(delivery.data)
        chosen = {name: delivery.data[name] for name in self.outputs}
        if self.emptied:
            chosen = {name: to_arrow(frame).slice(0, 0) for name, frame in chosen.items()}
        return replace(delivery, data=chosen)

    def _check_others(self, data: Mapping[str, Any]) -> None:
        """Refuse rows of other tables: after a crash nothing would tell them from earlier ones."""
        for name in sorted(set(data) - set(self.outputs)):
            if any(rows.num_rows for rows in bounded_tables(data[name])):
                raise EvolveError(
                    "the transforms make rows of another table of an output that is to be filled, "
                    "and this target has no transactions; fill it by a stream with its own id",
                    table=name,
                    outputs=", ".join(sorted(self.outputs)),
                )
