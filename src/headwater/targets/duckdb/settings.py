"""What a user declares: the tables that a stream writes, and where its state is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.errors import InvalidOptionError, RetentionError
from headwater.targets.duckdb.sql import DEFAULT_SCHEMA, TableName
from headwater.targets.sql.settings import BLOCK_COLUMN, DeclaredTable, StateSettings

INTEGER_TYPES = re.compile(
    r"BIGNUM|U?HUGEINT|U?(?:BIGINT|INTEGER|SMALLINT|TINYINT)|DECIMAL\(\d+,0\)"
)


@dataclass(frozen=True, slots=True)
class Table(DeclaredTable):
    """One table that a stream writes. Made by `table`."""

    name: TableName


def table(
    name: str,
    *,
    key: Sequence[str] = (),
    append_only: bool | None = None,
    untracked: bool = False,
    block_column: str = BLOCK_COLUMN,
    types: Mapping[str, str] | None = None,
) -> Table:
    """Declare a table that a stream writes.

    Args:
        name: `name` or `schema.name`; put parts that contain a dot in double quotes.
        key: the columns of the primary key; needed for `tx.upsert` and `tx.delete`.
        append_only: rows are only inserted, and a fork removes them by their block number. Without
            it, before-images are kept. Left out, it is on for tables that are filled without
            `on_data` and have a block column but no key.
        untracked: a fork leaves this table alone; any SQL may change it.
        block_column: where an append-only table keeps the number of the block.
        types: integer types of columns whose values arrive as decimal text, such as
            `{"value": "BIGNUM"}`; otherwise such text stays text.
    """
    if isinstance(key, str):
        raise InvalidOptionError("key is a list of columns", got=repr(key))
    if append_only and untracked:
        raise InvalidOptionError("a table is append_only or untracked, not both", table=name)
    given = {column: kind.upper().replace(" ", "") for column, kind in (types or {}).items()}
    for column, kind in given.items():
        if not INTEGER_TYPES.fullmatch(kind):
            raise InvalidOptionError(
                "types= takes integer types: BIGNUM, HUGEINT, UHUGEINT, BIGINT, DECIMAL(38,0), …",
                column=column,
                got=kind,
            )
    return Table(TableName.parse(name), tuple(key), append_only, untracked, block_column, given)


@dataclass(frozen=True, slots=True)
class DuckDBSettings(StateSettings):
    """Where and under which id the state is kept.

    `id` overrides the stream's own. Undo data is kept for `unfinalized_blocks_retention` blocks
    below the finalized one. `config` is passed to DuckDB (`{"memory_limit": "2GB"}`).
    """

    schema: str = DEFAULT_SCHEMA
    config: Mapping[str, str | bool | int | float | list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.unfinalized_blocks_retention <= 0:
            raise RetentionError(
                "undo data cannot be kept for no blocks", got=self.unfinalized_blocks_retention
            )
        self.check_id()

    @property
    def sync(self) -> TableName:
        """The table of the state."""
        return TableName(self.schema, self.table)
