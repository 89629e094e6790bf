"""Where the state of a stream is kept in a DuckDB file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.errors import RetentionError
from headwater.targets.duckdb.dialect import DEFAULT_SCHEMA, TableName
from headwater.targets.sql.settings import StateSettings


@dataclass(frozen=True, slots=True)
class DuckDBSettings(StateSettings):
    """Where and under which id the state is kept.

    `id` overrides the stream's own. Undo data is kept for `unfinalized_blocks_retention` blocks
    below the finalized one. `config` is passed to DuckDB (`{"memory_limit": "2GB"}`); it
    may hold keys, so no text shows it.
    """

    schema: str = DEFAULT_SCHEMA
    config: Mapping[str, str | bool | int | float | list[str]] = field(
        default_factory=dict, repr=False
    )
    name_type = TableName
    retention_error = RetentionError
