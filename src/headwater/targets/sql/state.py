"""The stream's state in table `sync`: one row per committed batch, in the forms of the Pipes SDK.

Runs on the driver, inside the transaction that writes the data. Streams share the table; each sees
its own rows alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from headwater.core import PipeState
from headwater.core.codec import (
    SyncRow,
    dump_chain,
    dump_finalized,
    fold_rows,
    load_chain,
    load_finalized,
    sync_row,
)
from headwater.core.cursor import BlockCursor
from headwater.targets.sql.session import Session
from headwater.targets.sql.text import QualifiedName, compose


class Newest(NamedTuple):
    """What tells one committed state from another: the newest row of a stream."""

    cursor: BlockCursor
    finalized: BlockCursor | None


class SyncRows(ABC):
    """The rows of one stream. How their table is created is left to each database."""

    def __init__(self, session: Session, name: QualifiedName, stream_id: str) -> None:
        self._session = session
        self._name = name
        self._id = stream_id

    @abstractmethod
    def create(self) -> None:
        """Create the table if it is not there."""

    def load(self) -> PipeState:
        """Return the state that the rows stand for."""
        rows = self._session.rows(
            compose(
                """
                SELECT current_number::bigint, current_hash,
                       extract(epoch FROM "current_timestamp")::bigint,
                       finalized::text, rollback_chain::text
                FROM {sync} WHERE id = $1 ORDER BY current_number
                """,
                sync=self._name,
            ),
            [self._id],
        )
        return fold_rows(
            SyncRow(
                BlockCursor(number, block_hash or None, timestamp),
                load_finalized(finalized),
                load_chain(chain),
            )
            for number, block_hash, timestamp, finalized, chain in rows
        )

    def append(self, state: PipeState, previous: PipeState) -> Newest:
        """Add the row of a batch, and return it."""
        row = sync_row(state, previous)
        self._session.run(
            compose(
                "INSERT INTO {sync} (id, current_number, current_hash, "
                '"current_timestamp", finalized, rollback_chain) '
                "VALUES ($1, $2, $3, to_timestamp($4::bigint), $5, $6)",
                sync=self._name,
            ),
            [
                self._id,
                row.current.number,
                row.current.hash or "",
                row.current.timestamp,
                dump_finalized(row.finalized),
                dump_chain(row.rollback_chain),
            ],
            prepare=True,
        )
        return Newest(row.current, row.finalized)

    def settle(self, state: PipeState) -> Newest | None:
        """Note in the newest row how far finality reaches; add it if there is none."""
        cursor = state.cursor
        if cursor is None:
            return None
        changed = self._session.rows(
            compose(
                "UPDATE {sync} SET finalized = $1 WHERE id = $2 AND current_number = $3 "
                "RETURNING id",
                sync=self._name,
            ),
            [dump_finalized(state.finalized), self._id, cursor.number],
        )
        return Newest(cursor, state.finalized) if changed else self.append(state, PipeState())

    def roll_back(self, state: PipeState) -> Newest | None:
        """Forget the rows above the cursor. Where it has no row of its own, it gets one."""
        self._session.run(
            compose("DELETE FROM {sync} WHERE id = $1 AND current_number > $2", sync=self._name),
            [self._id, state.number],
        )
        return self.settle(state)

    def prune(self, number: int) -> None:
        """Forget the rows at or below a number."""
        self._session.run(
            compose("DELETE FROM {sync} WHERE id = $1 AND current_number <= $2", sync=self._name),
            [self._id, number],
        )
