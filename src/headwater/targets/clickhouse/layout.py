"""Reads and creates tables on the server: engine, columns, the way in which rows are taken back.

Runs on the driver. Creating what exists changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

import pyarrow as pa

from headwater.errors import (
    ClickHouseBlockColumnError,
    ClickHouseTableError,
    DistributedTableError,
)
from headwater.targets.clickhouse.client import ClickHouseClient, ignoring_refusal
from headwater.targets.clickhouse.sql import TableName, columns, compose, quote
from headwater.targets.clickhouse.types import bare, new_column_type, nullable
from headwater.targets.tables import BLOCK_COLUMN, ENGINES
from headwater.targets.text import Fragment

_ENGINE = re.compile(r"(?:Shared)?(?:Replicated)?(\w*?)MergeTree")
_INTEGERS = re.compile(r"U?Int(16|32|64)")
_WINDOW = "non_replicated_deduplication_window"
_TABLES = """
SELECT name, engine, engine_full, sorting_key, create_table_query FROM system.tables
WHERE database = {database:String} AND name IN {names:Array(String)}
"""
_COLUMNS = """
SELECT table, name, type FROM system.columns
WHERE database = {database:String} AND table IN {names:Array(String)}
  AND default_kind IN ('', 'DEFAULT')
ORDER BY table, position
"""
_DEFAULT_WINDOW = "SELECT value FROM system.merge_tree_settings WHERE name = {name:String}"
WINDOW = 1000
INDEX = "_sqd_rollback_idx"
_IDENTITY = ("transaction_index", "trace_address", "instruction_address", "log_index")
_COMPLETE = frozenset(_IDENTITY[1:])
_MARKS = {
    "CollapsingMergeTree": {"sign": "Int8 DEFAULT 1"},
    "ReplacingMergeTree": {"version": "UInt64", "is_deleted": "UInt8"},
    "MergeTree": {},
}


class Family(Enum):
    """Ways to take rows back: by their negative, by a newer version, by a deletion."""

    COLLAPSING = "collapsing"
    REPLACING = "replacing"
    OTHER = "other"


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
class Layout:
    """A table as the server describes it. `columns` are the stored ones, with their types."""

    name: TableName
    family: Family
    columns: Mapping[str, str] = field(default_factory=dict)
    sorting_key: tuple[str, ...] = ()
    sign: str = ""
    version: str = ""
    deleted: str = ""
    block_column: str = BLOCK_COLUMN
    stream_column: str | None = None
    deduplicates: bool = False
    indexed: bool = False
    has_view: bool = False
    is_replicated: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """The columns that the engine needs and the target fills."""
        return tuple(mark for mark in (self.sign, self.version, self.deleted) if mark)

    @property
    def values(self) -> list[str]:
        """The columns with what users store."""
        return [name for name in self.columns if name not in self.marks]

    @property
    def final(self) -> Fragment:
        """What follows the table's name, so that rows that were taken back are not read."""
        return Fragment("FINAL" if self.marks else "")

    @property
    def own(self) -> Fragment:
        """The condition that a row is the stream's, if a column says whose it is."""
        if self.stream_column is None:
            return Fragment("1")
        return compose("<stream> = {stream:String}", stream=self.stream_column)


def read_layout(client: ClickHouseClient, name: TableName, declared: Table | None) -> Layout | None:
    """Read a table from the system tables; None if there is none.

    Raises:
        DistributedTableError: it only forwards rows.
        ClickHouseTableError: its engine cannot take rows back.
        ClickHouseBlockColumnError: it does not say which block a row is of. Not asked of a table
            that was not declared.
    """
    return read_layouts(client, {name: declared}).get(name)


def read_layouts(
    client: ClickHouseClient, declared: Mapping[TableName, Table | None]
) -> dict[TableName, Layout]:
    """Read tables as `read_layout` does, those of one database together; without missing ones."""
    layouts = {}
    for database in dict.fromkeys(name.database for name in declared):
        wanted = {name.name: name for name in declared if name.database == database}
        shown = [*wanted, *(f"{table}_live" for table in wanted)]
        rows = client.rows(_TABLES, {"database": database, "names": shown})
        there = {row["name"]: row for row in rows}
        names = [table for table in wanted if table in there]
        kinds: dict[str, dict[str, str]] = {table: {} for table in names}
        if names:
            for row in client.rows(_COLUMNS, {"database": database, "names": names}):
                kinds[row["table"]][row["name"]] = row["type"]
        for table in names:
            name, has_view = wanted[table], f"{table}_live" in there
            layouts[name] = _layout(
                client, name, declared[name], there[table], kinds[table], has_view
            )
    return layouts


def _layout(
    client: ClickHouseClient,
    name: TableName,
    declared: Table | None,
    described: Mapping[str, str],
    kinds: Mapping[str, str],
    has_view: bool,
) -> Layout:
    engine, definition = described["engine"], described["engine_full"]
    if engine == "Distributed":
        raise DistributedTableError("rows of a Distributed table cannot be undone", table=name)
    kind = _ENGINE.fullmatch(engine)
    if kind is None:
        raise ClickHouseTableError(
            "a table of this engine cannot take rows back", table=name, engine=engine
        )
    family, sign, version, deleted = _marks(kind[1], definition)
    layout = Layout(
        name,
        family,
        kinds,
        _sorting_key(described["sorting_key"]),
        sign,
        version,
        deleted,
        declared.block_column if declared else BLOCK_COLUMN,
        declared.stream_column if declared else None,
        _deduplicates(client, engine, definition),
        INDEX in described["create_table_query"],
        has_view,
        "Replicated" in engine or "Shared" in engine,
    )
    if declared is not None:
        _check(layout)
    return layout


def _check(layout: Layout) -> None:
    block = layout.columns.get(layout.block_column)
    if block is None or not _INTEGERS.fullmatch(bare(block)):
        raise ClickHouseBlockColumnError(
            "no column with the number of the block",
            table=layout.name,
            column=layout.block_column,
            type=block,
        )
    if layout.stream_column and layout.stream_column not in layout.columns:
        raise ClickHouseTableError(
            "the table lacks the column for the stream's id",
            table=layout.name,
            column=layout.stream_column,
        )
    if layout.family is Family.REPLACING and layout.block_column not in layout.sorting_key:
        raise ClickHouseTableError(
            "a newer version would hide a final row for good: a row's block must be part of "
            "ORDER BY, or the table of engine CollapsingMergeTree",
            table=layout.name,
            order_by=list(layout.sorting_key),
        )


def _marks(kind: str, definition: str) -> tuple[Family, str, str, str]:
    """Read the engine's arguments: sign, version, mark of deletion."""
    match = re.match(r"\w+\(([^()]*)\)", definition)
    arguments = [argument.strip().strip("`") for argument in match[1].split(",")] if match else []
    names = [argument for argument in arguments if argument and not argument.startswith("'")]
    if kind in ("Collapsing", "VersionedCollapsing"):
        return Family.COLLAPSING, names[0], "", ""
    if kind == "Replacing" and len(names) == 2:
        return Family.REPLACING, "", names[0], names[1]
    return Family.OTHER, "", "", ""


def _sorting_key(text: str) -> tuple[str, ...]:
    """Split the sorting key; an expression stays as it is."""
    parts = re.split(r",\s*(?![^()]*\))", text) if text else []
    return tuple(part.strip().strip("`") for part in parts)


def _deduplicates(client: ClickHouseClient, engine: str, definition: str) -> bool:
    """Tell whether a table remembers which inserts it has stored, by itself or by default."""
    if "Replicated" in engine or "Shared" in engine:
        match = re.search(r"\breplicated_deduplication_window = (\d+)", definition)
        return match is None or int(match[1]) > 0
    match = re.search(rf"\b{_WINDOW} = (\d+)", definition)
    if match is not None:
        return int(match[1]) > 0
    return any(int(row["value"]) > 0 for row in client.rows(_DEFAULT_WINDOW, {"name": _WINDOW}))


# --- creating -------------------------------------------------------------------------------------


def create_table(
    client: ClickHouseClient, name: TableName, declared: Table, schema: pa.Schema
) -> None:
    """Create a table for frames of this schema."""
    order = _order(declared, schema)
    kinds = {} if declared.stream_column is None else {
        declared.stream_column: "LowCardinality(String)"
    }  # fmt: skip
    if declared.block_column not in schema.names:
        kinds[declared.block_column] = "Int64"
    nullable_key = False
    for column in schema:
        kind = declared.types.get(column.name) or new_column_type(column)
        keyed = column.name in (declared.block_column, *declared.order_by, *_IDENTITY)
        if keyed:
            kind = re.sub(r"Nullable\((\w+)\)", r"\1", kind)
        elif column.name not in declared.types and column.nullable:
            kind = nullable(kind)
            nullable_key = nullable_key or column.name in order
        kinds[column.name] = kind
    marks = _MARKS[declared.engine]
    kinds |= {mark: kind for mark, kind in marks.items() if mark not in kinds}
    settings = f"non_replicated_deduplication_window = {WINDOW}"
    settings += ", allow_nullable_key = 1" if nullable_key else ""
    lines = [f"{quote(column)} {kind}" for column, kind in kinds.items()]
    lines.append(f"INDEX {INDEX} {quote(declared.block_column)} TYPE minmax GRANULARITY 1")
    partition = f"PARTITION BY {declared.partition_by} " if declared.partition_by else ""
    begin = order[: order.index(declared.block_column) + 1]
    client.run(
        f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(lines)}) "
        f"ENGINE = {declared.engine}({columns(marks)}) {partition}"
        f"PRIMARY KEY ({columns(begin)}) ORDER BY ({columns(order)}) SETTINGS {settings}"
    )


def create_view(client: ClickHouseClient, layout: Layout) -> None:
    """Create the view of the rows that count, unless something of its name is there."""
    if layout.family is Family.OTHER or layout.has_view:
        return
    _show(client, layout, Fragment("CREATE VIEW IF NOT EXISTS"))


def _show(client: ClickHouseClient, layout: Layout, create: Fragment) -> None:
    client.run(
        "<create> <view> AS SELECT <shown> FROM <table> FINAL",
        create=create,
        view=layout.name.suffixed("_live"),
        shown=layout.values,
        table=layout.name,
    )


def renew_view(client: ClickHouseClient, layout: Layout) -> None:
    """Show columns that were added in the view of the rows that count, if it is our own."""
    shown, wanted = _shown(client, layout), layout.values
    if shown is not None and shown != wanted and set(shown) < set(wanted):
        _show(client, layout, Fragment("CREATE OR REPLACE VIEW"))


def drop_view(client: ClickHouseClient, layout: Layout) -> None:
    """Drop the view of the rows that count, if it is the target's own."""
    if _shown(client, layout) is not None:
        client.run("DROP VIEW IF EXISTS <view>", view=layout.name.suffixed("_live"))


def _shown(client: ClickHouseClient, layout: Layout) -> list[str] | None:
    """Return the columns of the view, if it selects them of the table's rows that count."""
    rows = client.rows(
        "SELECT as_select, "
        "(SELECT arrayMap(one -> one.2, arraySort(groupArray((position, name)))) "
        "FROM system.columns WHERE database = {database:String} AND table = {name:String}) "
        "AS names "
        "FROM system.tables WHERE database = {database:String} AND name = {name:String}",
        layout.name.suffixed("_live").params,
    )
    if not rows:
        return None
    plain = str(rows[0]["as_select"]).replace("`", "")
    source = f"FROM {layout.name.database}.{layout.name.name} FINAL"
    names: list[str] = rows[0]["names"]
    return names if plain == f"SELECT {', '.join(names)} {source}" else None


def add_columns(
    client: ClickHouseClient, layout: Layout, declared: Table, fields: Sequence[pa.Field]
) -> None:
    """Add columns for those of a frame; rows that are there have null."""
    kinds = {
        field.name: declared.types.get(field.name) or nullable(new_column_type(field))
        for field in fields
    }
    parts = [f"ADD COLUMN IF NOT EXISTS {quote(name)} {kind}" for name, kind in kinds.items()]
    client.run(f"ALTER TABLE {layout.name} {', '.join(parts)}")


def readers_of(client: ClickHouseClient, layout: Layout) -> list[str]:
    """Return the materialized views that are told of a table's inserts."""
    rows = client.rows(
        "SELECT dependencies_table AS names FROM system.tables "
        "WHERE database = {database:String} AND name = {name:String}",
        layout.name.params,
    )
    return sorted(rows[0]["names"]) if rows else []


def prepare_undo(client: ClickHouseClient, layout: Layout) -> None:
    """Give a table that existed what makes undo fast and retries safe, if we may change it."""
    if not layout.indexed:
        create_index(client, layout)
    if not layout.deduplicates:
        with ignoring_refusal():
            client.run(
                f"ALTER TABLE {layout.name} "
                f"MODIFY SETTING non_replicated_deduplication_window = {WINDOW}"
            )


def create_index(client: ClickHouseClient, layout: Layout) -> None:
    """Create the index by block that undo needs to be fast, if we may change the table."""
    with ignoring_refusal():
        client.run(
            f"ALTER TABLE {layout.name} ADD INDEX IF NOT EXISTS {INDEX} "
            f"{quote(layout.block_column)} TYPE minmax GRANULARITY 1"
        )
        client.run(f"ALTER TABLE {layout.name} MATERIALIZE INDEX {INDEX}")


def _order(declared: Table, schema: pa.Schema) -> list[str]:
    """Return the sorting key: the stream, the block, then what tells the rows of a block apart.

    An order that names the block itself is taken as it is; so is a place that it gives the stream.
    """
    begin = []
    if declared.stream_column and declared.stream_column not in declared.order_by:
        begin.append(declared.stream_column)
    if declared.block_column not in declared.order_by:
        begin.append(declared.block_column)
    if declared.order_by:
        rest = list(declared.order_by)
    elif _COMPLETE.intersection(schema.names):
        rest = [column for column in _IDENTITY if column in schema.names]
    else:
        rest = [field.name for field in schema if not pa.types.is_nested(field.type)]
    return begin + [column for column in rest if column not in begin]
