"""Filters on values that stand inside a field: in its JSON, or at a place of its list.

A portal keeps such values in columns of their own, but does not send them; so they are looked up
again in what it does send.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode.event_filter import is_one_of
from headwater.errors import BlockContentError
from headwater.query import Condition, ValueKind
from headwater.query.values import Value

_EXACT = (ValueKind.TEXT,)  # the others are hex, which a portal compares in lower case


def check_inside(batch: pa.RecordBatch, condition: Condition, value: Value) -> pa.BooleanArray:
    """Whether each row meets a condition whose values stand where `condition.at` says.

    Raises:
        BlockContentError: a field is not the JSON that it should be.
    """
    wanted = [str(one) for one in (value if isinstance(value, tuple) else (value,))]
    field = condition.at[0][0]
    column = batch.column(field)
    if len(condition.at[0]) == 1:
        return is_one_of(column, wanted)
    if pa.types.is_list(column.type):
        items: list[Any] = column.to_pylist()
    else:
        items = [_parse(text, batch, row) for row, text in enumerate(column.to_pylist())]
    found = pa.array([_find(item, condition) for item in items], pa.string())
    if condition.is_prefix:
        found = pc.utf8_slice_codeunits(found, 0, len(wanted[0]))
    return is_one_of(found, wanted)


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
