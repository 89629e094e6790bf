"""Relational mappings: which tables annotated messages become, with keys and what they refer to.

The annotations are those of the SQL sink (package `schema`): a message with the option `table`
becomes rows of that table, wherever it stands; a field can be part of the primary key, unique,
refer to another table, be renamed, converted, or kept inline. `child_of` adds columns of the row
above. What the sink cannot keep is kept here: texts of any length, members of a oneof, keys of
several columns, embedded messages without annotation (as structures).

Every table has `_block_number_`, by which a fork removes its rows, and `_block_timestamp_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from headwater.decode.columns.bytes_text import BytesEncoding, bytes_as_text
from headwater.decode.columns.protobuf import Ints, Messages
from headwater.errors import InvalidOptionError, RelationalSchemaError
from headwater.substreams.columns import (
    MOMENT,
    ColumnPlan,
    MessagePlan,
    as_number,
    decimal_of,
    plan_message,
    read_columns,
)
from headwater.substreams.descriptors import build_classes
from headwater.substreams.messages import ModuleOutput
from headwater.substreams.outputs import BlockColumns, TypedDecoder

BLOCK_NUMBER, BLOCK_TIME = "_block_number_", "_block_timestamp_"
_OURS = [pa.field(BLOCK_NUMBER, pa.int64(), False), pa.field(BLOCK_TIME, MOMENT)]
SCHEMA_CLASSES = build_classes(
    {
        "None": "",
        "Scale": "scale 1 i32",
        "Convert": "|int128 2 None, |uint128 3 None, |int256 4 None, |uint256 6 None, "
        "|decimal128 50 Scale, |decimal256 51 Scale",
        "Column": "?name 1 str, ?foreign_key 2 str, unique 3 bool, primary_key 4 bool, "
        "convert_to 5 Convert, inline 6 bool",
        "Order": "name 1 str, descending 2 bool, function 3 u32",
        "Partition": "name 1 str, function 2 u32",
        "Index": "name 1 str, field_name 2 str, type 3 u32, granularity 4 u32, function 5 u32",
        "ClickHouse": "*order_by_fields 1 Order, *partition_fields 2 Partition, "
        "*index_fields 4 Index",
        "Table": "name 1 str, ?child_of 2 str, clickhouse_table_options 200 ClickHouse",
        "MessageOptions": "table 77701 Table",
        "FieldOptions": "field 77702 Column",
    }
)
"""The annotations, by short names."""
FUNCTIONS = ("", "toYYYYMM", "toYYYYMMDD", "toYear", "toMonth", "toDate", "toStartOfMonth")
INDEX_TYPES = ("minmax", "set(0)", "ngrambf_v1(3, 256, 2, 0)", "tokenbf_v1(256, 2, 0)",
               "bloom_filter")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reference:
    """Columns that must be those of a row of another table."""

    columns: tuple[str, ...]
    table: str
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClickHouseOptions:
    """How ClickHouse sorts, partitions and indexes a table: SQL expressions, checked names."""

    order_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    indexes: tuple[tuple[str, str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RelationalTable:
    """One table: its columns with block and links first, its key, and what it refers to.

    `conversions` are columns of texts that are numbers, with `int128`, `uint256`, `decimal128(s)`…
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()
    conversions: Mapping[str, str] = field(default_factory=dict)
    clickhouse: ClickHouseOptions = ClickHouseOptions()


@dataclass(frozen=True, slots=True)
class _Place:
    """A table at one place of the message: which fields become which columns, and its links."""

    table: RelationalTable
    names: Mapping[str, str]
    links: tuple[tuple[str, str], ...] = ()  # (table above, its column)


@dataclass(frozen=True)
class RelationalMapping(TypedDecoder):
    """The tables of a message type, and what decodes messages into them. A value; it pickles."""

    bytes_encoding: BytesEncoding = "raw"

    def __post_init__(self) -> None:
        if self.bytes_encoding not in get_args(BytesEncoding):
            raise InvalidOptionError(
                f"bytes are {', '.join(get_args(BytesEncoding))}", got=self.bytes_encoding
            )

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The columns of every table."""
        return {table.name: table.schema for table in self.tables}

    @cached_property
    def tables(self) -> tuple[RelationalTable, ...]:
        """The tables, those that others refer to first.

        Raises:
            RelationalSchemaError: annotations contradict each other.
        """
        tables: dict[str, RelationalTable] = {}
        for place in self._walk.places.values():
            known = tables.setdefault(place.table.name, place.table)
            if known != place.table:
                raise RelationalSchemaError(
                    "two messages make one table with different columns", table=known.name
                )
        _check_references(tables)
        return tuple(_in_order(tables))

    @cached_property
    def _walk(self) -> _Walk:
        return _Walk(self.descriptor, self.bytes_encoding)

    def _decode(self, outputs: Sequence[ModuleOutput], messages: Messages) -> dict[str, pa.Table]:
        tables: dict[str, list[pa.Table]] = {table.name: [] for table in self.tables}
        blocks = BlockColumns.of(outputs)
        self._read((), messages, self._walk.plan, np.arange(len(messages)), {}, blocks, tables)
        return {
            table.name: pa.concat_tables(tables[table.name] or [table.schema.empty_table()])
            for table in self.tables
        }

    def _read(
        self,
        path: tuple[str, ...],
        messages: Messages,
        plan: MessagePlan,
        owners: Ints,
        above: Mapping[tuple[str, str], pa.Array],
        blocks: BlockColumns,
        tables: dict[str, list[pa.Table]],
    ) -> None:
        """Read the rows of one place, then those below; `above` are columns of the rows above."""
        row = read_columns(messages, plan)
        place = self._walk.places.get(path)
        if place is not None:
            number, _, time = blocks.columns(owners)
            columns = {BLOCK_NUMBER: number, BLOCK_TIME: time}
            columns |= {column: above[link] for link in place.links for column in [link[1]]}
            for name, column in place.names.items():
                values = bytes_as_text(row.columns[name], self.bytes_encoding)
                conversion = place.table.conversions.get(column)
                columns[column] = as_number(values, conversion, column) if conversion else values
            schema = place.table.schema
            tables[place.table.name].append(
                pa.table([columns[field.name] for field in schema], schema=schema)
            )
            wanted = self._walk.links
            above = dict(above) | {
                (place.table.name, name): columns[name]
                for table, name in wanted
                if table == place.table.name and name in columns
            }
        for key, (inside, rows, inner) in row.tables.items():
            taken = pa.array(rows)
            below = {link: values.take(taken) for link, values in above.items()}
            self._read(tuple(key.split("/")), inside, inner, owners[rows], below, blocks, tables)


class _Walk:
    """The message type, walked once: its plan, and the table at every place."""

    def __init__(self, root: Descriptor, encoding: BytesEncoding) -> None:
        self._encoding = encoding
        self._annotated = _has_tables(root, frozenset()) or _table_of(root) is not None
        self.places: dict[tuple[str, ...], _Place] = {}
        self.links: set[tuple[str, str]] = set()
        self._called: dict[str, str] = {}  # messages without annotations, by their tables
        self.plan = plan_message(root, self._split)
        self._visit((), root, self.plan, ())
        if not self.places:
            raise RelationalSchemaError("the message has no table", type=root.full_name)

    def _split(self, field_: FieldDescriptor, path: tuple[str, ...]) -> str | None:
        message = field_.message_type
        assert message is not None, "only messages become tables"
        if _column_of(field_).inline:
            return None
        if not self._annotated:
            return "/".join(path) if field_.is_repeated else None
        inside = _table_of(message) is not None
        walked = field_.is_repeated and _has_tables(message, frozenset())
        return "/".join(path) if inside or walked else None

    def _visit(
        self,
        path: tuple[str, ...],
        message: Descriptor,
        plan: MessagePlan,
        above: tuple[RelationalTable, ...],
    ) -> None:
        options = _table_of(message)
        if options is None and not self._annotated and plan.shown:
            known = self._called.setdefault(message.name, message.full_name)
            if known != message.full_name:
                raise RelationalSchemaError(
                    "two messages without annotations make one table",
                    table=message.name,
                    messages=f"{known}, {message.full_name}",
                )
            options = SCHEMA_CLASSES["Table"](name=message.name)
        if options is not None:
            place = self._place(message, plan, options, above)
            self.places[path] = place
            above = (*above, place.table)
        for key, inner, plan_below in _below(message, plan):
            self._visit(key, inner, plan_below, above)

    def _place(
        self,
        message: Descriptor,
        plan: MessagePlan,
        options: Any,
        above: tuple[RelationalTable, ...],
    ) -> _Place:
        name = options.name or message.name
        annotations = {field_.name: _column_of(field_) for field_ in message.fields}
        shown = plan.shown
        names = {column.name: annotations[column.name].name or column.name for column in shown}
        conversions = {
            names[column.name]: kind
            for column in shown
            if (kind := _conversion(name, column, annotations[column.name]))
        }
        fields = {
            names[column.name]: self._field(column, names[column.name], conversions)
            for column in shown
        }
        references, links = self._parent(name, options, above, fields)
        ours = [above_field(above, link) for link in links]
        every = [*_OURS, *ours, *fields.values()]
        _refuse_twice(name, [*(field.name for field in (*_OURS, *ours)), *names.values()])
        key = tuple(names[column.name] for column in shown if annotations[column.name].primary_key)
        for column in shown:
            if annotations[column.name].primary_key and (column.many or column.inner is not None):
                raise RelationalSchemaError(
                    "a list or a message cannot be a key", table=name, field=column.name
                )
        for column in shown:
            target = annotations[column.name].foreign_key
            if target:
                other, columns = _parse_reference(name, target)
                references.append(Reference((names[column.name],), other, columns))
        schema = pa.schema([
            field.with_nullable(False) if field.name in key else field for field in every
        ])  # fmt: skip
        table = RelationalTable(
            name,
            schema,
            key,
            tuple(names[column.name] for column in shown if annotations[column.name].unique),
            tuple(references),
            conversions,
            _clickhouse(name, options.clickhouse_table_options, schema.names),
        )
        return _Place(table, names, tuple(links))

    def _field(self, column: ColumnPlan, name: str, conversions: Mapping[str, str]) -> pa.Field:
        kind, conversion = column.type, conversions.get(name, "")
        if conversion:
            exact = decimal_of(conversion)
            item = exact if exact is not None and exact.bit_width == 128 else pa.string()
            return pa.field(name, pa.list_(item) if column.many else item, not column.many)
        if self._encoding != "raw" and kind == pa.binary():
            kind = pa.string()
        return pa.field(name, kind, column.nullable)

    def _parent(
        self,
        name: str,
        options: Any,
        above: tuple[RelationalTable, ...],
        fields: Mapping[str, pa.Field],
    ) -> tuple[list[Reference], list[tuple[str, str]]]:
        """Return what `child_of` refers to, and which columns of the row above it needs."""
        if not options.child_of:
            return [], []
        parent, columns = _parse_reference(name, options.child_of)
        table = next((table for table in reversed(above) if table.name == parent), None)
        if table is None:
            raise RelationalSchemaError(
                "the table is a child of one that it does not stand in",
                table=name,
                child_of=options.child_of,
                above=", ".join(table.name for table in above) or "none",
            )
        for column in columns:
            if column not in table.schema.names:
                raise RelationalSchemaError(
                    "the parent has no such column",
                    table=name,
                    child_of=options.child_of,
                    known=", ".join(table.schema.names),
                )
        links = [(parent, column) for column in columns if column not in fields]
        self.links.update(links)
        return [Reference(columns, parent, columns)], links


def above_field(above: Sequence[RelationalTable], link: tuple[str, str]) -> pa.Field:
    """Return a column of a table above, which a row below repeats."""
    table = next(table for table in reversed(above) if table.name == link[0])
    return table.schema.field(link[1]).with_nullable(False)


def _below(
    message: Descriptor, plan: MessagePlan
) -> Iterable[tuple[tuple[str, ...], Descriptor, MessagePlan]]:
    """Yield the places right below a row, also within embedded messages."""
    for column in plan.columns:
        inner = message.fields_by_name[column.name].message_type
        if column.inner is None or inner is None:
            continue
        if column.table is not None:
            yield tuple(column.table.split("/")), inner, column.inner
        elif not column.many:
            yield from _below(inner, column.inner)


def _table_of(message: Descriptor) -> Any | None:
    options = SCHEMA_CLASSES["MessageOptions"].FromString(message.GetOptions().SerializeToString())
    return options.table if options.HasField("table") else None


def _column_of(field_: FieldDescriptor) -> Any:
    return SCHEMA_CLASSES["FieldOptions"].FromString(field_.GetOptions().SerializeToString()).field


def _has_tables(message: Descriptor, above: frozenset[str]) -> bool:
    """Tell whether a message that is below this one, at any depth, is a table."""
    if message.full_name in above:
        return False
    inside = [field_.message_type for field_ in message.fields if field_.message_type is not None]
    return any(
        _table_of(inner) is not None or _has_tables(inner, above | {message.full_name})
        for inner in inside
    )


def _parse_reference(table: str, text: str) -> tuple[str, tuple[str, ...]]:
    """Read `other on column`; several columns are separated by commas."""
    other, separator, columns = text.partition(" on ")
    names = tuple(name.strip() for name in columns.split(","))
    if not separator or not other.strip() or not all(names):
        raise RelationalSchemaError(
            "a reference is written `table on column`", table=table, got=repr(text)
        )
    return other.strip(), names


def _refuse_twice(table: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RelationalSchemaError("columns have one name", table=table, columns=", ".join(twice))


def _conversion(table: str, column: ColumnPlan, annotation: Any) -> str:
    which = annotation.convert_to.WhichOneof("message")
    if which is None:
        return ""
    if column.type not in (pa.string(), pa.list_(pa.field("item", pa.string(), False))):
        raise RelationalSchemaError(
            "only texts are converted", table=table, field=column.name, type=column.type
        )
    if not which.startswith("decimal"):
        return str(which)
    scale, digits = getattr(annotation.convert_to, which).scale, 38 if which == "decimal128" else 76
    if not 0 <= scale <= digits:
        raise RelationalSchemaError(
            "a scale is out of range", table=table, field=column.name, scale=scale, digits=digits
        )
    return f"{which}({scale})"


def _clickhouse(table: str, options: Any, names: Sequence[str]) -> ClickHouseOptions:
    def checked(name: str, function: int) -> str:
        if name not in names or function >= len(FUNCTIONS):
            raise RelationalSchemaError(
                "ClickHouse options name an unknown column or function",
                table=table,
                column=name,
                function=function,
                known=", ".join(names),
            )
        quoted = "`{}`".format(name.replace("`", "``"))
        return f"{FUNCTIONS[function]}({quoted})" if function else quoted

    return ClickHouseOptions(
        tuple(
            checked(order.name, order.function) + (" DESC" if order.descending else "")
            for order in options.order_by_fields
        ),
        tuple(checked(part.name, part.function) for part in options.partition_fields),
        tuple(
            (
                index.name,
                checked(index.field_name, index.function),
                INDEX_TYPES[min(index.type, len(INDEX_TYPES) - 1)],
                index.granularity or 1,
            )
            for index in options.index_fields
        ),
    )


def _check_references(tables: Mapping[str, RelationalTable]) -> None:
    for table in tables.values():
        for reference in table.references:
            other = tables.get(reference.table)
            if other is None or any(name not in other.schema.names for name in reference.others):
                raise RelationalSchemaError(
                    "a reference leads nowhere",
                    table=table.name,
                    to=f"{reference.table} on {', '.join(reference.others)}",
                    known=", ".join(tables),
                )


def _in_order(tables: Mapping[str, RelationalTable]) -> list[RelationalTable]:
    """Return tables after those they refer to; of a circle, in the order of the message."""
    done: dict[str, RelationalTable] = {}

    def visit(name: str, above: frozenset[str]) -> None:
        if name in done or name in above:
            return
        for reference in tables[name].references:
            visit(reference.table, above | {name})
        done[name] = tables[name]

    for name in tables:
        visit(name, frozenset())
    return list(done.values())
