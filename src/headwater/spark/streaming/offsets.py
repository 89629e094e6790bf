"""Positions in a changelog: the offsets that Spark keeps in the checkpoint of a query.

A changelog numbers its changes. A block takes the version that follows from its number: a block
that is two above the last one takes a version two higher, whether or not the one between has rows.
The retraction of a block takes the next version. So a version never repeats, and between two
retractions the difference of version and number is constant: an executor works a row's version out
of its block number alone.

Pure. Spark compares offsets as text, so their keys have one order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from headwater.core import BlockCursor, PipeState
from headwater.core.cursor import BlockHeader
from headwater.errors import OffsetFormatError

OFFSET_FORMAT = 1


class ReadFrom(StrEnum):
    """Where the changes that end in an offset are read from, now and at every replay."""

    START = "start"  # nowhere: nothing has been read yet
    PORTAL = "portal"  # they are the inserts of final blocks, which a portal can always give again
    JOURNAL = "journal"  # some are of hot blocks, which only the journal can give again


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a micro-batch: the last version, and the block that the chain ends with there.

    `finalized` is the highest final number that was known, `forks` counts the retractions so far.
    `first` is the block that the changelog begins with: Spark asks for the initial offset again
    when it runs the first micro-batch, and "latest" may have moved on by then.
    """

    version: int
    number: int
    hash: str | None
    read: ReadFrom
    finalized: int | None = None
    forks: int = 0
    first: int | None = None

    @classmethod
    def before(cls, first_block: int) -> Offset:
        """Return where a changelog begins that reads from this block on."""
        return cls(first_block - 1, first_block - 1, None, ReadFrom.START, first=first_block)

    def start_of(self, end: Offset) -> Offset:
        """Return where a micro-batch begins that Spark gives these two offsets for."""
        if self.read is ReadFrom.START and end.first is not None:
            return Offset.before(end.first)
        return self

    @property
    def shift(self) -> int:
        """What is added to the number of a following block to get its version."""
        return self.version - self.number

    def __str__(self) -> str:
        return f"{BlockCursor(self.number, self.hash)}, version {self.version}"

    def to_json(self) -> dict[str, Any]:
        """Return what Spark stores."""
        return {
            "format": OFFSET_FORMAT,
            "version": self.version,
            "number": self.number,
            "hash": self.hash,
            "read": str(self.read),
            "finalized": self.finalized,
            "forks": self.forks,
            "first": self.first,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Offset:
        """Read what Spark has stored.

        Raises:
            OffsetFormatError: it has another format, or none.
        """
        known = stored.get("format")
        if known != OFFSET_FORMAT:
            raise OffsetFormatError(
                "an offset has another format", format=known, known=OFFSET_FORMAT
            )
        match stored:
            case {"version": int(version), "number": int(number), "read": str(read), **rest}:
                block_hash, finalized, forks, first = (
                    rest.get(name) for name in ("hash", "finalized", "forks", "first")
                )
                if (
                    read in set(ReadFrom)
                    and isinstance(block_hash, str | None)
                    and isinstance(finalized, int | None)
                    and isinstance(forks, int)
                    and isinstance(first, int | None)
                ):
                    where = ReadFrom(read)
                    return cls(version, number, block_hash, where, finalized, forks, first)
            case _:
                pass
        raise OffsetFormatError("an offset is malformed", got=str(dict(stored))[:200])

    def extended(self, last: BlockHeader, read: ReadFrom, state: PipeState) -> Offset:
        """Return the offset after the blocks up to `last` were inserted."""
        version = self.version + last.number - self.number
        return replace(
            self,
            version=version,
            number=last.number,
            hash=last.hash,
            read=read,
            finalized=final_number(state),
        )

    def retracted(self, version: int, state: PipeState, *, forks: int) -> Offset:
        """Return the offset after a fork has taken blocks, down to the state's cursor."""
        assert state.cursor is not None, "a fork goes back to a block"
        return replace(
            self,
            version=version,
            number=state.cursor.number,
            hash=state.cursor.hash,
            read=ReadFrom.JOURNAL,
            finalized=final_number(state),
            forks=forks,
        )

    def final_state(self) -> PipeState:
        """Return the state at an offset that no journal is needed for."""
        if self.read is ReadFrom.START:
            return PipeState()
        cursor = BlockCursor(self.number, self.hash)
        return PipeState(cursor, cursor, (cursor,))


def final_number(state: PipeState) -> int | None:
    """Return the highest number that is known to be final."""
    return None if state.finalized is None else state.finalized.number
