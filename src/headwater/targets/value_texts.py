"""Checks of texts and bytes: the character 0, lengths, keys, numbers, JSON.

`Check` says what a check is. Everything is done in whole columns; only values that are replaced may
become Python objects, one by one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
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
_JSON_DIGITS = 10_000  # PostgreSQL has 16,383 behind the point
_JSON_DEPTH = 500
_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUL_ESCAPE = r"(^|[^\\])((?:\\\\)*)\\u0000"
_ZEROS = {
    Form.INTEGER: "0", Form.DECIMAL: "0", Form.BYTES: "0x", Form.JSON: "null",
    Form.UUID: "00000000-0000-0000-0000-000000000000",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """What one column is looked through for: `wrong` marks values, `mend` returns others instead.

    `wrong` returns None if there are none, and marks nulls of lists and structures alone. `mend` is
    given marked values alone; what it cannot replace is null.
    """

    wrong: Callable[[pa.Array], pa.Array | None]
    mend: Callable[[pa.Array], pa.Array]


def some(marks: Any) -> pa.Array | None:
    """Return marks if one is set; null is not."""
    return pc.fill_null(marks, False) if pc.any(marks, min_count=0).as_py() else None


def nulls(values: pa.Array) -> pa.Array:
    """Return as many nulls."""
    return pa.nulls(len(values), values.type)


def either(marks: Any, more: Any) -> Any:
    """Return marks of either kind."""
    return more if marks is None else pc.or_(marks, more)


def without_null(check: Check | None, mend: Callable[[pa.Array], pa.Array]) -> Check:
    """Return a check that finds nulls, too."""

    def wrong(values: pa.Array) -> pa.Array | None:
        marks = None if check is None else check.wrong(values)
        return either(marks, pc.is_null(values)) if values.null_count else marks

    return Check(wrong, mend)


# --- text -----------------------------------------------------------------------------------------


def text_check(room: Room) -> Check | None:
    """Return how texts are checked; None if the column can hold all of them."""
    check = _form_check(room)
    if not room.fills or room.form in (Form.TEXT, Form.ANY) or check is None:
        return check

    return without_null(check, check.mend)


def _form_check(room: Room) -> Check | None:
    if room.form in (Form.INTEGER, Form.DECIMAL):
        return Check(lambda values: _wrong_numbers(values, room), lambda v: _mend_numbers(v, room))
    if room.width is not None:
        return Check(lambda values: _wrong_width(values, room.width), nulls)
    pattern = room.pattern or _TEXT_FORMS.get(room.form)
    if pattern:
        return Check(lambda v: some(pc.invert(pc.match_substring_regex(v, pattern))), nulls)
    if room.form is Form.JSON:
        return Check(_wrong_json, _mend_json)
    if room.form is Form.OBJECT:
        return Check(_wrong_objects, nulls)
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
        marks = either(marks, pc.greater(pc.binary_length(values), room.size))
    if room.length is not None and (pc.max(pc.binary_length(values)).as_py() or 0) > room.length:
        marks = either(marks, pc.greater(pc.utf8_length(values), room.length))
    if room.unique and pc.any(pc.match_substring(values, MARK), min_count=0).as_py():
        marks = either(marks, pc.match_substring_regex(values, _MARKED))
    return None if marks is None else some(marks)


def _holds_nul(values: pa.Array) -> bool:
    """Tell at a glance whether the bytes of a column may hold a zero."""
    offsets = np.frombuffer(values.buffers()[1] or bytes(8), np.int32)
    first, last = offsets[values.offset], offsets[values.offset + len(values)]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[first:last]
    return bool(len(data)) and not data.all()


def _mend_texts(values: pa.Array, room: Room) -> pa.Array:
    clean = pc.replace_substring(values, "\0", INSTEAD)
    if room.unique:
        digests = [hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
                   for text in values.to_pylist()]  # fmt: skip
        ends = pa.array([MARK + digest for digest in digests], values.type)
        taken = len(MARK.encode()) + 32, len(MARK) + 32
        size = None if room.size is None else max(room.size - taken[0], 0)
        length = None if room.length is None else max(room.length - taken[1], 0)
        return pc.binary_join_element_wise(_cut(clean, size, length), ends, "")
    return _cut(clean, room.size, room.length)


def bytes_check(room: Room) -> Check | None:
    """Return how bytes are checked."""
    if room.width is not None:
        return Check(lambda values: _other_width(values, room.width), nulls)
    if not room.unique or room.size is None:
        return None
    return Check(lambda values: _wrong_bytes(values, room), lambda v: _mend_bytes(v, room))


def _other_width(values: pa.Array, width: int | None) -> pa.Array | None:
    return some(pc.not_equal(pc.binary_length(values), width))


def _wrong_width(values: pa.Array, width: int | None) -> pa.Array | None:
    """Mark texts that are neither so many bytes nor `0x` and twice as many digits."""
    marks = _other_width(values, width)
    if marks is None:
        return None
    pattern = f"^0x([0-9a-fA-F]{{{2 * width}}})$" if width and width < 500 else "^0x"  # RE2's limit
    return some(pc.and_not(marks, pc.match_substring_regex(values, pattern)))


def zeros(values: pa.Array, room: Room) -> pa.Array:
    """Return values without nulls: what stands for none where a column cannot be null."""
    if not values.null_count or pa.types.is_nested(values.type):
        return values
    zero: object = 0
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        zero = bytes(room.width or 0)
    elif pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        zero = "0x" + "00" * room.width if room.width else _ZEROS.get(room.form, room.zero)
    return pc.fill_null(values, pa.scalar(zero, values.type))


def _wrong_bytes(values: pa.Array, room: Room) -> pa.Array | None:
    """Mark bytes of a key that are too long, and those that end like a replacement."""
    marks = pc.greater(pc.binary_length(values), room.size)
    ends = pc.binary_slice(values, -_DIGEST - len(_MARK), -_DIGEST)
    return some(pc.or_(marks, pc.equal(ends, pa.scalar(_MARK, values.type))))


def _mend_bytes(values: pa.Array, room: Room) -> pa.Array:
    assert room.size is not None, "bytes are looked at where they may be too long"
    kept = room.size - len(_MARK) - _DIGEST
    cut = [
        value[:kept] + _MARK + hashlib.blake2b(value, digest_size=_DIGEST).digest()
        for value in values.to_pylist()
    ]
    return pa.array(cut, values.type)


def _cut(values: pa.Array, size: int | None, length: int | None) -> pa.Array:
    """Return texts cut to so many bytes and characters."""
    if length is not None:
        values = pc.utf8_slice_codeunits(values, 0, length)
    if size is None:
        return values
    cut = [text.encode()[:size].decode(errors="ignore") for text in values.to_pylist()]
    return pa.array(cut, values.type)


def _wrong_json(values: pa.Array) -> pa.Array | None:
    """Mark texts that are no JSON, or hold what a database cannot keep as text."""
    marks = [text is not None and not _is_json(text) for text in values.to_pylist()]
    wrong = pc.or_(pa.array(marks, pa.bool_()), pc.match_substring_regex(values, _NUL_ESCAPE))
    return some(wrong)


def _float(text: str) -> float:
    """Refuse a number with more digits than a database has room for."""
    digits, _, exponent = text.lower().partition("e")
    exponent = exponent.lstrip("+-0")
    if len(exponent) > 4 or len(digits) + int(exponent or 0) > _JSON_DIGITS:
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
    documents = []
    for text in values.to_pylist():
        clean, count = text, 1
        while count:
            clean, count = re.subn(_NUL_ESCAPE, rf"\g<1>\g<2>{INSTEAD}", clean)
        fits = _is_json(clean) and not re.search(_NUL_ESCAPE, clean)
        documents.append(clean if fits else json.dumps(clean.replace("\0", INSTEAD)))
    return pa.array(documents, values.type)


def _wrong_objects(values: pa.Array) -> pa.Array | None:
    """Mark texts that are no objects of JSON, or objects of which ClickHouse makes no columns."""
    return some(pa.array([text is None or not _is_object(text) for text in values.to_pylist()]))


class _Paths(set[str]):
    """The paths of an object. Raises ValueError if two values have the same."""

    @classmethod
    def of(cls, pairs: list[tuple[str, object]]) -> _Paths:
        all_paths = cls()
        for name, value in pairs:
            inner = value if isinstance(value, _Paths) else ()
            paths = {name, *(f"{name}.{path}" for path in inner)}
            if all_paths & paths:
                raise ValueError("a path stands twice")
            all_paths |= paths
        return all_paths


def _no_number(text: str) -> object:
    raise ValueError(f"no number: {text}")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else float(str(_no_number(text)))


def _is_object(text: str) -> bool:
    bare = _JSON_TEXT.sub("", text)
    depths = itertools.accumulate((character in "{[") - (character in "}]") for character in bare)
    if max(depths, default=0) > _JSON_DEPTH:
        return False
    read = partial(json.loads, parse_float=_finite, parse_constant=_no_number)
    try:
        if "\\u" in text:
            json.dumps(read(text), ensure_ascii=False).encode()  # half a character is none
        return isinstance(read(text, object_pairs_hook=_Paths.of), _Paths)
    except (ValueError, RecursionError):
        return False


# --- numbers as text ------------------------------------------------------------------------------


def _wrong_numbers(values: pa.Array, room: Room) -> pa.Array | None:
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest < _digits(room.highest, room) and _all(pc.ascii_is_decimal(values)):
        return None  # digits alone, as most are
    shortest = min(_digits(room.highest, room), _digits(room.lowest, room))
    if longest < shortest and _all(pc.match_substring_regex(values, "^-?[0-9]+$")):
        return None
    malformed = pc.invert(pc.match_substring_regex(values, _NUMBER))
    parts = pc.extract_regex(values, _PARTS)
    sign, digits, rest = _texts(parts)
    marks = pc.or_(malformed, pc.greater(pc.binary_length(rest), room.scale))
    return some(pc.or_(marks, _beyond(sign, _unscaled(digits, rest, room.scale), room)))


def _texts(parts: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return sign, digits and digits behind the point; empty where there is no number."""
    names = ("sign", "whole", "rest")
    sign, digits, rest = (pc.fill_null(pc.struct_field(parts, name), "") for name in names)
    return sign, digits, rest


def _all(marks: Any) -> bool:
    return bool(pc.all(marks, min_count=0).as_py())


def _digits(limit: int | None, room: Room) -> int:
    """Return how many digits are too many at a glance; none below a limit of zero."""
    return len(str(abs(limit))) - room.scale if limit else 0


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
    if room.lowest == 0:  # where "-0" is refused
        marks = pc.or_(marks, pc.equal(sign, "-"))
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
    decimals = pc.if_else(is_number, pc.if_else(beyond, ends.cast(pa.string()), kept), nothing)
    return decimals.cast(values.type)


def _spelt(limit: int | None, room: Room) -> pa.Scalar:
    if limit is None:
        return pa.scalar(None, pa.string())
    return pa.scalar(format(scaled(limit, room.scale), "f"), pa.string())


def scaled(number: int, scale: int) -> Decimal:
    """Return an integer with a point, exactly, whatever its length."""
    sign, digits, _ = Decimal(number).as_tuple()
    return Decimal((sign, digits, -scale))
