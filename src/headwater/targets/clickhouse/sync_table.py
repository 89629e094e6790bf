"""Stores a stream's state in table `sync`: one row per commit, in the forms of the Pipes SDK.

Rows are only added. The newest one counts, by `timestamp`, which is a logical clock: never less
than the row before it plus a millisecond, whatever the machine's clock says. A rollback is a row
too. Runs on the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

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
from headwater.core.state import FinalizedWatermark
from headwater.errors import ClickHouseWriterError
from headwater.targets.clickhouse.client import ClickHouseClient, every_row
from headwater.targets.clickhouse.lease import Lease
from headwater.targets.clickhouse.sql import TableName, into
from headwater.targets.text import Fragment

CLEAN_EVERY = 25
_COLUMNS = {
    "id": "String",
    "current": "String",
    "finalized": "String",
    "rollback_chain": "String",
    "timestamp": "DateTime64(3)",
    "sign": "Int8",
}


class SyncTable:
    """The rows of one stream. `clock` says the seconds since 1970; it may go wrong."""

    def __init__(
        self,
        client: ClickHouseClient,
        name: TableName,
        lease: Lease,
        max_rows: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._client = client
        self._name = name
        self._lease = lease
        self.stream_id = lease.stream_id
        self._max_rows = max_rows
        self._rows = self._saves = 0

    def create(self) -> None:
        """Create the table if it is not there."""
        self._client.run(
            "CREATE TABLE IF NOT EXISTS <sync> (<kinds>) "
            "ENGINE = CollapsingMergeTree(sign) ORDER BY (timestamp, id)",
            sync=self._name,
            kinds=Fragment(", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())),
        )

    def adopt_legacy(self, legacy_id: str) -> bool:
        """Take over the rows that were kept before streams had ids. Called if there are no own."""
        if not self._count(legacy_id):
            return False
        self._client.run(
            "INSERT INTO <sync> (<columns>) SELECT if(s = 1, {own:String}, id), current, "
            "finalized, rollback_chain, timestamp, s FROM <sync> FINAL "
            "ARRAY JOIN [1, -1] AS s WHERE id = {legacy:String} AND <condition>",
            {"own": self.stream_id, "legacy": legacy_id},
            settings=every_row(),
            sync=self._name,
            columns=tuple(_COLUMNS),
            condition=self._lease.epoch_condition,
        )
        return True

    def load(self) -> PipeState:
        """Return the state that the rows stand for."""
        found = self._found(
            "SELECT current, finalized, rollback_chain, toUnixTimestamp64Milli(timestamp) AS at "
            "FROM <sync> FINAL WHERE id = {id:String}"
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
        self._lease.newest, self._rows = self.newest(), len(rows)
        return fold_rows(_needed([row for _, row in rows]))

    def newest(self) -> int:
        """Return the time of the stream's newest row on the server, also of one cancelled since."""
        newest = "SELECT toUnixTimestamp64Milli(max(timestamp)) AS at FROM <sync> "
        return int(self._found(newest + "WHERE id = {id:String}")[0]["at"])

    @property
    def is_ours(self) -> bool:
        """Whether the newest row is the one that this object wrote or read last."""
        return self.newest() == self._lease.newest

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

    def replace(self, state: PipeState) -> None:
        """Cancel all rows, and add that of a state that has a cursor, in one step.

        What earlier rows say of finality then counts no longer. Called by commands; after a lost
        connection it is not tried again: the command may be repeated.
        """
        held = self._found(
            "SELECT current, finalized, rollback_chain, toUnixTimestamp64Milli(timestamp) AS at, "
            "toInt64(sum(sign)) AS net FROM <sync> WHERE id = {id:String} "
            "GROUP BY current, finalized, rollback_chain, at HAVING net > 0"
        )
        texts = [
            (one["current"], one["finalized"], one["rollback_chain"], one["at"], -1)
            for one in held
            for _ in range(one["net"])
        ]
        at = self._lease.newest
        if state.cursor is not None:
            at = self._next_time()
            texts.append((*_texts(sync_row(state, PipeState())), at, 1))
        self._store(texts, None)
        self._lease.newest, self._rows = at, int(state.cursor is not None)

    @property
    def is_empty(self) -> bool:
        """Whether the stream has no row."""
        return not self._count(self.stream_id)

    def _next_time(self) -> int:
        return max(self._lease.newest + 1, int(self._clock() * 1000))

    def _insert(self, rows: Sequence[SyncRow]) -> None:
        begin = self._next_time()
        times = [begin + place for place in range(len(rows))]
        texts = [(*_texts(row), at, 1) for row, at in zip(rows, times, strict=True)]
        try:
            self._store(texts, f"{self.stream_id}/{times[-1]}")
        except ClickHouseWriterError:  # which may say that the first try has arrived
            if not self._holds(times[-1], texts[-1][0]):
                raise
        self._lease.newest, self._rows = times[-1], self._rows + len(rows)

    def _holds(self, at: int, current: str) -> bool:
        """Tell whether a row is stored."""
        found = self._found(
            "SELECT count() AS n FROM <sync> WHERE id = {id:String} AND "
            "toUnixTimestamp64Milli(timestamp) = {at:Int64} AND current = {current:String}",
            at=at,
            current=current,
        )
        return bool(found[0]["n"])

    def _store(self, rows: Sequence[tuple[str, str, str, int, int]], token: str | None) -> None:
        """Insert rows, with the milliseconds of their time and their sign, all in one step."""
        if not rows:
            return
        current, finalized, chain, times, signs = zip(*rows, strict=True)
        frame = pa.table(
            {
                "id": [self.stream_id] * len(rows),
                "current": current,
                "finalized": finalized,
                "rollback_chain": chain,
                "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
                "sign": pa.array(signs, pa.int8()),
            }
        )
        target = into(str(self._name), _COLUMNS, self._lease.condition)
        self._client.insert(target, frame, token)

    def _remove_oldest(self) -> None:
        self._lease.run(
            "INSERT INTO <sync> (<columns>) SELECT id, current, finalized, rollback_chain, "
            "timestamp, -1 FROM <sync> FINAL WHERE id = {id:String} AND <condition> "
            "ORDER BY timestamp DESC LIMIT 1000000000 OFFSET {kept:UInt64}",
            {"id": self.stream_id, "kept": self._max_rows},
            settings=every_row(),
            sync=self._name,
            columns=tuple(_COLUMNS),
        )
        self._rows = self._max_rows

    def _count(self, stream_id: str) -> int:
        found = self._found(
            "SELECT count() AS n FROM <sync> FINAL WHERE id = {id:String}", id=stream_id
        )
        return int(found[0]["n"])

    def _found(self, sql: str, **params: object) -> list[dict[str, Any]]:
        """Return rows of the table, those of this stream unless another `id` is given."""
        return self._client.rows(sql, {"id": self.stream_id, **params}, sync=self._name)


def _texts(row: SyncRow) -> tuple[str, str, str]:
    final = "" if row.finalized is None else dump_cursor(row.finalized)
    return dump_cursor(row.current), final, dump_chain(row.rollback_chain)


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
