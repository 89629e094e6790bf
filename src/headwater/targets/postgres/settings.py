"""What a user declares: the tables that a stream writes, and where its state is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwater.errors import InvalidOptionError, PostgresRetentionError
from headwater.targets.postgres.sql import DEFAULT_SCHEMA, TableName
from headwater.targets.sql.settings import BLOCK_COLUMN, DeclaredTable, StateSettings

ISOLATION_LEVELS = ("serializable", "repeatable read", "read committed")
_TYPE = re.compile(r"[a-z_][a-z0-9_ ]*(\(\d+(,\s*-?\d+)?\))?[a-z ]*(\[\])?")


@dataclass(frozen=True, slots=True)
class Table(DeclaredTable):
    """One table that a stream writes. Made by `table`."""

    name: TableName
    indexes: tuple[tuple[str, ...], ...] = ()


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
    """Declare a table that a stream writes.

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
            do: `{"value": "numeric(78,0)"}` for integers that arrive as decimal text, `"bytea"` for
            hexadecimal text. Otherwise text stays text.
        indexes: columns of further indexes of a table that the target creates.
    """
    if isinstance(key, str) or any(isinstance(one, str) for one in indexes):
        raise InvalidOptionError("key is a list of columns, indexes a list of such", table=name)
    if append_only and untracked:
        raise InvalidOptionError("a table is append_only or untracked, not both", table=name)
    given = {column: kind.strip().lower() for column, kind in (types or {}).items()}
    for column, kind in given.items():
        if not _TYPE.fullmatch(kind):
            raise InvalidOptionError(
                "types= takes names of types, such as numeric(78,0) or bytea",
                column=column,
                got=kind,
            )
    return Table(
        TableName.parse(name),
        tuple(key),
        append_only,
        untracked,
        block_column,
        given,
        tuple(tuple(one) for one in indexes),
    )


@dataclass(frozen=True, slots=True)
class PostgresSettings(StateSettings):
    """Where and under which id the state is kept, and how transactions run.

    `id` overrides the stream's own. Undo data is kept for `unfinalized_blocks_retention` blocks
    below the finalized one. A transaction that meets a conflict or loses its connection is tried
    `attempts` times. `lock_wait_s` is how long a writer waits for the one before it to be gone.
    With `defer_indexes`, tables that the target creates get their keys and indexes when the stream
    first comes near the head, or when a write needs them. Executors send their rows to the driver,
    to `relay_port`, or to any free port if it is 0.
    """

    schema: str = DEFAULT_SCHEMA
    isolation_level: str = "serializable"
    attempts: int = 8
    lock_wait_s: float = 5.0
    defer_indexes: bool = False
    relay_port: int = 0

    def __post_init__(self) -> None:
        if self.unfinalized_blocks_retention <= 0:
            raise PostgresRetentionError(
                "undo data cannot be kept for no blocks", got=self.unfinalized_blocks_retention
            )
        self.check_id()
        if self.isolation_level not in ISOLATION_LEVELS:
            raise InvalidOptionError(
                "no such isolation level", got=self.isolation_level, known=ISOLATION_LEVELS
            )
        if self.attempts < 1 or self.lock_wait_s < 0:
            raise InvalidOptionError(
                "attempts must be 1 or more, lock_wait_s not negative",
                attempts=self.attempts,
                lock_wait_s=self.lock_wait_s,
            )

    @property
    def sync(self) -> TableName:
        """The table of the state."""
        return TableName(self.schema, self.table)
