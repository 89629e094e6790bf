"""The Iceberg target."""

from headwater.targets.iceberg.target import IcebergTarget, iceberg_target
from headwater.targets.lake.settings import IcebergSettings, Table
from headwater.targets.lake.tx import Tx
from headwater.targets.tables import table

__all__ = ["IcebergSettings", "IcebergTarget", "Table", "Tx", "iceberg_target", "table"]
