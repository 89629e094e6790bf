"""The lease: the server itself refuses what a writer sends after another one has taken over.

ClickHouse has no locks. Every start stores an epoch, a number above all earlier ones, and so does
a command that moves a cursor. Each statement that changes rows or state carries a condition:
its writer's epoch is the newest one, and no newer state was stored. The server evaluates it when
the statement begins, after the statement has appeared in the list of those that run. A start stores
its epoch, then ends the statements of earlier epochs and waits for their end. So a statement
that still met its condition is over before anything is read or repaired, and any later one is
refused (E2016), however long its writer was paused. Runs on the driver; executors get the text of
the condition.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping

from headwater.targets.clickhouse.client import FENCED, ClickHouseClient
from headwater.targets.clickhouse.sql import TableName, compose, literal
from headwater.targets.side_rows import PREFIX, stored_id
from headwater.targets.text import Fragment, Part

FORMER_LIMIT = 1 << 32  # epochs of the first release are counted from 1
_NEW = "new-"


class Lease:
    """The right of one writer to change a stream, until another one begins.

    `own_id` stands for the stream in tables that streams of several tables of state share.
    `number` is its epoch; half of it is drawn, so that two starts at one moment differ. `is_new`
    says that the stream has committed nothing yet: only then is a missing state believed. `newest`
    is the time of the newest row of state, in milliseconds; `SyncTable` keeps it up to date.
    """

    def __init__(
        self, client: ClickHouseClient, name: TableName, sync: TableName, stream_id: str
    ) -> None:
        self.stream_id = stream_id
        self.own_id = stored_id(sync.name, stream_id)
        self.number = 0
        self.is_new = False
        self.newest = 0
        self._client = client
        self._name = name
        self._sync = sync
        digest = hashlib.blake2b(f"{sync}/{stream_id}".encode(), digest_size=8).hexdigest()
        self._prefix = client.prefix = f"headwater-{digest}-"

    def id_in(self, name: TableName) -> str:
        """Return the id that the rows of a table carry: side tables are shared, see `own_id`."""
        return self.own_id if name.name.startswith(PREFIX) else self.stream_id

    def create(self) -> None:
        """Create the table of epochs if it is not there."""
        self._client.run(
            "CREATE TABLE IF NOT EXISTS <epochs> (id String, number UInt64, epoch String) "
            "ENGINE = ReplacingMergeTree(number) ORDER BY id",
            epochs=self._name,
        )

    def begin(self, is_known: Callable[[], bool]) -> None:
        """Take the stream over, and end what earlier writers have under way.

        `is_known` is asked where there is no epoch yet: whether anything of the stream is stored.
        Of two starts at one moment the higher number wins; the other one's statements are refused.
        """
        (found,) = self._client.rows(
            "SELECT max(number) AS highest, argMax(epoch, number) AS newest FROM <epochs> "
            "WHERE id = {id:String}",
            {"id": self.stream_id},
            epochs=self._name,
        )
        self.number = int(found["highest"])
        is_new = str(found["newest"]).startswith(_NEW)
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
        self._client.run(sql, params, settings=settings, condition=self.condition, **parts)

    def check(self) -> None:
        """Make sure that this writer may still change the stream.

        Raises:
            ClickHouseWriterError: it may not.
        """
        self._client.rows(f"SELECT 1 AS n WHERE {self.condition}")

    @property
    def condition(self) -> Fragment:
        """The condition of every statement that changes something; the server refuses otherwise."""
        newer = compose(
            "(SELECT throwIf(count() > 0, <said>) FROM <sync> WHERE id = <id> "
            "AND timestamp > fromUnixTimestamp64Milli(toInt64(<newest>))) = 0",
            said=literal(f"{FENCED}: a newer state was stored"),
            sync=self._sync,
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
            epochs=self._name,
            id=literal(self.stream_id),
        )

    def _next_number(self) -> int:
        return (self.number // FORMER_LIMIT + 1) * FORMER_LIMIT + secrets.randbits(32)

    def _store_epoch(self, number: int, condition: str, *, is_new: bool) -> None:
        """Store an epoch, and end the statements of all before it.

        The number is part of the statement: one that arrives twice, or late, changes nothing.
        """
        epoch = f"{_NEW if is_new else ''}{secrets.token_hex(8)}"
        self._client.run(
            "INSERT INTO <epochs> SELECT {id:String}, {number:UInt64}, {epoch:String} "
            "WHERE <condition>",
            {"id": self.stream_id, "number": number, "epoch": epoch},
            epochs=self._name,
            condition=Fragment(condition),
        )
        self.number, self.is_new = number, is_new
        self._client.prefix = f"{self._prefix}#{number:020}-"
        self._client.end(
            f"startsWith(query_id, {literal(self._prefix)}) "
            f"AND NOT (startsWith(query_id, {literal(self._prefix + '#')}) "
            f"AND query_id > {literal(f'{self._prefix}#{number:020}~')})"
        )
