"""The stream's state in table `sync`: one row per committed batch, in the forms of the Pipes SDK.

Runs on the driver, inside the transaction that writes the data. Streams share the table; each sees
its own rows alone.
"""

from __future__ import annotations

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
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.sql import TableName, compose


class SyncTable:
    """The rows of one stream."""

    def __init__(self, session: Session, name: TableName, stream_id: str) -> None:
        self._session = session
        self._name = name
        self._id = stream_id

    def create(self) -> None:
        """Create the table if it is not there."""
        self._session.run(compose("CREATE SCHEMA IF NOT EXISTS {schema}", schema=self._name.schema))
        self._session.run(
            compose(
                """
                CREATE TABLE IF NOT EXISTS {sync} (
                    id VARCHAR NOT NULL,
                    current_number BIGINT NOT NULL,
                    current_hash VARCHAR NOT NULL,
                    "current_timestamp" TIMESTAMPTZ,
                    finalized JSON,
                    rollback_chain JSON,
                    PRIMARY KEY (id, current_number)
                )
                """,
                sync=self._name,
            )
        )

    def load(self) -> PipeState:
        """Return the state that the rows stand for."""
        rows = self._session.rows(
            compose(
                """
                SELECT current_number, current_hash, epoch("current_timestamp")::BIGINT,
                       finalized::VARCHAR, rollback_chain::VARCHAR
                FROM {sync} WHERE id = ? ORDER BY current_number
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

    def append(self, state: PipeState, previous: PipeState) -> None:
        """Add the row of a batch."""
        row = sync_row(state, previous)
        self._session.run(
            compose(
                "INSERT INTO {sync} VALUES (?, ?, ?, to_timestamp(?::BIGINT), ?, ?)",
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
        )

    def settle(self, state: PipeState) -> None:
        """Note in the newest row how far finality reaches; add it if there is none."""
        cursor = state.cursor
        if cursor is None:
            return
        changed = self._session.rows(
            compose(
                "UPDATE {sync} SET finalized = ? WHERE id = ? AND current_number = ? RETURNING id",
                sync=self._name,
            ),
            [dump_finalized(state.finalized), self._id, cursor.number],
        )
        if not changed:
            self.append(state, PipeState())

    def roll_back(self, state: PipeState) -> None:
        """Forget the rows above the cursor. Where it has no row of its own, it gets one."""
        number = state.number
        self._session.run(
            compose("DELETE FROM {sync} WHERE id = ? AND current_number > ?", sync=self._name),
            [self._id, number],
        )
        self.settle(state)

    def prune(self, number: int) -> None:
        """Forget the rows at or below a number."""
        self._session.run(
            compose("DELETE FROM {sync} WHERE id = ? AND current_number <= ?", sync=self._name),
            [self._id, number],
        )
