"""The Iceberg target."""

from headwater.targets.iceberg.target import IcebergTarget, iceberg_target
from headwater.targets.lake.settings import IcebergSettings, Table, table
from headwater.targets.lake.tx import Tx

__all__ = ["IcebergSettings", "IcebergTarget", "Table", "Tx", "iceberg_target", "table"]
