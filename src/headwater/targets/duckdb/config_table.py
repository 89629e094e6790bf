"""What each stream asked for, in table `headwater_config` beside the state. Runs on the driver."""

from __future__ import annotations

from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.sql import TableName, compose


class ConfigTable:
    """The text of one stream."""

    def __init__(self, session: Session, schema: str, stream_id: str) -> None:
        self._session = session
        self._name = TableName(schema, "headwater_config")
        self._id = stream_id

    def create(self) -> None:
        """Create the table if it is not there."""
        self._session.run(
            compose(
                "CREATE TABLE IF NOT EXISTS {config} (stream_id VARCHAR PRIMARY KEY, "
                "config VARCHAR NOT NULL)",
                config=self._name,
            )
        )

    def read(self) -> str | None:
        """Return what is stored; None if nothing is."""
        with self._session.transaction():
            self.create()
            rows = self._session.rows(
                compose("SELECT config FROM {config} WHERE stream_id = ?", config=self._name),
                [self._id],
            )
        return rows[0][0] if rows else None

    def write(self, text: str) -> None:
        """Replace it."""
        with self._session.transaction():
            self.create()
            self._session.run(
                compose("INSERT OR REPLACE INTO {config} VALUES (?, ?)", config=self._name),
                [self._id, text],
            )

    def remove(self) -> None:
        """Forget it. Called inside a transaction."""
        self.create()
        self._session.run(
            compose("DELETE FROM {config} WHERE stream_id = ?", config=self._name), [self._id]
        )
