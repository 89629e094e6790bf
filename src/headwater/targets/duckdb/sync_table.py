"""Table `sync` in DuckDB."""

from __future__ import annotations

from headwater.targets.duckdb.sql import compose
from headwater.targets.sql.state import SyncRows


class SyncTable(SyncRows):
    """The rows of one stream."""

    def create(self) -> None:
        """Create the table if it is not there."""
        self._session.run(compose("CREATE SCHEMA IF NOT EXISTS {schema}", schema=self._name.schema))
        self._session.run(
            compose(
                """
                CREATE TABLE IF NOT EXISTS {sync} (
                    id VARCHAR NOT NULL,
                    current_number BIGINT NOT NULL,
                    current_hash VARCHAR NOT NULL,
                    "current_timestamp" TIMESTAMPTZ,
                    finalized JSON,
                    rollback_chain JSON,
                    PRIMARY KEY (id, current_number)
                )
                """,
                sync=self._name,
            )
        )
