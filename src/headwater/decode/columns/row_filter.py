"""Applies the portal's filter on any entity again to its rows.

A batch answers the union of what all outputs asked for, and relations bring items that no filter
chose. Without this, one output's rows would appear in another's table. Some filters are about a
value inside a field, in its JSON or at a place of its list: a portal keeps such values in columns
of their own, but does not send them; so they are looked up again in what it does send.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange
from headwater.decode.columns.bytes_text import decode_base58
from headwater.decode.columns.integers import DECIMAL
from headwater.decode.columns.malformed import MalformedRowsError, refuse
from headwater.decode.columns.wire_columns import convert_valid
from headwater.decode.lines.entities import stored_name
from headwater.errors import BlockContentError
from headwater.query import Condition, Field, Filter, Network, Presence, ValueKind
from headwater.query.values import Item, snake_name

_ANY = "*"  # any item of the lists
_INTEGER = r"^[0-9]{1,38}$"


def select_rows(
    batch: pa.RecordBatch, network: Network, own: Filter | None, ranges: Sequence[BlockRange]
) -> pa.RecordBatch:
    """Return the rows of these blocks that match the filter, or that do not say whether they do.

    Called by outputs with tables of `read_entities`. Null meets no condition; but a row without a
    field that every item has is kept, for `refuse_missing_filter_fields` to name it.
    """
    if not batch.num_rows:
        return batch
    batch = keep_rows(batch, in_ranges(batch.column("block_number"), ranges))
    if own is None:
        return batch
    family = network.family(own.family)
    known = {condition.wire: condition for condition in family.conditions}
    fields = _sources(network, own)
    conditions = own.conditions if family.implied is None else (family.implied, *own.conditions)
    for (wire, value), field in zip(conditions, fields, strict=True):
        if not batch.num_rows:
            break
        values = value if isinstance(value, tuple) else (value,)
        check = _check(batch, wire, known.get(wire), values)
        missing = absent(batch, field)
        batch = keep_rows(batch, [check if missing is None else pc.or_(check, missing)])
    return batch


def refuse_missing_filter_fields(
    batch: pa.RecordBatch, network: Network, own: Filter | None
) -> None:
    """Refuse the rows that `select_rows` could not compare with the filter.

    Raises:
        MalformedRowsError: some rows lack a field that the filter is about.
    """
    for field in _sources(network, own) if own is not None else ():
        refuse_absent(batch, field)


def refuse_absent(batch: pa.RecordBatch, field: Field) -> None:
    """Refuse the rows that lack a field which every item of their kind has.

    Raises:
        MalformedRowsError: there are some.
    """
    missing = absent(batch, field)
    if missing is not None:
        refuse(missing, f"{field.name} is absent")


def absent(batch: pa.RecordBatch, field: Field) -> pa.BooleanArray | None:
    """Return which rows lack a field that every item of their kind has; None if none does."""
    if field.presence is not Presence.REQUIRED or "topic0" in batch.schema.names:
        return None  # the reader of EVM logs has looked at all of their fields
    column = batch.column(stored_name(field))
    if not column.null_count:
        return None
    missing = pc.is_null(column)
    if field.variant is not None:
        missing = pc.and_(
            missing, pc.fill_null(pc.equal(batch.column("type"), field.variant), True)
        )
    return missing if pc.any(missing).as_py() else None


def _sources(network: Network, own: Filter) -> list[Field]:
    """Return the fields that a filter is about, in the order in which it is applied."""
    family = network.family(own.family)
    known = {field.wire: field for field in network.entity(family.entity).fields}
    places = {condition.wire: condition.at[0][0] for condition in family.conditions if condition.at}
    wires = [family.implied[0]] if family.implied is not None else []
    return [known[places.get(wire, wire)] for wire in (*wires, *dict(own.conditions))]


def fields_to_check(network: Network, own: Filter) -> list[str]:
    """Return our names of the fields that must be selected to apply a filter again."""
    asked = dict(own.conditions)
    conditions = network.family(own.family).conditions
    others = {
        place[0]
        for condition in conditions
        if condition.wire in asked
        for place in condition.at[1:]
    }
    return [*(field.name for field in _sources(network, own)), *map(snake_name, others)]


def _check(
    batch: pa.RecordBatch, wire: str, condition: Condition | None, values: Sequence[Item]
) -> pa.BooleanArray:
    """Whether each row meets a condition; without one it is that of the family itself."""
    names = batch.schema.names
    if wire.startswith("topic") and wire in names:  # the scanned table of EVM logs
        return is_one_of(batch.column(wire), [str(topic)[2:].encode() for topic in values])
    if condition is None or not condition.at:
        return is_one_of(batch.column(wire), values)
    field, *keys = condition.at[0]
    column = batch.column(field)
    if condition.bound is not None:
        return _check_bound(column, condition.bound, values[0])
    if keys == [_ANY]:
        columns = [batch.column(place[0]) for place in condition.at]
        parts = [
            column.flatten() if pa.types.is_struct(column.type) else [column] for column in columns
        ]
        return reduce(pc.or_, [has_item(column, values) for part in parts for column in part])
    if keys and pa.types.is_list(column.type):
        return is_one_of(list_item(column, int(keys[0])), values)
    if keys:
        return _check_json(batch, condition, [str(value) for value in values])
    if condition.is_prefix:
        return _check_prefix(batch, [str(value)[2:] for value in values])
    return is_one_of(column, values)


def _check_bound(column: pa.StringArray, bound: str, limit: Item) -> pa.BooleanArray:
    is_number = pc.fill_null(pc.match_substring_regex(column, _INTEGER), False)
    numbers = pc.if_else(is_number, column, None).cast(DECIMAL)
    compare = pc.greater_equal if bound == "least" else pc.less_equal
    return pc.fill_null(compare(numbers, pa.scalar(limit, DECIMAL)), False)


def list_item(column: pa.ListArray, position: int) -> pa.Array:
    """Return the item at a position of each list; null where the list is shorter."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    firsts = np.cumsum(counts) - counts
    has_it = counts > position
    places = np.where(has_it, firsts + position, 0)
    items = column.flatten()
    if not len(items):
        return pa.nulls(len(column), column.type.value_type)
    return items.take(pa.array(places, mask=~has_it))


def has_item(column: pa.ListArray, values: Sequence[str | bytes | int]) -> pa.BooleanArray:
    """Whether each list holds one of these values."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    lists = np.repeat(np.arange(len(column)), counts)
    inside = np.zeros(len(column), bool)
    inside[lists[is_one_of(column.flatten(), values).to_numpy(zero_copy_only=False)]] = True
    return pa.array(inside)


def _check_prefix(batch: pa.RecordBatch, prefixes: Sequence[str]) -> pa.BooleanArray:
    """Whether instruction data begins with one of these bytes, given as hex."""
    column, rows = batch.column("data"), np.arange(batch.num_rows, dtype=np.int64)
    try:
        data = convert_valid(column, rows, decode_base58)
    except MalformedRowsError as error:
        row = batch.slice(int(error.rows.min()), 1).to_pylist()[0]
        raise BlockContentError(
            f"an instruction is malformed: {error.reason}",
            block=row["block_number"],
            transaction_index=row.get("transactionIndex"),
            instruction_address=row.get("instructionAddress"),
        ) from None
    return has_prefix(data, [bytes.fromhex(prefix) for prefix in prefixes])


def has_prefix(data: pa.BinaryArray, prefixes: Sequence[bytes]) -> pa.BooleanArray:
    """Whether each value begins with one of these bytes; null does not."""
    checks = [pc.fill_null(pc.starts_with(data, prefix), False) for prefix in prefixes]
    mask = checks[0]
    for check in checks[1:]:
        mask = pc.or_(mask, check)
    return mask


def keep_rows(batch: pa.RecordBatch, checks: Sequence[pa.BooleanArray]) -> pa.RecordBatch:
    """Return the rows that pass all checks; the batch itself if all do."""
    if not checks:
        return batch
    mask = checks[0]
    for check in checks[1:]:
        mask = pc.and_(mask, check)
    return batch if pc.all(mask, min_count=0).as_py() else batch.filter(mask)


def is_one_of(column: pa.Array, values: Sequence[str | bytes | int]) -> pa.BooleanArray:
    """Whether each value is one of these; null is none."""
    if len(values) == 1:
        return pc.fill_null(pc.equal(column, pa.scalar(values[0], column.type)), False)
    return pc.is_in(column, value_set=pa.array(values, column.type))


def in_ranges(column: pa.Int64Array, ranges: Sequence[BlockRange]) -> list[pa.BooleanArray]:
    """Return the check that numbers are in one of the ranges; none where all obviously are."""
    if not len(column):
        return []
    numbers = column.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    if any(low in block_range and high in block_range for block_range in ranges):
        return []
    inside = np.zeros(len(numbers), bool)
    for block_range in ranges:
        last = numbers <= block_range.to_block if block_range.to_block is not None else True
        inside |= (numbers >= block_range.from_block) & last
    return [pa.array(inside)]


_EXACT = (ValueKind.TEXT,)  # the others are hex, which a portal compares in lower case


def _check_json(
    batch: pa.RecordBatch, condition: Condition, wanted: Sequence[str]
) -> pa.BooleanArray:
    """Whether each row meets a condition whose values stand inside the JSON of a field.

    Raises:
        BlockContentError: a field is not the JSON that it should be.
    """
    column = batch.column(condition.at[0][0])
    items = (_parse(text, batch, row) for row, text in enumerate(column.to_pylist()))
    values = pa.array([_find(item, condition) for item in items], pa.string())
    if condition.is_prefix:
        values = pc.utf8_slice_codeunits(values, 0, len(wanted[0]))
    return is_one_of(values, wanted)


def _parse(text: str | None, batch: pa.RecordBatch, row: int) -> Any:
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        number = batch.column("block_number")[row].as_py()
        raise BlockContentError(f"JSON in a block is malformed: {error}", block=number) from None


def _find(item: Any, condition: Condition) -> str | None:
    for _, *keys in condition.at:
        value = item
        for key in keys:
            value = _step(value, key)
        if isinstance(value, str):
            return value if condition.kind in _EXACT else value.lower()
    return None


def _step(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value.get(key)
    if isinstance(value, list) and key.isdigit() and int(key) < len(value):
        return value[int(key)]
    return None
