"""Declarations of tables, and settings: where the state is kept, how often a statement is tried."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.errors import ClickHouseMaxRowsError, InvalidOptionError

BLOCK_COLUMN = "block_number"
ENGINES = ("CollapsingMergeTree", "ReplacingMergeTree", "MergeTree")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9]*(\([A-Za-z0-9_ ,()'/+=-]*\))?")


@dataclass(frozen=True, slots=True)
class Table:
    """One table that a stream writes. Made by `table`."""

    name: str
    order_by: tuple[str, ...] = ()
    partition_by: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    engine: str = ENGINES[0]
    block_column: str = BLOCK_COLUMN
    stream_column: str | None = None
    live_view: bool = True


def table(
    name: str,
    *,
    order_by: Sequence[str] = (),
    partition_by: str | None = None,
    types: Mapping[str, str] | None = None,
    engine: str = ENGINES[0],
    block_column: str = BLOCK_COLUMN,
    stream_column: str | None = None,
    live_view: bool = True,
) -> Table:
    """Declare a table that a stream writes. One that exists keeps its own engine and order.

    Args:
        name: `name` or `database.name`, taken literally.
        order_by: columns that tell the rows of a block apart, for a table that the target creates;
            `stream_column` and the block column go before them, unless they are named among them:
            then they stand where you name them. Left out, they are the index of the log,
            instruction or trace, or else all columns.
        partition_by: an expression, such as `intDiv(block_number, 1000000)`.
        types: types of columns of a table that the target creates, where the frame's own will not
            do: `{"value": "UInt256"}` for integers that arrive as decimal text,
            `"FixedString(32)"` for `0x…` text. Otherwise text stays text.
        engine: the engine of a table that the target creates: CollapsingMergeTree,
            ReplacingMergeTree (with a version and a mark of deletion) or MergeTree.
        block_column: where rows keep the number of their block. A frame without it gets the number
            of the batch's last block.
        stream_column: a column that the target fills with the stream's id, so that several streams
            can write the table; added to a table that the target creates.
        live_view: create `<name>_live`, which shows the rows that count.
    """
    if isinstance(order_by, str):
        raise InvalidOptionError("order_by is a list of columns", table=name)
    if engine not in ENGINES:
        raise InvalidOptionError("no such engine", table=name, got=engine, known=ENGINES)
    for column, kind in (types or {}).items():
        if not _TYPE.fullmatch(kind):
            raise InvalidOptionError(
                "types= takes names of types, such as UInt256", column=column, got=kind
            )
    return Table(
        name,
        tuple(order_by),
        partition_by,
        dict(types or {}),
        engine,
        block_column,
        stream_column,
        live_view,
    )


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
