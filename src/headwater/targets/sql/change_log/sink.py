"""Shares a database with substreams-sink-sql: goes on where it stopped, and can be followed by it.

The sink keeps one row per module in `cursors`: the module's hash, the endpoint's cursor, the block.
A stream whose id is that hash keeps the same row, in the same form, so the sink can go on after any
commit. When the row says something else than our own state, the sink has written since: its block
becomes the state, and its rows of the change log become ours. Runs on the driver, in transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headwater.core import BlockCursor, PipeState
from headwater.targets.sql.text import Fragment, QualifiedName

FinalOf = Callable[[str], BlockCursor | None]
"""Returns the block that was final when an endpoint's cursor was made, if it can be told."""
CURSORS_SIDE = "substreams_cursors"  # the side table in which a stream keeps them
logger = logging.getLogger("headwater.targets")


class SinkTables:
    """The tables that a stream shares with the sink."""

    def __init__(self, cursors: QualifiedName, log: QualifiedName, final_of: FinalOf) -> None:
        self._cursors = cursors
        self._log = log
        self._final_of = final_of
        self._store: Any = None

    def take_over(self, tx: Any, stream_id: str) -> None:
        """Go on where the sink stopped, if it has written since. Doing it again changes nothing."""
        self._store = store = tx.store
        session = tx.session
        session.run("ALTER TABLE {log} ALTER COLUMN stream_id SET DEFAULT ''", log=self._log)
        rows = session.rows(
            "SELECT cursor, block_num, block_id FROM {cursors} WHERE id = $1",
            [stream_id],
            cursors=self._cursors,
        )
        state = store.sync.load()
        if not rows or not rows[0][0]:
            return
        cursor, number, block_hash = rows[0]
        if state.number == number and self.cursor_at(number) == cursor:
            return
        block = BlockCursor(number, block_hash or None)
        final = self._final_of(cursor)
        if final is not None and final.number >= number:
            final = block
        chain = (block,) if final in (None, block) else (final, block)
        store.side.remove_above(-1)
        store.sync.replace(PipeState(block, final, chain))
        row = {"block_number": number, "ordinal": 0, "block_hash": block_hash, "cursor": cursor}
        store.side.write({CURSORS_SIDE: pa.table({name: [one] for name, one in row.items()})})
        session.run(
            "UPDATE {log} SET stream_id = $1, table_name = replace(table_name, {quote}, '') "
            "WHERE stream_id = ''",
            [stream_id],
            log=self._log,
            quote=Fragment("'\"'"),
        )
        logger.warning("sink.taken_over id=%s block=%d final=%s", stream_id, number, final)

    def cursor_at(self, number: int) -> str | None:
        """Return the endpoint's cursor of a block that is stored."""
        found = self._store.side.read(CURSORS_SIDE, (number - 1, 2**62), number)
        return found["cursor"][0].as_py() if found.num_rows else None
