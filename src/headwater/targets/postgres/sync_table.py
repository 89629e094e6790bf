"""Table `sync` in PostgreSQL; a commit compares its newest row before it adds another."""

from __future__ import annotations

from typing import Any

from headwater.core.codec import load_finalized
from headwater.core.cursor import BlockCursor
from headwater.targets.postgres.sql import Fragment, compose, fitted, literal
from headwater.targets.sql.session import Session
from headwater.targets.sql.state import Newest, SyncRows
from headwater.targets.sql.text import QualifiedName

LEGACY_ID = "stream"
_COMMENTS = {
    "id": "The stream that committed this batch",
    "current_number": "Number of the last block of the batch",
    "current_hash": "Hash of that block",
    "current_timestamp": "Time of that block",
    "finalized": "Highest finalized block known at that time, as JSON",
    "rollback_chain": "Blocks of the batch that a fork may still undo, as a JSON array",
}


class SyncTable(SyncRows):
    """The rows of one stream."""

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


def read_newest(number: int | None, block_hash: str | None, finalized: Any) -> Newest | None:
    """Read a row of `newest_query`; without a number there is none."""
    if number is None:
        return None
    return Newest(BlockCursor(number, block_hash or None), load_finalized(finalized))


def exists(session: Session, name: QualifiedName) -> bool:
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
