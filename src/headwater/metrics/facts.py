"""The parts of a stream's record: facts of batches, blocks and forks, points of its curves, and
values as people and browsers read them.

Made on the driver by the run of a stream and by its record; read by the page, the endpoint and the
progress view. Nothing of it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headwater.core import BlockCursor, Head

_EXACT = 2**53  # the largest integer that a browser keeps


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a batch: `unlike` logs by output, `filled` outputs that have rows."""

    rows: int = 0
    bytes: int = 0
    skipped: int = 0
    unlike: Mapping[str, int] = field(default_factory=dict)
    filled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """A transformed batch, as far as it is known when it is committed.

    `counts` returns None while executors have not read the batch.
    `tables` are the Arrow tables of a batch near the head, for a preview.
    """

    blocks: int
    last: BlockCursor
    first: int
    to_block: int | None
    percent: float | None
    blocks_per_s: float | None
    eta_s: float | None
    counts: Callable[[], Counts | None] = lambda: None
    tables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlockSeen:
    """A batch that was committed, by its last block; `orphaned` once a fork has undone it."""

    number: int
    hash: str | None
    timestamp: int | None
    rows: int | None
    at: float
    orphaned: bool = False
    blocks: int = 1


@dataclass(frozen=True, slots=True)
class ForkSeen:
    """A fork that undid committed blocks. It is healed once the stream is as far as before."""

    at: float
    orphaned: str
    safe: str
    depth: int
    rule: str
    rows_undone: int
    seconds: float
    reached: int
    healed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One point of the curves: where the stream stood at a time, and what it had done so far."""

    at: float
    cursor: int
    head: int | None
    blocks: int
    rows: int


def newest(head: Head, unknown: int | None = None) -> int | None:
    """Return the highest block that a head names."""
    known = [cursor.number for cursor in (head.latest, head.finalized) if cursor is not None]
    return max(known, default=unknown)


def cursor_facts(cursor: BlockCursor | None) -> dict[str, Any] | None:
    """Return a cursor as JSON can hold it."""
    return None if cursor is None else asdict(cursor)


def block_seconds(timestamp: int) -> float:
    """Return a block's time in seconds; some networks count milliseconds."""
    return timestamp / 1000 if timestamp > 100_000_000_000 else float(timestamp)


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it and a browser reads it: exact integers, hex for bytes."""
    match value:
        case bytes():
            return f"0x{value.hex()}"
        case float() if not math.isfinite(value):
            return str(value)
        case int() if abs(value) > _EXACT:
            return str(value)
        case list():
            return [plain(item) for item in value]
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case _:
            return value


def in_words(count: int, name: str) -> str:
    """Return a count with its noun: `1 block`, `2 blocks`."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"
