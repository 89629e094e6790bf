"""What a user declares: the tables that a stream writes, and where its state is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from headwater.errors import HeadwaterError, InvalidOptionError
from headwater.targets.tables import BLOCK_COLUMN
from headwater.targets.text import QualifiedName

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
    options: ClassVar[tuple[str, ...]] = (
        *("key", "append_only", "untracked", "block_column", "types", "indexes"),
    )

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """Return what `table` declares."""
        for column, kind in options.get("types", {}).items():
            if not _TYPE.fullmatch(kind.strip()):
                raise InvalidOptionError("not the name of a type", column=column, got=kind)
        options["key"] = tuple(options.get("key", ()))
        options["indexes"] = tuple(tuple(one) for one in options.get("indexes", ()))
        return cls(QualifiedName.parse(name), **options)


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Under which id the state is kept, where, and for how long what undoes it."""

    id: str | None = None
    schema: str = ""
    table: str = "sync"
    unfinalized_blocks_retention: int = 1000
    name_type: ClassVar[type[QualifiedName]] = QualifiedName
    retention_error: ClassVar[type[HeadwaterError]] = InvalidOptionError

    def __post_init__(self) -> None:
        if self.unfinalized_blocks_retention <= 0:
            raise self.retention_error(
                "undo data cannot be kept for no blocks", got=self.unfinalized_blocks_retention
            )
        if self.id is not None and not self.id.strip():
            raise InvalidOptionError("a stream id cannot be blank", got=repr(self.id))

    @property
    def sync(self) -> QualifiedName:
        """The table of the state."""
        return self.name_type(self.schema, self.table)
