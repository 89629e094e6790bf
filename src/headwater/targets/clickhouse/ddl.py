"""What the target creates: tables from the schema of a frame, views, the index that undo needs."""

from __future__ import annotations

import re

import pyarrow as pa

from headwater.targets.clickhouse.client import ClickHouseClient, ignoring_refusal
from headwater.targets.clickhouse.layout import Family, Layout
from headwater.targets.clickhouse.settings import Table
from headwater.targets.clickhouse.sql import TableName, columns, compose, quote
from headwater.targets.clickhouse.types import column_type, nullable

WINDOW = 1000
INDEX = "_sqd_rollback_idx"
_IDENTITY = ("transaction_index", "trace_address", "instruction_address", "log_index")
_COMPLETE = frozenset(_IDENTITY[1:])
_MARKS = {
    "CollapsingMergeTree": {"sign": "Int8 DEFAULT 1"},
    "ReplacingMergeTree": {"version": "UInt64", "is_deleted": "UInt8"},
    "MergeTree": {},
}


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
    for field in schema:
        kind = declared.types.get(field.name) or column_type(field)
        keyed = field.name in (declared.block_column, *declared.order_by, *_IDENTITY)
        if keyed:
            kind = re.sub(r"Nullable\((\w+)\)", r"\1", kind)
        elif field.name not in declared.types and field.nullable:
            kind = nullable(kind)
            nullable_key = nullable_key or field.name in order
        kinds[field.name] = kind
    marks = _MARKS[declared.engine]
    kinds |= {mark: kind for mark, kind in marks.items() if mark not in kinds}
    settings = f"non_replicated_deduplication_window = {WINDOW}"
    settings += ", allow_nullable_key = 1" if nullable_key else ""
    lines = [f"{quote(column)} {kind}" for column, kind in kinds.items()]
    lines.append(f"INDEX {INDEX} {quote(declared.block_column)} TYPE minmax GRANULARITY 1")
    partition = f"PARTITION BY {declared.partition_by} " if declared.partition_by else ""
    begin = order[: 1 + bool(declared.stream_column)]
    client.run(
        f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(lines)}) "
        f"ENGINE = {declared.engine}({columns(marks)}) {partition}"
        f"PRIMARY KEY ({columns(begin)}) ORDER BY ({columns(order)}) SETTINGS {settings}"
    )


def create_view(client: ClickHouseClient, layout: Layout) -> None:
    """Create the view of the rows that count, unless something of its name is there."""
    if layout.family is Family.OTHER or layout.has_view:
        return
    client.run(
        compose(
            "CREATE VIEW IF NOT EXISTS <view> AS SELECT <shown> FROM <table> FINAL",
            view=layout.name.suffixed("_live"),
            shown=[one for one in layout.columns if one not in layout.marks],
            table=layout.name,
        )
    )


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
    """Return the sorting key: the stream, the block, then what tells the rows of a block apart."""
    begin = [declared.stream_column] if declared.stream_column else []
    begin.append(declared.block_column)
    if declared.order_by:
        rest = list(declared.order_by)
    elif _COMPLETE.intersection(schema.names):
        rest = [one for one in _IDENTITY if one in schema.names]
    else:
        rest = [one.name for one in schema if not pa.types.is_nested(one.type)]
    return begin + [one for one in rest if one not in begin]
