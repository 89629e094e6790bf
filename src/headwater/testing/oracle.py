"""The oracle: what a target must hold, worked out from the block tree in the plainest way.

It shares no code with the client, the queries or the decoders: it reads the simulated contents
directly. If it and a target disagree, one of them is wrong, and it is the simpler one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headwater.core import BlockCursor, BlockRange, PipeState, merge_ranges
from headwater.testing.chain.content import content_of
from headwater.testing.chain.tree import ChainSim, SimBlock

Row = dict[str, Any]
Rows = dict[str, list[Row]]


class DisagreementError(AssertionError):
    """The target does not hold what the chain says."""


class Oracle:
    """Knows, for any block of the tree, what its whole branch contributes.

    `family` and `wanted` say which rows count (logs that are transfers, say), `fields` what is kept
    of them, `ranges` where.
    """

    def __init__(
        self,
        chain: ChainSim,
        family: str,
        wanted: Callable[[Row], bool],
        fields: Sequence[str],
        ranges: Iterable[BlockRange] = (BlockRange(0),),
    ) -> None:
        self._chain = chain
        self._family = family
        self._wanted = wanted
        self._fields = tuple(fields)
        self._ranges = tuple(ranges)
        self._rows: dict[str, list[Row]] = {}
        self._blocks: dict[str, SimBlock | None] = {}
        self._left_out: tuple[BlockRange, ...] = ()

    def leave_out(self, blocks: Sequence[BlockRange]) -> None:
        """Expect no rows of blocks that the stream says it had to give up."""
        self._left_out = merge_ranges((*self._left_out, *blocks))

    def rows_of(self, block: SimBlock) -> list[Row]:
        """Return the rows of one block that count."""
        if block.hash not in self._rows:
            inside = any(block.number in one for one in self._ranges)
            rows = content_of(self._chain, block).rows(self._family) if inside else []
            self._rows[block.hash] = [
                {name: row[name] for name in self._fields} for row in rows if self._wanted(row)
            ]
        return self._rows[block.hash]

    def branch(self, tip: BlockCursor | None) -> list[SimBlock]:
        """Return the blocks of the branch that ends in `tip`, newest first."""
        blocks: list[SimBlock] = []
        block_hash = None if tip is None else tip.hash
        while block_hash is not None:
            if block_hash not in self._blocks:
                self._blocks[block_hash] = self._chain.find(block_hash)
            block = self._blocks[block_hash]
            if block is None:
                break
            blocks.append(block)
            block_hash = block.parent_hash
        return blocks

    def expected(self, tip: BlockCursor | None) -> Rows:
        """Return the rows of the branch that ends in `tip`, by block hash; no rows, no entry."""
        return {
            block.hash: rows
            for block in self.branch(tip)
            if (rows := self.rows_of(block))
            and not any(block.number in one for one in self._left_out)
        }

    def check(self, held: Rows, state: PipeState, previous: PipeState) -> None:
        """Compare what is held after a step with the branch that ends in the state's cursor.

        `previous` is the state before the step: finality may not have fallen since.
        """
        expected = self.expected(state.cursor)
        if held != expected:
            extra = [name for name in held if held.get(name) != expected.get(name)]
            lacking = [name for name in expected if name not in held]
            raise DisagreementError(
                f"at {state.cursor}: {len(extra)} blocks too many or different {extra[:3]}, "
                f"{len(lacking)} missing {lacking[:3]}"
            )
        self._check_state(state, previous)

    def _is_given_up(self, number: int) -> bool:
        """Tell whether a block is of those that a stream had to give up, or before the first ones.

        It has no rows, so it does not matter what became of it.
        """
        before = bool(self._left_out) and number < min(one.from_block for one in self._ranges)
        return before or any(number in one for one in self._left_out)

    def _check_state(self, state: PipeState, previous: PipeState) -> None:
        before = -1 if previous.finalized is None else previous.finalized.number
        after = -1 if state.finalized is None else state.finalized.number
        if after < before:
            raise DisagreementError(f"finality fell from {before} to {after}")
        if state.cursor is None or state.cursor.hash is None:
            return
        if previous.cursor is not None and state.cursor.number < min(
            previous.cursor.number, before
        ):
            raise DisagreementError(f"the cursor went to {state.cursor}, below finality {before}")
        if state.rollback_chain[-1] != state.cursor:
            raise DisagreementError("the rollback chain does not end in the cursor")
        branch = {block.hash for block in self.branch(state.cursor)}
        for held in state.rollback_chain:
            if held.number < self._chain.start_block or self._is_given_up(held.number):
                continue
            if held.hash not in branch:
                raise DisagreementError(f"{held} is in the rollback chain but not on our branch")
