"""Changes to rows, as a table of their own: insert, update, upsert, delete; set, add, min, max.

    from headwater import changes

    batch = changes.Changes(block=100)
    batch.insert("transfer", "tx1", value=1000).upsert("balance", "bob", amount=changes.add(1000))
    folded = changes.fold(batch, finalized=90)

They are written by hand (`Changes`), taken from the columns of a frame (`from_columns`) or read
from Substreams messages (`read_database_changes`), checked against declared tables (`check`) and
folded to one row per key and hot block (`fold`), which is what a target applies.
"""

from headwater.changes.collector import (
    Changes,
    FieldOperation,
    add,
    from_columns,
    max_,
    min_,
    set_,
    set_if_null,
    sub,
)
from headwater.changes.database_changes import read_database_changes
from headwater.changes.declaration import TableSchema, check
from headwater.changes.fold import fold
from headwater.changes.model import CHANGES_SCHEMA, FOLDED_SCHEMA

__all__ = [
    "CHANGES_SCHEMA",
    "FOLDED_SCHEMA",
    "Changes",
    "FieldOperation",
    "TableSchema",
    "add",
    "check",
    "fold",
    "from_columns",
    "max_",
    "min_",
    "read_database_changes",
    "set_",
    "set_if_null",
    "sub",
]
