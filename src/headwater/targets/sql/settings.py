"""What a user declares: the tables that a stream writes, and where its state is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from headwater.errors import HeadwaterError, InvalidOptionError
from headwater.targets.text import QualifiedName

BLOCK_COLUMN = "block_number"
_TYPE = re.compile(r"[a-z_][a-z0-9_ ]*(\(\d+(,\s*-?\d+)?\))?[a-z ]*(\[\])?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Table:
    """One table that a stream writes. Made by `table`; the target resolves its name.

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


def table(
    name: str,
    *,
    key: Sequence[str] = (),
    append_only: bool | None = None,
    untracked: bool = False,
    block_column: str = BLOCK_COLUMN,
    types: Mapping[str, str] | None = None,
    indexes: Sequence[Sequence[str]] = (),
) -> Table:
    """Declare a table that a stream writes to PostgreSQL or DuckDB.

    Args:
        name: `name` or `schema.name`, taken literally; put parts that contain a dot in double
            quotes.
        key: the columns of the primary key of a table that the target creates. One that exists has
            its own.
        append_only: rows are only inserted, and a fork removes them by their block number; needs no
            primary key and no undo log. Left out, it is on for tables that are filled without
            `on_data` and have a block column but no key.
        untracked: a fork leaves this table alone; any SQL may change it.
        block_column: where an append-only table keeps the number of the block.
        types: types of columns of a table that the target creates, where the frame's own will not
            do. PostgreSQL takes any: `{"value": "numeric(78,0)"}` for integers that arrive as
            decimal text, `"bytea"` for hexadecimal text. DuckDB takes integers: `"BIGNUM"`.
            Otherwise text stays text.
        indexes: columns of further indexes of a table that the target creates (PostgreSQL).
    """
    if isinstance(key, str) or any(isinstance(one, str) for one in indexes):
        raise InvalidOptionError("key is a list of columns, indexes a list of such", table=name)
    if append_only and untracked:
        raise InvalidOptionError("a table is append_only or untracked, not both", table=name)
    for column, kind in (types or {}).items():
        if not _TYPE.fullmatch(kind.strip()):
            raise InvalidOptionError(
                "types= takes names of types, such as numeric(78,0), bytea or BIGNUM",
                column=column,
                got=kind,
            )
    return Table(
        QualifiedName.parse(name),
        tuple(key),
        append_only,
        untracked,
        block_column,
        dict(types or {}),
        tuple(tuple(one) for one in indexes),
    )


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
