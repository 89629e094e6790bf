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
from headwater.decode.event_filter import in_ranges, is_one_of, keep_rows
from headwater.decode.inside import check_inside
from headwater.decode.malformed import MalformedRowsError
from headwater.decode.types import DECIMAL
from headwater.decode.wire_columns import over_valid
from headwater.errors import BlockContentError
from headwater.query import EVM, Family, Network
from headwater.query.values import Value  # the values of a checked filter

_INTEGER = r"^[0-9]{1,38}$"


Conditions = Sequence[tuple[str, Value]]


def select_rows(
    batch: pa.RecordBatch,
    conditions: Conditions,
    ranges: Sequence[BlockRange],
    family: Family | None = None,
) -> pa.RecordBatch:
    """Return the rows of these blocks that meet these conditions, in wire names.

    Called by outputs with tables of `read_entities`; null meets no condition. `family` is that of
    the conditions, where it says itself where their values stand.
    """
    if not batch.num_rows:
        return batch
    batch = keep_rows(batch, in_ranges(batch.column("block_number"), ranges))
    known = {} if family is None else {one.wire: one for one in family.conditions}
    if family is not None and family.implied is not None:
        field, values = family.implied
        batch = keep_rows(batch, [is_one_of(batch.column(field), values)])
    for wire, value in conditions:
        if not batch.num_rows:
            break
        if wire in known and known[wire].at:
            batch = keep_rows(batch, [check_inside(batch, known[wire], value)])
        else:
            batch = keep_rows(batch, [_check(batch, wire, value)])
    return batch


def fields_to_check(network: Network, family: Family, conditions: Sequence[str]) -> list[str]:
    """Return our names of the fields that must be selected to re-check these conditions."""
    known = {field.wire: field.name for field in network.entity(family.entity).fields}
    places = {one.wire: one.at[0][0] for one in family.conditions if one.at}
    wires = [places.get(wire) or _source(network, family.entity, wire) for wire in conditions]
    return [known[wire] for wire in [*wires, *(family.implied or ())[:1]]]


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
