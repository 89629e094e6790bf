"""Several targets behind one stream: `stream.start([target_a, target_b])`. One read serves all.

Each target keeps its own cursor and its own state. The stream stands where the target does that is
furthest behind. One that is ahead is rolled back first, to its last final block or to the last one
that both hold, and leaves out the blocks that it has. Hot blocks that only it has may be orphaned,
and nothing that arrives need show it: blocks without rows may not arrive. A target that fails ends
the stream; the others keep what they have, and the next start heals the difference.

Every target that can keeps the side tables up to its own cursor, so any of them may be taken away
or join later. What the stream reads of them ends where the stream stands. A target that catches up
is not given rows that were settled meanwhile: no message is sent twice. Runs on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import DEFAULT_CAP, Batch, BlockCursor, Head, PipeState
from headwater.core.state import prune_chain
from headwater.errors import FanOutBranchError, FanOutFrameError, InvalidOptionError
from headwater.runtime import ALONE, Runtime
from headwater.targets.contract import (
    Capabilities,
    Delivery,
    KeepsSideTables,
    SideTable,
    Target,
    binding,
    prepared,
)
from headwater.targets.frames import column_names, rows_above, to_arrow
from headwater.targets.side_rows import KEY, without_keys

BLOCK = "block_number"
_BELOW_ALL = (-1, -1)  # key of a side row
logger = logging.getLogger("headwater.targets")


class FanOutTarget:
    """Made by a stream that is given several targets. `states` are what each has committed."""

    def __init__(self, targets: Sequence[Target[Any]]) -> None:
        if len(targets) < 2 or len({id(one) for one in targets}) < len(targets):
            raise InvalidOptionError("give two targets or more, each once", got=len(targets))
        self.targets = tuple(targets)
        self.states = [PipeState() for _ in targets]
        self._settling: frozenset[str] = frozenset()  # side tables whose rows may be removed
        self._complete: tuple[str, ...] = ()  # side tables of which each target has all rows
        self._is_uneven = True  # until the targets have stood at one block, with the same rows

    @property
    def capabilities(self) -> Capabilities[Any]:
        """Those of all targets; side tables, if one of them keeps any.

        Each target keeps the stream's definition by itself: one of them may have been evolved, or
        added, before the others.
        """
        found = [one.capabilities for one in self.targets]
        return Capabilities(
            rereads=True,
            side_tables=self if self._keepers() else None,
            file=next((one.file for one in found if one.file is not None), None),
            branches=self._branches,
            undo_rows=self._undo_rows,
            altered=self._altered,
            prepare_batch=self._prepare,
            finish=self._finish,
        )

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Give all targets the stream's id, and what its run hands them."""
        for one in self.targets:
            binding(one)(stream_id, runtime)

    def recover(self) -> PipeState:
        """Recover all targets, undo what only some hold, and return where the last one stands.

        What one of them knows to be final is final for those that hold the same blocks; the others
        learn it from the portal.
        """
        self.states = [one.recover() for one in self.targets]
        self._is_uneven = True
        while (odd := self._uncertain()) is not None:
            index, common = odd
            state = self.states[index].rewind(common)
            logger.info(
                "fanout.rolled_back target=%s to=%s: the other targets hold no more for certain",
                self._name(index), common,
            )  # fmt: skip
            self.targets[index].roll_back(state)
            self.states[index] = state
        found = self._lowest
        for one in self.states:
            found = _as_final(found, one)
        chain = tuple(one for one in found.rollback_chain if self._can_all_land(one))
        return PipeState(found.cursor, found.finalized, chain)

    def commit(self, batches: Sequence[Batch[Any]], state: PipeState) -> None:
        """Give each target the batches that it lacks, one target after the other."""
        for index in range(len(self.targets)):
            self._check_final(index, batches)
        for index, target in enumerate(self.targets):
            held = self.states[index]
            lacking = []
            for batch in batches:
                if batch.state.number > held.number:
                    after = _with_finality(batch.state, held)
                    one = replace(batch, state=after, data=batch.data[index])
                    lacking.append(one)
            if not lacking and held.number != state.number:
                continue  # it is ahead
            after = _with_finality(state, held)
            if lacking or after != held:
                target.commit(lacking, after)
                self.states[index] = after
        if self._is_uneven and self._is_together:
            self._even_out()

    def roll_back(self, state: PipeState) -> None:
        """Undo what each target has above the cursor, and can undo: what is final for it stays."""
        for index, target in enumerate(self.targets):
            held = self.states[index]
            if held.number <= state.number:
                continue
            all_points = held.landing_points()
            points = [one for one in all_points if one.number <= state.number] or all_points[:1]
            landing = next((one for one in points if one == state.cursor), points[-1])
            if landing == held.cursor:
                continue  # all that it has is final
            after = _as_final(held.rewind(landing), state)
            target.roll_back(after)
            self.states[index] = after
        behind = [index for index, one in enumerate(self.states) if one.number < state.number]
        if behind:
            raise FanOutBranchError(
                "a target went back further than the others; the next start lets it catch up",
                target=self._name(behind[0]),
                cursor=self.states[behind[0]].cursor,
            )

    def close(self) -> None:
        """Close all targets, also if one fails."""
        with ExitStack() as stack:
            for one in self.targets:
                stack.callback(one.close)

    def _branches(self) -> list[tuple[Target[Any], PipeState]]:
        return list(zip(self.targets, self.states, strict=True))

    def _undo_rows(self) -> int:
        counts = (one.capabilities.undo_rows for one in self.targets)
        return sum(count() for count in counts if count is not None)

    def _altered(self) -> tuple[int, int]:
        found = (one.capabilities.altered for one in self.targets)
        totals = [one() for one in found if one is not None]
        return sum(values for values, _ in totals), sum(rows for _, rows in totals)

    # --- side tables ------------------------------------------------------------------------------

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Have every target that keeps side tables create them."""
        self._complete = tuple(one.name for one in tables if one.complete)
        self._settling = frozenset(one.name for one in tables if one.settles and not one.complete)
        for _, one in self._keepers():
            one.open_side_tables(tables)

    def read_side_table(
        self,
        name: str,
        *,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return rows up to where the stream stands.

        They are those of the target that is furthest ahead, of which none comes back that was
        settled; of complete tables those of the one that is furthest behind, whose blocks are those
        that the stream goes on from.
        """
        reach = self._lowest.number if up_to_block is None else up_to_block
        keepers = self._keepers()
        if name in self._complete and self._is_uneven:
            self._even_out()
        _, chosen = keepers[-1 if name in self._complete else 0]
        return chosen.read_side_table(
            name, after=after, up_to_block=min(reach, self._lowest.number), limit=limit
        )

    def _even_out(self) -> None:
        """Give each target the rows of complete tables that another one has.

        A target may have run without what makes them, or stood ahead while they were made. Where
        targets stand apart, only blocks count that no fork takes back from any of them.
        """
        self._is_uneven = not self._is_together
        keepers = [one for _, one in self._keepers()]
        together = self._lowest.number
        reach = min(one.undo_floor for one in self.states) if self._is_uneven else together
        for name in self._complete if len(keepers) > 1 and reach >= 0 else ():
            found = [one.read_side_table(name, up_to_block=reach) for one in keepers]
            for keeper, own in zip(keepers, found, strict=True):
                held = own
                for other in found:
                    lacking = without_keys(other, held)
                    if lacking.num_rows:
                        logger.info("fanout.evened table=%s rows=%d", name, lacking.num_rows)
                        keeper.settle_side_rows(name, _BELOW_ALL, {name: lacking})
                        held = pa.concat_tables([held, lacking])

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Settle rows in every target; last in the one that is read, so a crash repeats it."""
        for _, one in reversed(self._keepers()):
            one.settle_side_rows(name, up_to, moved)

    def _keepers(self) -> list[tuple[int, KeepsSideTables]]:
        """Return the targets that keep side tables, by their cursors: the furthest ahead first."""
        found = [
            (state.number, target.capabilities.side_tables)
            for target, state in zip(self.targets, self.states, strict=True)
        ]
        kept = [(number, one) for number, one in found if one is not None]
        return sorted(kept, key=lambda one: -one[0])

    def _side_of(
        self, index: int, side: Mapping[str, Any], *, is_ahead: bool
    ) -> dict[str, pa.Table]:
        """Return side rows for a target: without those that it has, or that are settled."""
        number = self.states[index].number
        own = self.targets[index].capabilities.side_tables
        found = {}
        for name, given in side.items():
            rows = to_arrow(given)
            blocks = pc.min_max(rows.column(BLOCK)).as_py()
            if own is None or blocks["min"] is None:
                found[name] = rows
            elif name not in self._complete:
                if name in self._settling:
                    rows = self._unsettled(name, rows, number)
                found[name] = _above(rows, number, name) if is_ahead else rows
            elif blocks["min"] <= number:
                known = own.read_side_table(name, after=(blocks["min"], -1), up_to_block=number)
                found[name] = without_keys(rows, known)
            else:
                found[name] = rows
        return found

    def _unsettled(self, name: str, rows: pa.Table, held: int) -> pa.Table:
        """Return side rows for a target; where it is behind, without those that are settled."""
        number, ahead = self._keepers()[0]
        if held >= number:
            return rows
        blocks = pc.min_max(rows.column(BLOCK)).as_py()
        known = ahead.read_side_table(
            name, after=(blocks["min"], -1), up_to_block=blocks["max"]
        ).select(KEY)
        kept = rows.join(known, list(KEY), join_type="left semi")
        later = rows.filter(pc.field(BLOCK) > number)
        return pa.concat_tables([kept.select(rows.column_names), later])

    # --- batches ----------------------------------------------------------------------------------

    def _prepare(self, batch: Batch[Delivery]) -> Batch[tuple[Any, ...]]:
        """Prepare a batch for each target, in their order, with the blocks that it lacks."""
        made = []
        is_alone = len(batch.headers) == 1 and batch.rollback_chain  # as a hot block comes
        for index, (target, held) in enumerate(zip(self.targets, self.states, strict=True)):
            is_ahead = self._lowest.number < held.number < batch.state.number
            data = batch.data.data
            if is_ahead and not is_alone:
                data = {name: _above(frame, held.number, name) for name, frame in data.items()}
            side = self._side_of(index, batch.data.side, is_ahead=is_ahead)
            delivery = replace(batch.data, data=data, side=side)
            made.append(prepared(target, batch.with_data(delivery)).data)
        return batch.with_data(tuple(made))

    def _finish(self) -> None:
        for one in self.targets:
            finish = one.capabilities.finish
            if finish is not None:
                finish()

    # --- branches ---------------------------------------------------------------------------------

    @property
    def _is_together(self) -> bool:
        """Whether all targets stand at the same block."""
        return len({one.cursor for one in self.states}) == 1

    @property
    def _lowest(self) -> PipeState:
        return min(self.states, key=lambda one: one.number)

    def _name(self, index: int) -> str:
        return f"{type(self.targets[index]).__name__}[{index}]"

    def _uncertain(self) -> tuple[int, BlockCursor] | None:
        """Return a target with hot blocks that the lowest lacks, and where it is to go back to."""
        low = self._lowest.landing_points()
        for index, held in enumerate(self.states):
            points = held.landing_points()
            certain = [one for one in points if one.number <= held.undo_floor or one in low]
            if certain and certain[-1] != held.cursor:
                return index, certain[-1]
        return None

    def _can_all_land(self, point: BlockCursor) -> bool:
        """Tell whether no target would go further back; chains are capped at different blocks."""
        return all(
            point.number < one.undo_floor or point in one.landing_points() for one in self.states
        )

    def _check_final(self, index: int, batches: Sequence[Batch[Any]]) -> None:
        """Refuse blocks that contradict what a target ahead of the stream holds as final."""
        known = {one.number: one.hash for one in self.states[index].rollback_chain}
        for header in (header for batch in batches for header in batch.headers):
            if known.get(header.number, header.hash) != header.hash:
                raise FanOutBranchError(
                    "a target that is ahead holds another block",
                    target=self._name(index),
                    block=header.cursor,
                )


def _as_final(state: PipeState, other: PipeState) -> PipeState:
    """Return a state with the finality that another one knows of, as far as their blocks agree.

    A target that was left out for a while may stand on a branch that was orphaned meanwhile. If the
    other does not hold its cursor, only the portal can tell whether its blocks are final.
    """
    cap = max(DEFAULT_CAP, len(state.rollback_chain) + 1)
    confirmed = state.cursor in other.landing_points()
    return state.settle(Head(other.finalized), confirmed=confirmed, cap=cap)


def _with_finality(state: PipeState, held: PipeState) -> PipeState:
    """Return a state of the stream for a target that may know of more finality."""
    mine, other = held.finalized, state.finalized
    if mine is None or (other is not None and other.number >= mine.number):
        return state
    chain = prune_chain(state.rollback_chain, mine)
    if state.number > mine.number and (not chain or chain[0] != mine):
        chain = (mine, *chain)
    return PipeState(state.cursor, mine, chain)


def _above(frame: Any, number: int, output: str) -> Any:
    """Return the rows of a frame above a block."""
    if BLOCK not in column_names(frame):
        raise FanOutFrameError(
            "a target is ahead of the others, and rows do not say their block", output=output
        )
    return rows_above(frame, BLOCK, number)
