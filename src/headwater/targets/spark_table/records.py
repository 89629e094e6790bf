"""What each commit to a table of Spark's catalog says of its stream, and the state read from it.

A commit carries a `Record`: who wrote it, and the state that it leads to. The rollback chain is as
long as the chain is hot, so most records hold only the entries that are new; now and then, and
where entries have gone, one holds all (`whole`). `fold` reads them, newest first. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from headwater.core import PipeState
from headwater.core.codec import dump_state, load_state
from headwater.core.state import Chain
from headwater.errors import StoredStateError
from headwater.targets.lake.state import (
    CONFIG,
    EPOCH,
    PREFIX,
    STATE,
    STREAM,
    check_format,
    position,
)

WHOLE_EVERY = 64  # records
_NUMBER, _WRITER, _FLOOR = f"{PREFIX}commit", f"{PREFIX}writer", f"{PREFIX}chain-from"
_FINAL = f"{PREFIX}final-before"
_KNOWN = (STREAM, EPOCH, STATE, _NUMBER, _WRITER)


@dataclass(frozen=True, slots=True)
class Record:
    """What one commit says. `number` counts the commits of an epoch, `writer` is this start's own.

    `floor` is the first block of the rollback chain, of which `state` holds the part that is new;
    None if it holds all. `final` is the last block that was final before this commit: a place to
    go on from where nothing tells whether the commit counts.
    """

    stream: str
    epoch: int
    number: int
    writer: str
    state: PipeState
    floor: int | None = None
    final: PipeState = PipeState()  # noqa: RUF009 - immutable
    config: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it tells the whole state by itself."""
        return self.floor is None

    def is_of(self, other: Record) -> bool:
        """Tell whether both are of one writer."""
        return (self.epoch, self.writer) == (other.epoch, other.writer)

    def is_same(self, other: Record) -> bool:
        """Tell whether both are of one commit."""
        return self.is_of(other) and self.number == other.number

    def at_final(self) -> Record:
        """Return it with the state of the last block that is final whether it counts or not."""
        return replace(self, state=self.final, floor=None)

    def next(self, state: PipeState, *, config: str | None = None, deletes: bool = False) -> Record:
        """Return the record of the next commit of the same writer; `self.state` is whole."""
        known = self.state.rollback_chain
        new = tuple(one for one in state.rollback_chain if one.number > self.state.number)
        grows = bool(new) and state.rollback_chain == tuple(
            one for one in (*known, *new) if one.number >= state.rollback_chain[0].number
        )
        is_short = grows and config is None and (self.number + 1) % WHOLE_EVERY != 0
        return Record(
            self.stream,
            self.epoch,
            self.number + 1,
            self.writer,
            replace(state, rollback_chain=new) if is_short else state,
            state.rollback_chain[0].number if is_short else None,
            at_mark(self.state),
            self.config if config is None else config,
        )

    def to_properties(self) -> dict[str, str]:
        """Return it as texts by name."""
        said = {
            **position(self.stream, self.epoch, self.state),
            _NUMBER: str(self.number),
            _WRITER: self.writer,
            STATE: dump_state(self.state),
            _FINAL: dump_state(self.final),
        }
        if self.floor is not None:
            said[_FLOOR] = str(self.floor)
        elif self.config is not None:
            said[CONFIG] = self.config
        return said

    @classmethod
    def from_properties(cls, said: Mapping[str, str]) -> Record | None:
        """Read what `to_properties` wrote; None if it is no record. Refuse what is incomplete."""
        if STATE not in said:
            return None
        check_format(said)
        try:
            stream, epoch, state, number, writer = (said[one] for one in _KNOWN)
            return cls(
                stream,
                int(epoch),
                int(number),
                writer,
                load_state(state),
                int(said[_FLOOR]) if _FLOOR in said else None,
                load_state(said[_FINAL]) if _FINAL in said else PipeState(),
                said.get(CONFIG),
            )
        except (KeyError, ValueError) as error:
            raise StoredStateError(
                "the record of a commit cannot be read", reason=repr(error)[:80]
            ) from error


def at_mark(state: PipeState) -> PipeState:
    """Return the state in which nothing is known but the last final block."""
    mark = state.finalized
    return PipeState() if mark is None else PipeState(mark, mark, (mark,))


def fold(records: Iterable[Record]) -> Record | None:
    """Return the newest of some records with its whole state; they come newest first.

    Where commits between it and the last whole record have expired, their blocks are missing in the
    rollback chain, which is allowed: a fork goes back further, at most to the last final block.
    """
    newest: Record | None = None
    chain: Chain = ()
    config = None
    for one in records:
        newest = one if newest is None else newest
        chain, config = (*one.state.rollback_chain, *chain), one.config
        if one.is_whole:
            break
    if newest is None or newest.floor is None:
        return newest
    kept = tuple(block for block in chain if block.number >= newest.floor)
    state = replace(newest.state, rollback_chain=kept)
    return replace(newest, state=state, floor=None, config=config)
