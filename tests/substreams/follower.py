"""Follows a simulated chain into a target, with outputs of a module and without an endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.core import BlockCursor, BlockHeader, Blocks, Head, batches
from headwater.substreams.messages import Clock, ModuleOutput
from headwater.targets.contract import Delivery, prepared
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.substreams.modules import SimModule


def output_of(module: SimModule, block: SimBlock) -> ModuleOutput:
    """Return what a module puts out for a block."""
    value = module.make(block)
    clock = Clock(block.number, block.hash, block.timestamp)
    return ModuleOutput(clock, f"c{block.hash}", 0, module.type_url if value else "", value)


class Follower:
    """One target that is kept on a chain, hot block by hot block."""

    def __init__(self, chain: ChainSim, module: SimModule, decoder: Any, target: Any) -> None:
        self.chain = chain
        self.module = module
        self.decoder = decoder
        self.target = target
        self.state = target.recover()

    def follow(self) -> None:
        """Undo what is not on the chain any more, then commit what is new."""
        cursor = self.state.cursor
        if cursor is not None and not self.chain.is_ancestor(
            str(cursor.hash), self.chain.head.hash
        ):
            safe = next(
                one for one in reversed(list(self.state.landing_points())) if self._holds(one)
            )
            self.state = self.state.rewind(safe)
            self.target.roll_back(self.state)
        after = -1 if self.state.cursor is None else self.state.cursor.number
        self._commit(self.chain.canonical(after + 1))

    def _holds(self, cursor: BlockCursor) -> bool:
        return self.chain.is_ancestor(str(cursor.hash), self.chain.head.hash)

    def _commit(self, blocks: Sequence[SimBlock]) -> None:
        if not blocks:
            return
        final = self.chain.finalized
        head = Head(None if final is None else final.cursor, self.chain.head.cursor)
        headers = tuple(
            BlockHeader(one.number, one.hash, one.parent_hash, one.parent_number, one.timestamp)
            for one in blocks
        )
        answer = Blocks(headers, tuple(b"" for _ in blocks), head)
        for batch in batches(self.state, answer):
            numbers = {header.number for header in batch.headers}
            outputs = [output_of(self.module, one) for one in blocks if one.number in numbers]
            data = self.decoder.decode(outputs)
            ready = prepared(self.target, batch.with_data(Delivery(data)))
            self.target.commit([ready], batch.state)
            self.state = batch.state

    def outputs(self) -> list[ModuleOutput]:
        """Return the outputs of the whole canonical chain."""
        return [output_of(self.module, one) for one in self.chain.canonical(0)]
