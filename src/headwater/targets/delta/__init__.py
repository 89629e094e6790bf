"""Delta: rows and cursor in one commit, undo by metadata; `delta_target("dir")`."""

from headwater.targets.delta.target import DeltaTarget, delta_target
from headwater.targets.lake.settings import DeltaSettings, Table, table
from headwater.targets.lake.tx import Tx

__all__ = ["DeltaSettings", "DeltaTarget", "Table", "Tx", "delta_target", "table"]
