"""What each stream asked for, in table `headwater_config` beside the state. Runs on the driver.

A table of its own: the Pipes SDK shares table `sync`, and reads all of its columns.
"""

from __future__ import annotations

from headwater.targets.postgres.session import Session
from headwater.targets.postgres.sql import TableName, compose
from headwater.targets.postgres.sync_table import exists


class ConfigTable:
    """The text of one stream."""

    def __init__(self, session: Session, schema: str, stream_id: str) -> None:
        self._session = session
        self._name = TableName(schema, "headwater_config")
        self._id = stream_id

    def create(self) -> None:
        """Create the table if it is not there. Somebody else may have made it, with more rights."""
        if not exists(self._session, self._name):
            self._session.run(
                compose(
                    "CREATE TABLE IF NOT EXISTS {config} "
                    "(stream_id text PRIMARY KEY, config text NOT NULL)",
                    config=self._name,
                )
            )

    def read(self) -> str | None:
        """Return what is stored; None if nothing is."""
        if not exists(self._session, self._name):
            return None
        rows = self._session.rows(
            compose("SELECT config FROM {config} WHERE stream_id = $1", config=self._name),
            [self._id],
        )
        return rows[0][0] if rows else None

    def write(self, text: str) -> None:
        """Replace it."""
        self.create()
        self._session.run(
            compose(
                "INSERT INTO {config} VALUES ($1, $2) "
                "ON CONFLICT (stream_id) DO UPDATE SET config = excluded.config",
                config=self._name,
            ),
            [self._id, text],
        )

    def remove(self) -> None:
        """Forget it."""
        if exists(self._session, self._name):
            self._session.run(
                compose("DELETE FROM {config} WHERE stream_id = $1", config=self._name), [self._id]
            )
