"""Parquet: final rows in plain files, named by the blocks they cover; `parquet_target("dir")`."""

from headwater.targets.lake.settings import ParquetSettings, Rollover, Table
from headwater.targets.lake.tx import Tx
from headwater.targets.parquet.target import ParquetTarget, parquet_target
from headwater.targets.parquet.windows import Window
from headwater.targets.tables import table

__all__ = [
    "ParquetSettings", "ParquetTarget", "Rollover", "Table", "Tx", "Window", "parquet_target",
    "table",
]  # fmt: skip
