"""Inserts the rows of a task in pieces, each of them whole or not at all.

Runs on executors, which need to reach the server. A piece has a token; the server stores what has
the same token once, so a task that is tried again, or runs twice, adds nothing. The rows of a
partition may come in another order the second time: then pieces differ, and a partition of several
pieces must not be a mixture of two attempts. So each attempt of such a partition stores its name
first, and the driver writes the batch again if it finds two.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.sql import TableName, compose
from headwater.targets.clickhouse.transfer import Transfer, pieces_of
from headwater.targets.text import Fragment
from headwater.targets.values import Tally

if TYPE_CHECKING:
    from headwater.spark.executors import ExecutorRows

_NAMES = ("partition", "pieces", "rows")
_ALTERED = "altered"  # what was done to values, as text
_RECEIPT = pa.schema([*((name, pa.int64()) for name in _NAMES), (_ALTERED, pa.string())])


class TryAgain(Exception):  # noqa: N818 - not an error: the batch is written again
    """What was written cannot be trusted; it is removed and written again."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Stores the names of attempts, in a table next to the state."""

    client: ClickHouseClient
    name: TableName

    def create(self) -> None:
        """Create the table; what is in it is of no use after a week."""
        self.client.run(
            f"CREATE TABLE IF NOT EXISTS {self.name} (token String, attempt String, "
            "at DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY token "
            "TTL at + INTERVAL 7 DAY"
        )

    def note(self, token: str, condition: str) -> None:
        """Note that an attempt is about to insert pieces."""
        self.client.run(
            compose(
                "INSERT INTO <all> (token, attempt) SELECT {token:String}, {name:String} "
                "WHERE <condition>",
                all=self.name,
                condition=Fragment(condition),
            ),
            {"token": token, "name": secrets.token_hex(8)},
        )

    def are_single(self, tokens: list[str]) -> bool:
        """Tell whether each of these was attempted once."""
        found = self.client.rows(
            compose(
                "SELECT uniqExact(attempt) AS n FROM <all> "
                "WHERE token IN {tokens:Array(String)} GROUP BY token HAVING n > 1",
                all=self.name,
            ),
            {"tokens": tokens},
        )
        return not found


@dataclass(frozen=True, slots=True)
class Writer:
    """Inserts the rows of a partition, as long as a condition of the driver's holds. It pickles."""

    client: ClickHouseClient
    transfer: Transfer
    attempts: Attempts
    condition: str
    token: str
    piece_rows: int

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        """Insert, and yield the receipt."""
        pieces, rows, tally = 0, 0, Tally()
        token = f"{self.token}/{part}"
        compression = self.client.compression
        found = pieces_of(batches, self.transfer, self.piece_rows, compression, tally)
        made = deque(islice(found, 2))
        if len(made) > 1:
            self.attempts.note(token, self.condition)
        target = self.transfer.target(self.condition)
        while made:  # a piece that was sent is let go
            body, count = made.popleft()
            self.client.insert_body(target, body, f"{token}/{pieces}")
            pieces, rows = pieces + 1, rows + count
            del body
            made.extend(islice(found, 1))
        self.client.close()
        facts = {**dict(zip(_NAMES, (part, pieces, rows), strict=True)), _ALTERED: tally.dump()}
        yield pa.RecordBatch.from_pylist([facts], schema=_RECEIPT)


def insert_distributed(rows: ExecutorRows, writer: Writer) -> Tally:
    """Have the tasks insert rows that lie on executors; return what was done to values.

    Runs on the driver.

    Raises:
        TryAgain: a partition may be a mixture of two attempts.
    """
    receipts = rows.run(writer, _RECEIPT).to_pylist()
    several = [f"{writer.token}/{one['partition']}" for one in receipts if one["pieces"] > 1]
    if several and not writer.attempts.are_single(several):
        raise TryAgain("a task of several inserts was attempted twice")
    altered = Tally()
    for one in receipts:
        altered.add(Tally.load(one[_ALTERED]))
    return altered
