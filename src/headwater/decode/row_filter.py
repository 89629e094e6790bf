"""The portal's filter on any entity, applied again to its rows.

A batch answers the union of what all outputs asked for, and relations bring items that nobody
filtered. Without this, one output's rows would appear in another's table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange
from headwater.decode.base58 import decode_base58
from headwater.decode.entity_structs import held_as
from headwater.decode.event_filter import in_ranges, is_one_of, keep_rows
from headwater.decode.inside import check_inside
from headwater.decode.malformed import MalformedRowsError, refuse
from headwater.decode.types import DECIMAL
from headwater.decode.wire_columns import over_valid
from headwater.errors import BlockContentError
from headwater.query import EVM, Field, Filter, Network, Presence
from headwater.query.values import Value  # the values of a checked filter

_INTEGER = r"^[0-9]{1,38}$"


def select_rows(
    batch: pa.RecordBatch, network: Network, own: Filter | None, ranges: Sequence[BlockRange]
) -> pa.RecordBatch:
    """Return the rows of these blocks that match the filter, or that do not say whether they do.

    Called by outputs with tables of `read_entities`. Null meets no condition; but a row without a
    field that every item has is kept, for `refuse_unfiltered` to name it.
    """
    if not batch.num_rows:
        return batch
    batch = keep_rows(batch, in_ranges(batch.column("block_number"), ranges))
    if own is None:
        return batch
    family = network.family(own.family)
    known = {one.wire: one for one in family.conditions}
    fields = _sources(network, own)
    conditions = own.conditions if family.implied is None else (family.implied, *own.conditions)
    for (wire, value), field in zip(conditions, fields, strict=True):
        if not batch.num_rows:
            break
        if wire in known and known[wire].at:
            check = check_inside(batch, known[wire], value)
        else:
            check = _check(batch, wire, value)
        missing = absent(batch, field)
        batch = keep_rows(batch, [check if missing is None else pc.or_(check, missing)])
    return batch


def refuse_unfiltered(batch: pa.RecordBatch, network: Network, own: Filter | None) -> None:
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
        refuse(missing.to_numpy(zero_copy_only=False), f"{field.name} is absent")


def absent(batch: pa.RecordBatch, field: Field) -> pa.BooleanArray | None:
    """Return which rows lack a field that every item of their kind has; None if none does."""
    if field.presence is not Presence.REQUIRED or "topic0" in batch.schema.names:
        return None  # the reader of EVM logs has looked at all of their fields
    column = batch.column(held_as(field))
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
    places = {one.wire: one.at[0][0] for one in family.conditions if one.at}
    wires = [family.implied[0]] if family.implied is not None else []
    for wire, _ in own.conditions:
        wires.append(places.get(wire) or _source(network, family.entity, wire))
    return [known[wire] for wire in wires]


def fields_to_check(network: Network, own: Filter) -> list[str]:
    """Return our names of the fields that must be selected to apply a filter again."""
    return [field.name for field in _sources(network, own)]


def _source(network: Network, entity: str, wire: str) -> str:
    """Return the field that a condition is about."""
    if network is EVM:
        if wire in ("firstNonce", "lastNonce"):
            return "nonce"
        return "topics" if wire.startswith("topic") else wire
    if entity == "instruction" and wire[1:].isdigit():
        return "data" if wire[0] == "d" else "accounts"
    return "accountKeys" if wire == "feePayer" else wire


def _check(batch: pa.RecordBatch, wire: str, value: Value) -> pa.BooleanArray:
    values = value if isinstance(value, tuple) else (value,)
    names = batch.schema.names
    if wire.startswith("topic") and wire in names:  # the scanned table of EVM logs
        return is_one_of(batch.column(wire), [str(one)[2:].encode() for one in values])
    if wire in ("firstNonce", "lastNonce"):
        return _check_nonce(batch.column("nonce"), wire, values[0])
    if wire in names:
        return is_one_of(batch.column(wire), values)
    if wire == "feePayer":
        return is_one_of(list_item(batch.column("accountKeys"), 0), values)
    if wire[0] == "a":
        return is_one_of(list_item(batch.column("accounts"), int(wire[1:])), values)
    return _check_prefix(batch, [str(one)[2:] for one in values])


def _check_nonce(column: pa.StringArray, wire: str, bound: object) -> pa.BooleanArray:
    is_number = pc.fill_null(pc.match_substring_regex(column, _INTEGER), False)
    numbers = pc.if_else(is_number, column, None).cast(DECIMAL)
    limit = pa.scalar(bound, DECIMAL)
    compare = pc.greater_equal if wire == "firstNonce" else pc.less_equal
    return pc.fill_null(compare(numbers, limit), False)


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


def _check_prefix(batch: pa.RecordBatch, prefixes: Sequence[str]) -> pa.BooleanArray:
    """Whether instruction data begins with one of these bytes, given as hex."""
    column, rows = batch.column("data"), np.arange(batch.num_rows, dtype=np.int64)
    try:
        data = over_valid(column, rows, decode_base58)
    except MalformedRowsError as error:
        row = batch.slice(int(error.rows.min()), 1).to_pylist()[0]
        raise BlockContentError(
            f"an instruction is malformed: {error.reason}",
            block=row["block_number"],
            transaction_index=row.get("transactionIndex"),
            instruction_address=row.get("instructionAddress"),
        ) from None
    return has_prefix(data, [bytes.fromhex(one) for one in prefixes])


def has_prefix(data: pa.BinaryArray, prefixes: Sequence[bytes]) -> pa.BooleanArray:
    """Whether each value begins with one of these bytes; null does not."""
    checks = [pc.fill_null(pc.starts_with(data, one), False) for one in prefixes]
    mask = checks[0]
    for check in checks[1:]:
        mask = pc.or_(mask, check)
    return mask
