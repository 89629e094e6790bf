"""Bytes of text and binary columns as numpy arrays, and columns made of such bytes.

Runs wherever outputs decode. No step loops over rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


def text_of(column: pa.Array) -> Bytes:
    """Return all texts of a column, one behind the other."""
    bounds, data = _bounds(column), column.buffers()[2]
    first, last = int(bounds[0]), int(bounds[-1])
    return np.frombuffer(data, np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)


def text_parts(column: pa.Array) -> tuple[Places, Places, Bytes]:
    """Return where each text begins and ends, and all texts one behind the other."""
    bounds = _bounds(column)
    positions = bounds.astype(np.int64) - bounds[0]
    return positions[:-1], positions[1:], text_of(column)


def _bounds(column: pa.Array) -> npt.NDArray[np.int32]:
    if not len(column):
        return np.zeros(1, np.int32)
    offsets = column.buffers()[1]
    return np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]


def offsets_of(lengths: Places) -> Places:
    """Return where values of these lengths begin, one behind the other, and where the last ends."""
    return np.concatenate(([0], np.cumsum(lengths)))


def column_of(kind: pa.DataType, offsets: Places, data: Bytes) -> pa.Array:
    """Return the string or binary column whose values lie between these offsets."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def lists_of(items: pa.Array, lengths: Places, mask: pa.BooleanArray | None = None) -> pa.ListArray:
    """Return lists of these lengths; the items lie one behind the other."""
    offsets = pa.array(offsets_of(lengths).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, items, mask=mask)


def stretches(kind: pa.DataType, data: Bytes, starts: Places, ends: Places) -> pa.Array:
    """Return the column of these stretches, none of which begins before the last one ends.

    Stretches and gaps alternate in one array without any copy; selecting the stretches copies once.
    """
    both = column_of(kind, np.stack([starts, ends], axis=1).reshape(-1), data)
    return both.take(pa.array(np.arange(0, 2 * len(starts), 2)))


def drop_first_bytes(column: pa.BinaryArray, count: int) -> pa.BinaryArray:
    """Return each value without its first bytes; a shorter one is empty. No value is null."""
    starts, ends, text = text_parts(column)
    if not len(column):
        return column
    rests = np.minimum(starts + count, ends)
    return stretches(column.type, np.ascontiguousarray(text), rests, ends)


def fixed_width_array(arrow_type: pa.DataType, values: Bytes) -> pa.Array:
    """Return a string or binary column of the rows of a matrix, without a copy of them."""
    rows, width = values.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    text = np.ascontiguousarray(values).reshape(-1)
    return pa.Array.from_buffers(
        arrow_type, rows, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )


def spread(values: pa.Array, present: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a column as long as the mask: the values where it holds, null elsewhere."""
    places = np.cumsum(present) - 1
    return values.take(pa.array(np.maximum(places, 0), mask=~present))
