"""Where data goes: one contract (`contract.py`), one module or package per target.

A target's package is imported when its name is first used, so that the rest works without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.core.codec import dump_state, load_state
from headwater.targets.contract import (
    Capabilities,
    Delivery,
    KeepsConfig,
    KeepsSideTables,
    SideTable,
    Target,
)
from headwater.targets.extras import import_extra
from headwater.targets.memory import MemoryStore, MemoryTarget
from headwater.targets.sql.aggregates import Aggregate, aggregate
from headwater.targets.tables import TableOptions, table

if TYPE_CHECKING:
    from headwater.targets.clickhouse import (
        ClickHouseSettings,
        ClickHouseTarget,
        clickhouse_target,
    )
    from headwater.targets.delta import DeltaSettings, DeltaTarget, delta_target
    from headwater.targets.duckdb import DuckDBSettings, DuckDBTarget, duckdb_target
    from headwater.targets.iceberg import IcebergSettings, IcebergTarget, iceberg_target
    from headwater.targets.lake.admin import lake_moment
    from headwater.targets.parquet import (
        ParquetSettings,
        ParquetTarget,
        Rollover,
        parquet_target,
    )
    from headwater.targets.postgres import PostgresSettings, PostgresTarget, postgres_target
    from headwater.targets.spark_table import SparkTableTarget, spark_table_target
    from headwater.targets.sql.history import HistoryTarget, history_target

_EXTRAS = {
    name: extra
    for extra, names in {
        "clickhouse": ("ClickHouseSettings", "ClickHouseTarget", "clickhouse_target"),
        "delta": ("DeltaSettings", "DeltaTarget", "delta_target"),
        "duckdb": ("DuckDBSettings", "DuckDBTarget", "duckdb_target"),
        "iceberg": ("IcebergSettings", "IcebergTarget", "iceberg_target"),
        "lake.admin": ("lake_moment",),
        "parquet": ("ParquetSettings", "ParquetTarget", "Rollover", "parquet_target"),
        "postgres": ("PostgresSettings", "PostgresTarget", "postgres_target"),
        "spark_table": ("SparkTableTarget", "spark_table_target"),
        "sql.history": ("HistoryTarget", "history_target"),
    }.items()
    for name in names
}

__all__ = [
    "Aggregate",
    "Capabilities",
    "ClickHouseSettings",
    "ClickHouseTarget",
    "Delivery",
    "DeltaSettings",
    "DeltaTarget",
    "DuckDBSettings",
    "DuckDBTarget",
    "HistoryTarget",
    "IcebergSettings",
    "IcebergTarget",
    "KeepsConfig",
    "KeepsSideTables",
    "MemoryStore",
    "MemoryTarget",
    "ParquetSettings",
    "ParquetTarget",
    "PostgresSettings",
    "PostgresTarget",
    "Rollover",
    "SideTable",
    "SparkTableTarget",
    "TableOptions",
    "Target",
    "aggregate",
    "clickhouse_target",
    "delta_target",
    "duckdb_target",
    "dump_state",
    "history_target",
    "iceberg_target",
    "lake_moment",
    "load_state",
    "parquet_target",
    "postgres_target",
    "spark_table_target",
    "table",
]


def __getattr__(name: str) -> Any:
    """Import a target's package at the first use of one of its names."""
    extra = _EXTRAS.get(name)
    if extra is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_extra(extra, name)
