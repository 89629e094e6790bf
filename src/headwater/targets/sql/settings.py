"""What a user declares for either database: the tables that a stream writes, its state's place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.errors import InvalidOptionError
from headwater.targets.sql.text import QualifiedName

BLOCK_COLUMN = "block_number"


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """One table that a stream writes."""

    name: QualifiedName
    key: tuple[str, ...] = ()
    append_only: bool | None = None
    untracked: bool = False
    block_column: str = BLOCK_COLUMN
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Under which id the state is kept, where, and for how long what undoes it."""

    id: str | None = None
    schema: str = ""
    table: str = "sync"
    unfinalized_blocks_retention: int = 1000

    def check_id(self) -> None:
        """Refuse an id that nobody could read."""
        if self.id is not None and not self.id.strip():
            raise InvalidOptionError("a stream id cannot be blank", got=repr(self.id))
