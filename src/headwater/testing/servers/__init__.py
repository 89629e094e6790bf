"""Real servers for tests, started on this machine: PostgreSQL, ClickHouse and Spark."""

from headwater.testing.servers.clickhouse import ClickHouseServer, clickhouse_server
from headwater.testing.servers.postgres import postgres_server, postgres_versions
from headwater.testing.servers.spark import spark_cluster

__all__ = [
    "ClickHouseServer",
    "clickhouse_server",
    "postgres_server",
    "postgres_versions",
    "spark_cluster",
]
