"""Stored state as text: the JSON forms of the SQD Pipes SDK, and our own versioned document.

A target that the Pipes SDK has too keeps one `sync` row per committed batch, in that SDK's forms,
so a pipeline started there resumes here and the other way round. A target of our own keeps one
document per stream (`dump_state`, `load_state`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from headwater.core.cursor import BlockCursor
from headwater.core.state import (
    Chain,
    FinalizedWatermark,
    PipeState,
    newest_at_or_below,
    prune_chain,
)
from headwater.errors import StoredStateError

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class SyncRow:
    """One committed batch as the Pipes SDK stores it; `rollback_chain` is that batch's own part."""

    current: BlockCursor
    finalized: BlockCursor | None = None
    rollback_chain: Chain = ()


def sync_row(state: PipeState, previous: PipeState) -> SyncRow:
    """Return the row that a commit adds: `state` is committed, `previous` was before it.

    Its chain is the commit's own part. The first row of a stream also holds what lies below its
    first block, so that a fork of that very block can be survived after a restart.
    """
    if state.cursor is None:
        raise StoredStateError("a state without a cursor cannot be stored as a row")
    chain = state.rollback_chain
    if previous.cursor is not None:
        before = previous.cursor.number
        chain = tuple(
            cursor
            for cursor in chain
            if cursor.number > before and not state.is_final(cursor.number)
        )
    return SyncRow(state.cursor, state.finalized, chain)


def dump_cursor(cursor: BlockCursor) -> str:
    """Write `{"number":…,"hash":…,"timestamp":…}`; what is unknown is left out."""
    return _compact(_cursor_fields(cursor))


def load_cursor(text: str) -> BlockCursor:
    """Read one cursor; keys that we do not know are ignored."""
    return _read_cursor(_parse(text))


def dump_finalized(finalized: BlockCursor | None) -> str:
    """Write the finalized cursor as PostgreSQL rows hold it: `{}` while finality is unknown."""
    return "{}" if finalized is None else dump_cursor(finalized)


def load_finalized(text: str | None) -> BlockCursor | None:
    """Read a finalized cursor: `{}` (PostgreSQL), an empty text (ClickHouse), null: unknown."""
    if not text:
        return None
    value = _parse(text)
    return None if value is None or value == {} else _read_cursor(value)


def dump_chain(chain: Iterable[BlockCursor]) -> str:
    """Write a JSON array of cursors."""
    return _compact([_cursor_fields(cursor) for cursor in chain])


def load_chain(text: str | None) -> Chain:
    """Read an array of cursors, in any order; nothing at all is an empty chain."""
    if not text:
        return ()
    value = _parse(text)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise StoredStateError("a rollback chain must be a JSON array", got=_shorten(text))
    return tuple(sorted(map(_read_cursor, value), key=lambda cursor: cursor.number))


def fold_rows(rows: Iterable[SyncRow]) -> PipeState:
    """Fold `sync` rows, oldest commit first, into the state they stand for, whatever its length.

    A later row replaces what an earlier one said of the same blocks, so rows of an abandoned branch
    that were left behind do no harm. The Pipes SDK stores finality as the portal reported it; here
    it becomes our own newest cursor at or below it, or itself where it lies below all of them.
    """
    blocks: list[BlockCursor] = []
    cursor: BlockCursor | None = None
    reported = FinalizedWatermark()
    for row in rows:
        reported = reported.observe(row.finalized)
        for block in (*row.rollback_chain, row.current):
            while blocks and blocks[-1].number >= block.number:
                blocks.pop()
            blocks.append(block)
        cursor = row.current
    chain, finalized = tuple(blocks), reported.cursor
    if finalized is not None:
        finalized = newest_at_or_below(chain, finalized.number) or finalized
        chain = prune_chain(chain, finalized)
        if chain and chain[0] != finalized:
            chain = (finalized, *chain)
    return PipeState(cursor, finalized, chain)


def dump_state(state: PipeState) -> str:
    """Write a whole state as one versioned document with a fixed order of keys."""
    return _compact(
        {
            "version": STATE_VERSION,
            "cursor": None if state.cursor is None else _cursor_fields(state.cursor),
            "finalized": None if state.finalized is None else _cursor_fields(state.finalized),
            "rollback_chain": [_cursor_fields(cursor) for cursor in state.rollback_chain],
        }
    )


def load_state(text: str) -> PipeState:
    """Read a document of `dump_state`; refuse one of a newer format."""
    value = _parse(text)
    if not isinstance(value, dict) or not isinstance(value.get("version"), int):
        raise StoredStateError("stored state has no version", got=_shorten(text))
    if value["version"] > STATE_VERSION:
        raise StoredStateError(
            "stored state has a newer format", version=value["version"], known=STATE_VERSION
        )
    cursor, finalized = value.get("cursor"), value.get("finalized")
    chain = value.get("rollback_chain")
    if not isinstance(chain, list):
        raise StoredStateError("a rollback chain must be a JSON array", got=_shorten(text))
    return PipeState(
        None if cursor is None else _read_cursor(cursor),
        None if finalized is None else _read_cursor(finalized),
        tuple(map(_read_cursor, chain)),
    )


def _cursor_fields(cursor: BlockCursor) -> dict[str, int | str]:
    fields = {"number": cursor.number, "hash": cursor.hash, "timestamp": cursor.timestamp}
    return {key: value for key, value in fields.items() if value is not None}


def _read_cursor(value: object) -> BlockCursor:
    match value:
        case {"number": int(number), **rest} if not isinstance(number, bool) and number >= 0:
            block_hash, timestamp = rest.get("hash"), rest.get("timestamp")
            if isinstance(block_hash, str | None) and isinstance(timestamp, int | None):
                return BlockCursor(number, block_hash, timestamp)
    raise StoredStateError("not a block cursor", got=_shorten(repr(value)))


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise StoredStateError("stored state is not JSON", got=_shorten(text)) from error


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"
