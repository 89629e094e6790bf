"""The state of a stream: settings, the lease to change it, and its rows in table `sync`.

The lease: the server itself refuses what a writer sends after another one has taken over.
ClickHouse has no locks. Every start stores an epoch, a number above all earlier ones, and so does
a command that moves a cursor. Each statement that changes rows or state carries a condition:
its writer's epoch is the newest one, and no newer state was stored. The server evaluates it when
the statement begins, after the statement has appeared in the list of those that run. A start stores
its epoch, then ends the statements of earlier epochs and waits for their end. So a statement
that still met its condition is over before anything is read or repaired, and any later one is
refused (E2016), however long its writer was paused. Runs on the driver; executors get the text of
the condition.

The state has one row per commit, in the forms of the Pipes SDK. Rows are only added. The newest one
counts, by `timestamp`, which is a logical clock: never less than the row before it plus a
millisecond, whatever the machine's clock says. A rollback is a row too.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from headwater.errors import ClickHouseMaxRowsError, ClickHouseWriterError, InvalidOptionError
from headwater.targets.clickhouse.client import FENCED, ClickHouseClient, every_row
from headwater.targets.clickhouse.sql import TableName, compose, into, literal
from headwater.targets.side_rows import PREFIX, stored_id
from headwater.targets.text import Fragment, Part

FORMER_LIMIT = 1 << 32  # epochs of the first release are counted from 1
_NEW = "new-"
CLEAN_EVERY = 25
_COLUMNS = {
    "id": "String",
    "current": "String",
    "finalized": "String",
    "rollback_chain": "String",
    "timestamp": "DateTime64(3)",
    "sign": "Int8",
}


@dataclass(frozen=True, slots=True)
class ClickHouseSettings:
    """Says where and under which id the state is kept, and how often a statement is tried.

    `id` overrides the stream's own; `database` is the address's, or `default`. Each stream keeps
    the newest `max_rows` rows of state. A server that is away, overloaded or whose disk is full is
    waited for `wait_s` seconds; `attempts`, if it is given, is how often a statement is tried
    instead. What an executor inserts at once holds `insert_rows` rows at most.
    """

    id: str | None = None
    table: str = "sync"
    database: str | None = None
    max_rows: int = 10_000
    attempts: int | None = None
    insert_rows: int = 500_000
    wait_s: float = 600.0

    def __post_init__(self) -> None:
        if self.max_rows <= 0:
            raise ClickHouseMaxRowsError("no state would be kept", got=self.max_rows)
        if self.id is not None and not self.id.strip():
            raise InvalidOptionError("a stream id cannot be blank", got=repr(self.id))
        wrong = self.attempts is not None and self.attempts < 1
        if wrong or self.insert_rows < 1 or self.wait_s < 0:
            raise InvalidOptionError(
                "attempts and insert_rows must be 1 or more, wait_s not negative",
                attempts=self.attempts,
                insert_rows=self.insert_rows,
                wait_s=self.wait_s,
            )


# --- the lease ------------------------------------------------------------------------------------


class Lease:
    """The right of one writer to change a stream, until another one begins.

    `own_id` stands for the stream in tables that streams of several tables of state share.
    `number` is its epoch; half of it is drawn, so that two starts at one moment differ. `is_new`
    says that the stream has committed nothing yet: only then is a missing state believed. `newest`
    is the time of the newest row of state, in milliseconds; `SyncTable` keeps it up to date. `sync`
    is the table of state: others that the target keeps for itself stand beside it.
    """

    def __init__(self, client: ClickHouseClient, sync: TableName, stream_id: str) -> None:
        self.stream_id = stream_id
        self.own_id = stored_id(sync.name, stream_id)
        self.number = 0
        self.is_new = False
        self.newest = 0
        self.client = client
        self.sync = sync
        self.name = sync.suffixed("__epochs")
        digest = hashlib.blake2b(f"{sync}/{stream_id}".encode(), digest_size=8).hexdigest()
        self._prefix = client.prefix = f"headwater-{digest}-"

    def id_in(self, name: TableName) -> str:
        """Return the id that the rows of a table carry: side tables are shared, see `own_id`."""
        return self.own_id if name.name.startswith(PREFIX) else self.stream_id

    def create(self) -> None:
        """Create the table of epochs if it is not there."""
        self.client.run(
            "CREATE TABLE IF NOT EXISTS <epochs> (id String, number UInt64, epoch String) "
            "ENGINE = ReplacingMergeTree(number) ORDER BY id",
            epochs=self.name,
        )

    def begin(self, is_known: Callable[[], bool]) -> None:
        """Take the stream over, and end what earlier writers have under way.

        `is_known` is asked where there is no epoch yet: whether anything of the stream is stored.
        Of two starts at one moment the higher number wins; the other one's statements are refused.
        """
        (row,) = self.client.rows(
            "SELECT max(number) AS highest, argMax(epoch, number) AS newest FROM <epochs> "
            "WHERE id = {id:String}",
            {"id": self.stream_id},
            epochs=self.name,
        )
        self.number = int(row["highest"])
        is_new = str(row["newest"]).startswith(_NEW)
        if not is_new and self.number < FORMER_LIMIT:
            is_new = not is_known()
        self._store_epoch(self._next_number(), "1", is_new=is_new)

    def renew(self, *, is_new: bool | None = None) -> None:
        """Begin another epoch unless another writer has begun: what was sent before is refused.

        Raises:
            ClickHouseWriterError: another writer has begun.
        """
        number = self._next_number()
        condition = self._newest_is(self.number, number)  # the latter if the answer was lost
        self._store_epoch(number, condition, is_new=self.is_new if is_new is None else is_new)

    def run(
        self,
        sql: str,
        params: Mapping[str, object] | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        **parts: Part,
    ) -> None:
        """Run a statement that ends in `<condition>`: the server refuses it without the lease."""
        self.client.run(sql, params, settings=settings, condition=self.condition, **parts)

    def check(self) -> None:
        """Make sure that this writer may still change the stream.

        Raises:
            ClickHouseWriterError: it may not.
        """
        self.client.rows(f"SELECT 1 AS n WHERE {self.condition}")

    @property
    def condition(self) -> Fragment:
        """The condition of every statement that changes something; the server refuses otherwise."""
        newer = compose(
            "(SELECT throwIf(count() > 0, <said>) FROM <sync> WHERE id = <id> "
            "AND timestamp > fromUnixTimestamp64Milli(toInt64(<newest>))) = 0",
            said=literal(f"{FENCED}: a newer state was stored"),
            sync=self.sync,
            id=literal(self.stream_id),
            newest=Fragment(str(self.newest)),
        )
        return Fragment(f"{self._newest_is(self.number)} AND {newer}")

    @property
    def epoch_condition(self) -> Fragment:
        """The condition of a statement that adds rows of state with times of their own."""
        return self._newest_is(self.number)

    def _newest_is(self, *numbers: int) -> Fragment:
        return compose(
            "(SELECT throwIf(max(number) NOT IN (<numbers>), <said>) FROM <epochs> "
            "WHERE id = <id>) = 0",
            numbers=Fragment(", ".join(map(str, numbers))),
            said=literal(f"{FENCED}: the stream was started again, or moved"),
            epochs=self.name,
            id=literal(self.stream_id),
        )

    def _next_number(self) -> int:
        return (self.number // FORMER_LIMIT + 1) * FORMER_LIMIT + secrets.randbits(32)

    def _store_epoch(self, number: int, condition: str, *, is_new: bool) -> None:
        """Store an epoch, and end the statements of all before it.

        The number is part of the statement: one that arrives twice, or late, changes nothing.
        """
        epoch = f"{_NEW if is_new else ''}{secrets.token_hex(8)}"
        self.client.run(
            "INSERT INTO <epochs> SELECT {id:String}, {number:UInt64}, {epoch:String} "
            "WHERE <condition>",
            {"id": self.stream_id, "number": number, "epoch": epoch},
            epochs=self.name,
            condition=Fragment(condition),
        )
        self.number, self.is_new = number, is_new
        self.client.prefix = f"{self._prefix}#{number:020}-"
        self.client.end(
            f"startsWith(query_id, {literal(self._prefix)}) "
            f"AND NOT (startsWith(query_id, {literal(self._prefix + '#')}) "
            f"AND query_id > {literal(f'{self._prefix}#{number:020}~')})"
        )


# --- rows of state --------------------------------------------------------------------------------


class SyncTable:
    """The rows of one stream. `clock` says the seconds since 1970; it may go wrong."""

    def __init__(self, lease: Lease, max_rows: int, clock: Callable[[], float] = time.time) -> None:
        self.name = lease.sync
        self._clock = clock
        self._client = lease.client
        self._lease = lease
        self._id = lease.stream_id
        self._max_rows = max_rows
        self._rows = self._saves = 0

    def create(self) -> None:
        """Create the table if it is not there."""
        self._client.run(
            "CREATE TABLE IF NOT EXISTS <sync> (<kinds>) "
            "ENGINE = CollapsingMergeTree(sign) ORDER BY (timestamp, id)",
            sync=self.name,
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
            {"own": self._id, "legacy": legacy_id},
            settings=every_row(),
            sync=self.name,
            columns=tuple(_COLUMNS),
            condition=self._lease.epoch_condition,
        )
        return True

    def load(self) -> PipeState:
        """Return the state that the rows stand for."""
        stored = self._select(
            "SELECT current, finalized, rollback_chain, toUnixTimestamp64Milli(timestamp) AS at "
            "FROM <sync> FINAL WHERE id = {id:String}"
        )
        rows = [
            (
                row["at"],
                SyncRow(
                    load_cursor(row["current"]),
                    load_finalized(row["finalized"]),
                    load_chain(row["rollback_chain"]),
                ),
            )
            for row in stored
        ]
        rows.sort(key=lambda pair: (pair[0], pair[1].current.number))
        self._lease.newest, self._rows = self.newest(), len(rows)
        return fold_rows(_needed([row for _, row in rows]))

    def newest(self) -> int:
        """Return the time of the stream's newest row on the server, also of one cancelled since."""
        newest = "SELECT toUnixTimestamp64Milli(max(timestamp)) AS at FROM <sync> "
        return int(self._select(newest + "WHERE id = {id:String}")[0]["at"])

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
        stored = self._select(
            "SELECT current, finalized, rollback_chain, toUnixTimestamp64Milli(timestamp) AS at, "
            "toInt64(sum(sign)) AS net FROM <sync> WHERE id = {id:String} "
            "GROUP BY current, finalized, rollback_chain, at HAVING net > 0"
        )
        texts = [
            (row["current"], row["finalized"], row["rollback_chain"], row["at"], -1)
            for row in stored
            for _ in range(row["net"])
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
        return not self._count(self._id)

    def _next_time(self) -> int:
        return max(self._lease.newest + 1, int(self._clock() * 1000))

    def _insert(self, rows: Sequence[SyncRow]) -> None:
        begin = self._next_time()
        times = [begin + place for place in range(len(rows))]
        texts = [(*_texts(row), at, 1) for row, at in zip(rows, times, strict=True)]
        try:
            self._store(texts, f"{self._id}/{times[-1]}")
        except ClickHouseWriterError:  # which may say that the first try has arrived
            if not self._holds(times[-1], texts[-1][0]):
                raise
        self._lease.newest, self._rows = times[-1], self._rows + len(rows)

    def _holds(self, at: int, current: str) -> bool:
        """Tell whether a row is stored."""
        rows = self._select(
            "SELECT count() AS n FROM <sync> WHERE id = {id:String} AND "
            "toUnixTimestamp64Milli(timestamp) = {at:Int64} AND current = {current:String}",
            at=at,
            current=current,
        )
        return bool(rows[0]["n"])

    def _store(self, rows: Sequence[tuple[str, str, str, int, int]], token: str | None) -> None:
        """Insert rows, with the milliseconds of their time and their sign, all in one step."""
        if not rows:
            return
        current, finalized, chain, times, signs = zip(*rows, strict=True)
        frame = pa.table(
            {
                "id": [self._id] * len(rows),
                "current": current,
                "finalized": finalized,
                "rollback_chain": chain,
                "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
                "sign": pa.array(signs, pa.int8()),
            }
        )
        target = into(str(self.name), _COLUMNS, self._lease.condition)
        self._client.insert(target, frame, token)

    def _remove_oldest(self) -> None:
        self._lease.run(
            "INSERT INTO <sync> (<columns>) SELECT id, current, finalized, rollback_chain, "
            "timestamp, -1 FROM <sync> FINAL WHERE id = {id:String} AND <condition> "
            "ORDER BY timestamp DESC LIMIT 1000000000 OFFSET {kept:UInt64}",
            {"id": self._id, "kept": self._max_rows},
            settings=every_row(),
            sync=self.name,
            columns=tuple(_COLUMNS),
        )
        self._rows = self._max_rows

    def _count(self, stream_id: str) -> int:
        rows = self._select(
            "SELECT count() AS n FROM <sync> FINAL WHERE id = {id:String}", id=stream_id
        )
        return int(rows[0]["n"])

    def _select(self, sql: str, **params: object) -> list[dict[str, Any]]:
        """Return rows of the table, those of this stream unless another `id` is given."""
        return self._client.rows(sql, {"id": self._id, **params}, sync=self.name)


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
