"""Which start of a stream is the newest: whoever belongs to an earlier one may write no more.

A driver that was killed can leave executors that still work for it. Every start puts down a new
epoch before it ends statements and removes rows, and so does an operator who moves a cursor; tasks
look at it right before they insert, drivers before they commit. It pickles.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from headwater.errors import ClickHouseWriterError
from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.sql import Fragment, TableName, compose


def statement_prefix(sync: TableName, stream_id: str) -> str:
    """Return how the ids of all statements of a stream begin, so that they can be ended."""
    digest = hashlib.blake2b(f"{sync}/{stream_id}".encode(), digest_size=8).hexdigest()
    return f"headwater-{digest}-"


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of one stream, in a table next to the state."""

    client: ClickHouseClient
    name: TableName
    stream_id: str

    def create(self) -> None:
        """Create the table if it is not there."""
        self.client.run(
            compose(
                "CREATE TABLE IF NOT EXISTS <epochs> (id String, number UInt64, epoch String) "
                "ENGINE = ReplacingMergeTree(number) ORDER BY id",
                epochs=self.name,
            )
        )

    def begin(self) -> str:
        """Put down a new epoch, and return it."""
        epoch = secrets.token_hex(8)
        self.client.run(
            compose(
                "INSERT INTO <epochs> SELECT {id:String}, "
                "(SELECT max(number) + 1 FROM <epochs> WHERE id = {id:String}), {epoch:String}",
                epochs=self.name,
            ),
            {"id": self.stream_id, "epoch": epoch},
        )
        return epoch

    @property
    def newest(self) -> Fragment:
        """The query of the newest epoch, of the stream `id`."""
        return compose(
            "SELECT argMax(epoch, number) FROM <epochs> WHERE id = {id:String}", epochs=self.name
        )

    def check(self, epoch: str) -> None:
        """Make sure that an epoch is the newest.

        Raises:
            ClickHouseWriterError: the stream was started again, or moved by hand, since.
        """
        query = compose("SELECT (<newest>) AS epoch", newest=self.newest)
        self.compare(self.client.rows(query, {"id": self.stream_id})[0]["epoch"], epoch)

    def compare(self, newest: str, epoch: str) -> None:
        """Refuse an epoch that is not the newest."""
        if newest != epoch:
            raise ClickHouseWriterError(
                "the stream was started again, or moved, by somebody else", stream=self.stream_id
            )
