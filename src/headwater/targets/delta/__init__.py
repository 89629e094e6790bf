"""Delta: rows and cursor in one commit, undo by metadata; `delta_target("dir")`."""

from headwater.targets.delta.target import DeltaTarget, delta_target
from headwater.targets.lake.settings import DeltaSettings, Table
from headwater.targets.lake.tx import Tx
from headwater.targets.tables import table

__all__ = ["DeltaSettings", "DeltaTarget", "Table", "Tx", "delta_target", "table"]
