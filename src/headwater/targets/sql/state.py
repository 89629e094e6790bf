"""Stores a stream's state, and shows its cursor to other programs.

All of it runs on the driver, inside the transaction that writes the data. Streams share the tables;
each sees its own rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from headwater.core import PipeState
from headwater.core.codec import (
    SyncRow,
    dump_chain,
    dump_cursor,
    dump_finalized,
    fold_rows,
    load_chain,
    load_finalized,
    sync_row,
)
from headwater.core.cursor import BlockCursor
from headwater.errors import InvalidOptionError, RetentionError, RewindError
from headwater.targets.sql.dialect import Dialect, Session
from headwater.targets.text import Fragment, QualifiedName, compose, literal

CURSORS = "cursors"
_COMMENTS = {
    "id": "The stream that committed this batch",
    "current_number": "Number of the last block of the batch",
    "current_hash": "Hash of that block",
    "current_timestamp": "Time of that block",
    "finalized": "Highest finalized block known at that time, as JSON",
    "rollback_chain": "Blocks of the batch that a fork may still undo, as a JSON array",
}


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Settings of the state: the stream's id, the table, how many blocks keep their undo data."""

    id: str | None = None
    schema: str = ""
    table: str = "sync"
    unfinalized_blocks_retention: int = 1000
    name_type: ClassVar[type[QualifiedName]] = QualifiedName

    def __post_init__(self) -> None:
        if self.unfinalized_blocks_retention <= 0:
            raise RetentionError(
                "undo data cannot be kept for no blocks", got=self.unfinalized_blocks_retention
            )
        if self.id is not None and not self.id.strip():
            raise InvalidOptionError("a stream id cannot be blank", got=repr(self.id))

    @property
    def sync(self) -> QualifiedName:
        """The table of the state."""
        return self.name_type(self.schema, self.table)


class Newest(NamedTuple):
    """The newest row of a stream, which tells one committed state from another."""

    cursor: BlockCursor
    finalized: BlockCursor | None


class SyncTable:
    """Stores one row per committed batch of one stream, in the forms of the Pipes SDK.

    `known` is the newest row, as far as this writer has read or written it.
    """

    def __init__(
        self, session: Session, dialect: Dialect, name: QualifiedName, stream_id: str
    ) -> None:
        self.known: Newest | None = None
        self._session = session
        self._dialect = dialect
        self._name = name
        self._id = stream_id

    @property
    def stream_id(self) -> str:
        """The stream whose state this is."""
        return self._id

    def create(self) -> None:
        """Create the table if it is not there. Another user may have made it, with more rights."""
        if self._dialect.exists(self._session, self._name):
            return
        self._dialect.make_schema(self._session, self._name.schema)
        self._session.run(
            """
                CREATE TABLE {sync} (
                    id {text} NOT NULL,
                    current_number {number} NOT NULL,
                    current_hash {text} NOT NULL,
                    "current_timestamp" TIMESTAMPTZ,
                    finalized {json},
                    rollback_chain {json},
                    CONSTRAINT {key} PRIMARY KEY (id, current_number)
                )
                """,
            sync=self._name,
            text=Fragment(self._dialect.text),
            number=Fragment(self._dialect.block_number),
            json=Fragment(self._dialect.json),
            key=self._name.suffixed("_pk").name,
        )
        for column, text in _COMMENTS.items():
            self._session.run(
                "COMMENT ON COLUMN {sync}.{column} IS {text}",
                sync=self._name,
                column=column,
                text=literal(text),
            )

    def load(self) -> PipeState:
        """Return the state that the rows stand for."""
        rows = self._session.rows(
            """
                SELECT current_number::bigint, current_hash,
                       extract(epoch FROM "current_timestamp")::bigint,
                       finalized::text, rollback_chain::text
                FROM {sync} WHERE id = $1 ORDER BY current_number
                """,
            [self._id],
            sync=self._name,
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
            "INSERT INTO {sync} (id, current_number, current_hash, "
            '"current_timestamp", finalized, rollback_chain) '
            "VALUES ($1, $2, $3, to_timestamp($4::bigint), $5, $6)",
            [
                self._id,
                row.current.number,
                row.current.hash or "",
                row.current.timestamp,
                dump_finalized(row.finalized),
                dump_chain(row.rollback_chain),
            ],
            prepare=True,
            sync=self._name,
        )
        self.known = Newest(row.current, row.finalized)

    def settle(self, state: PipeState) -> None:
        """Note in the newest row how far finality reaches; add it if there is none."""
        cursor, self.known = state.cursor, None
        if cursor is None:
            return
        changed = self._session.rows(
            "UPDATE {sync} SET finalized = $1 WHERE id = $2 AND current_number = $3 RETURNING id",
            [dump_finalized(state.finalized), self._id, cursor.number],
            sync=self._name,
        )
        if changed:
            self.known = Newest(cursor, state.finalized)
        else:
            self.append(state, PipeState())

    def roll_back(self, state: PipeState) -> None:
        """Forget the rows above the cursor. Where it has no row of its own, it gets one."""
        self._session.run(
            "DELETE FROM {sync} WHERE id = $1 AND current_number > $2",
            [self._id, state.number],
            sync=self._name,
        )
        self.settle(state)

    def check_undo(self, number: int) -> None:
        """Refuse to undo batches above a number of which nothing was kept. Nothing is changed.

        The Pipes SDK keeps no images while the portal reports no finality. Its rows of that time
        have neither finality nor a chain; ours always have a chain.
        """
        rows = self._session.rows(
            "SELECT max(current_number)::bigint FROM {sync} WHERE id = $1 "
            "AND current_number > $2 AND coalesce(finalized::text, '{{}}') = '{{}}' "
            "AND coalesce(rollback_chain::text, '[]') = '[]'",
            [self._id, number],
            sync=self._name,
        )
        if rows[0][0] is not None:
            raise RewindError(
                "the Pipes SDK has kept no undo data, because the portal reported no finality",
                wanted=number,
                oldest=rows[0][0],
            )

    def prune(self, number: int) -> None:
        """Forget the rows at or below a number, and what rows above it say of such blocks.

        Their undo data goes with them, so no later state may name them as a place to go back to.
        """
        self._session.run(
            "DELETE FROM {sync} WHERE id = $1 AND current_number <= $2",
            [self._id, number],
            sync=self._name,
        )
        several = self._session.rows(
            "SELECT current_number::bigint, rollback_chain::text FROM {sync} "
            "WHERE id = $1 AND rollback_chain::text LIKE '%}}%,%{{%'",
            [self._id],
            sync=self._name,
        )
        for current, text in several:
            chain = load_chain(text)
            kept = tuple(cursor for cursor in chain if cursor.number > number)
            if len(kept) < len(chain):
                self._session.run(
                    "UPDATE {sync} SET rollback_chain = $1 WHERE id = $2 AND current_number = $3",
                    [dump_chain(kept), self._id, current],
                    sync=self._name,
                )

    def replace(self, state: PipeState) -> None:
        """Forget everything, and store one state: another program has written since."""
        self._session.run("DELETE FROM {sync} WHERE id = $1", [self._id], sync=self._name)
        self.append(state, PipeState())

    def adopt_legacy(self, legacy_id: str) -> bool:
        """Take over the rows that were kept before streams had ids, once: if there are no own."""
        return bool(
            self._session.rows(
                "UPDATE {sync} SET id = $1 WHERE id = $2 AND NOT EXISTS "
                "(SELECT 1 FROM {sync} AS own WHERE own.id = $1) RETURNING id",
                [self._id, legacy_id],
                sync=self._name,
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


class CursorTable:
    """Shows the cursor of each stream to other programs: one row per stream."""

    def __init__(self, dialect: Dialect, name: QualifiedName) -> None:
        self._dialect = dialect
        self._name = name

    def create(self, session: Any) -> None:
        """Create the table if it is not there."""
        if not self._dialect.exists(session, self._name):
            session.run(
                "CREATE TABLE {cursors} (id {text} PRIMARY KEY, cursor {text}, "
                "block_num BIGINT, block_id {text})",
                cursors=self._name,
                text=Fragment(self._dialect.text),
            )

    def show(
        self,
        session: Session,
        stream_id: str,
        state: PipeState,
        *,
        known: bool = False,
        text: str | None = None,
    ) -> None:
        """Write the stream's row, or remove it where there is no cursor.

        With `known` a stream that has no row gets none: it may not be one with a change log. `text`
        stands for the cursor where another program has a form of its own.
        """
        cursor = state.cursor
        query = compose("SELECT 1 FROM {cursors} WHERE id = $1", cursors=self._name)
        if known and not session.rows(query, [stream_id]):
            return
        if cursor is None:
            session.run("DELETE FROM {cursors} WHERE id = $1", [stream_id], cursors=self._name)
            return
        session.run(
            "INSERT INTO {cursors} (id, cursor, block_num, block_id) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (id) DO UPDATE SET cursor = excluded.cursor, "
            "block_num = excluded.block_num, block_id = excluded.block_id",
            [stream_id, text or dump_cursor(cursor), cursor.number, cursor.hash or ""],
            prepare=True,
            cursors=self._name,
        )
