"""`table(...)`: one way to declare a table, whatever target it is for.

What a target cannot do is refused when the target is made. The declarations of single targets
(`headwater.targets.duckdb.table` and so on) are accepted beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headwater.errors import InvalidOptionError

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A table as a user declares it. Made by `table`; `given` holds what was not left out."""

    name: str
    given: Mapping[str, object]


def table(
    name: str,
    *,
    key: Sequence[str] | None = None,
    append_only: bool | None = None,
    untracked: bool | None = None,
    block_column: str | None = None,
    types: Mapping[str, str] | None = None,
    indexes: Sequence[Sequence[str]] | None = None,
    order_by: Sequence[str] | None = None,
    partition_by: str | None = None,
    engine: str | None = None,
    stream_column: str | None = None,
    live_view: bool | None = None,
    evolve: bool | None = None,
) -> TableOptions:
    """Declare a table that a stream writes, for `tables=[…]` of any target.

    Args:
        name: `name`, or `name` within a schema or database, joined by a dot.
        key: the primary key of a table that the target creates (PostgreSQL, DuckDB); the columns
            that tell rows apart (Iceberg).
        append_only: rows are only inserted, and a fork removes them by their block number
            (PostgreSQL, DuckDB).
        untracked: a fork leaves this table alone (PostgreSQL, DuckDB).
        block_column: where rows keep the number of their block.
        types: types of columns of a table that the target creates, where the frame's will not do.
        indexes: columns of further indexes of a table that the target creates (PostgreSQL).
        order_by: columns that tell the rows of a block apart (ClickHouse); by which the rows of a
            file are sorted (Iceberg).
        partition_by: an expression (ClickHouse); columns and transforms (Iceberg).
        engine: of a table that the target creates (ClickHouse).
        stream_column: a column that the target fills with the stream's id (ClickHouse).
        live_view: create `<name>_live`, which shows the rows that count (ClickHouse).
        evolve: later frames may add columns and widen types (Iceberg, Delta, Parquet).
    """
    options = {
        "key": key, "append_only": append_only, "untracked": untracked,
        "block_column": block_column, "types": types, "indexes": indexes, "order_by": order_by,
        "partition_by": partition_by, "engine": engine, "stream_column": stream_column,
        "live_view": live_view, "evolve": evolve,
    }  # fmt: skip
    return TableOptions(name, {name: one for name, one in options.items() if one is not None})


def declare_tables(
    tables: Iterable[object], own: type[Made], make: Callable[..., Made]
) -> list[Made]:
    """Return declared tables as one target keeps them: `make` declares an `own` one.

    Raises:
        InvalidOptionError: `tables` is no list, or a table asks for what the target cannot do.
    """
    if isinstance(tables, str | TableOptions | own) or not isinstance(tables, Iterable):
        raise InvalidOptionError('tables is a list: tables=["transfers"]', got=repr(tables))
    return [_declare(one, own, make) for one in tables]


def _declare(given: object, own: type[Made], make: Callable[..., Made]) -> Made:
    if isinstance(given, own):
        return given
    if isinstance(given, str):
        return make(given)
    if not isinstance(given, TableOptions):
        raise InvalidOptionError("a table is a name, or table(name, …)", got=repr(given))
    known = inspect.signature(make).parameters
    unknown = sorted(set(given.given) - set(known))
    if unknown:
        raise InvalidOptionError(
            f"table {given.name} asks for what this target cannot do",
            unknown=", ".join(unknown),
            known=", ".join(name for name in known if name != "name"),
        )
    return make(given.name, **given.given)
