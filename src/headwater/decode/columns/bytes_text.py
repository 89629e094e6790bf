"""Bytes as text, a column at a time: hexadecimal, base64, base58.

Runs wherever outputs decode. No step loops over rows, except base58 of values longer than a key
ever is.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode.columns.base58 import encode_base58
from headwater.decode.columns.buffers import Bytes, column_of, offsets_of, text_parts
from headwater.decode.columns.malformed import Rows
from headwater.query import base58

BytesEncoding = Literal["raw", "hex", "0xhex", "base64", "base58"]
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_HEX = np.stack([_DIGITS.repeat(16), np.tile(_DIGITS, 16)], axis=1)
_BASE64 = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_LONG = 128  # bytes, above which a matrix of weights costs more than one value at a time


def bytes_as_text(values: pa.Array, encoding: BytesEncoding) -> pa.Array:
    """Return bytes as text, where they are to be; nulls, and values that are no bytes, stay."""
    if encoding == "raw" or values.type != pa.binary():
        return values
    filled = pc.fill_null(values, b"")
    begins, ends, data = text_parts(filled)
    starts = np.append(begins, ends[-1:]) if len(ends) else np.zeros(1, np.int64)
    if encoding == "base58":
        made = _base58(starts, data)
    elif encoding == "base64":
        made = _base64(starts, data)
    else:
        made = _hex(starts, data, b"0x" if encoding == "0xhex" else b"")
    if not values.null_count:
        return made
    return pc.if_else(values.is_null(), pa.scalar(None, pa.string()), made)


def _hex(starts: Rows, data: Bytes, prefix: bytes) -> pa.Array:
    digits = _HEX[data].reshape(-1)
    if not prefix:
        return column_of(pa.string(), starts * 2, digits)
    bounds = starts * 2 + np.arange(len(starts)) * len(prefix)
    flat = np.empty(int(bounds[-1]), np.uint8)
    ours = np.zeros(len(flat), np.bool_)
    for at, character in enumerate(prefix):
        flat[bounds[:-1] + at] = character
        ours[bounds[:-1] + at] = True
    flat[~ours] = digits
    return column_of(pa.string(), bounds, flat)


def _base64(starts: Rows, data: Bytes) -> pa.Array:
    """Fill each value with zeros to groups of three bytes, which are four characters."""
    sizes = np.diff(starts)
    groups = -(-sizes // 3)
    bounds = offsets_of(groups)
    filled = np.zeros(int(bounds[-1]) * 3, np.uint8)
    filled[np.arange(len(data)) + np.repeat(bounds[:-1] * 3 - starts[:-1], sizes)] = data
    threes = filled.reshape(-1, 3).astype(np.uint32)
    words = threes[:, 0] << 16 | threes[:, 1] << 8 | threes[:, 2]
    flat = _BASE64[np.stack([words >> shift & 63 for shift in (18, 12, 6, 0)], axis=1)].reshape(-1)
    ends = bounds[1:] * 4
    flat[ends[sizes % 3 > 0] - 1] = ord("=")
    flat[ends[sizes % 3 == 1] - 2] = ord("=")
    return column_of(pa.string(), bounds * 4, flat)


def _base58(starts: Rows, data: Bytes) -> pa.Array:
    """Convert values of one length together."""
    sizes = np.diff(starts)
    parts: list[pa.Array] = []
    rows: list[Rows] = []
    for size in np.unique(sizes).tolist():
        same = np.flatnonzero(sizes == size)
        rows.append(same)
        matrix = data[starts[same][:, None] + np.arange(size)]
        if 0 < size <= _LONG:
            parts.append(encode_base58(matrix))
        else:
            parts.append(pa.array([base58.encode(one.tobytes()) for one in matrix], pa.string()))
    if not parts:
        return pa.array([], pa.string())
    places = np.empty(len(sizes), np.int64)
    places[np.concatenate(rows)] = np.arange(len(sizes))
    return pa.concat_arrays(parts).take(pa.array(places))
