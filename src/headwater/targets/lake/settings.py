"""What users declare of lakes: tables, and how much is kept and rewritten; one for all formats.

What a format cannot do is refused when its target is made (`declared_tables`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from headwater.changes.declaration import TableSchema
from headwater.errors import InvalidOptionError, LakeSchemaError
from headwater.targets.sql.aggregates import Plan
from headwater.targets.tables import TableOptions, declare_tables

NAMESPACE = "default"
NAME = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*")
_TRANSFORM = re.compile(r"\s*(?:(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?([^(),]+?)\s*\)|([^(),]+?))\s*")
_PIECES = re.compile(r",(?![^(]*\))")
_SIZED = ("bucket", "truncate")
_TIMES = {"year": "year", "month": "month", "day": "day", "hour": "hour"}
_TIMES |= {f"{unit}s": unit for unit in _TIMES}


@dataclass(frozen=True, slots=True)
class Partition:
    """One field of a partition: a column, what is made of it, and a width where there is one."""

    column: str
    transform: str = "identity"
    width: int = 0

    @property
    def name(self) -> str:
        """The name of the field, as Spark gives it."""
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"


@dataclass(frozen=True, slots=True)
class Table:
    """One table that a stream writes."""

    name: str
    key: tuple[str, ...] = ()
    partition_by: tuple[Partition, ...] = ()
    order_by: tuple[str, ...] = ()
    evolve: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    schema: TableSchema | None = None  # of one that `tx.apply` writes

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """Return what `table` declares."""
        texts = _PIECES.split(options.get("partition_by", ""))
        options["partition_by"] = tuple(_partition(text) for text in texts if text.strip())
        return cls(name, **options)


Declared = str | TableOptions | TableSchema | Table
"""A table as a user may give it."""


def _partition(text: str) -> Partition:
    match = _TRANSFORM.fullmatch(text)
    if match is not None:
        name, width, column, plain = match.groups()
        if plain is not None:
            return Partition(plain)
        name = name.lower()
        if name in _SIZED and width and int(width) > 0:
            return Partition(column, name, int(width))
        if name in _TIMES and not width:
            return Partition(column, _TIMES[name])
    raise InvalidOptionError(
        "partition_by takes columns, year(c), month(c), day(c), hour(c), bucket(n, c) and "
        "truncate(n, c)",
        got=text.strip(),
    )


def declared_tables(
    tables: Iterable[Declared] | None,
    plans: Iterable[Plan] = (),
    *,
    without: Sequence[str] = (),
    on_data: object = None,
) -> dict[str, Table]:
    """Return the tables that a user declares, by name, and those of aggregates.

    `without` are options that the format lacks.

    Raises:
        InvalidOptionError: a table asks for what the format cannot do, or `on_data` is given, but
            not what it writes.
    """
    if on_data is not None and tables is None:
        raise InvalidOptionError("on_data is given, but not the tables that it writes")
    declared = tables or ()
    if isinstance(declared, Iterable) and not isinstance(declared, str | Table | TableOptions):
        declared = [
            Table(table.name, tuple(table.key), schema=table)
            if isinstance(table, TableSchema)
            else table
            for table in declared
        ]
    lake_tables = declare_tables(declared, Table)
    known = {table.name for table in lake_tables}
    lake_tables += [Table(plan.table, plan.key) for plan in plans if plan.table not in known]
    for table in lake_tables:
        unknown = [name for name in without if getattr(table, name)]
        if unknown:
            raise InvalidOptionError(
                f"table {table.name} asks for what this target cannot do",
                unknown=", ".join(unknown),
            )
    return {table.name: table for table in lake_tables}


def check_folder_name(name: str) -> None:
    """Refuse a name of a table that is no folder, or that readers would leave out."""
    if not name or name.startswith(("_", ".")) or set(name) & set("/\\\x00"):
        raise LakeSchemaError("a table's name is that of a folder", table=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSettings:
    """What all formats have.

    Args:
        id: the stream's id, if it is to be another than that of the stream.
    """

    id: str | None = None

    def __post_init__(self) -> None:
        if self.id is not None and not self.id.strip():
            raise InvalidOptionError("a stream id cannot be blank", got=repr(self.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(LakeSettings):
    """How much is kept and rewritten of tables that change in commits.

    Args:
        maintain_every: after so many commits, what no rollback needs is forgotten and small files
            of final blocks are compacted; 0 leaves that to `headwater maintain`.
        small_file_bytes: files below are compacted, once there are `compact_files` of them.
        compact_files: how many small files of a partition are worth a rewrite.
        compact_bytes: at most so much is rewritten between two batches.
        rewrite_bytes: changes by key rewrite at most so much for one batch.
    """

    maintain_every: int = 100
    small_file_bytes: int = 16 << 20
    compact_files: int = 16
    compact_bytes: int = 64 << 20
    rewrite_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        LakeSettings.__post_init__(self)
        if self.maintain_every < 0:
            raise InvalidOptionError("maintain_every: 0 or more", got=self.maintain_every)
        if min(self.compact_files, self.compact_bytes, self.rewrite_bytes) < 2:
            raise InvalidOptionError("compact_files, compact_bytes, rewrite_bytes: 2 or more")

    @property
    def bin_bytes(self) -> int:
        """How large a file becomes that is made of small ones."""
        return 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSettings(TableSettings):
    """What Iceberg has beside `TableSettings`.

    Args:
        namespace: of tables that are named without one, and of the stream's state.
        final_snapshots: snapshots of final blocks that stay for time travel, beside those that a
            rollback needs.
        grace_s: files that nothing names any more are deleted once that has been so for so long: a
            reader that has begun may still need them.
    """

    namespace: str = NAMESPACE
    final_snapshots: int = 50
    grace_s: float = 86_400.0

    def __post_init__(self) -> None:
        TableSettings.__post_init__(self)
        if not NAME.fullmatch(self.namespace):
            raise InvalidOptionError("not the name of a namespace", got=repr(self.namespace))
        if self.final_snapshots < 0 or self.grace_s < 0:
            raise InvalidOptionError("final_snapshots, grace_s: 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSettings(TableSettings):
    """What Delta has beside `TableSettings`.

    Args:
        retention_hours: files that the table has ceased to name are kept so long for readers and
            time travel; those that a rollback needs are kept in any case.
        log_entries: of the log that stay for time travel, beside those of hot blocks; each commit
            lists them all, so a commit takes longer the more there are.
    """

    retention_hours: float = 168
    log_entries: int = 200

    def __post_init__(self) -> None:
        TableSettings.__post_init__(self)
        if self.retention_hours < 0:
            raise InvalidOptionError("retention_hours: 0 or more", got=self.retention_hours)
        if self.log_entries < 1:
            raise InvalidOptionError("log_entries: 1 or more", got=self.log_entries)

    @property
    def bin_bytes(self) -> int:
        """How large a file becomes that is made of small ones."""
        return 128 << 20


@dataclass(frozen=True, slots=True)
class Rollover:
    """Publish final rows when any of the limits is reached; without a limit, at every commit.

    `bytes` are those of a table's rows in memory, several times those of the file; `rows` are those
    of one table; `blocks` and `seconds` count from the first block that waits.
    """

    bytes: int | None = 128 << 20
    rows: int | None = None
    blocks: int | None = None
    seconds: float | None = 600

    def __post_init__(self) -> None:
        for name in ("bytes", "rows", "blocks"):
            limit = getattr(self, name)
            if limit is not None and (type(limit) is not int or limit < 1):
                raise InvalidOptionError(f"rollover: {name} is a whole number from 1", got=limit)
        seconds = self.seconds
        if seconds is not None and (type(seconds) not in (int, float) or not seconds > 0):
            raise InvalidOptionError("rollover: seconds is a number above 0", got=repr(seconds))

    def is_due(self, *, size: int, rows: int, blocks: int, seconds: float) -> bool:
        """Tell whether what waits has reached a limit."""
        pairs = (
            (size, self.bytes), (rows, self.rows), (blocks, self.blocks), (seconds, self.seconds)
        )  # fmt: skip
        limited = [(now, limit) for now, limit in pairs if limit is not None]
        return not limited or any(now >= limit for now, limit in limited)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSettings(LakeSettings):
    """What folders of Parquet files have beside `LakeSettings`.

    Args:
        rollover: when final rows are published; by default at 128 MiB of one table's rows, or after
            10 minutes. Spans of a backfill are published at once.
        memory_bytes: of rows that wait; more of them are kept in temporary files.
        compression: of the files: zstd, snappy, gzip, none and so on.
    """

    rollover: Rollover = Rollover()
    memory_bytes: int = 256 << 20
    compression: str = "zstd"

    def __post_init__(self) -> None:
        LakeSettings.__post_init__(self)
        if type(self.memory_bytes) is not int or self.memory_bytes < 0:
            raise InvalidOptionError(
                "memory_bytes is a whole number from 0", got=repr(self.memory_bytes)
            )
