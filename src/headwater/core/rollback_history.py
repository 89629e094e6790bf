"""`RollbackHistory`: the rollback chain of a target of the user's own, which decides forks by it.

`create_target` and `pipe_to_iterator` leave cursor and history to the user. A service may name a
single block in a conflict, its head, and then no block of the user's is in the sample: so looking
for a common block (`find_rollback_index`) finds none at a fork of one block. This keeps what is
needed and goes further down by `resolve_fork`, as the built-in targets do. Pure; it holds no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headwater.core.codec import dump_state, load_state
from headwater.core.cursor import BlockCursor, Head
from headwater.core.fork import ForkRule, descend, resolve_fork
from headwater.core.state import (
    DEFAULT_CAP,
    Chain,
    FinalizedWatermark,
    PipeState,
    cap_chain,
    extend_chain,
    final_number,
    newest_at_or_below,
    prune_chain,
)
from headwater.errors import LaggingPortalError


class HasContext(Protocol):
    """A batch as streams hand it out: `ctx.stream` says where it stands."""

    @property
    def ctx(self) -> Any:
        """The facts that a callback may want to know."""
        ...


class RollbackHistory:
    """The committed blocks that a fork may send back to. `cap` bounds them without finality.

    history = RollbackHistory()
    for batch in pipe_to_iterator(stream, history.cursor, on_fork):
        ...  # rows, and history.dump(), in one transaction
        history.append(batch)

    def on_fork(previous_blocks):
        safe = history.resolve(previous_blocks)
        ...  # undo the rows above safe.number
        return safe
    """

    def __init__(self, *, cap: int = DEFAULT_CAP) -> None:
        self._cap = cap
        self._state = PipeState()
        self._descents = 0  # since the last batch

    @classmethod
    def load(cls, text: str, *, cap: int = DEFAULT_CAP) -> RollbackHistory:
        """Return a history that was stored.

        Raises:
            StoredStateError: the text is none, or of a newer release.
        """
        history = cls(cap=cap)
        history._state = load_state(text)
        return history

    def dump(self) -> str:
        """Return a text to store together with the rows."""
        return dump_state(self._state)

    @property
    def cursor(self) -> BlockCursor | None:
        """Where to go on; None before the first batch."""
        return self._state.cursor

    @property
    def finalized(self) -> BlockCursor | None:
        """The highest of the blocks that is known to be final: no fork goes below it."""
        return self._state.finalized

    @property
    def blocks(self) -> Chain:
        """The blocks that a fork may go back to, oldest first."""
        return self._state.landing_points()

    def append(self, batch: HasContext) -> None:
        """Take a batch that is committed, or about to be in the same transaction."""
        stream = batch.ctx.stream
        chain = self._state.rollback_chain
        for block in (*stream.state.rollback_chain, stream.state.current):
            chain = extend_chain(chain, block)
        self._state = PipeState(stream.state.current, self._state.finalized, chain)
        self._descents = 0
        self.prune(stream.head.finalized)

    def prune(self, finalized: BlockCursor | None) -> None:
        """Forget what lies below a block that is final; one that is lower than before is ignored.

        What is kept is our own newest block at or below it, or it, where we hold none.
        """
        state = self._state
        mark, chain = state.finalized, state.rollback_chain
        if finalized is not None:
            number = final_number(state, (), Head(finalized))  # a refuted one changes nothing
            ours = newest_at_or_below(chain, number) or finalized
            mark = FinalizedWatermark(mark).observe(ours).cursor
        chain = prune_chain(chain, mark)
        if mark is not None and chain and chain[0].number > mark.number:
            chain = (mark, *chain)
        self._state = PipeState(state.cursor, mark, cap_chain(chain, self._cap, mark))

    def resolve(self, previous_blocks: Sequence[BlockCursor]) -> BlockCursor:
        """Return the block to go back to, given what the portal names; forget what lies above it.

        It need not be on the portal's chain: then the portal refuses it in turn, and this is called
        again. A portal that is behind what is final gets the cursor: it is waited for.

        Raises:
            ForkCursorMissingError: no block is left to go back to, or finality is contradicted.
        """
        try:
            resolution = resolve_fork(self._state, previous_blocks, patient=False)
        except LaggingPortalError:
            assert self._state.cursor is not None, "a final cursor"
            return self._state.cursor
        safe = descend(self._state, resolution, self._descents).safe_cursor
        self._descents += resolution.rule is ForkRule.DESCEND
        self._state = self._state.rewind(safe)
        return safe
