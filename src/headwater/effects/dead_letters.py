"""Dead letters: messages that were given up, kept for a person, and put back when asked.

All subscriptions of a stream share `headwater_dead_letters`. Since their ordinals would collide
there, a dead letter's ordinal is made of its key and the subscription's name; `position` is the
ordinal that it has in its outbox.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.effects.message import COLUMNS, Message, message_rows
from headwater.errors import DeadLetterError, InvalidOptionError
from headwater.targets.contract import Delivery, KeepsSideTables, SideTable, Target

if TYPE_CHECKING:
    from headwater.effects.outbox import Dead

DEAD_LETTERS = SideTable(
    "dead_letters",
    pa.schema(
        [
            pa.field("block_number", pa.int64()),
            pa.field("ordinal", pa.int64()),
            pa.field("name", pa.string()),
            pa.field("output", pa.string()),
            pa.field("position", pa.int64()),
            pa.field("block_hash", pa.string()),
            pa.field("key", pa.string()),
            pa.field("payload", pa.string()),
            pa.field("reason", pa.string()),
            pa.field("attempts", pa.int64()),
            pa.field("died_at", pa.timestamp("us", "UTC")),
        ]
    ),
)


_OF_MESSAGES = ("block_number", "block_hash", "output", "key", "payload")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up: of which subscription, why, after how many attempts, when."""

    name: str
    message: Message
    reason: str
    attempts: int
    died_at: datetime


def outbox_table(name: str) -> SideTable:
    """Return the outbox of a subscription."""
    return SideTable(f"outbox_{name}", COLUMNS)


def dead_letter_rows(name: str, dead: Sequence[Dead], now: float) -> pa.Table:
    """Return what is stored of messages that a subscription has given up."""
    rows = [
        {
            **{column: getattr(letter.message, column) for column in _OF_MESSAGES},
            "ordinal": _ordinal(name, letter.message.key),
            "name": name,
            "position": letter.message.ordinal,
            "reason": letter.reason,
            "attempts": letter.attempts,
            "died_at": datetime.fromtimestamp(now, UTC),
        }
        for letter in dead
    ]
    return pa.Table.from_pylist(rows, schema=DEAD_LETTERS.columns)


def dead_letters(target: Target[Delivery], stream_id: str) -> list[DeadLetter]:
    """Return the dead letters of a stream, oldest block first.

    The target is opened and closed; no other process may write the stream meanwhile.
    """
    target.bind(stream_id)
    try:
        side = _opened(target)
        return read_dead_letters(stream_id, side.read_side_table(DEAD_LETTERS.name))
    finally:
        target.close()


def replay_dead_letters(
    target: Target[Delivery],
    stream_id: str,
    *,
    name: str | None = None,
    keys: Collection[str] | None = None,
) -> int:
    """Put dead letters back into their outboxes, and return how many.

    All of them, or those of one subscription, or those with these keys. They are delivered when the
    stream next runs, before everything else, with the keys that they always had. The stream must
    not be running. A crash leaves all of them, or none, put back.

    Raises:
        DeadLetterError: a key is not that of a dead letter.
    """
    target.bind(stream_id)
    try:
        side = _opened(target)
        rows = side.read_side_table(DEAD_LETTERS.name)
        letters = read_dead_letters(stream_id, rows)
        unknown = sorted(set(keys or ()) - {letter.message.key for letter in letters})
        if unknown:
            raise DeadLetterError(
                "no dead letter has this key", stream=stream_id, keys=", ".join(unknown)
            )
        chosen = [
            (name is None or letter.name == name) and (keys is None or letter.message.key in keys)
            for letter in letters
        ]
        back = [letter for letter, wanted in zip(letters, chosen, strict=True) if wanted]
        if not back:
            return 0
        names = sorted({letter.name for letter in back})
        side = _opened(target, *map(outbox_table, names))
        moved = {
            outbox_table(outbox).name: message_rows(
                [it.message for it in back if it.name == outbox]
            )
            for outbox in names
        }
        kept = rows.filter(pa.array([not wanted for wanted in chosen]))
        last = rows.slice(rows.num_rows - 1).to_pylist()[0]
        side.settle_side_rows(
            DEAD_LETTERS.name,
            (last["block_number"], last["ordinal"]),
            {DEAD_LETTERS.name: kept, **moved},
        )
        return len(back)
    finally:
        target.close()


def read_dead_letters(stream_id: str, rows: pa.Table) -> list[DeadLetter]:
    """Read dead letters from their rows."""
    letters = []
    for row in rows.to_pylist():
        same = {column: row[column] for column in _OF_MESSAGES}
        message = Message(stream=stream_id, ordinal=row["position"], **same)
        death = (row["reason"], row["attempts"], row["died_at"])
        letters.append(DeadLetter(row["name"], message, *death))
    return letters


def _opened(target: Target[Delivery], *outboxes: SideTable) -> KeepsSideTables:
    """Open a target's dead letters and outboxes."""
    side = target.capabilities.side_tables
    if side is None:
        raise InvalidOptionError(
            "this target keeps no side tables, and so no dead letters", got=type(target).__name__
        )
    side.open_side_tables([DEAD_LETTERS, *outboxes])
    target.recover()
    return side


def _ordinal(name: str, key: str) -> int:
    """Return 63 bits that tell a dead letter from all others of its block."""
    digest = hashlib.sha256(f"{name}/{key}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
