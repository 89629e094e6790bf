"""The newest blocks, held back until a fork can hardly reach them: the undo buffer's decisions.

`Holding` is a value: what was handed out, what is held, and the state that would follow if all of
it were committed. A block may go when it is final, or when `depth` blocks lie above it on the chain
that the portal has confirmed. Depth is counted in numbers, because a filtered stream does not
deliver every block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwater.core.cursor import BlockCursor, BlockHeader, Head
from headwater.core.fork import resolve_fork, resolve_undo
from headwater.core.messages import Blocks, batches
from headwater.core.state import DEFAULT_CAP, PipeState
from headwater.errors import EmptyForkSampleError, ForkCursorMissingError, LaggingPortalError


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block and its line; one that no output asked for, and is only watched, has none."""

    header: BlockHeader
    line: Any


@dataclass(frozen=True, slots=True)
class Holding:
    """The blocks that are held back after `given`, the last block that was handed out."""

    given: BlockCursor | None
    ahead: PipeState
    held: tuple[HeldBlock, ...] = ()

    @property
    def wanted(self) -> int:
        """How many of the held blocks an output waits for."""
        return sum(1 for block in self.held if block.line is not None)

    def add(self, answer: Blocks, *, watched: bool, cap: int = DEFAULT_CAP) -> Holding:
        """Return what is held after an answer; with `watched` no output wants its lines."""
        ahead = self.ahead
        for batch in batches(ahead, answer, cap=cap):
            ahead = batch.state
        lines: Sequence[Any] = (None,) * len(answer.lines) if watched else answer.lines
        new = (HeldBlock(*pair) for pair in zip(answer.headers, lines, strict=True))
        return replace(self, ahead=ahead, held=(*self.held, *new))

    def release(self, newest: int, depth: int) -> tuple[Holding, tuple[HeldBlock, ...]]:
        """Return what is held still, and the wanted blocks that may go.

        `newest` is the highest number of the chain that the last held block is on.
        """
        may_go = 0
        for block in self.held:
            number = block.header.number
            if newest - number < depth and not self.ahead.is_final(number):
                break
            may_go += 1
        gone = tuple(block for block in self.held[:may_go] if block.line is not None)
        last_given = gone[-1].header.cursor if gone else self.given
        return replace(self, given=last_given, held=self.held[may_go:]), gone

    def landing(self, previous_blocks: Iterable[BlockCursor]) -> Holding | None:
        """Return what is left of the held blocks after a fork; None if it reaches below them.

        Then it is for the target to undo, or for the user to decide.
        """
        try:
            safe = resolve_fork(self.ahead, previous_blocks, patient=False).safe_cursor
        except (EmptyForkSampleError, ForkCursorMissingError, LaggingPortalError):
            return None
        if self.given is not None and safe.number < self.given.number:
            return None
        kept = tuple(block for block in self.held if block.header.number <= safe.number)
        return replace(self, ahead=self.ahead.rewind(safe), held=kept)

    def undo(self, last_valid: BlockCursor) -> Holding | None:
        """Return what is left of the held blocks after an undo; None if it reaches below them."""
        resolution = resolve_undo(self.ahead, last_valid)
        if resolution is None:
            return self
        safe = resolution.safe_cursor
        if self.given is not None and safe.number < self.given.number:
            return None
        kept = tuple(block for block in self.held if block.header.number <= safe.number)
        return replace(self, ahead=self.ahead.rewind(safe), held=kept)


def newest_number(last: BlockHeader, head: Head) -> int:
    """Return how high the chain is that an answer ending in `last` was given from."""
    return last.number if head.latest is None else max(last.number, head.latest.number)
