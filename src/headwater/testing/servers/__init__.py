"""Real servers for tests, started on this machine: PostgreSQL and ClickHouse."""

from headwater.testing.servers.clickhouse import ClickHouseServer, clickhouse_server
from headwater.testing.servers.postgres import postgres_server, postgres_versions

__all__ = ["ClickHouseServer", "clickhouse_server", "postgres_server", "postgres_versions"]
