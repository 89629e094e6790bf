"""The rows of a history target's own: the history, and where the cursor is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwater.core import BlockCursor
from headwater.core.codec import dump_cursor
from headwater.errors import PrimaryKeyNeededError, UnknownTableError
from headwater.targets.sql.change_log.names import Names
from headwater.targets.sql.dialect import Session
from headwater.targets.sql.merge.frames import Stager
from headwater.targets.sql.merge.shape import Shape
from headwater.targets.sql.text import QualifiedName, compose

COLUMNS = ("id", "op", "table_name", "pk", "prev_value", "block_num", "stream_id")


class HistoryRows:
    """The history of one stream. Runs on the driver, inside transactions."""

    def __init__(self, names: Names, own: Sequence[QualifiedName], stream_id: str | None) -> None:
        self.shapes: dict[str, Shape] = {}
        self._names = names
        self._fixed = stream_id
        self._id = stream_id or "stream"
        self._history, self._cursors = own
        self._stager = Stager({})

    def bind(self, stream_id: str) -> None:
        """Take the id of the stream, unless the settings name another."""
        self._id = self._fixed or stream_id

    def save(self, session: Session, cursor: BlockCursor) -> None:
        """Write the cursor's row."""
        session.run(
            compose(
                "INSERT INTO {cursors} (id, cursor, block_num, block_id) VALUES ($1, $2, $3, $4) "
                "ON CONFLICT (id) DO UPDATE SET cursor = excluded.cursor, "
                "block_num = excluded.block_num, block_id = excluded.block_id",
                cursors=self._cursors,
            ),
            [self._id, dump_cursor(cursor), cursor.number, cursor.hash or ""],
            prepare=True,
        )

    def prune(self, session: Session, floor: int) -> None:
        """Forget the history of blocks that no fork can undo."""
        session.run(
            compose(
                "DELETE FROM {history} WHERE stream_id = $1 AND block_num <= $2",
                history=self._history,
            ),
            [self._id, floor],
            prepare=True,
        )

    def _touched(self, session: Session, number: int) -> list[str]:
        """Return the tables that blocks above a number changed, also those no longer declared."""
        rows = session.rows(
            compose(
                "SELECT DISTINCT table_name FROM {history} WHERE stream_id = $1 "
                "AND block_num > $2 ORDER BY 1",
                history=self._history,
            ),
            [self._id, number],
        )
        return [name for (name,) in rows]


def unknown_table(table: str, tables: Iterable[tuple[str]]) -> UnknownTableError:
    """Return the error of a table that is not there; the rows name those that are."""
    known = ", ".join(one for (one,) in tables) or "none"
    return UnknownTableError("the database has no such table", table=table, known=known)


def keyless_table(table: str, columns: Iterable[str]) -> PrimaryKeyNeededError:
    """Return the error of a table whose rows cannot be told apart."""
    return PrimaryKeyNeededError(
        "a table without a primary key", table=table, columns=", ".join(columns)
    )
