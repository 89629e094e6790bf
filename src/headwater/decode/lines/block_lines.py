"""Reads block lines into headers and delimited arrays of items, in one pass over the bytes.

A line holds several arrays (logs, transactions, …). msgspec reads the header and finds where each
wanted array begins and ends; what no output wants is skipped. Readers of single entities go on from
there. Runs on the driver and on executors; the same lines always give the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BlockContentError
from headwater.query import EVM, Field, Presence, WireType

EVM_TIMESTAMP = next(field for field in EVM.entity("block").fields if field.wire == "timestamp")
TICKS = {WireType.SECONDS: 1_000_000, WireType.MILLISECONDS: 1000}
"""Microseconds in the unit of a time."""

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADER_FIELDS = (
    pa.field("block_number", pa.int64()),
    pa.field("block_hash", pa.string()),
    pa.field("timestamp", TIMESTAMP),
)

_SLICE_BYTES = 8 << 20  # read at once: small beside the caches, large beside the cost of calls
LAST_MICROSECOND = 253_402_300_800_000_000 - 1  # of 9999: all that the calendars of targets hold
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: spreads all bits
_HALF = np.uint64(32)
_MAX_NUMBER = 2**63 - 1
MAX_INDEX = 2**32 - 1  # of a log or a transaction: 32 bits without a sign
_NUMBER = re.compile(rb'"header"\s*:\s*\{[^{}]*?"number"\s*:\s*(\d{1,19})')


class Header(msgspec.Struct, gc=False):
    """What every row repeats of its block. `read_lines` turns the timestamp into microseconds."""

    number: int
    hash: str
    timestamp: int | None = None


class Line(msgspec.Struct, gc=False):
    """A line; those made by `line_type` also have the arrays of items, not yet read."""

    header: Header


@cache
def line_type(collections: tuple[str, ...], header: type[Header] = Header) -> type[Line]:
    """Return the type of lines with these arrays; an array that is absent is empty."""
    fields: list[Any] = [("header", header)]
    fields += [(name, msgspec.Raw, msgspec.Raw(b"[]")) for name in collections]
    shape: type[Any] = msgspec.defstruct("Line", fields, bases=(Line,), gc=False)
    return shape


@cache
def _decoder(shape: type[Line]) -> msgspec.json.Decoder[Line]:
    return msgspec.json.Decoder(shape)


def read_lines(
    lines: Sequence[bytes], shape: type[Line], timestamp: Field = EVM_TIMESTAMP
) -> list[Line]:
    """Return the headers and arrays of these lines; timestamps are in the unit of their field.

    Raises:
        BlockContentError: a line is no block, or its number or timestamp is impossible.
    """
    decode = _decoder(shape).decode
    tick, is_optional = TICKS[timestamp.type], timestamp.presence is Presence.OPTIONAL
    return [_read_line(line, decode, tick, is_optional) for line in lines]


def slices(lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut a batch into parts that are read at once."""
    first, size = 0, 0
    for index, line in enumerate(lines):
        size += len(line)
        if size >= _SLICE_BYTES:
            yield lines[first : index + 1]
            first, size = index + 1, 0
    if first < len(lines):
        yield lines[first:]


def header_columns(headers: Sequence[Header], counts: npt.NDArray[np.int64]) -> list[pa.Array]:
    """Repeat each block's number, hash and timestamp for each of its items."""
    numbers = np.array([header.number for header in headers], dtype=np.int64)
    times = pa.array([header.timestamp for header in headers], TIMESTAMP)
    hashes = pa.array([header.hash for header in headers], pa.string())
    which = pa.array(np.repeat(np.arange(len(headers), dtype=np.int32), counts))
    return [pa.array(np.repeat(numbers, counts)), hashes.take(which), times.take(which)]


def refuse_repeated_keys(
    what: str,
    headers: Sequence[Header],
    counts: npt.NDArray[np.int64],
    keys: Mapping[str, pa.Array],
) -> None:
    """Refuse two items of one block with the same key. Rows without a key are left to outputs.

    In the order that portals send, numbers ascend: then one comparison of neighbours is all. Texts
    and lists are looked at only if numbers repeat, as hashes of 64 bits, in which equal ones are
    equal; what is found that way is compared again in full.

    Raises:
        BlockContentError: there are such items.
    """
    block = np.repeat(np.arange(len(headers)), counts)
    columns = [
        block,
        *(_numbers(column) for column in keys.values() if pa.types.is_integer(column.type)),
    ]
    if _ascend(columns):
        return
    columns += [_codes(column) for column in keys.values() if not pa.types.is_integer(column.type)]
    known = np.logical_and.reduce(
        [column.is_valid().to_numpy(zero_copy_only=False) for column in keys.values()]
    )
    mixed = _mix([column[known] for column in columns])
    ordered = np.sort(mixed)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return
    seen = set()
    for row in np.flatnonzero(known)[np.isin(mixed, repeated)].tolist():
        number = headers[int(block[row])].number
        place = {name: column[row].as_py() for name, column in keys.items()}
        if (key := f"{number} {place}") in seen:
            raise BlockContentError(
                f"a block has two {what} of the same index", block=number, **place
            )
        seen.add(key)


def _codes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return numbers for texts or lists, equal for equal ones."""
    if pa.types.is_list(column.type):
        return _list_hashes(column)
    return _numbers(column.dictionary_encode().indices)


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return integers; -1 for null."""
    numbers: npt.NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), -1).to_numpy()
    return numbers


def _list_hashes(column: pa.ListArray) -> npt.NDArray[np.int64]:
    """Return a hash of each list of integers; the order of its items counts."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    inside = column.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    lengths = np.diff(offsets)
    place = np.arange(len(inside)) - np.repeat(offsets[:-1], lengths)
    items = _mix([inside, place])
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(items, dtype=np.uint64)))
    hashes: npt.NDArray[np.int64] = (sums[offsets[1:]] - sums[offsets[:-1]]).view(np.int64)
    return hashes


def _mix(columns: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.uint64]:
    """Return a hash of each row of some columns; the order of the columns counts."""
    mixed = np.full(len(columns[0]), _ODD)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * _ODD
        mixed ^= mixed >> _HALF
    return mixed


def _ascend(columns: Sequence[npt.NDArray[np.int64]]) -> bool:
    """Whether each row is above the one before it, in the order of the columns."""
    above = np.zeros(max(len(columns[0]) - 1, 0), bool)
    for column in reversed(columns):
        later, earlier = column[1:], column[:-1]
        above = (later > earlier) | ((later == earlier) & above)
    return bool(above.all())


def _read_line(line: bytes, decode: Any, tick: int, is_optional: bool) -> Line:
    try:
        block: Line = decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        match = _NUMBER.search(line)
        facts = {"block": int(match[1])} if match else {}
        raise BlockContentError(f"a line is not a block: {error}", **facts) from error
    header = block.header
    if header.timestamp is not None:
        header.timestamp *= tick
        is_known = 0 <= header.timestamp <= LAST_MICROSECOND
    else:
        is_known = is_optional
    if not 0 <= header.number <= _MAX_NUMBER or not is_known:
        raise BlockContentError(
            "a block has an impossible number or timestamp",
            block=header.number,
            timestamp=header.timestamp and header.timestamp // tick,
        )
    return block
