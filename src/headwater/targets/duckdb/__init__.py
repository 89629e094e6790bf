"""DuckDB, the embedded default: `duckdb_target("chain.duckdb")` and nothing to install or run."""

from headwater.targets.duckdb.target import DuckDBSettings, DuckDBTarget, duckdb_target
from headwater.targets.duckdb.tx import Tx
from headwater.targets.sql.layout import Table
from headwater.targets.tables import table

__all__ = ["DuckDBSettings", "DuckDBTarget", "Table", "Tx", "duckdb_target", "table"]
