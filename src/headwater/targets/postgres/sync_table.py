"""The stream's state in table `sync`: one row per committed batch, in the forms of the Pipes SDK.

Runs on the driver, inside the transaction that writes the data. Streams share the table; each sees
its own rows alone. The newest row is what a commit compares with before it adds to it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.sql import Fragment, TableName, compose, fitted, literal

LEGACY_ID = "stream"
_COMMENTS = {
    "id": "The stream that committed this batch",
    "current_number": "Number of the last block of the batch",
    "current_hash": "Hash of that block",
    "current_timestamp": "Time of that block",
    "finalized": "Highest finalized block known at that time, as JSON",
    "rollback_chain": "Blocks of the batch that a fork may still undo, as a JSON array",
}


class Newest(NamedTuple):
    """What tells one committed state from another: the newest row of a stream."""

    cursor: BlockCursor
    finalized: BlockCursor | None


class SyncTable:
    """The rows of one stream."""

    def __init__(self, session: Session, name: TableName, stream_id: str) -> None:
        self._session = session
        self._name = name
        self._id = stream_id

    def create(self) -> None:
        """Create the table if it is not there. Somebody else may have made it, with more rights."""
        if exists(self._session, self._name):
            return
        make_schema(self._session, self._name.schema)
        self._session.run(
            compose(
                """
                CREATE TABLE {sync} (
                    id TEXT NOT NULL,
                    current_number NUMERIC NOT NULL,
                    current_hash TEXT NOT NULL,
                    "current_timestamp" TIMESTAMPTZ,
                    finalized JSONB,
                    rollback_chain JSONB,
                    CONSTRAINT {key} PRIMARY KEY (id, current_number)
                )
                """,
                sync=self._name,
                key=fitted(self._name.name, suffix="_pk"),
            )
        )
        self._session.run(
            "; ".join(
                compose(
                    "COMMENT ON COLUMN {sync}.{column} IS {text}",
                    sync=self._name,
                    column=column,
                    text=literal(text),
                )
                for column, text in _COMMENTS.items()
            )
        )

    def adopt_legacy(self) -> bool:
        """Take over the rows that were kept before streams had ids, once: if there are no own."""
        return bool(
            self._session.run(
                compose(
                    "UPDATE {sync} SET id = $1 WHERE id = $2 "
                    "AND NOT EXISTS (SELECT FROM {sync} AS own WHERE own.id = $1)",
                    sync=self._name,
                ),
                [self._id, LEGACY_ID],
            )
        )

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

    def newest_query(self) -> Fragment:
        """Return the query of the newest row; its parameter `$1` is the id."""
        return compose(
            "SELECT current_number::bigint AS number, current_hash AS hash, "
            "finalized::text AS finalized "
            "FROM {sync} WHERE id = $1 ORDER BY current_number DESC LIMIT 1",
            sync=self._name,
        )

    def newest(self) -> Newest | None:
        """Return the newest row."""
        rows = self._session.rows(self.newest_query(), [self._id])
        return read_newest(*rows[0]) if rows else None

    def append(self, state: PipeState, previous: PipeState) -> Newest:
        """Add the row of a batch, and return it."""
        row = sync_row(state, previous)
        self._session.run(
            compose(
                "INSERT INTO {sync} (id, current_number, current_hash, "
                '"current_timestamp", finalized, rollback_chain) '
                "VALUES ($1, $2, $3, to_timestamp($4::bigint), $5::jsonb, $6::jsonb)",
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
        changed = self._session.run(
            compose(
                "UPDATE {sync} SET finalized = $1::jsonb WHERE id = $2 AND current_number = $3",
                sync=self._name,
            ),
            [dump_finalized(state.finalized), self._id, cursor.number],
        )
        if not changed:
            return self.append(state, PipeState())
        return Newest(cursor, state.finalized)

    def roll_back(self, state: PipeState) -> Newest | None:
        """Forget the rows above the cursor. Where it has no row of its own, it gets one."""
        number = state.number
        self._session.run(
            compose("DELETE FROM {sync} WHERE id = $1 AND current_number > $2", sync=self._name),
            [self._id, number],
        )
        return self.settle(state)

    def prune(self, number: int) -> None:
        """Forget the rows at or below a number."""
        self._session.run(
            compose("DELETE FROM {sync} WHERE id = $1 AND current_number <= $2", sync=self._name),
            [self._id, number],
        )


def read_newest(number: int | None, block_hash: str | None, finalized: Any) -> Newest | None:
    """Read a row of `newest_query`; without a number there is none."""
    if number is None:
        return None
    return Newest(BlockCursor(number, block_hash or None), load_finalized(finalized))


def exists(session: Session, name: TableName) -> bool:
    """Tell whether there is a table of this name."""
    return bool(
        session.rows(
            "SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')",
            [name.schema, name.name],
        )
    )


def make_schema(session: Session, name: str) -> None:
    """Create a schema if it is not there; asking first needs no right to create one."""
    if not session.rows("SELECT 1 FROM pg_namespace WHERE nspname = $1", [name]):
        session.run(compose("CREATE SCHEMA {name}", name=name))
