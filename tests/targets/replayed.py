"""A target that holds rows back, as the conformance suite can test it.

What such a target stores is older than what was committed to it, and a stream reads the rest again.
`Replayed` stands for that stream: after a restart it commits again what lies above the recovered
cursor. So the suite's model must hold for what is published and what is held, taken together.
"""

from collections.abc import Sequence
from typing import Any

from headwater.core import Batch, PipeState
from headwater.runtime import ALONE, Runtime
from headwater.targets.contract import Capabilities, Delivery

Journal = list[tuple[list[Batch[Delivery]], PipeState]]


class Replayed:
    def __init__(self, target: Any, journal: Journal, on_recovered: Any) -> None:
        self.target = target
        self._journal = journal
        self._on_recovered = on_recovered

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        found: Capabilities[Delivery] = self.target.capabilities
        return found

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        self.target.bind(stream_id)

    def recover(self) -> PipeState:
        stored: PipeState = self.target.recover()
        last = self._journal[-1][1] if self._journal else PipeState()
        if stored.number > last.number:  # the call that died had published its batches
            assert stored.cursor is not None
            self._journal.append(([], stored))
            self._on_recovered(self)
            return stored
        for batches, state in self._journal:
            left = [one for one in batches if one.state.number > stored.number]
            if state.number >= stored.number:
                self.target.commit(left, state)
        self._on_recovered(self)
        return last

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        self.target.commit(batches, state)
        self._journal.append((list(batches), state))

    def roll_back(self, state: PipeState) -> None:
        self.target.roll_back(state)
        kept: Journal = []
        for batches, after in self._journal:
            left = [one for one in batches if one.state.number <= state.number]
            if after.number <= state.number:
                kept.append((batches, after))
            elif left:
                kept.append((left, left[-1].state))
        self._journal[:] = [*kept, ([], state)]

    def close(self) -> None:
        self.target.close()
