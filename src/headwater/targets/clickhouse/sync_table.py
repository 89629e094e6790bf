"""The stream's state in table `sync`: one row per commit, in the forms of the Pipes SDK.

Rows are only added. The newest one counts, by `timestamp`, which is a logical clock: never less
than the row before it plus a millisecond, whatever the machine's clock says. A rollback is a row
too. Runs on the driver.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from headwater.core import PipeState
from headwater.core.codec import (
    SyncRow,
    dump_chain,
    dump_cursor,
    fold_rows,
    load_chain,
    load_cursor,
    load_finalized,
    sync_row,
)
from headwater.core.watermark import FinalizedWatermark
from headwater.targets.clickhouse.client import ClickHouseClient, every_row
from headwater.targets.clickhouse.sql import TableName, columns, compose

LEGACY_ID = "stream"
CLEAN_EVERY = 25
_COLUMNS = ("id", "current", "finalized", "rollback_chain", "timestamp", "sign")


class SyncTable:
    """The rows of one stream."""

    def __init__(
        self, client: ClickHouseClient, name: TableName, stream_id: str, max_rows: int
    ) -> None:
        self._client = client
        self._name = name
        self._id = stream_id
        self._max_rows = max_rows
        self._newest = self._rows = self._saves = 0

    def create(self) -> None:
        """Create the table if it is not there."""
        self._client.run(
            f"CREATE TABLE IF NOT EXISTS {self._name} (id String, current String, "
            "finalized String, rollback_chain String, timestamp DateTime64(3), sign Int8) "
            "ENGINE = CollapsingMergeTree(sign) ORDER BY (timestamp, id)"
        )

    def adopt_legacy(self) -> bool:
        """Take over the rows that were kept before streams had ids, once: if there are no own."""
        if self._count(self._id) or not self._count(LEGACY_ID):
            return False
        self._client.run(
            compose(
                "INSERT INTO <sync> (<columns>) SELECT if(s = 1, {own:String}, id), current, "
                "finalized, rollback_chain, timestamp, s FROM <sync> FINAL "
                "ARRAY JOIN [1, -1] AS s WHERE id = {legacy:String}",
                sync=self._name,
                columns=_COLUMNS,
            ),
            {"own": self._id, "legacy": LEGACY_ID},
            settings=every_row(),
        )
        return True

    def load(self) -> PipeState:
        """Return the state that the rows stand for."""
        found = self._client.rows(
            compose(
                "SELECT current, finalized, rollback_chain, "
                "toUnixTimestamp64Milli(timestamp) AS at "
                "FROM <sync> FINAL WHERE id = {id:String}",
                sync=self._name,
            ),
            {"id": self._id},
        )
        rows = [
            (
                one["at"],
                SyncRow(
                    load_cursor(one["current"]),
                    load_finalized(one["finalized"]),
                    load_chain(one["rollback_chain"]),
                ),
            )
            for one in found
        ]
        rows.sort(key=lambda one: (one[0], one[1].current.number))
        self._newest, self._rows = self.newest(), len(rows)
        return fold_rows(_needed([row for _, row in rows]))

    def newest(self) -> int:
        """Return the time of the stream's newest row on the server, also of one cancelled since."""
        found = self._client.rows(
            compose(
                "SELECT toUnixTimestamp64Milli(max(timestamp)) AS at FROM <sync> "
                "WHERE id = {id:String}",
                sync=self._name,
            ),
            {"id": self._id},
        )
        return int(found[0]["at"])

    @property
    def is_ours(self) -> bool:
        """Whether the newest row is the one that this object wrote or read last."""
        return self.newest() == self._newest

    def append(self, states: Sequence[PipeState], previous: PipeState) -> None:
        """Add the rows of commits, all in one step, and now and then remove the oldest."""
        self._saves += 1
        clean = self._saves % CLEAN_EVERY == 1 or self._max_rows < CLEAN_EVERY
        rows = []
        for state in states:
            rows.append(sync_row(state, previous))
            previous = state
        clean = clean and self._rows + len(rows) > self._max_rows
        if clean:  # the row that is sure to stay holds the whole chain
            rows[-1] = sync_row(previous, PipeState())
        self._insert(rows)
        if clean:
            self._remove_oldest()

    def roll_back(self, state: PipeState) -> None:
        """Add the row of a rollback, with the whole chain that is left."""
        self._saves += 1
        self._insert([sync_row(state, PipeState())])

    def _insert(self, rows: Sequence[SyncRow]) -> None:
        begin = max(self._newest + 1, int(time.time() * 1000))
        times = [begin + place for place in range(len(rows))]
        frame = pa.table(
            {
                "id": [self._id] * len(rows),
                "current": [dump_cursor(row.current) for row in rows],
                "finalized": ["" if row.finalized is None else dump_cursor(row.finalized)
                              for row in rows],
                "rollback_chain": [dump_chain(row.rollback_chain) for row in rows],
                "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
                "sign": pa.array([1] * len(rows), pa.int8()),
            }
        )  # fmt: skip
        self._client.insert(f"{self._name} ({columns(_COLUMNS)})", frame, f"{self._id}/{times[-1]}")
        self._newest, self._rows = times[-1], self._rows + len(rows)

    def _remove_oldest(self) -> None:
        self._client.run(
            compose(
                "INSERT INTO <sync> (<columns>) SELECT id, current, finalized, rollback_chain, "
                "timestamp, -1 FROM <sync> FINAL WHERE id = {id:String} "
                "ORDER BY timestamp DESC LIMIT 1000000000 OFFSET {kept:UInt64}",
                sync=self._name,
                columns=_COLUMNS,
            ),
            {"id": self._id, "kept": self._max_rows},
            settings=every_row(),
        )
        self._rows = self._max_rows

    def _count(self, stream_id: str) -> int:
        found = self._client.rows(
            compose(
                "SELECT count() AS n FROM <sync> FINAL WHERE id = {id:String}", sync=self._name
            ),
            {"id": stream_id},
        )
        return int(found[0]["n"])


def _needed(rows: list[SyncRow]) -> list[SyncRow]:
    """Leave out rows that say nothing of blocks that can still be forked; there may be thousands.

    From the last row at or below the high-water mark on, nothing was undone below it.
    """
    mark = FinalizedWatermark()
    for row in rows:
        mark = mark.observe(row.finalized)
    final = mark.cursor
    if final is None:
        return rows
    start = max((i for i, row in enumerate(rows) if row.current.number <= final.number), default=0)
    first = rows[start]
    return [SyncRow(first.current, final, first.rollback_chain), *rows[start + 1 :]]
