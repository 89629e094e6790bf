"""`table(...)`: one way to declare a table, whatever target it is for.

What a target cannot do is refused when the target is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

from headwater.errors import InvalidOptionError

BLOCK_COLUMN = "block_number"
ENGINES = ("CollapsingMergeTree", "ReplacingMergeTree", "MergeTree")  # of ClickHouse
_TYPE = re.compile(r"[A-Za-z_][\w ]*(\([\w ,()'/+=-]*\))?[A-Za-z ]*(\[\])?")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A table as a user declares it. Made by `table`; `given` holds what was not left out."""

    name: str
    given: Mapping[str, object]


class Declared(Protocol):
    """A table as one target keeps its declaration; it takes the options that are its fields."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """Return what `table` declares."""
        ...


Own = TypeVar("Own", bound=Declared)


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
    properties: Mapping[str, str] | None = None,
    engine: str | None = None,
    stream_column: str | None = None,
    live_view: bool | None = None,
    evolve: bool | None = None,
) -> TableOptions:
    """Declare a table that a stream writes, for `tables=[…]` of any target.

    A table that exists keeps its key, its engine, its partitions and its order.

    Args:
        name: `name`, or `name` within a schema, a database or a namespace, joined by a dot and
            taken literally; put parts that contain a dot in double quotes (PostgreSQL, DuckDB).
        key: the primary key of a table that the target creates (PostgreSQL, DuckDB); the columns
            that tell rows apart, for `tx.upsert` and `tx.delete` (Iceberg, Delta).
        append_only: rows are only inserted, and a fork removes them by their block number; needs no
            primary key and no undo log. Left out, it is on for tables that are filled without
            `on_data` and have a block column but no key (PostgreSQL, DuckDB).
        untracked: a fork leaves this table alone; any SQL may change it (PostgreSQL, DuckDB).
        block_column: where rows keep the number of their block, if not in `block_number`. In
            ClickHouse a frame without it gets the number of the batch's last block.
        types: types of columns of a table that the target creates, where the frame's own will not
            do: `{"value": "numeric(78,0)"}` (PostgreSQL takes any), `"BIGNUM"` (DuckDB takes
            integers), `"UInt256"` or `"FixedString(32)"` (ClickHouse) for integers and bytes that
            arrive as text. Otherwise text stays text.
        indexes: columns of further indexes of a table that the target creates (PostgreSQL).
        order_by: columns that tell the rows of a block apart (ClickHouse): `stream_column` and the
            block column go before them, unless they are named among them; left out, they are the
            index of the log, instruction or trace, or else all columns. Columns by which the rows
            of a file are sorted (Iceberg).
        partition_by: an expression, such as `intDiv(block_number, 1000000)` (ClickHouse); columns
            (Delta, Parquet), and in Iceberg also `day(timestamp)`, `truncate(100000, block_number)`
            or `bucket(16, token), year(timestamp)`.
        properties: table properties of a table that the target creates (Iceberg).
        engine: of a table that the target creates: CollapsingMergeTree, ReplacingMergeTree (with a
            version and a mark of deletion) or MergeTree (ClickHouse).
        stream_column: a column that the target fills with the stream's id, so that several streams
            can write the table; added to a table that the target creates (ClickHouse).
        live_view: create `<name>_live`, which shows the rows that count (ClickHouse).
        evolve: a frame with a new column adds it to the table, one with a wider type widens the
            column (not in Delta). Otherwise such a frame is refused (Iceberg, Delta, Parquet).
    """
    lists = [key, order_by, *(indexes or ())]
    if any(isinstance(columns, str) for columns in lists) or isinstance(indexes, str):
        raise InvalidOptionError(
            "key and order_by are each a list of columns, indexes a list of such", table=name
        )
    if append_only and untracked:
        raise InvalidOptionError("a table is append_only or untracked, not both", table=name)
    if engine is not None and engine not in ENGINES:
        raise InvalidOptionError("no such engine", table=name, got=engine, known=ENGINES)
    check_types(types or {})
    options = {
        "key": _names(key), "append_only": append_only, "untracked": untracked,
        "block_column": block_column, "types": types,
        "indexes": None if indexes is None else tuple(map(_names, indexes)),
        "order_by": _names(order_by), "partition_by": partition_by, "properties": properties,
        "engine": engine, "stream_column": stream_column, "live_view": live_view, "evolve": evolve,
    }  # fmt: skip
    return TableOptions(name, {name: value for name, value in options.items() if value is not None})


def _names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(columns)


def check_types(types: Mapping[str, str]) -> None:
    """Refuse what cannot be the name of a type in any database: it becomes part of a statement."""
    for column, kind in types.items():
        if not _TYPE.fullmatch(kind.strip()):
            raise InvalidOptionError(
                "types= takes names of types, such as numeric(78,0), BIGNUM or UInt256",
                column=column,
                got=kind,
            )


def declare_tables(tables: Iterable[object], own: type[Own]) -> list[Own]:
    """Return declared tables as one target keeps them.

    Raises:
        InvalidOptionError: `tables` is no list, or a table asks for what the target cannot do.
    """
    if isinstance(tables, str | TableOptions | own) or not isinstance(tables, Iterable):
        raise InvalidOptionError('tables is a list: tables=["transfers"]', got=repr(tables))
    return [_declare(declared, own) for declared in tables]


def _declare(declared: object, own: type[Own]) -> Own:
    if isinstance(declared, own):
        return declared
    if isinstance(declared, str):
        declared = TableOptions(declared, {})
    if not isinstance(declared, TableOptions):
        raise InvalidOptionError("a table is a name, or table(name, …)", got=repr(declared))
    known = [name for name in own.__dataclass_fields__ if name in table.__annotations__]
    unknown = sorted(set(declared.given) - set(known))
    if unknown:
        raise InvalidOptionError(
            f"table {declared.name} asks for what this target cannot do",
            unknown=", ".join(unknown),
            known=", ".join(known[1:]),
        )
    return own.of(declared.name, **declared.given)
