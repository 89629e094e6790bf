"""Columns of 32-byte words: checked and turned into Arrow columns of the static types.

A word is kept as the 64 hex digits that the portal sent, eight digits in each of eight 64-bit
integers: an address is then a copy, a check for zero is a comparison, and only numbers are computed
(`integers`). Nothing loops over rows. Runs on the driver and on executors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decode.hex_text import bytes_of
from headwater.decode.integers import decode_integers
from headwater.decode.malformed import Rows, refuse
from headwater.decode.types import Elementary, Kind, canonical
from headwater.decode.word_text import DIGITS, ONE, ZEROS, WordText

_ADDRESS_DIGITS = 40
_PREFIX = np.frombuffer(b"0x", np.uint8)


def decode_words(abi_type: Elementary, words: WordText, where: str, owners: Rows) -> pa.Array:
    """Return the column of a static type. Called for topics, heads and elements of arrays.

    `where` names the parameter in errors; `owners` are the rows that the words belong to.

    Raises:
        MalformedRowsError: some words are no values of the type.
    """
    match abi_type.kind:
        case Kind.ADDRESS:
            return _decode_addresses(words, where, owners)
        case Kind.BOOL:
            return _decode_booleans(words, where, owners)
        case Kind.FIXED_BYTES:
            return _decode_fixed_bytes(abi_type.size, words, where, owners)
        case Kind.UINT | Kind.INT:
            return decode_integers(abi_type, words, where, owners)
        case Kind.BYTES | Kind.STRING:
            raise TypeError(f"{canonical(abi_type)} is not one word")


def fixed_width_array(arrow_type: pa.DataType, values: npt.NDArray[np.uint8]) -> pa.Array:
    """Return a string or binary column of the rows of a matrix, without a copy."""
    rows, width = values.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    text = np.ascontiguousarray(values)
    return pa.Array.from_buffers(
        arrow_type, rows, [None, pa.py_buffer(offsets), pa.py_buffer(text.reshape(-1))]
    )


def _decode_addresses(words: WordText, where: str, owners: Rows) -> pa.StringArray:
    bad = (words[:, 0] != ZEROS) | (words[:, 1] != ZEROS) | (words[:, 2] != ZEROS)
    refuse(bad, f"{where} is wider than an address", owners)
    text = np.empty((len(words), 2 + _ADDRESS_DIGITS), np.uint8)
    text[:, :2] = _PREFIX
    text[:, 2:] = words.view(np.uint8)[:, DIGITS - _ADDRESS_DIGITS :]
    return fixed_width_array(pa.string(), text)


def _decode_booleans(words: WordText, where: str, owners: Rows) -> pa.BooleanArray:
    last = words[:, 7]
    bad = ((last != ZEROS) & (last != ONE)) | (words[:, :7] != ZEROS).any(axis=1)
    refuse(bad, f"{where} is neither 0 nor 1", owners)
    return pa.array(last == ONE)


def _decode_fixed_bytes(size: int, words: WordText, where: str, owners: Rows) -> pa.BinaryArray:
    digits = words.view(np.uint8)
    if size < DIGITS // 2:
        padding = digits[:, 2 * size :] != ord("0")
        refuse(padding.any(axis=1), f"{where} is longer than {size} bytes", owners)
    values = bytes_of(np.ascontiguousarray(digits[:, : 2 * size]).reshape(-1))
    return fixed_width_array(pa.binary(), values.reshape(len(words), size))
