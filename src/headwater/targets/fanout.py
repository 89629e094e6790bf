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
        if len(targets) < 2 or len({id(target) for target in targets}) < len(targets):
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
        capabilities = [target.capabilities for target in self.targets]
        return Capabilities(
            rereads=True,
            side_tables=self if self._keepers() else None,
            file=next(
                (capability.file for capability in capabilities if capability.file is not None),
                None,
            ),
            branches=self._branches,
            undo_rows=self._undo_rows,
            altered=self._altered,
            prepare_batch=self._prepare,
            finish=self._finish,
        )

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Give all targets the stream's id, and what its run hands them."""
        for target in self.targets:
            binding(target)(stream_id, runtime)

    def recover(self) -> PipeState:
        """Recover all targets, undo what only some hold, and return where the last one stands.

        What one of them knows to be final is final for those that hold the same blocks; the others
        learn it from the portal.
        """
        self.states = [target.recover() for target in self.targets]
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
        lowest = self._lowest
        for known in self.states:
            lowest = _as_final(lowest, known)
        chain = tuple(point for point in lowest.rollback_chain if self._can_all_land(point))
        return PipeState(lowest.cursor, lowest.finalized, chain)

    def commit(self, batches: Sequence[Batch[Any]], state: PipeState) -> None:
        """Give each target the batches that it lacks, one target after the other."""
        for index in range(len(self.targets)):
            self._check_final(index, batches)
        for index, target in enumerate(self.targets):
            stored = self.states[index]
            lacking = []
            for batch in batches:
                if batch.state.number > stored.number:
                    after = _with_finality(batch.state, stored)
                    own = replace(batch, state=after, data=batch.data[index])
                    lacking.append(own)
            if not lacking and stored.number != state.number:
                continue  # it is ahead
            after = _with_finality(state, stored)
            if lacking or after != stored:
                target.commit(lacking, after)
                self.states[index] = after
        if self._is_uneven and self._is_together:
            self._even_out()

    def roll_back(self, state: PipeState) -> None:
        """Undo what each target has above the cursor, and can undo: what is final for it stays."""
        for index, target in enumerate(self.targets):
            stored = self.states[index]
            if stored.number <= state.number:
                continue
            all_points = stored.landing_points()
            reached = [point for point in all_points if point.number <= state.number]
            points = reached or all_points[:1]
            landing = next((point for point in points if point == state.cursor), points[-1])
            if landing == stored.cursor:
                continue  # all that it has is final
            after = _as_final(stored.rewind(landing), state)
            target.roll_back(after)
            self.states[index] = after
        behind = [index for index, own in enumerate(self.states) if own.number < state.number]
        if behind:
            raise FanOutBranchError(
                "a target went back further than the others; the next start lets it catch up",
                target=self._name(behind[0]),
                cursor=self.states[behind[0]].cursor,
            )

    def close(self) -> None:
        """Close all targets, also if one fails."""
        with ExitStack() as stack:
            for target in self.targets:
                stack.callback(target.close)

    def _branches(self) -> list[tuple[Target[Any], PipeState]]:
        return list(zip(self.targets, self.states, strict=True))

    def _undo_rows(self) -> int:
        counts = (target.capabilities.undo_rows for target in self.targets)
        return sum(count() for count in counts if count is not None)

    def _altered(self) -> tuple[int, int]:
        counters = (target.capabilities.altered for target in self.targets)
        totals = [counter() for counter in counters if counter is not None]
        return sum(values for values, _ in totals), sum(rows for _, rows in totals)

    # --- side tables ------------------------------------------------------------------------------

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Have every target that keeps side tables create them."""
        self._complete = tuple(table.name for table in tables if table.complete)
        self._settling = frozenset(
            table.name for table in tables if table.settles and not table.complete
        )
        for _, keeper in self._keepers():
            keeper.open_side_tables(tables)

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
        keepers = [keeper for _, keeper in self._keepers()]
        together = self._lowest.number
        reach = min(state.undo_floor for state in self.states) if self._is_uneven else together
        for name in self._complete if len(keepers) > 1 and reach >= 0 else ():
            tables = [keeper.read_side_table(name, up_to_block=reach) for keeper in keepers]
            for keeper, own in zip(keepers, tables, strict=True):
                stored = own
                for other in tables:
                    lacking = without_keys(other, stored)
                    if lacking.num_rows:
                        logger.info("fanout.evened table=%s rows=%d", name, lacking.num_rows)
                        keeper.settle_side_rows(name, _BELOW_ALL, {name: lacking})
                        stored = pa.concat_tables([stored, lacking])

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Settle rows in every target; last in the one that is read, so a crash repeats it."""
        for _, keeper in reversed(self._keepers()):
            keeper.settle_side_rows(name, up_to, moved)

    def _keepers(self) -> list[tuple[int, KeepsSideTables]]:
        """Return the targets that keep side tables, by their cursors: the furthest ahead first."""
        sides = [
            (state.number, target.capabilities.side_tables)
            for target, state in zip(self.targets, self.states, strict=True)
        ]
        kept = [(number, side) for number, side in sides if side is not None]
        return sorted(kept, key=lambda pair: -pair[0])

    def _side_of(
        self, index: int, side: Mapping[str, Any], *, is_ahead: bool
    ) -> dict[str, pa.Table]:
        """Return side rows for a target: without those that it has, or that are settled."""
        number = self.states[index].number
        own = self.targets[index].capabilities.side_tables
        lacking = {}
        for name, frame in side.items():
            rows = to_arrow(frame)
            blocks = pc.min_max(rows.column(BLOCK)).as_py()
            if own is None or blocks["min"] is None:
                lacking[name] = rows
            elif name not in self._complete:
                if name in self._settling:
                    rows = self._unsettled(name, rows, number)
                lacking[name] = _above(rows, number, name) if is_ahead else rows
            elif blocks["min"] <= number:
                known = own.read_side_table(name, after=(blocks["min"], -1), up_to_block=number)
                lacking[name] = without_keys(rows, known)
            else:
                lacking[name] = rows
        return lacking

    def _unsettled(self, name: str, rows: pa.Table, own: int) -> pa.Table:
        """Return side rows for a target; where it is behind, without those that are settled."""
        number, ahead = self._keepers()[0]
        if own >= number:
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
        deliveries = []
        is_alone = len(batch.headers) == 1 and batch.rollback_chain  # as a hot block comes
        for index, (target, state) in enumerate(zip(self.targets, self.states, strict=True)):
            is_ahead = self._lowest.number < state.number < batch.state.number
            data = batch.data.data
            if is_ahead and not is_alone:
                data = {name: _above(frame, state.number, name) for name, frame in data.items()}
            side = self._side_of(index, batch.data.side, is_ahead=is_ahead)
            delivery = replace(batch.data, data=data, side=side)
            deliveries.append(prepared(target, batch.with_data(delivery)).data)
        return batch.with_data(tuple(deliveries))

    def _finish(self) -> None:
        for target in self.targets:
            finish = target.capabilities.finish
            if finish is not None:
                finish()

    # --- branches ---------------------------------------------------------------------------------

    @property
    def _is_together(self) -> bool:
        """Whether all targets stand at the same block."""
        return len({state.cursor for state in self.states}) == 1

    @property
    def _lowest(self) -> PipeState:
        return min(self.states, key=lambda state: state.number)

    def _name(self, index: int) -> str:
        return f"{type(self.targets[index]).__name__}[{index}]"

    def _uncertain(self) -> tuple[int, BlockCursor] | None:
        """Return a target with hot blocks that the lowest lacks, and where it is to go back to."""
        low = self._lowest.landing_points()
        for index, state in enumerate(self.states):
            points = state.landing_points()
            certain = [
                point for point in points if point.number <= state.undo_floor or point in low
            ]
            if certain and certain[-1] != state.cursor:
                return index, certain[-1]
        return None

    def _can_all_land(self, point: BlockCursor) -> bool:
        """Tell whether no target would go further back; chains are capped at different blocks."""
        return all(
            point.number < state.undo_floor or point in state.landing_points()
            for state in self.states
        )

    def _check_final(self, index: int, batches: Sequence[Batch[Any]]) -> None:
        """Refuse blocks that contradict what a target ahead of the stream holds as final."""
        known = {point.number: point.hash for point in self.states[index].rollback_chain}
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


def _with_finality(state: PipeState, stored: PipeState) -> PipeState:
    """Return a state of the stream for a target that may know of more finality."""
    mine, other = stored.finalized, state.finalized
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
