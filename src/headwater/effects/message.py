"""One message: a row of an output, the block it is of, and a key that never changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

KEY_DIGITS = 32
COLUMNS = pa.schema(
    [
        pa.field("block_number", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("block_hash", pa.string()),
        pa.field("key", pa.string()),
        pa.field("payload", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Message:
    """What a deliverer is given.

    `key` is the same at every attempt and every replay of this row of this block, and no other
    message of any stream has it: a receiver that has seen it may drop the message. `payload` is the
    row as JSON text.
    """

    key: str
    stream: str
    output: str
    block_number: int
    block_hash: str
    ordinal: int
    payload: str

    @property
    def row(self) -> dict[str, Any]:
        """The row, read from the payload."""
        row: dict[str, Any] = json.loads(self.payload)
        return row

    def to_json(self) -> str:
        """Return the whole message as JSON; the payload is in it as it is."""
        about = {
            "key": self.key,
            "stream": self.stream,
            "output": self.output,
            "block": {"number": self.block_number, "hash": self.block_hash},
            "ordinal": self.ordinal,
        }
        head = json.dumps(about, separators=(",", ":"), ensure_ascii=False)
        return f'{head[:-1]},"row":{self.payload}}}'


def idempotency_key(
    stream: str, output: str, block_number: int, block_hash: str, ordinal: int
) -> str:
    """Return the key of a message, made of what identifies it and of nothing else."""
    parts = json.dumps([stream, output, block_number, block_hash, ordinal])
    return hashlib.sha256(parts.encode()).hexdigest()[:KEY_DIGITS]


def read_messages(stream: str, output: str, rows: pa.Table) -> list[Message]:
    """Read messages from the rows of an outbox."""
    return [Message(stream=stream, output=output, **row) for row in rows.to_pylist()]


def message_rows(messages: Sequence[Message]) -> pa.Table:
    """Return messages as rows of an outbox."""
    rows = [{name: getattr(one, name) for name in COLUMNS.names} for one in messages]
    return pa.Table.from_pylist(rows, schema=COLUMNS)
