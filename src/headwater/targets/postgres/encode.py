"""Arrow columns in the binary form of COPY, a column at a time: no value becomes a Python object.

A row of binary COPY is a count of fields, then a length and the bytes of each. Lengths and bytes of
a column are made with NumPy, and one join of Arrow's puts the columns of all rows in place. Runs on
the driver and on executors. A value that the type cannot hold exactly is an error, never rounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import PostgresTableError

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
CHUNK_ROWS = 16_384
INTEGERS = {"smallint": (np.dtype(">i2"), 16), "integer": (np.dtype(">i4"), 32)}
INTEGERS["bigint"] = (np.dtype(">i8"), 64)
_EPOCH_DAYS = 10_957  # PostgreSQL counts from 2000-01-01
_EPOCH_US = _EPOCH_DAYS * 86_400_000_000
_OIDS = {
    "boolean": 16, "bytea": 17, "bigint": 20, "smallint": 21, "integer": 23, "text": 25,
    "real": 700, "double precision": 701, "character varying": 1043, "date": 1082,
    "timestamp without time zone": 1114, "timestamp with time zone": 1184, "numeric": 1700,
}  # fmt: skip

Pieces = list[pa.Array]
Encoder = Callable[[pa.Array], Pieces]


def encoder(kind: pa.DataType, target: str) -> Encoder | None:
    """Return what writes values of an Arrow type into a column of this type; None: cannot."""
    if pa.types.is_dictionary(kind):
        inner = encoder(kind.value_type, target)
        return None if inner is None else lambda values: inner(values.dictionary_decode())
    if pa.types.is_null(kind):
        return _nulls
    if target.endswith("[]"):
        return _list_encoder(kind, target.removesuffix("[]"))
    if is_text(kind):
        return _TEXT_TO.get(target)
    if pa.types.is_integer(kind):
        if target == "numeric":
            return lambda values: _numeric(values.cast(pa.string()), 0)
        return _integer_encoder(target) if target in INTEGERS else None
    if pa.types.is_decimal(kind):
        return (lambda values: _numeric(_unscaled(values), kind.scale)) if (
            target == "numeric" and kind.scale >= 0
        ) else None  # fmt: skip
    if pa.types.is_timestamp(kind):
        wanted = "timestamp with time zone" if kind.tz else "timestamp without time zone"
        return _timestamps if target == wanted else None
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _documents if target in ("jsonb", "json") else None
    return _PLAIN.get((_family(kind), target))


def encode(batches: Iterable[pa.RecordBatch], encoders: Sequence[Encoder]) -> Iterator[memoryview]:
    """Yield rows as binary COPY takes them between its header and trailer, thousands at a time."""
    count = pa.scalar(len(encoders).to_bytes(2), pa.binary())
    for whole in batches:
        for start in range(0, whole.num_rows, CHUNK_ROWS):
            batch = whole.slice(start, CHUNK_ROWS)
            pieces: list[Any] = [count]
            for name, column, encoder in zip(
                batch.schema.names, batch.columns, encoders, strict=True
            ):
                try:
                    pieces += encoder(column)
                except (pa.ArrowInvalid, ValueError, OverflowError) as error:
                    raise PostgresTableError(
                        "a value does not fit its column", column=name, reason=error
                    ) from error
            rows = pc.binary_join_element_wise(*pieces, b"")
            yield memoryview(rows.buffers()[2])


# --- pieces ---------------------------------------------------------------------------------------


def _fixed(matrix: Any, values: pa.Array) -> Pieces:
    """Return values of one width: a row of bytes each. What stands for a null is left out."""
    rows, width = matrix.shape
    if not values.null_count:
        whole = np.empty((rows, 4 + width), np.uint8)
        whole[:, :4] = np.frombuffer(int(width).to_bytes(4, "big"), np.uint8)
        whole[:, 4:] = matrix
        return [_binary(whole)]
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.where(valid, width, -1).astype(">i4")
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.where(valid, width, 0), out=offsets[1:])
    return [_binary(_bytes_of(lengths)), _binary(matrix[valid], offsets)]


def _ragged(values: pa.Array) -> Pieces:
    """Return values of any length."""
    values = values.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
    filled = pc.fill_null(values, b"") if values.null_count else values
    return [_binary(_bytes_of(lengths.astype(">i4"))), filled]


def _binary(data: Any, offsets: Any = None) -> pa.Array:
    """Return bytes, one value per row of a matrix unless it is said where values begin."""
    if offsets is None:
        rows, width = data.shape
        offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)[: rows + 1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _bytes_of(values: Any) -> Any:
    """Return numbers in network order as a row of bytes each."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def _numbers(values: pa.Array, default: object = 0) -> Any:
    filled = pc.fill_null(values, default) if values.null_count else values
    return filled.to_numpy(zero_copy_only=False)


# --- types ----------------------------------------------------------------------------------------


def _nulls(values: pa.Array) -> Pieces:
    return [_binary(np.full((len(values), 4), 255, np.uint8))]


def _integer_encoder(target: str) -> Encoder:
    kind, bits = INTEGERS[target]

    def write(values: pa.Array) -> Pieces:
        exact = values.cast(getattr(pa, f"int{bits}")())  # raises where it would overflow
        return _fixed(_bytes_of(_numbers(exact).astype(kind)), values)

    return write


def _numeric(digits: pa.Array, scale: int) -> Pieces:
    """Write integers in decimal text as numeric: groups of four digits; `scale` of them fraction.

    Zeros that fill up the first group are stripped by the server.
    """
    nulls = digits
    digits = pc.fill_null(digits, "0") if digits.null_count else digits
    negative = pc.starts_with(digits, "-").to_numpy(zero_copy_only=False)
    if negative.any():
        digits = pc.replace_substring(digits, "-", "", max_replacements=1)
    places = -(-scale // 4)
    if scale % 4:
        digits = pc.binary_join_element_wise(digits, "0" * (4 - scale % 4), "")
    longest = pc.max(pc.binary_length(digits)).as_py() or 1
    groups = max(-(-longest // 4), places)
    padded = pc.ascii_lpad(digits, groups * 4, "0").cast(pa.binary())
    first = padded.buffers()[1]
    start = int(np.frombuffer(first, np.int32)[padded.offset])
    count = len(padded) * groups * 4
    text = np.frombuffer(padded.buffers()[2], np.uint8)[start : start + count]
    single = (text - 48).reshape(len(padded), groups, 4).astype(np.int16)
    words = np.empty((len(padded), 4 + groups), np.dtype(">i2"))
    words[:, 0] = groups
    words[:, 1] = groups - 1 - places
    words[:, 2] = np.where(negative, 0x4000, 0)
    words[:, 3] = scale
    words[:, 4:] = single @ np.array([1000, 100, 10, 1], np.int16)
    return _fixed(_bytes_of(words), nulls)


def _unscaled(values: pa.Array) -> pa.Array:
    """Return decimals as text without their point."""
    maker = pa.decimal256 if values.type.bit_width == 256 else pa.decimal128
    whole = maker(values.type.precision, 0)
    return pa.Array.from_buffers(whole, len(values), values.buffers(), offset=values.offset).cast(
        pa.string()
    )


def _whole(values: pa.Array) -> pa.Array:
    """Return text of integers; anything else is refused."""
    values = values.cast(pa.string())
    if _digits_alone(values):
        return values
    whole = pc.match_substring_regex(values, r"^-?[0-9]+$")
    if pc.all(whole, min_count=0).as_py() is False:
        wrong = values.filter(pc.invert(whole))[0].as_py()
        raise ValueError(f"text that is not an integer: {wrong!r:.80}")
    return values


def _numeric_text(values: pa.Array) -> Pieces:
    """Write text of numbers, with or without a point."""
    values = values.cast(pa.string())
    if _digits_alone(values):
        return _numeric(values, 0)
    parts = pc.extract_regex(values, r"^(?P<whole>-?[0-9]+)(?:\.(?P<rest>[0-9]*))?$")
    if parts.null_count != values.null_count:
        wrong = values.filter(pc.and_(parts.is_null(), values.is_valid()))[0].as_py()
        raise ValueError(f"text that is not a number: {wrong!r:.80}")
    whole, rest = pc.struct_field(parts, "whole"), pc.struct_field(parts, "rest")
    scale = pc.max(pc.binary_length(rest)).as_py() or 0
    if scale:
        whole = pc.binary_join_element_wise(whole, pc.ascii_rpad(rest, scale, "0"), "")
    return _numeric(whole, scale)


def _digits_alone(values: pa.Array) -> bool:
    """Tell at a glance that all texts are digits, as most are; False if it takes a closer look."""
    if values.null_count or not len(values):
        return False
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return bool((offsets[1:] > offsets[:-1]).all() and ((data - np.uint8(48)) < 10).all())


def _text_to_integer(target: str) -> Encoder:
    write = _integer_encoder(target)
    return lambda values: write(_whole(values).cast(pa.int64()))


def _hexadecimal(values: pa.Array) -> Pieces:
    """Write `0x…` as bytes."""
    values = values.cast(pa.string())
    filled = pc.fill_null(values, "0x") if values.null_count else values
    if not pc.all(pc.starts_with(filled, "0x"), min_count=0).as_py():
        raise ValueError("text that does not begin with 0x")
    bare = pc.replace_substring(filled, "0x", "", max_replacements=1)
    offsets = np.frombuffer(bare.buffers()[1], np.int32)[bare.offset : bare.offset + len(bare) + 1]
    data = np.frombuffer(bare.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    nibbles = _NIBBLES[data]
    if (np.diff(offsets) % 2).any() or (nibbles > 15).any():
        raise ValueError("text that is not hexadecimal")
    pairs = (nibbles[0::2] << 4) | nibbles[1::2]
    decoded = _binary(pairs, ((offsets - offsets[0]) // 2).astype(np.int32))
    if values.null_count:
        decoded = pc.if_else(values.is_valid(), decoded, pa.scalar(None, pa.binary()))
    return _ragged(decoded)


def _timestamps(values: pa.Array) -> Pieces:
    exact = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    return _fixed(_bytes_of((_numbers(exact) - _EPOCH_US).astype(">i8")), values)


def _dates(values: pa.Array) -> Pieces:
    days = _numbers(values.cast(pa.int32())).astype(np.int64) - _EPOCH_DAYS
    return _fixed(_bytes_of(days.astype(">i4")), values)


def _floats(kind: str) -> Encoder:
    return lambda values: _fixed(_bytes_of(_numbers(values, 0.0).astype(kind)), values)


def _booleans(values: pa.Array) -> Pieces:
    return _fixed(_numbers(values, False).astype(np.uint8).reshape(-1, 1), values)


def _documents(values: pa.Array, *, mark: bytes = b"\x01") -> Pieces:
    """Write structures as JSON; the one kind of value that is made in Python."""
    texts = [
        None if value is None else mark + json.dumps(value, default=_plain).encode()
        for value in values.to_pylist()
    ]
    return _ragged(pa.array(texts, pa.binary()))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _marked(values: pa.Array) -> Pieces:
    """Write text as jsonb: a version, then the text."""
    return _ragged(pc.binary_join_element_wise(b"\x01", values.cast(pa.binary()), b""))


def _list_encoder(kind: pa.DataType, element: str) -> Encoder | None:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or element not in _OIDS:
        return None
    inner = encoder(kind.value_type, element)
    if inner is None:
        return None

    def write(values: pa.Array) -> Pieces:
        items = pc.binary_join_element_wise(*inner(values.values), b"") if len(values.values) else (
            pa.array([], pa.binary())
        )  # fmt: skip
        ends = np.frombuffer(items.buffers()[1] or bytes(4), np.int32)[: len(items) + 1]
        borders = ends[values.offsets.to_numpy()]
        body = pa.Array.from_buffers(
            pa.binary(), len(values), [None, pa.py_buffer(borders), items.buffers()[2]]
        )
        counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        head = np.zeros((len(values), 5), np.dtype(">i4"))
        head[:, 0] = 1
        head[:, 1] = 1 if values.values.null_count else 0
        head[:, 2] = _OIDS[element]
        head[:, 3] = counts
        head[:, 4] = 1
        heads = pc.if_else(
            pa.array(counts > 0),
            _binary(_bytes_of(head)),
            pa.scalar(bytes(8) + _OIDS[element].to_bytes(4, "big"), pa.binary()),
        )
        # the slots of null lists may hold items that are not theirs
        body = pc.if_else(pa.array(counts > 0), body, pa.scalar(b"", pa.binary()))
        whole = pc.binary_join_element_wise(heads, body, b"")
        valid = values.is_valid()
        return _ragged(pc.if_else(valid, whole, pa.scalar(None, pa.binary())))

    return write


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values are text."""
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _family(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_binary(kind) or kind in (pa.large_binary(), pa.binary_view()):
        return "binary"
    return str(kind)


_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[list(b"0123456789")] = range(10)
_NIBBLES[list(b"abcdef")] = range(10, 16)
_NIBBLES[list(b"ABCDEF")] = range(10, 16)
_TEXT_TO: dict[str, Encoder] = {
    "text": _ragged,
    "character varying": _ragged,
    "json": _ragged,
    "jsonb": _marked,
    "numeric": _numeric_text,
    "bytea": _hexadecimal,
    **{target: _text_to_integer(target) for target in INTEGERS},
}
_PLAIN: dict[tuple[str, str], Encoder] = {
    ("binary", "bytea"): _ragged,
    ("bool", "boolean"): _booleans,
    ("float", "real"): _floats(">f4"),
    ("float", "double precision"): _floats(">f8"),
    ("double", "double precision"): _floats(">f8"),
    ("date32[day]", "date"): _dates,
}
