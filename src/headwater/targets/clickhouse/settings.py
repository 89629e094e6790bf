"""Declarations of tables, and settings: where the state is kept, how often a statement is tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from headwater.errors import ClickHouseMaxRowsError, InvalidOptionError
from headwater.targets.tables import BLOCK_COLUMN, ENGINES


@dataclass(frozen=True, slots=True)
class Table:
    """One table that a stream writes."""

    name: str
    order_by: tuple[str, ...] = ()
    partition_by: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    engine: str = ENGINES[0]
    block_column: str = BLOCK_COLUMN
    stream_column: str | None = None
    live_view: bool = True

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """Return what `table` declares."""
        return cls(name, **options)


@dataclass(frozen=True, slots=True)
class ClickHouseSettings:
    """Says where and under which id the state is kept, and how often a statement is tried.

    `id` overrides the stream's own; `database` is the address's, or `default`. Each stream keeps
    the newest `max_rows` rows of state. A server that is away, overloaded or whose disk is full is
    waited for `wait_s` seconds; `attempts`, if it is given, is how often a statement is tried
    instead. What an executor inserts at once holds `insert_rows` rows at most.
    """

    id: str | None = None
    table: str = "sync"
    database: str | None = None
    max_rows: int = 10_000
    attempts: int | None = None
    insert_rows: int = 500_000
    wait_s: float = 600.0

    def __post_init__(self) -> None:
        if self.max_rows <= 0:
            raise ClickHouseMaxRowsError("no state would be kept", got=self.max_rows)
        if self.id is not None and not self.id.strip():
            raise InvalidOptionError("a stream id cannot be blank", got=repr(self.id))
        wrong = self.attempts is not None and self.attempts < 1
        if wrong or self.insert_rows < 1 or self.wait_s < 0:
            raise InvalidOptionError(
                "attempts and insert_rows must be 1 or more, wait_s not negative",
                attempts=self.attempts,
                insert_rows=self.insert_rows,
                wait_s=self.wait_s,
            )
