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

from headwater.core import DEFAULT_CAP, BlockCursor, PipeState
from headwater.core.cursor import UNKNOWN_HASH
from headwater.targets.sql.text import QualifiedName

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
        chain = self._chain(session, stream_id, BlockCursor(number, block_hash or None), cursor)
        final = chain[0] if self._final_of(cursor) else None
        store.side.remove_above(-1)
        store.sync.replace(PipeState(chain[-1], final, chain))
        row = {"block_number": number, "ordinal": 0, "block_hash": block_hash, "cursor": cursor}
        store.side.write({CURSORS_SIDE: pa.table({name: [one] for name, one in row.items()})})
        session.run(
            "UPDATE {log} SET stream_id = $1 WHERE stream_id = ''", [stream_id], log=self._log
        )
        logger.warning("sink.taken_over id=%s block=%d final=%s", stream_id, number, final)

    def _chain(
        self, session: Any, stream_id: str, block: BlockCursor, cursor: str
    ) -> tuple[BlockCursor, ...]:
        """Return what a fork can go back to: every number that the sink's log reaches.

        Its rows say what each block did, whatever its hash. The sink removes those of blocks that
        the endpoint's message calls final, while the cursor names the block before the last of
        these: what is next to that and has no row is final too.
        """
        final = self._final_of(cursor)
        rows = session.rows(
            "SELECT min(block_num), bool_or(block_num = $2::bigint) FROM {log} "
            "WHERE stream_id IN ('', $1::text)",
            [stream_id, -1 if final is None else final.number + 1],
            log=self._log,
        )
        lowest, has_next = rows[0]
        if final is None:
            first = block.number if lowest is None else max(0, lowest - 1)
            floor: tuple[BlockCursor, ...] = ()
        elif final.number + (not has_next) >= block.number:
            return (block,)
        else:
            floor = (final,) if has_next else (BlockCursor(final.number + 1, UNKNOWN_HASH),)
            first = floor[0].number + 1
        first = max(first, block.number - DEFAULT_CAP)
        between = (BlockCursor(one, UNKNOWN_HASH) for one in range(first, block.number))
        return (*floor, *between, block)

    def cursor_at(self, number: int) -> str | None:
        """Return the endpoint's cursor of a block that is stored."""
        found = self._store.side.read(CURSORS_SIDE, (number - 1, 2**62), number)
        return found["cursor"][0].as_py() if found.num_rows else None
