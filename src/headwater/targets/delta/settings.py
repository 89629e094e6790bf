"""Declarations of Delta tables, and settings of the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import InvalidOptionError, LakeSchemaError
from headwater.targets.lake.target import LakeSettings


@dataclass(frozen=True, slots=True)
class Table:
    """One table that a stream writes. Made by `table`."""

    name: str
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    evolve: bool = False


def table(
    name: str, *, key: Sequence[str] = (), partition_by: str = "", evolve: bool = False
) -> Table:
    """Declare a Delta table. One that exists keeps its partitions.

    Args:
        name: of its folder.
        key: columns that tell rows apart, for `tx.upsert` and `tx.delete`.
        partition_by: columns, separated by commas: `"day"`, `"chain, day"`. Delta has no
            transforms: make the column in the pipeline.
        evolve: a frame with a new column adds it to the table; otherwise such a frame is refused.
    """
    if not name or name.startswith(("_", ".")) or set(name) & set("/\\\x00"):
        raise LakeSchemaError("a table's name is that of a folder", table=name)
    columns = tuple(one.strip() for one in partition_by.split(",") if one.strip())
    if isinstance(key, str) or any("(" in one for one in columns):
        raise InvalidOptionError(
            "key is a list of columns; partition_by takes columns of the table, no transforms",
            table=name,
        )
    return Table(name, tuple(key), columns, evolve)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSettings(LakeSettings):
    """Where the state is kept, and how much is kept and rewritten.

    Args:
        id: the stream's id, if it is to be another than that of the stream.
        maintain_every: after so many commits small files of final blocks are compacted; 0 leaves
            that to `headwater maintain`.
        small_file_bytes: files below are compacted, once there are `compact_files` of them.
        compact_files: how many small files are worth a rewrite.
        compact_bytes: at most so much is rewritten between two batches.
        rewrite_bytes: `upsert` and `delete` rewrite at most so much for one batch.
        retention_hours: files that the table has ceased to name are kept so long for readers and
            time travel; those that a rollback needs are kept in any case.
        log_entries: of the log that stay for time travel, beside those of hot blocks; each commit
            lists them all, so a commit takes longer the more there are.
    """

    retention_hours: float = 168
    log_entries: int = 200

    def __post_init__(self) -> None:
        LakeSettings.__post_init__(self)
        if self.retention_hours < 0:
            raise InvalidOptionError("retention_hours: 0 or more", got=self.retention_hours)
        if self.log_entries < 1:
            raise InvalidOptionError("log_entries: 1 or more", got=self.log_entries)
