"""Raw tables: the items of one entity as the chain has them, in typed columns.

Made by `evm.transactions`, `solana.balances` and so on, or by name (`"bitcoin.outputs"`) where only
text is at hand: Spark's options, files. Values, made on the driver, pickled to executors, never
changed; the same lines give the same rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange, Ranges, RangeSpec, parse_ranges
from headwater.core.several import Several
from headwater.decode.columns.buffers import fixed_width_array, lists_of
from headwater.decode.columns.field_columns import (
    HEADER,
    check_decimals,
    column_field,
    column_name,
    decimal_type,
)
from headwater.decode.columns.malformed import MalformedRowsError
from headwater.decode.columns.row_filter import (
    fields_to_check,
    refuse_absent,
    refuse_missing_filter_fields,
    select_rows,
)
from headwater.decode.columns.transaction_names import (
    check_name,
    look_up_transactions,
    transaction_name,
)
from headwater.decode.columns.wire_columns import as_decimals, convert
from headwater.decode.lines.block_lines import HEADER_FIELDS
from headwater.decode.lines.entities import Entities, stored_name
from headwater.decode.lines.logs import TOPICS
from headwater.decode.output import DecodedRows
from headwater.decode.tables.table_definitions import TABLE_DEFINITIONS, TableDefinition
from headwater.errors import BlockContentError, QueryError
from headwater.query import EVM, QUERIES, Field, Filter, Network, Query

Fields: TypeAlias = Several[str] | None
"""Fields of a raw table; None for those that docs/schema.md calls default."""

_PREFIX = np.frombuffer(b"0x", np.uint8)


@dataclass(frozen=True, slots=True)
class TableOutput:
    """The items of one entity that match one filter. `columns` are fields; `decimals` some of them.

    Columns: those of the block, those that name the item, then the chosen fields, all as
    docs/schema.md lists them. `name` is that of the function that made it.
    """

    name: str
    query: Query
    ranges: tuple[RangeSpec, ...]
    columns: tuple[Field, ...]
    decimals: frozenset[str] = frozenset()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        network, fields = self.query.network, list(HEADER_FIELDS)
        if self._definition.joined:
            fields.append(pa.field(transaction_name(network).column, pa.string()))
        for field in self.columns:
            name = column_name(network, self.entity, field.name)
            fields.append(column_field(name, field, as_decimal=field.name in self.decimals))
        return pa.schema(fields)

    @property
    def entity(self) -> str:
        """The kind of its items, in the wire's name."""
        return self._definition.entity

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return the items that match this output's own filter in its own ranges.

        Raises:
            BlockContentError: a field that was selected is absent or malformed.
        """
        schema, batches = self.schema, []
        for batch in entities[self.entity].to_batches():
            chosen = select_rows(batch, self.query.network, self._own_filter, ranges)
            if chosen.num_rows:
                batches.append(
                    pa.RecordBatch.from_arrays(self._arrays(chosen, entities), schema=schema)
                )
        return DecodedRows(pa.Table.from_batches(batches, schema=schema))

    @property
    def _definition(self) -> TableDefinition:
        return TABLE_DEFINITIONS[self.query.network.type][self.name]

    @property
    def _own_filter(self) -> Filter | None:
        """What items must match; those that come by a flag alone need not be filtered."""
        if not self.query.filters or self._definition.flag is not None:
            return None
        return self.query.filters[0]

    def _arrays(self, batch: pa.RecordBatch, entities: Entities) -> list[pa.Array]:
        arrays = [batch.column(name) for name in HEADER]
        try:
            refuse_missing_filter_fields(batch, self.query.network, self._own_filter)
            if self._definition.joined:
                arrays.append(self._transactions(batch, entities))
            return arrays + [self._array(batch, field) for field in self.columns]
        except MalformedRowsError as error:
            raise self._explain(batch, error) from None

    def _transactions(self, batch: pa.RecordBatch, entities: Entities) -> pa.Array:
        """Return what names the transaction of each item."""
        network = self.query.network
        name = transaction_name(network)
        own = name.own_index if self.entity == name.entity else name.item_index
        names = look_up_transactions(batch, entities[name.entity], name.field, name.own_index, own)
        return check_name(network, names)

    def _array(self, batch: pa.RecordBatch, field: Field) -> pa.Array:
        refuse_absent(batch, field)
        converted = convert(field, wire_column(batch, field))
        return as_decimals(converted, field.name) if field.name in self.decimals else converted

    def _explain(self, batch: pa.RecordBatch, error: MalformedRowsError) -> BlockContentError:
        row = batch.slice(int(error.rows.min()), 1)
        facts = {"block": row.column("block_number")[0].as_py()}
        network = self.query.network
        for field in network.entity(self.entity).fields:
            known = {field.wire, field.name} & set(row.schema.names)  # scanned logs have our names
            if field.name in self._definition.identity and known:
                name = column_name(network, self.entity, field.name)
                facts[name] = row.column(known.pop())[0].as_py()
        what = network.entity(self.entity).name
        article = "an" if what[0] in "aeiou" else "a"
        return BlockContentError(f"{article} {what} is malformed: {error.reason}", **facts)


def make_table(
    build: type[Query],
    name: str,
    fields: Fields,
    filters: Mapping[str, object],
    block_range: Ranges,
    decimals: Iterable[str] = (),
) -> TableOutput:
    """Return a raw table. Called by the functions of `evm`, `solana` and so on, by their names.

    Raises:
        QueryError: a field or a filter is not known, or a value is of the wrong kind.
        ParameterError: `decimals` names a column that cannot be one.
        InvalidRangeError: the range cannot be understood.
    """
    network = build.network
    definition = TABLE_DEFINITIONS[network.type][name]
    empty = build(include_all_blocks=definition.family is None)
    entity = network.entity(definition.entity)
    known = {field.name: field for field in entity.fields}
    columns = _columns(network, definition, known, fields)
    able = {field.name for field in columns if decimal_type(field) is not None}
    asked = check_decimals(decimals, able, "these columns")
    query = empty
    if definition.family is None:
        query = empty.add_fields(block=[field.name for field in columns])
    else:
        family = next(family for family in network.families if family.name == definition.family)
        flags = {relation.name for relation in family.relations} & filters.keys()
        if flags:
            raise QueryError(
                f"a table holds one kind of item; {', '.join(sorted(flags))} brings others, which "
                "are outputs of their own"
            )
        probe = empty.add_filter(definition.family, **filters)
        selected = {field.name for field in columns} | set(
            fields_to_check(network, probe.filters[0])
        )
        if network is EVM and definition.entity == "log":
            selected = set(known)  # with all six of them, the fast reader serves
        query, filters = _join_transactions(empty, definition, filters)
        query = query.add_fields(**{entity.name: sorted(selected)})
        query = query.add_filter(definition.family, **filters)
    return TableOutput(name, query, parse_ranges(block_range), columns, asked)


def _columns(
    network: Network, definition: TableDefinition, known: Mapping[str, Field], fields: Fields
) -> tuple[Field, ...]:
    if isinstance(fields, str):
        raise QueryError("fields is a list of names", got=repr(fields))
    columns = {column_name(network, definition.entity, name): name for name in known}
    chosen = [
        name if name in known else columns.get(name, name)
        for name in (definition.default if fields is None else fields)
    ]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise QueryError(
            f"{definition.entity} has no field {unknown[0]!r}", valid=", ".join(sorted(known))
        )
    names = dict.fromkeys([*definition.identity, *chosen])
    return tuple(
        known[name] for name in names if column_name(network, definition.entity, name) not in HEADER
    )


def _join_transactions(
    query: Query, definition: TableDefinition, filters: Mapping[str, object]
) -> tuple[Query, dict[str, object]]:
    """Ask for the transactions of items, by index and name, where the table looks names up."""
    flags = {} if definition.flag is None else {definition.flag: True}
    if not definition.joined:
        return query, {**filters, **flags}
    name = transaction_name(query.network)
    owner = query.network.entity(name.entity)
    own = {field.wire: field.name for field in owner.fields}
    query = query.add_fields(**{owner.name: [own[name.own_index], own[name.field]]})
    flags = {} if definition.entity == owner.wire else {owner.name: True}
    return query, {**filters, **flags}


def wire_column(batch: pa.RecordBatch, field: Field) -> pa.Array:
    """Return the wire form of a field; of the scanned table of EVM logs too."""
    if "topic0" not in batch.schema.names:
        return batch.column(stored_name(field))
    if field.wire == "topics":
        return _topic_lists(batch)
    return batch.column(field.name)


def _topic_lists(batch: pa.RecordBatch) -> pa.ListArray:
    slots = [batch.column(f"topic{slot}") for slot in range(TOPICS)]
    present = np.stack([pc.is_valid(slot).to_numpy(zero_copy_only=False) for slot in slots], axis=1)
    counts = present.sum(axis=1)
    firsts = np.cumsum(present.sum(axis=0)) - present.sum(axis=0)
    within = np.cumsum(present, axis=0) - 1
    order = (within + firsts)[present]  # row by row, where each topic stands among all
    digits = pa.concat_arrays([slot.drop_null() for slot in slots]).take(pa.array(order))
    raw = np.frombuffer(digits.buffers()[2] or b"", np.uint8)[: 64 * len(digits)]
    text = np.empty((len(digits), 66), np.uint8)
    text[:, :2], text[:, 2:] = _PREFIX, raw.reshape(-1, 64)
    return lists_of(fixed_width_array(pa.string(), text), counts)


def named_table(
    name: str,
    *,
    fields: Fields = None,
    filters: Mapping[str, object] | None = None,
    range: Ranges = None,
    decimals: Iterable[str] = (),
) -> TableOutput:
    """Return the raw table that the function of this name would: `tron.logs`, `evm.blocks`.

    Raises:
        QueryError: there is no such table, field or filter, or a value is of the wrong kind.
        ParameterError: `decimals` names a column that cannot be one.
        InvalidRangeError: the range cannot be understood.
    """
    network, _, table = name.partition(".")
    build = QUERIES.get(network)
    if build is None or table not in TABLE_DEFINITIONS[build.network.type]:
        tables = (f"{network}.{name}" for network, query in QUERIES.items()
                  for name in TABLE_DEFINITIONS[query.network.type])  # fmt: skip
        raise QueryError(f"there is no table {name!r}", valid=", ".join(tables))
    return make_table(build, table, fields, filters or {}, range, decimals)
