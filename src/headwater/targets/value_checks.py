"""Checks of single columns: which values have no place in a `Room`, and what stands for them.

`values.py` says when what happens; texts and bytes have `value_texts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.rooms import DAY_US, Form, Room
from headwater.targets.value_texts import (
    Check,
    bytes_check,
    either,
    nulls,
    scaled,
    some,
    text_check,
    without_null,
    zeros,
)

_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}  # in nanoseconds


def check_of(kind: pa.DataType, room: Room) -> Check | None:
    """Return how values of an Arrow type are checked; None if the column can hold all of them."""
    types = pa.types
    if types.is_dictionary(kind):
        return _read_as(check_of(kind.value_type, room), lambda v: v.dictionary_decode())
    if kind == pa.string():
        return text_check(room)
    if kind in (pa.large_string(), pa.string_view()):
        return _read_as(text_check(room), lambda v: v.cast(pa.string()))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return bytes_check(room)
    if types.is_integer(kind):
        return _range_check(kind, room, *_type_ends(kind))
    if types.is_decimal(kind):
        most = 10**kind.precision - 1
        return _range_check(kind, room, -most, most)
    if types.is_date32(kind):
        return _range_check(kind, _days(room), -(2**31), 2**31 - 1)
    if types.is_timestamp(kind):
        return _time_check(kind, room)
    if types.is_floating(kind) and room.finite:
        return Check(lambda values: some(pc.invert(pc.is_finite(values))), nulls)
    if types.is_nested(kind):
        return _nested_check(kind, room)
    return None


def _read_as(check: Check | None, convert: Callable[[pa.Array], pa.Array]) -> Check | None:
    """Return a check of values that are converted first."""
    return check and Check(lambda v: check.wrong(convert(v)), lambda v: check.mend(convert(v)))


# --- numbers, dates and times ---------------------------------------------------------------------


def _type_ends(kind: pa.DataType) -> tuple[int, int]:
    signed = pa.types.is_signed_integer(kind)
    top = 2 ** (kind.bit_width - signed)
    return (-top if signed else 0), top - 1


def _days(room: Room) -> Room:
    """Return the room of dates among the parts of a value, whose ends are those of times."""
    if room.form is not Form.ANY or room.lowest is None or room.highest is None:
        return room
    first, last = -(-room.lowest // DAY_US), room.highest // DAY_US
    return replace(room, form=Form.DATE, lowest=first, highest=last)


def _range_check(kind: pa.DataType, room: Room, least: int, most: int) -> Check | None:
    """Check values whose type reaches from `least` to `most`, in its own smallest unit."""
    scale = kind.scale if pa.types.is_decimal(kind) else 0
    if room.days is not None and pa.types.is_date32(kind):
        room = Room(Form.DATE, *room.days)
    if room.form not in (Form.INTEGER, Form.DECIMAL, Form.DATE) or scale > room.scale:
        return None  # another kind of column: the types were compared before
    shift = 10 ** (room.scale - scale)
    low = None if room.lowest is None else -(-room.lowest // shift)
    high = None if room.highest is None else room.highest // shift
    below = None if low is None or low <= least else _scalar(low, kind)
    above = None if high is None or high >= most else _scalar(high, kind)
    if below is None and above is None:
        return None

    def wrong(values: pa.Array) -> pa.Array | None:
        ends = pc.min_max(values)
        if ends["min"].as_py() is None:
            return None
        marks = None
        if below is not None and pc.less(ends["min"], below).as_py():
            marks = pc.less(values, below)
        if above is not None and pc.greater(ends["max"], above).as_py():
            marks = either(marks, pc.greater(values, above))
        return None if marks is None else some(marks)

    def mend(values: pa.Array) -> pa.Array:
        if below is not None:
            values = pc.if_else(pc.less(values, below), below, values)
        if above is not None:
            values = pc.if_else(pc.greater(values, above), above, values)
        return values

    if not pa.types.is_date32(kind):
        return Check(wrong, mend)
    plain = pa.int32()
    below, above = (None if end is None else end.cast(plain) for end in (below, above))
    return Check(lambda v: wrong(v.cast(plain)), lambda v: mend(v.cast(plain)).cast(kind))


def _scalar(number: int, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(kind):
        return pa.scalar(scaled(number, kind.scale), kind)
    return pa.scalar(number, pa.int32()).cast(kind) if pa.types.is_date32(kind) else pa.scalar(
        number, kind
    )  # fmt: skip


def _time_check(kind: pa.DataType, room: Room) -> Check | None:
    if room.form not in (Form.TIME, Form.ANY) or room.lowest is None or room.highest is None:
        return None
    unit = _UNITS[kind.unit]
    low, high = -(-room.lowest * 1000 // unit), room.highest * 1000 // unit
    step = room.step // unit
    ends = np.iinfo(np.int64)
    if low <= ends.min and high >= ends.max and step <= 1:
        return None
    step = max(step, 1)
    low = -(-max(low, int(ends.min)) // step) * step
    high = min(high, int(ends.max)) // step * step
    stamp = pa.timestamp(kind.unit, kind.tz)

    def numbers(values: pa.Array) -> Any:
        return pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)

    def wrong(values: pa.Array) -> pa.Array | None:
        ticks = numbers(values)
        if not len(ticks):
            return None
        marks = (ticks < low) | (ticks > high)
        if step > 1:
            marks |= ticks % step != 0
        if not marks.any():
            return None
        return some(pc.and_(pa.array(marks), pc.is_valid(values)))

    def mend(values: pa.Array) -> pa.Array:
        ticks = np.clip(numbers(values), low, high)
        return pa.array(ticks - ticks % step, pa.int64()).cast(stamp)

    return Check(wrong, mend)


# --- lists and structures -------------------------------------------------------------------------


def _nested_check(kind: pa.DataType, room: Room) -> Check | None:
    inside = _inner_check(kind, room)
    if not room.required:
        return inside

    def mend(values: pa.Array) -> pa.Array:
        values = _without_nulls(values)  # their parts are null then, which may have no place either
        return _mended(values, inside) if inside else values

    return without_null(inside, mend)


def _without_nulls(values: pa.Array) -> pa.Array:
    """Return empty lists and structures of nulls instead of nulls."""
    if pa.types.is_struct(values.type):
        return pa.StructArray.from_arrays(values.flatten(), fields=list(values.type))
    return listed(values, _as_lists(values).flatten(), None)


def _inner_check(kind: pa.DataType, room: Room) -> Check | None:
    inner = room.inner
    if inner is None:
        return None
    is_of_all = inner.form is Form.ANY and inner.inner is None
    room_of = replace(inner, inner=inner) if is_of_all else inner
    if pa.types.is_struct(kind):
        fields = [check_of(field.type, room_of) for field in kind]
        if not any(fields):
            return None
        return Check(lambda v: _wrong_fields(v, fields), lambda v: _mend_fields(v, fields))
    if pa.types.is_map(kind):
        item = check_of(_entry_type(kind), replace(room_of, required=False))
    else:
        item = _item_check(kind.value_type, room_of)
    if item is None:
        return None
    return Check(lambda v: _wrong_items(v, item), lambda v: _mend_items(v, item))


def _item_check(kind: pa.DataType, room: Room) -> Check | None:
    """Check items of lists; where they cannot be null, nulls and what became null are zeros."""
    check = check_of(kind, room)
    if not room.required or (check is None and room.inner is not None):
        return check

    def mend(values: pa.Array) -> pa.Array:
        return zeros(check.mend(values) if check else values, room)

    if check is not None and room.inner is not None:  # parts of structures may be null
        return Check(check.wrong, mend)
    return without_null(check, mend)


def _wrong_fields(values: pa.Array, checks: Sequence[Check | None]) -> pa.Array | None:
    marks = None
    for part, check in zip(values.flatten(), checks, strict=True):
        wrong = None if check is None else check.wrong(part)
        marks = marks if wrong is None else either(marks, wrong)
    return marks


def _mend_fields(values: pa.Array, checks: Sequence[Check | None]) -> pa.Array:
    parts = [
        part if check is None else _mended(part, check)
        for part, check in zip(values.flatten(), checks, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=list(values.type), mask=pc.is_null(values))


def _wrong_items(values: pa.Array, check: Check) -> pa.Array | None:
    lists = _as_lists(values)
    wrong = check.wrong(lists.flatten())
    if wrong is None:
        return None
    marks = np.zeros(len(values), bool)
    marks[pc.list_parent_indices(lists).filter(wrong).to_numpy()] = True
    return pa.array(marks)


def _mend_items(values: pa.Array, check: Check) -> pa.Array:
    return listed(values, _mended(_as_lists(values).flatten(), check), pc.is_null(values))


def _entry_type(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field])


def _as_lists(values: pa.Array) -> pa.Array:
    """Return maps as lists of structures, and lists as they are."""
    is_map = pa.types.is_map(values.type)
    return values.cast(pa.list_(_entry_type(values.type))) if is_map else values


def listed(values: pa.Array, items: pa.Array, nulls: pa.Array | None) -> pa.Array:
    """Return lists or maps of the same sizes with other items; `nulls` marks what is null."""
    counts = pc.fill_null(pc.list_value_length(_as_lists(values)), 0)
    ends = np.concatenate(([0], np.cumsum(counts.to_numpy(zero_copy_only=False))))
    if pa.types.is_map(values.type):
        offsets = pa.array(ends, pa.int32())
        return pa.MapArray.from_arrays(offsets, *items.flatten(), type=values.type, mask=nulls)
    large = pa.types.is_large_list(values.type)
    maker, width = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
    kind = values.type if items.type == values.type.value_type else None
    return maker.from_arrays(pa.array(ends, width), items, type=kind, mask=nulls)


def _mended(values: pa.Array, check: Check) -> pa.Array:
    """Return a column with what is wrong in it replaced."""
    marks = check.wrong(values)
    return values if marks is None else put(values, marks, check.mend(values.filter(marks)))


def put(values: pa.Array, marks: pa.Array, others: pa.Array) -> pa.Array:
    """Return a column with others in the marked places, in their order."""
    chosen = marks.to_numpy(zero_copy_only=False)
    places = np.arange(len(values))
    places[chosen] = len(values) + np.arange(len(others))
    return pa.concat_arrays([values, others.cast(values.type)]).take(pa.array(places))
