"""Block ranges: what a user writes, what it resolves to, and the algebra of the resolved ones.

Ranges are inclusive at both ends. What a user writes may need the head of the chain ("latest") or a
look-up by time; this module says *which* look-ups (`RangeSpec.needs_head`, `.instants`) and turns
their results into numbers (`resolve`), but asks nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import TypeVar

from headwater.core.cursor import BlockCursor
from headwater.core.several import Several
from headwater.errors import InvalidRangeError

T = TypeVar("T")

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_NUMBER = re.compile(r"\d[\d,_]*")


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Blocks `from_block` to `to_block`, both included; no end means: follow the head for ever."""

    from_block: int
    to_block: int | None = None

    def __post_init__(self) -> None:
        if self.from_block < 0:
            raise InvalidRangeError("a block number cannot be negative", got=self.from_block)
        if self.to_block is not None and self.to_block < self.from_block:
            raise InvalidRangeError(
                f"'from' ({self.from_block}) must be less than or equal to 'to' ({self.to_block})"
            )

    def __contains__(self, number: int) -> bool:
        return self.from_block <= number and (self.to_block is None or number <= self.to_block)

    def __str__(self) -> str:
        return f"{self.from_block}..{'' if self.to_block is None else self.to_block}"


@dataclass(frozen=True, slots=True)
class Latest:
    """The head of the chain at the time of resolution."""


@dataclass(frozen=True, slots=True)
class At:
    """An instant, in seconds since 1970 UTC: the first block at or after it."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Plus:
    """So many blocks after the beginning of the range."""

    blocks: int


Bound = int | Latest | At | Plus


@dataclass(frozen=True, slots=True)
class RangeSpec:
    """A range as the user wrote it, understood but not yet resolved."""

    start: int | Latest | At = 0
    end: Bound | None = None

    @property
    def needs_head(self) -> bool:
        """Whether resolution needs the head of the chain."""
        return isinstance(self.start, Latest) or isinstance(self.end, Latest)

    @property
    def instants(self) -> frozenset[int]:
        """The timestamps that resolution needs block numbers for."""
        return frozenset(
            bound.timestamp for bound in (self.start, self.end) if isinstance(bound, At)
        )

    def resolve(self, *, head: int = 0, blocks_at: Mapping[int, int] | None = None) -> BlockRange:
        """Return the range in numbers.

        `head` is used if `needs_head`; `blocks_at` must give, for each of `instants`, the first
        block at or after it. An end given as a time is exclusive, as people mean it: ("2024-01-01",
        "2024-02-01") is January.
        """
        first_at = blocks_at or {}
        start = _resolve_bound(self.start, head, first_at)
        match self.end:
            case None:
                return BlockRange(start)
            case Plus(blocks):
                return BlockRange(start, start + blocks)
            case At() as instant:
                return BlockRange(start, _resolve_bound(instant, head, first_at) - 1)
            case end:
                return BlockRange(start, _resolve_bound(end, head, first_at))


_Moment = int | str | date | Latest | At  # a datetime is a date
_Pair = (
    tuple[_Moment | None, _Moment | Plus | None]
    | Mapping[str, int | str | date | None]
    | BlockRange
    | RangeSpec
)
Ranges = _Moment | _Pair | Several[_Pair] | None
"""The forms of `range=`: a first block, a pair of both ends, or a list of pairs."""


def parse_ranges(value: object) -> tuple[RangeSpec, ...]:
    """Understand what a user wrote as `range=`: one range, or a list of several pairs.

    One range is a beginning (12_000_000, "12,000,000", "latest", "2024-01-01", a date or datetime),
    a pair (from, to), a mapping {"from": …, "to": …}, a `BlockRange`, or None for all blocks.
    """
    if isinstance(value, list):
        if not value:
            raise InvalidRangeError("a list of ranges must name at least one")
        for item in value:
            if not isinstance(item, tuple | Mapping | RangeSpec | BlockRange):
                raise InvalidRangeError(
                    "a list holds several ranges, each with both ends: one range from a to b is "
                    "the tuple (a, b), several are [(a, b), (c, None)]",
                    got=repr(value),
                )
        return tuple(_parse_range(item) for item in value)
    return (_parse_range(value),)


def merge_ranges(ranges: Iterable[BlockRange]) -> tuple[BlockRange, ...]:
    """Return the same blocks as few ascending ranges; touching ones are joined."""
    return tuple(
        block_range
        for block_range, _ in segment_ranges([(block_range, None) for block_range in ranges])
    )


def segment_ranges(items: Sequence[tuple[BlockRange, T]]) -> list[tuple[BlockRange, tuple[T, ...]]]:
    """Cut overlapping ranges at each other's ends; say which items apply to each segment.

    Segments ascend and never overlap; blocks that no item asks for are in none. Neighbours to which
    equal items apply are joined, so the result is as short as can be.
    """
    edges = {r.from_block for r, _ in items} | {
        r.to_block + 1 for r, _ in items if r.to_block is not None
    }
    starts = sorted(edges)
    segments: list[tuple[BlockRange, tuple[T, ...]]] = []
    for index, start in enumerate(starts):
        applying = tuple(item for block_range, item in items if start in block_range)
        if not applying:
            continue
        end = starts[index + 1] - 1 if index + 1 < len(starts) else None
        if segments and _joins(segments[-1], start, applying):
            segments[-1] = (BlockRange(segments[-1][0].from_block, end), segments[-1][1])
        else:
            segments.append((BlockRange(start, end), applying))
    return segments


def clip_ranges(ranges: Iterable[BlockRange], cursor: BlockCursor | None) -> tuple[BlockRange, ...]:
    """Return what is left to read after the cursor. A stored cursor outranks `range.from`."""
    if cursor is None:
        return tuple(ranges)
    first = cursor.number + 1
    return tuple(
        BlockRange(max(block_range.from_block, first), block_range.to_block)
        for block_range in ranges
        if block_range.to_block is None or block_range.to_block >= first
    )


def anchor_for(block_range: BlockRange, cursor: BlockCursor | None) -> BlockCursor | None:
    """Return the cursor if its hash may be sent as `parentBlockHash` of a request for this range.

    Only the true predecessor may: with the hash of any other block the portal would see a fork
    where there is none.
    """
    if cursor is None or cursor.hash is None or cursor.number + 1 != block_range.from_block:
        return None
    return cursor


def _joins(segment: tuple[BlockRange, tuple[T, ...]], start: int, applying: tuple[T, ...]) -> bool:
    block_range, items = segment
    return (
        block_range.to_block is not None
        and block_range.to_block + 1 == start
        and set(map(id, items)) == set(map(id, applying))
    )


def _resolve_bound(bound: int | Latest | At, head: int, first_at: Mapping[int, int]) -> int:
    match bound:
        case Latest():
            return head
        case At(timestamp):
            if timestamp not in first_at:
                raise InvalidRangeError("no block is known for this time", timestamp=timestamp)
            return first_at[timestamp]
        case number:
            return number


def _parse_range(value: object) -> RangeSpec:
    match value:
        case None:
            return RangeSpec()
        case RangeSpec():
            return value
        case BlockRange(from_block, to_block):
            return RangeSpec(from_block, to_block)
        case {**fields} if set(fields) <= {"from", "to"}:
            return _parse_pair(fields.get("from"), fields.get("to"))
        case tuple() if len(value) == 2:
            return _parse_pair(*value)
        case _:
            return _parse_pair(value, None)


def _parse_pair(start: object, end: object) -> RangeSpec:
    first = 0 if start is None else _parse_bound(start)
    if isinstance(first, Plus):
        raise InvalidRangeError("'+N' can only be the end of a range", got=start)
    spec = RangeSpec(first, None if end is None else _parse_bound(end))
    if isinstance(spec.start, int) and isinstance(spec.end, int):
        BlockRange(spec.start, spec.end)  # an inverted range is refused before anything is asked
    return spec


def _parse_bound(value: object) -> int | Latest | At | Plus:
    match value:
        case bool():
            raise InvalidRangeError("not a block", got=value)
        case int() if value >= 0:
            return value
        case datetime():
            return At(_seconds(value))
        case date():
            return At(_seconds(datetime.combine(value, time.min)))
        case Latest() | At() | Plus():
            return value
        case str():
            return _parse_text(value.strip())
        case _:
            raise InvalidRangeError("not a block", got=repr(value))


def _parse_text(text: str) -> int | Latest | At | Plus:
    if text.lower() == "latest":
        return Latest()
    if _DATE.match(text):
        try:
            return At(_seconds(datetime.fromisoformat(text)))
        except ValueError as error:
            raise InvalidRangeError("not a date", got=repr(text)) from error
    if text.startswith("+") and _NUMBER.fullmatch(text[1:]):
        return Plus(_digits(text[1:]))
    if _NUMBER.fullmatch(text):
        return _digits(text)
    raise InvalidRangeError("not a block", got=repr(text))


def _digits(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))


def _seconds(moment: datetime) -> int:
    """Return whole seconds, rounded up so that "at or after" stays true; no zone means UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    whole = int(aware.replace(microsecond=0).timestamp())
    return whole + 1 if aware.microsecond else whole
