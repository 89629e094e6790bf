"""A table as a user declares it, and as it is in a database, with how a fork undoes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from headwater.errors import InvalidOptionError
from headwater.targets.tables import BLOCK_COLUMN
from headwater.targets.text import QualifiedName

RESERVED = "___sqd__"  # how the names of columns of undo logs begin
_TYPE = re.compile(r"[a-z_][a-z0-9_ ]*(\(\d+(,\s*-?\d+)?\))?[a-z ]*(\[\])?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Table:
    """One table that a stream writes. The target resolves its name, and checks its types.

    `change_log` names the log that captures the table's changes, instead of snapshots.
    """

    name: QualifiedName
    key: tuple[str, ...] = ()
    append_only: bool | None = None
    untracked: bool = False
    block_column: str = BLOCK_COLUMN
    types: Mapping[str, str] = field(default_factory=dict)
    indexes: tuple[tuple[str, ...], ...] = ()
    change_log: str | None = None

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """Return what `table` declares."""
        for column, kind in options.get("types", {}).items():
            if not _TYPE.fullmatch(kind.strip()):
                raise InvalidOptionError("not the name of a type", column=column, got=kind)
        return cls(QualifiedName.parse(name), **options)


class Undo(StrEnum):
    """How a fork undoes a table: rows go by their block number, or images of rows come back.

    `CURSORS` is the table in which a stream with a change log shows its cursor.
    """

    APPEND_ONLY = "append_only"
    KEYED = "keyed"
    KEYLESS = "keyless"
    CHANGE_LOG = "change_log"
    CURSORS = "cursors"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type as declared, and without precision, domains resolved, as `bare`.

    `required`: it cannot be null.
    """

    name: str
    type: str
    bare: str
    digits: int | None = None
    scale: int | None = None
    generated: bool = False
    identity: bool = False
    default: str | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as it is in the database: its primary key, its columns, and how a fork undoes it.

    `block_column` holds the block of an append-only table's rows; of a table with a change log it
    is the name of that log. `unique`: values are unique beside the primary key, so rows may have to
    give way to each other. `indexes`: columns of other indexes, and whether they are unique.
    `deferred`: key and indexes are still to be built.

    What follows is PostgreSQL's. `always_compare`: a key may change in ways that no trigger on the
    key columns sees. `acted_upon`: a foreign key elsewhere deletes or changes rows when rows here
    go. `merged`: a foreign key of its own deletes or changes rows here, and what it does is seen
    together with what set it off, one row perhaps twice. `refers`: it has foreign keys. `primary`:
    the name of the primary key's constraint. `shared`: other streams write it too.
    """

    name: QualifiedName
    key: tuple[str, ...]
    undo: Undo
    block_column: str
    columns: dict[str, Column]
    unique: bool = False
    deferred: bool = False
    indexes: tuple[tuple[bool, tuple[str, ...]], ...] = ()
    partitions: tuple[QualifiedName, ...] = ()
    partitioned: bool = False
    always_compare: bool = False
    acted_upon: bool = False
    merged: bool = False
    refers: bool = False
    primary: str | None = None
    shared: bool = False

    @property
    def relations(self) -> tuple[QualifiedName, ...]:
        """The table and its partitions."""
        return (self.name, *self.partitions)

    @property
    def stored(self) -> list[str]:
        """The columns whose values are kept: all that are not computed."""
        return [column.name for column in self.columns.values() if not column.generated]

    def undone(self, undo: Undo, block_column: str) -> Self:
        """Return the same table with the way in which a fork undoes it."""
        return replace(self, undo=undo, block_column=block_column)
