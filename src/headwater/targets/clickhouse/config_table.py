"""What each stream asked for, in table `headwater_config` beside the state. Runs on the driver."""

from __future__ import annotations

from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.lease import Lease
from headwater.targets.clickhouse.sql import DELETED, TableName, compose


class ConfigTable:
    """The text of one stream; the newest version counts."""

    def __init__(self, client: ClickHouseClient, database: str, lease: Lease) -> None:
        self._client = client
        self._name = TableName(database, "headwater_config")
        self._lease = lease
        self._id = lease.stream_id

    def read(self) -> str | None:
        """Return what is stored; None if nothing is."""
        self.create()
        found = self._client.rows(
            compose(
                "SELECT config FROM <config> WHERE stream_id = {id:String} "
                "ORDER BY version DESC LIMIT 1",
                config=self._name,
            ),
            {"id": self._id},
        )
        return str(found[0]["config"]) if found else None

    def write(self, text: str) -> None:
        """Replace it."""
        self.create()
        self._client.run(
            compose(
                "INSERT INTO <config> SELECT {id:String}, {text:String}, "
                "(SELECT max(version) + 1 FROM <config> WHERE stream_id = {id:String}) "
                "WHERE <condition>",
                config=self._name,
                condition=self._lease.condition,
            ),
            {"id": self._id, "text": text},
        )

    def remove(self) -> None:
        """Forget it."""
        if self.read() is None:
            return
        self._client.run(
            compose(
                "DELETE FROM <config> WHERE stream_id = {id:String} AND <condition>",
                config=self._name,
                condition=self._lease.condition,
            ),
            {"id": self._id},
            settings=DELETED,
        )

    def create(self) -> None:
        """Create the table if it is not there."""
        self._client.run(
            compose(
                "CREATE TABLE IF NOT EXISTS <config> (stream_id String, config String, "
                "version UInt64) ENGINE = ReplacingMergeTree(version) ORDER BY stream_id",
                config=self._name,
            )
        )
