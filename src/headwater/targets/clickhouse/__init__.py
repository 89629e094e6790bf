"""ClickHouse: append, then the cursor, with managed undo; `clickhouse_target("http://…:8123")`."""

from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.layout import Table
from headwater.targets.clickhouse.state import ClickHouseSettings
from headwater.targets.clickhouse.store import Store
from headwater.targets.clickhouse.target import ClickHouseTarget, clickhouse_target
from headwater.targets.tables import table

__all__ = [
    "ClickHouseClient",
    "ClickHouseSettings",
    "ClickHouseTarget",
    "Store",
    "Table",
    "clickhouse_target",
    "table",
]
