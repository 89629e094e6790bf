"""What a task does with its rows: encode them, send them to the driver, return a receipt.

Runs on executors, which reach the driver as they do for Spark itself, and never the database. An
attempt that is repeated has another number, so its rows do not mix with earlier ones.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from headwater.errors import PostgresConnectionError
from headwater.targets.frames import block_range
from headwater.targets.postgres.relay import ATTEMPT_BYTES, RECEIVED, SIZE_BYTES
from headwater.targets.postgres.transfer import Transfer

_NAMES = ("attempt", "rows", "lowest", "highest", "nulls")
_CONNECT_S = 30.0
RECEIPT = pa.schema([(name, pa.int64()) for name in _NAMES])
RECEIPT_COLUMNS = ", ".join(f"`{name}` bigint" for name in _NAMES)


@dataclass(frozen=True, slots=True)
class RowSender:
    """Sends the rows of a partition over one connection. It pickles."""

    address: tuple[str, int]
    token: bytes = field(repr=False)
    transfer: Transfer
    block_column: str = ""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send, and yield the receipt."""
        attempt, seen = secrets.randbits(62), _Seen(self.block_column)
        remaining = (batch for batch in batches if batch.num_rows)
        first = next(remaining, None)
        if first is not None:
            rows = self.transfer.encode(first.schema, seen.through(chain([first], remaining)))
            with self._connected() as connection:
                connection.sendall(self.token + attempt.to_bytes(ATTEMPT_BYTES))
                for chunk in rows:
                    connection.sendall(len(chunk).to_bytes(SIZE_BYTES))
                    connection.sendall(chunk)
                connection.sendall(bytes(SIZE_BYTES))
                if connection.recv(1) != RECEIVED:
                    raise ConnectionResetError("the driver did not take the rows")
        yield seen.receipt(attempt)

    def _connected(self) -> socket.socket:
        try:
            connection = socket.create_connection(self.address, _CONNECT_S)
        except OSError as error:
            host, port = self.address
            raise PostgresConnectionError(
                "an executor cannot reach the driver; relay_port names a port that a firewall lets "
                "through", driver=host, port=port, reason=error,
            ) from error  # fmt: skip
        connection.settimeout(None)
        return connection


class _Seen:
    """Counts the rows that pass, and notes between which blocks they lie."""

    def __init__(self, block_column: str) -> None:
        self._column = block_column
        self._rows = self._nulls = 0
        self._blocks: list[int] = []

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass batches on."""
        for batch in batches:
            self._rows += batch.num_rows
            if self._column not in batch.schema.names:
                self._nulls += batch.num_rows
            else:
                ends, nulls = block_range(batch.column(self._column))
                self._nulls += nulls
                known = [*self._blocks, *ends]
                self._blocks = [min(known), max(known)] if known else []
            yield batch

    def receipt(self, attempt: int) -> pa.RecordBatch:
        """Return what the driver is told."""
        lowest, highest = self._blocks or (None, None)
        facts = (attempt, self._rows, lowest, highest, self._nulls)
        return pa.RecordBatch.from_pylist([dict(zip(_NAMES, facts, strict=True))], schema=RECEIPT)
