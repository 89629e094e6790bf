"""Checks of single columns: which values have no place in a `Room`, and what stands for them.

`values.py` says when what happens. Everything is done in whole columns; only values that are
replaced may become Python objects, one by one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.rooms import Form, Room

INSTEAD = "\ufffd"
MARK = "\ufffd~"  # before the digest of a key's text
_MARK, _DIGEST = MARK.encode(), 16
_MARKED = MARK + "[0-9a-f]{32}$"
_NUMBER = r"^-?[0-9]+(\.[0-9]+)?$"
_PARTS = r"^(?P<sign>-?)0*(?P<whole>[0-9]*)(?:\.(?P<rest>[0-9]*?)0*)?$"
_TEXT_FORMS = {
    Form.BYTES: "^0x([0-9a-fA-F]{2})*$",
    Form.UUID: "^[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){4}[0-9a-fA-F]{8}$",
}
_NUL_ESCAPE = r"(^|[^\\])((?:\\\\)*)\\u0000"
_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}  # in nanoseconds


@dataclass(frozen=True, slots=True)
class Check:
    """What one column is looked through for: `wrong` marks values, `mend` returns others instead.

    `wrong` returns None if there are none, and never marks a null. `mend` is given marked values
    alone; what it cannot replace is null.
    """

    wrong: Callable[[pa.Array], pa.Array | None]
    mend: Callable[[pa.Array], pa.Array]


def check_of(kind: pa.DataType, room: Room) -> Check | None:
    """Return how values of an Arrow type are checked; None if the column can hold all of them."""
    types = pa.types
    if types.is_dictionary(kind):
        return check_of(kind.value_type, room)
    if kind == pa.string():
        return _text_check(room)
    if kind in (pa.large_string(), pa.string_view()):
        check, text = _text_check(room), pa.string()
        return check and Check(
            lambda v: check.wrong(v.cast(text)), lambda v: check.mend(v.cast(text))
        )
    if types.is_binary(kind) or types.is_large_binary(kind):
        if not room.unique or room.size is None:
            return None
        return Check(lambda v: _wrong_bytes(v, room), lambda v: _mend_bytes(v, room))
    if types.is_integer(kind):
        return _range_check(kind, room, *_type_ends(kind))
    if types.is_decimal(kind):
        most = 10**kind.precision - 1
        return _range_check(kind, room, -most, most)
    if types.is_date32(kind):
        return _range_check(kind, room, -(2**31), 2**31 - 1)
    if types.is_timestamp(kind):
        return _time_check(kind, room)
    if types.is_floating(kind) and room.finite:
        return Check(lambda values: _some(pc.invert(pc.is_finite(values))), nulls)
    if types.is_nested(kind):
        return _nested_check(kind, room)
    return None


def _some(marks: Any) -> pa.Array | None:
    """Return marks if one is set; null is not."""
    return pc.fill_null(marks, False) if pc.any(marks, min_count=0).as_py() else None


def nulls(values: pa.Array) -> pa.Array:
    """Return as many nulls."""
    return pa.nulls(len(values), values.type)


# --- text -----------------------------------------------------------------------------------------


def _text_check(room: Room) -> Check | None:
    if room.form in (Form.INTEGER, Form.DECIMAL):
        return Check(lambda values: _wrong_numbers(values, room), lambda v: _mend_numbers(v, room))
    if room.form in _TEXT_FORMS:
        pattern = _TEXT_FORMS[room.form]
        return Check(lambda v: _some(pc.invert(pc.match_substring_regex(v, pattern))), nulls)
    if room.form is Form.JSON:
        return Check(_wrong_json, _mend_json)
    limits = (room.size, room.length)
    if room.nul and limits == (None, None) and not room.unique:
        return None
    if room.form not in (Form.TEXT, Form.ANY):
        return None
    return Check(lambda values: _wrong_texts(values, room), lambda v: _mend_texts(v, room))


def _wrong_texts(values: pa.Array, room: Room) -> pa.Array | None:
    marks = None
    if not room.nul and _holds_nul(values):
        marks = pc.match_substring(values, "\0")
    if room.size is not None and (pc.max(pc.binary_length(values)).as_py() or 0) > room.size:
        marks = _either(marks, pc.greater(pc.binary_length(values), room.size))
    if room.length is not None and (pc.max(pc.binary_length(values)).as_py() or 0) > room.length:
        marks = _either(marks, pc.greater(pc.utf8_length(values), room.length))
    if room.unique and pc.any(pc.match_substring(values, MARK), min_count=0).as_py():
        marks = _either(marks, pc.match_substring_regex(values, _MARKED))
    return None if marks is None else _some(marks)


def _either(marks: Any, more: Any) -> Any:
    return more if marks is None else pc.or_(marks, more)


def _holds_nul(values: pa.Array) -> bool:
    """Tell at a glance whether the bytes of a column may hold a zero."""
    offsets = np.frombuffer(values.buffers()[1] or bytes(8), np.int32)
    first, last = offsets[values.offset], offsets[values.offset + len(values)]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[first:last]
    return bool(len(data)) and not data.all()


def _mend_texts(values: pa.Array, room: Room) -> pa.Array:
    clean = pc.replace_substring(values, "\0", INSTEAD)
    if room.unique:
        digests = [hashlib.blake2b(one.encode(), digest_size=16).hexdigest()
                   for one in values.to_pylist()]  # fmt: skip
        ends = pa.array([MARK + one for one in digests], values.type)
        taken = len(MARK.encode()) + 32, len(MARK) + 32
        size = None if room.size is None else max(room.size - taken[0], 0)
        length = None if room.length is None else max(room.length - taken[1], 0)
        return pc.binary_join_element_wise(_cut(clean, size, length), ends, "")
    return _cut(clean, room.size, room.length)


def _wrong_bytes(values: pa.Array, room: Room) -> pa.Array | None:
    """Mark bytes of a key that are too long, and those that end like a replacement."""
    marks = pc.greater(pc.binary_length(values), room.size)
    ends = pc.binary_slice(values, -_DIGEST - len(_MARK), -_DIGEST)
    return _some(pc.or_(marks, pc.equal(ends, pa.scalar(_MARK, values.type))))


def _mend_bytes(values: pa.Array, room: Room) -> pa.Array:
    assert room.size is not None, "bytes are looked at where they may be too long"
    kept = room.size - len(_MARK) - _DIGEST
    made = [
        one[:kept] + _MARK + hashlib.blake2b(one, digest_size=_DIGEST).digest()
        for one in values.to_pylist()
    ]
    return pa.array(made, values.type)


def _cut(values: pa.Array, size: int | None, length: int | None) -> pa.Array:
    """Return texts cut to so many bytes and characters."""
    if length is not None:
        values = pc.utf8_slice_codeunits(values, 0, length)
    if size is None:
        return values
    cut = [one.encode()[:size].decode(errors="ignore") for one in values.to_pylist()]
    return pa.array(cut, values.type)


def _wrong_json(values: pa.Array) -> pa.Array | None:
    """Mark texts that are no JSON, or hold what a database cannot keep as text."""
    marks = [one is not None and not _is_json(one) for one in values.to_pylist()]
    found = pc.or_(pa.array(marks, pa.bool_()), pc.match_substring_regex(values, _NUL_ESCAPE))
    return _some(found)


def _float(text: str) -> float:
    """Refuse a number with more digits than a database has room for."""
    _, _, exponent = text.lower().partition("e")
    if exponent and len(exponent.lstrip("+-0")) > 4:
        raise ValueError("a number of too many digits")
    return 0.0


_decode_json = msgspec.json.Decoder(float_hook=_float).decode


def _is_json(text: str) -> bool:
    try:
        _decode_json(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def _mend_json(values: pa.Array) -> pa.Array:
    """Return documents without the character 0, and what is no document as a text in JSON."""
    made = []
    for one in values.to_pylist():
        clean, found = one, 1
        while found:
            clean, found = re.subn(_NUL_ESCAPE, rf"\g<1>\g<2>{INSTEAD}", clean)
        fits = _is_json(clean) and not re.search(_NUL_ESCAPE, clean)
        made.append(clean if fits else json.dumps(clean.replace("\0", INSTEAD)))
    return pa.array(made, values.type)


# --- numbers as text ------------------------------------------------------------------------------


def _wrong_numbers(values: pa.Array, room: Room) -> pa.Array | None:
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    whole = pc.match_substring_regex(values, "^-?[0-9]+$")
    if pc.all(whole, min_count=0).as_py() and longest < _digits(room):
        return None
    malformed = pc.invert(pc.match_substring_regex(values, _NUMBER))
    parts = pc.extract_regex(values, _PARTS)
    sign, digits, rest = _texts(parts)
    marks = pc.or_(malformed, pc.greater(pc.binary_length(rest), room.scale))
    return _some(pc.or_(marks, _beyond(sign, _unscaled(digits, rest, room.scale), room)))


def _texts(parts: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return sign, digits and digits behind the point; empty where there is no number."""
    names = ("sign", "whole", "rest")
    sign, digits, rest = (pc.fill_null(pc.struct_field(parts, name), "") for name in names)
    return sign, digits, rest


def _digits(room: Room) -> int:
    """Return how many digits are too many at a glance."""
    ends = [abs(one) for one in (room.lowest, room.highest) if one is not None]
    smallest = min((one for one in ends if one), default=1)
    if room.lowest == 0:
        return 0  # a sign may be wrong: look closer
    return len(str(smallest)) - room.scale


def _unscaled(digits: pa.Array, rest: pa.Array, scale: int) -> pa.Array:
    """Return numbers without their point and without zeros in front."""
    if scale:
        rest = pc.utf8_slice_codeunits(rest, 0, scale)
        digits = pc.binary_join_element_wise(digits, pc.ascii_rpad(rest, scale, "0"), "")
        digits = pc.ascii_ltrim(digits, "0")
    return digits


def _beyond(sign: pa.Array, digits: pa.Array, room: Room) -> pa.Array:
    """Mark numbers beyond the ends."""
    negative = pc.and_(pc.equal(sign, "-"), pc.greater(pc.binary_length(digits), 0))
    marks = pa.repeat(False, len(digits))
    for limit, side in ((room.highest, pc.invert(negative)), (room.lowest, negative)):
        if limit is None:
            continue
        text = str(abs(limit)) if limit else ""
        length = pc.binary_length(digits)
        more = pc.or_(
            pc.greater(length, len(text)),
            pc.and_(pc.equal(length, len(text)), pc.greater(digits, text)),
        )
        marks = pc.or_(marks, pc.and_(side, more))
    return marks


def _mend_numbers(values: pa.Array, room: Room) -> pa.Array:
    parts = pc.extract_regex(values, _PARTS)
    is_number = pc.match_substring_regex(values, _NUMBER)
    sign, digits, rest = _texts(parts)
    cut = _unscaled(digits, rest, room.scale)
    beyond = _beyond(sign, cut, room)
    ends = pc.if_else(pc.equal(sign, "-"), _spelt(room.lowest, room), _spelt(room.highest, room))
    bare = pc.if_else(pc.equal(digits, ""), "0", digits)
    kept = pc.binary_join_element_wise(sign, bare, "")
    if room.scale:
        rest = pc.utf8_slice_codeunits(rest, 0, room.scale)
        kept = pc.binary_join_element_wise(kept, pc.ascii_rpad(rest, room.scale, "0"), ".")
    nothing = pa.scalar(None, pa.string())
    made = pc.if_else(is_number, pc.if_else(beyond, ends.cast(pa.string()), kept), nothing)
    return made.cast(values.type)


def _spelt(limit: int | None, room: Room) -> pa.Scalar:
    if limit is None:
        return pa.scalar(None, pa.string())
    return pa.scalar(format(_scaled(limit, room.scale), "f"), pa.string())


def _scaled(number: int, scale: int) -> Decimal:
    """Return an integer with a point, exactly, whatever its length."""
    sign, digits, _ = Decimal(number).as_tuple()
    return Decimal((sign, digits, -scale))


# --- numbers, dates and times ---------------------------------------------------------------------


def _type_ends(kind: pa.DataType) -> tuple[int, int]:
    signed = pa.types.is_signed_integer(kind)
    top = 2 ** (kind.bit_width - signed)
    return (-top if signed else 0), top - 1


def _range_check(kind: pa.DataType, room: Room, least: int, most: int) -> Check | None:
    """Check values whose type reaches from `least` to `most`, in its own smallest unit."""
    scale = kind.scale if pa.types.is_decimal(kind) else 0
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
            marks = _either(marks, pc.greater(values, above))
        return None if marks is None else _some(marks)

    def mend(values: pa.Array) -> pa.Array:
        if below is not None:
            values = pc.if_else(pc.less(values, below), below, values)
        if above is not None:
            values = pc.if_else(pc.greater(values, above), above, values)
        return values

    if not pa.types.is_date32(kind):
        return Check(wrong, mend)
    plain = pa.int32()
    below, above = (None if one is None else one.cast(plain) for one in (below, above))
    return Check(lambda v: wrong(v.cast(plain)), lambda v: mend(v.cast(plain)).cast(kind))


def _scalar(number: int, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(kind):
        return pa.scalar(_scaled(number, kind.scale), kind)
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
        found = numbers(values)
        if not len(found):
            return None
        marks = (found < low) | (found > high)
        if step > 1:
            marks |= found % step != 0
        if not marks.any():
            return None
        return _some(pc.and_(pa.array(marks), pc.is_valid(values)))

    def mend(values: pa.Array) -> pa.Array:
        found = np.clip(numbers(values), low, high)
        return pa.array(found - found % step, pa.int64()).cast(stamp)

    return Check(wrong, mend)


# --- lists and structures -------------------------------------------------------------------------


def _nested_check(kind: pa.DataType, room: Room) -> Check | None:
    inner = room.inner
    if inner is None or pa.types.is_map(kind):
        return None
    room_of = replace(inner, inner=inner) if inner.form is Form.ANY else inner
    if pa.types.is_struct(kind):
        checks = [check_of(one.type, room_of) for one in kind]
    else:
        checks = [check_of(kind.value_type, room_of)]
    if not any(checks):
        return None
    if pa.types.is_struct(kind):
        return Check(lambda v: _wrong_fields(v, checks), lambda v: _mend_fields(v, checks))
    (item,) = checks
    assert item is not None, "there is a check"
    return Check(lambda v: _wrong_items(v, item), lambda v: _mend_items(v, item))


def _wrong_fields(values: pa.Array, checks: Sequence[Check | None]) -> pa.Array | None:
    marks = None
    for part, check in zip(values.flatten(), checks, strict=True):
        found = None if check is None else check.wrong(part)
        marks = marks if found is None else _either(marks, found)
    return marks


def _mend_fields(values: pa.Array, checks: Sequence[Check | None]) -> pa.Array:
    parts = [
        part if check is None else _mended(part, check)
        for part, check in zip(values.flatten(), checks, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=list(values.type), mask=pc.is_null(values))


def _wrong_items(values: pa.Array, check: Check) -> pa.Array | None:
    found = check.wrong(values.flatten())
    if found is None:
        return None
    marks = np.zeros(len(values), bool)
    marks[pc.list_parent_indices(values).filter(found).to_numpy()] = True
    return pa.array(marks)


def _mend_items(values: pa.Array, check: Check) -> pa.Array:
    counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    large = pa.types.is_large_list(values.type)
    maker, width = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
    items = _mended(values.flatten(), check)
    return maker.from_arrays(
        pa.array(offsets, width), items, type=values.type, mask=pc.is_null(values)
    )


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
