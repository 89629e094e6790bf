"""Targets that the user owns: a `write` function that pulls batches, and a `fork` that decides.

Headwater keeps no state for them. The cursor is given to `read` when a run starts; on a fork the
user's callback names the last good cursor, and the same `read` goes on from there: `write` never
notices the interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from headwater.core import (
    Batch,
    BlockCursor,
    ForkResolution,
    ForkRule,
    PipeState,
    contradicting_block,
)
from headwater.core.callbacks import Callback, check_callable
from headwater.core.state import extend_chain
from headwater.errors import (
    EmptyForkSampleError,
    ForkCursorError,
    ForkCursorMissingError,
    ForkHandlerMissingError,
    InvalidOptionError,
    ResumeError,
    StreamIdError,
)
from headwater.runtime import ALONE, Runtime
from headwater.stream.context import StreamBatch
from headwater.targets.contract import Capabilities, Delivery, Target, binding

_CONTRACT = ("capabilities", "bind", "recover", "commit", "roll_back", "close")
OnFork = Callable[[list[BlockCursor]], BlockCursor | None]
Resume = Callable[[], BlockCursor | tuple[BlockCursor | None, BlockCursor | None] | None]


class Read(Protocol):
    """What `write` is given: it hands out batches after a cursor, or from the range's beginning."""

    def __call__(self, cursor: BlockCursor | None = None) -> Iterator[StreamBatch]:
        """Read on after a cursor."""
        ...


@dataclass(frozen=True, slots=True)
class OwnedTarget:
    """What `create_target` returns; give it to `stream.pipe_to`."""

    write: Callable[[Read], object]
    fork: OnFork | None = None
    resume: Resume | None = None

    def start(self, cursor: BlockCursor | None) -> PipeState:
        """Return where a reading begins: at the cursor that `read` is given, else by `resume`."""
        if cursor is not None or self.resume is None:
            return start_after(cursor)
        stored = self.resume()
        at, floor = stored if isinstance(stored, tuple) and len(stored) == 2 else (stored, None)
        for one in (at, floor):
            if one is not None and not isinstance(one, BlockCursor):
                raise ResumeError("resume returned no cursor", got=repr(stored))
        if floor is None or at is None:
            if floor is not None:
                raise ResumeError("a finalized cursor without one to go on after", got=repr(stored))
            return start_after(at)
        if floor.hash is None:
            raise ResumeError("a finalized cursor needs its hash", got=floor)
        if floor.number == at.number and at.hash not in (None, floor.hash):
            raise ResumeError("two hashes of one block", cursor=at, finalized=floor)
        if floor.number >= at.number:
            return PipeState(at, at, (at,))
        return PipeState(at, floor, (floor, at))


def start_after(cursor: BlockCursor | None) -> PipeState:
    """Return the state behind a cursor of which nothing else is known."""
    return PipeState(cursor, None, () if cursor is None else (cursor,))


def create_target(
    *,
    write: Callable[[Read], None],
    fork: OnFork | None = None,
    resume: Resume | None = None,
) -> OwnedTarget:
    """Return a target whose cursor, data and rollback chain are the user's.

    `write(read)` runs once: `for batch in read(cursor): …` with the cursor to resume after, or
    None. `resume()` returns it instead, or a pair of it and the finalized cursor that was stored
    with it; `read()` begins there, and no fork goes below what is final: a portal that contradicts
    it is refused. `fork(previous_blocks)` gets the portal's sample of its chain and returns the
    last good cursor; None means that there is none, and ends the run with
    `ForkCursorMissingError`. They are never called at the same time.
    """
    return OwnedTarget(
        Callback("write", write, "read"),
        Callback.optional("fork", fork, "previous_blocks"),
        Callback.optional("resume", resume, ""),
    )


def check_target(target: object) -> None:
    """Refuse what a stream cannot run into. Called before anything is opened."""
    if isinstance(target, OwnedTarget):
        return
    lacking = [name for name in _CONTRACT if not hasattr(target, name)]
    if lacking or isinstance(target, type):
        raise InvalidOptionError(
            "a stream runs into a target: an address becomes one with postgres_target(…), a path "
            "with duckdb_target(…), a function with create_target(write=…)",
            got="a text" if isinstance(target, str) else repr(target),  # which may hold a password
            lacking=", ".join(lacking),
        )
    for name in _CONTRACT:
        if name != "capabilities":  # a property, or a plain attribute
            check_callable(f"{type(target).__name__}.{name}", getattr(target, name), "a method")
    binding(cast("Target[Delivery]", target))


def check_id(stream_id: object) -> None:
    """Refuse what cannot be the key of stored state, in any target."""
    if not isinstance(stream_id, str) or not stream_id.strip():
        raise StreamIdError("a stream needs an id", got=repr(stream_id))
    if stream_id in (".", "..") or any(ord(character) < 32 for character in stream_id):
        raise StreamIdError(
            "an id names rows, files and folders: it has no control characters, and is not . or ..",
            got=repr(stream_id),
        )


def check_cursor(cursor: object) -> None:
    """Refuse what cannot be resumed after."""
    if cursor is not None and not isinstance(cursor, BlockCursor):
        raise InvalidOptionError("a cursor is a BlockCursor, or None", got=repr(cursor))


class Handover:
    """A target that hands each batch over instead of storing it."""

    def __init__(self, start: PipeState) -> None:
        self._start = start
        self._batches: list[StreamBatch] = []

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It stores nothing; what the user does with frames is not known."""
        return Capabilities(uses_frames=True)

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Need no id: nothing is stored."""

    def recover(self) -> PipeState:
        """Start from the user's cursor."""
        return self._start

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Keep the batches until `take` hands them to the iteration."""
        self._batches += [StreamBatch(batch.data.data, batch.data.ctx) for batch in batches]

    def take(self) -> list[StreamBatch]:
        """Return the batches that were just committed."""
        batches, self._batches = self._batches, []
        return batches

    def roll_back(self, state: PipeState) -> None:
        """Leave the undo to the user, who has done it in the fork callback."""

    def close(self) -> None:
        """Hold nothing."""


class AskUser:
    """Decides forks by the user's callback, which names the cursor to go on from."""

    def __init__(self, on_fork: OnFork | None, floor: BlockCursor | None = None) -> None:
        self._on_fork = on_fork
        self._floor = floor  # what the user said is final

    def __call__(
        self, state: PipeState, previous_blocks: Sequence[BlockCursor], *, patient: bool
    ) -> tuple[ForkResolution, PipeState]:
        """Ask once per 409; the callback may be asked again with an older sample.

        A replica that contradicts finality is given time first, as with other targets. A callback
        that names the present cursor waits for the portal to agree with it again; that
        is tried as often as a replica is waited for.
        """
        if not previous_blocks:
            raise EmptyForkSampleError("the portal sent a fork without previousBlocks")
        if self._on_fork is None:
            raise ForkHandlerMissingError(
                "the chain forked: the stream has delivered a block that is not on the portal's "
                "chain any more",
                delivered=state.cursor,
                portal_has=max(previous_blocks, key=lambda block: block.number),
            )
        if patient and state.cursor and contradicting_block(state, previous_blocks):
            return ForkResolution(state.cursor, ForkRule.WAIT), state
        self._refuse_contradiction(previous_blocks)
        ordered = sorted(previous_blocks, key=lambda block: block.number)
        safe = self._on_fork(ordered)
        if safe is None:
            raise ForkCursorMissingError(
                "the fork callback found no good cursor", cursor=state.cursor
            )
        if not isinstance(safe, BlockCursor):
            raise ForkCursorError("the fork callback must return a BlockCursor", got=repr(safe))
        if state.cursor is None or safe.number > state.cursor.number:
            raise ForkCursorError(
                "the fork callback named a block that the stream has not reached, and what lies "
                "between would never be read",
                got=safe,
                cursor=state.cursor,
            )
        if self._floor is not None and safe.number < self._floor.number:
            raise ForkCursorError(
                "the fork callback named a block below the one that resume said is final",
                got=safe,
                finalized=self._floor,
            )
        if safe.number == state.cursor.number:
            return self._stay(state.cursor, safe, patient=patient), state
        final = state.finalized
        if final is not None and final.number > safe.number:
            final = None
        kept = extend_chain(state.rollback_chain, safe)
        return ForkResolution(safe, ForkRule.MATCH), PipeState(safe, final, kept)

    def _refuse_contradiction(self, previous_blocks: Sequence[BlockCursor]) -> None:
        """Raise if the portal keeps naming another block than the user's final one."""
        if self._floor is None:
            return
        theirs = contradicting_block(PipeState(self._floor, self._floor), previous_blocks)
        if theirs is not None:
            raise ForkCursorMissingError(
                "the portal contradicts a finalized block", ours=self._floor, portal=theirs
            )

    def _stay(self, cursor: BlockCursor, safe: BlockCursor, *, patient: bool) -> ForkResolution:
        """Wait a while with the cursor that the portal has just refused; then give up."""
        if safe != cursor:
            raise ForkCursorError(
                "the fork callback named a block that the stream has not delivered",
                got=safe,
                cursor=cursor,
            )
        if not patient:
            raise ForkCursorError(
                "the fork callback keeps naming the cursor that the portal refuses", cursor=cursor
            )
        return ForkResolution(cursor, ForkRule.WAIT)
