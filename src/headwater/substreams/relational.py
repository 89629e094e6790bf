"""Targets for relational mappings: their tables created with keys and constraints, rows inserted.

Rows are only inserted, so a fork removes those of the blocks that went, by `_block_number_`, on
each database in its own way: a ranged deletion on PostgreSQL and DuckDB, opposite rows on
ClickHouse. References are checked at the end of each transaction (PostgreSQL), so neither the order
of tables nor circles matter. DuckDB cannot put such a check off, and ClickHouse has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from headwater.errors import InvalidOptionError, RelationalSchemaError
from headwater.substreams.columns import decimal_of
from headwater.substreams.mapping import (
    BLOCK_NUMBER,
    BLOCK_TIME,
    RelationalMapping,
    RelationalTable,
)
from headwater.targets import table as declaration
from headwater.targets.admin import kind_of
from headwater.targets.contract import Delivery, Target
from headwater.targets.extras import import_extra
from headwater.targets.frames import to_arrow

if TYPE_CHECKING:
    from headwater.targets.clickhouse import ClickHouseSettings
    from headwater.targets.duckdb import DuckDBSettings
    from headwater.targets.postgres import PostgresSettings

Constraint = Literal["primary_keys", "unique", "foreign_keys"]
CONSTRAINTS: tuple[Constraint, ...] = ("primary_keys", "unique", "foreign_keys")
_POSTGRES = {"int128": "numeric(39,0)", "uint128": "numeric(39,0)", "int256": "numeric(78,0)",
             "uint256": "numeric(78,0)"}  # fmt: skip
_CLICKHOUSE = {"int128": "Int128", "uint128": "UInt128", "int256": "Int256", "uint256": "UInt256"}


def relational_target(
    place: str | Path,
    mapping: RelationalMapping,
    *,
    schema: str | None = None,
    without: Collection[Constraint] = (),
    settings: PostgresSettings | DuckDBSettings | ClickHouseSettings | None = None,
) -> Target[Delivery]:
    """Write the tables of a relational mapping to PostgreSQL, ClickHouse or DuckDB.

    Tables that are missing are created when the stream starts; those that exist are used as they
    are. Creating them again changes nothing.

    Args:
        place: `postgresql://…`, `http://…` of ClickHouse, or the path of a DuckDB file.
        mapping: the tables, from the annotations of the module's output type.
        schema: of the tables, where the database has schemas; left out, its default.
        without: constraints to leave out: "primary_keys", "unique", "foreign_keys".
        settings: those of the database's own target.

    Raises:
        RelationalSchemaError: the annotations contradict each other.
    """
    unknown = sorted(set(without) - set(CONSTRAINTS))
    if unknown:
        raise InvalidOptionError("no such constraint", got=unknown, known=CONSTRAINTS)
    kind = "duckdb" if isinstance(place, Path) else kind_of(place)
    writer = _Writer(kind, mapping.tables, schema, frozenset(without))
    make = import_extra(kind, f"{kind}_target")
    target: Target[Delivery] = make(
        place if kind != "duckdb" else Path(place),
        tables=writer.declarations(),
        on_start=writer.create,
        on_data=writer.insert,
        settings=settings,
    )
    return target


class _Writer:
    """The callbacks of a target: they create tables, and insert rows."""

    def __init__(
        self,
        kind: str,
        tables: tuple[RelationalTable, ...],
        schema: str | None,
        without: frozenset[Constraint],
    ) -> None:
        self._kind = kind
        self._tables = tables
        self._schema = schema
        self._without = without

    def declarations(self) -> list[Any]:
        """Return how a fork undoes each table."""
        if self._kind == "clickhouse":
            return [
                declaration(self._name(table), block_column=BLOCK_NUMBER) for table in self._tables
            ]
        return [
            declaration(
                self._name(table),
                key=self._key(table) or None,
                append_only=True,
                block_column=BLOCK_NUMBER,
                types=self._types(table),
            )
            for table in self._tables
        ]

    def insert(self, tx: Any, data: Mapping[str, Any]) -> None:
        """Insert the rows of a batch, those that others refer to first."""
        for table in self._tables:
            if table.name in data:
                frame = data[table.name]
                if self._kind != "duckdb" and any(map(_is_wide, table.conversions.values())):
                    frame = _with_wide_decimals(to_arrow(frame), table)
                if self._kind == "clickhouse" and any(map(_is_struct, table.schema)):
                    frame = _without_null_structs(to_arrow(frame))
                tx.insert(self._name(table), frame)

    def create(self, tx: Any) -> None:
        """Create the tables that are missing."""
        if self._kind == "clickhouse":
            for table in self._tables:
                tx.command(self._clickhouse(table))
            return
        dialect, session = tx.store.dialect, tx.session
        new = [
            table
            for table in self._tables
            if not dialect.exists(session, dialect.name(self._name(table)))
        ]
        for table in new:
            tx.prepare(self._name(table), table.schema, self._key(table), {})
            for column in table.unique if "unique" not in self._without else ():
                name = dialect.name(self._name(table))
                session.run(
                    "CREATE UNIQUE INDEX {index} ON {table} ({column})",
                    index=name.suffixed(f"_{column}_unique").name,
                    table=name,
                    column=(column,),
                )
        if self._kind == "postgres" and "foreign_keys" not in self._without:
            for table in new:
                self._refer(tx, table)

    def _refer(self, tx: Any, table: RelationalTable) -> None:
        tables = {table.name: table for table in self._tables}
        for reference in table.references:
            other = tables[reference.table]
            unique = reference.others == other.key or (
                len(reference.others) == 1 and reference.others[0] in other.unique
            )
            if not unique or self._without & {"primary_keys", "unique"}:
                raise RelationalSchemaError(
                    "a reference leads to columns that are neither a key nor unique",
                    table=table.name,
                    to=f"{other.name} on {', '.join(reference.others)}",
                    key=", ".join(other.key) or "none",
                )
            tx.session.run(
                "ALTER TABLE {table} ADD FOREIGN KEY ({columns}) REFERENCES {other} ({others}) "
                "DEFERRABLE INITIALLY DEFERRED",
                table=tx.store.dialect.name(self._name(table)),
                columns=reference.columns,
                other=tx.store.dialect.name(self._name(other)),
                others=reference.others,
            )

    def _name(self, table: RelationalTable) -> str:
        name = f'"{table.name}"' if "." in table.name else table.name
        return f"{self._schema}.{name}" if self._schema else name

    def _key(self, table: RelationalTable) -> tuple[str, ...]:
        return () if "primary_keys" in self._without else table.key

    def _types(self, table: RelationalTable) -> dict[str, str]:
        """Return column types of numbers that arrive as text."""
        types = {}
        for column, kind in table.conversions.items():
            many = _is_nested(table.schema.field(column))
            if self._kind == "postgres" and not kind.startswith("decimal128"):
                number = _POSTGRES.get(kind) or f"numeric(76,{kind[11:-1]})"
                types[column] = f"{number}[]" if many else number
            elif kind in _POSTGRES and not many:
                types[column] = "BIGNUM"
        return types

    def _clickhouse(self, table: RelationalTable) -> str:
        """Return the statement that creates a table of ClickHouse, in the order that was asked for.

        The sorting key must tell all rows apart, or opposite rows would cancel others: block and
        key follow what was asked for, or all columns where there is no key.
        """
        from headwater.targets.clickhouse.types import column_type, nullable

        kinds: dict[str, str] = {}
        asked = [field.removesuffix(" DESC") for field in table.clickhouse.order_by]
        rest = table.key or tuple(
            field.name
            for field in table.schema
            if not _is_nested(field) and field.name not in (BLOCK_NUMBER, BLOCK_TIME)
        )
        order = [*table.clickhouse.order_by]
        order += [_ticked(name) for name in (BLOCK_NUMBER, *rest) if _ticked(name) not in asked]
        partition = table.clickhouse.partition_by or (f"toYYYYMM({_ticked(BLOCK_TIME)})",)
        for field in table.schema:
            conversion = table.conversions.get(field.name, "")
            number = _CLICKHOUSE.get(conversion)
            if _is_wide(conversion):
                number = f"Decimal(76, {conversion[11:-1]})"
            if number and _is_nested(field):
                number = f"Array(Nullable({number}))"
            kind = number or column_type(field)
            sorts = any(_ticked(field.name) in part for part in (*order, *partition))
            kinds[field.name] = nullable(kind) if field.nullable and not sorts else kind
        lines = [f"{_ticked(name)} {kind}" for name, kind in kinds.items()]
        lines.append("`sign` Int8 DEFAULT 1")
        lines += [
            f"INDEX {_ticked(name)} {expression} TYPE {kind} GRANULARITY {granularity}"
            for name, expression, kind, granularity in table.clickhouse.indexes
        ]
        reverse = any(part.endswith(" DESC") for part in order)
        settings = "non_replicated_deduplication_window = 1000"
        settings += ", allow_experimental_reverse_key = 1" if reverse else ""
        return (
            f"CREATE TABLE IF NOT EXISTS {self._clickhouse_name(table)} ({', '.join(lines)}) "
            f"ENGINE = CollapsingMergeTree(`sign`) PARTITION BY ({', '.join(partition)}) "
            f"ORDER BY ({', '.join(order)}) SETTINGS {settings}"
        )

    def _clickhouse_name(self, table: RelationalTable) -> str:
        return (
            f"{_ticked(self._schema)}.{_ticked(table.name)}"
            if self._schema
            else _ticked(table.name)
        )


def _ticked(name: str) -> str:
    return "`{}`".format(name.replace("\\", "\\\\").replace("`", "``"))


def _is_nested(field: pa.Field) -> bool:
    return bool(pa.types.is_nested(field.type))


def _is_struct(field: pa.Field) -> bool:
    return bool(pa.types.is_struct(field.type))


def _is_wide(conversion: str) -> bool:
    return conversion.startswith("decimal256")


def _with_wide_decimals(rows: pa.Table, table: RelationalTable) -> pa.Table:
    """Return rows whose texts that are decimals of 256 bits are such: Spark cannot hold these."""
    for name, conversion in table.conversions.items():
        kind = decimal_of(conversion)
        if _is_wide(conversion) and kind is not None:
            at = rows.schema.get_field_index(name)
            wanted = rows.schema.field(at).with_type(
                pa.list_(kind) if _is_nested(rows.schema.field(at)) else kind
            )
            rows = rows.set_column(at, wanted, rows.column(at).cast(wanted.type))
    return rows


def _without_null_structs(rows: pa.Table) -> pa.Table:
    """Return rows whose absent messages are empty ones: a tuple of ClickHouse cannot be null."""
    for at, field in enumerate(rows.schema):
        if _is_struct(field) and rows.column(at).null_count:
            structs = rows.column(at).combine_chunks()
            structs = structs if isinstance(structs, pa.StructArray) else structs.chunk(0)
            parts = [structs.field(index) for index in range(field.type.num_fields)]
            filled = pa.StructArray.from_arrays(parts, fields=list(field.type))
            rows = rows.set_column(at, field, filled)
    return rows
