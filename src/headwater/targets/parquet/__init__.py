"""Parquet: final rows in plain files, named by the blocks they cover; `parquet_target("dir")`."""

from headwater.targets.lake.settings import Table, table
from headwater.targets.parquet.target import ParquetTarget, parquet_target
from headwater.targets.parquet.tx import Tx
from headwater.targets.parquet.windows import Rollover, Window

__all__ = ["ParquetTarget", "Rollover", "Table", "Tx", "Window", "parquet_target", "table"]
