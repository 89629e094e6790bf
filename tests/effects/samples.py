"""Messages for the tests of deliverers."""

from __future__ import annotations

from headwater.effects import Message
from headwater.effects.message import idempotency_key


def message(number: int = 1, ordinal: int = 0, payload: str = '{"value":"1"}') -> Message:
    """Return a message of a block."""
    block_hash = f"0x{number:064x}"
    key = idempotency_key("one", "transfers", number, block_hash, ordinal)
    return Message(key, "one", "transfers", number, block_hash, ordinal, payload)


def messages(count: int) -> list[Message]:
    """Return messages of as many blocks."""
    return [message(number) for number in range(1, count + 1)]
