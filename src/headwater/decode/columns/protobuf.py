"""Protobuf messages read a column at a time: where the fields of many messages lie, found at once.

All messages lie in one buffer. `scan` walks them side by side: each step reads the next field of
every message that still has one, with a handful of numpy operations whatever their number, so no
row becomes a Python object. What is left when few messages are longer than the rest is walked one
by one. `texts` and `numbers` turn what was found into values.

Runs where decoding runs, on the driver or on executors; the same bytes give the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

VARINT, FIXED64, BYTES, FIXED32 = _WIRES = (0, 1, 2, 5)
_PADDING = bytes(16)  # so that a number at the very end can be read without a look at the end
_SIDE_BY_SIDE = 48  # so few messages are walked one by one
_LONGEST = 10  # bytes of a varint
_NO_SIZE = 1 << 40
_HIGHEST = (1 << 29) - 1  # number of a field

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Parts = dict[int, list[tuple[Any, ...]]]
_WIDTHS = np.array([0, 8, 0, -1, -1, 4, -1, -1])  # of a value, by wire type; -1: there is none


class MalformedMessage(Exception):  # noqa: N818 - never leaves the decoders, which give it a code
    """Bytes are no message: `at` is the place in the buffer."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in one buffer: where each begins and ends."""

    data: bytes
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, messages: Iterable[bytes]) -> Messages:
        """Lay messages side by side."""
        parts = list(messages)
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        ends = np.cumsum(lengths)
        return cls(b"".join((*parts, _PADDING)), ends - lengths, ends)

    def __len__(self) -> int:
        return len(self.starts)

    def index_of(self, at: int) -> int:
        """Return the message that holds a place in the buffer."""
        return int(np.searchsorted(self.ends, at, side="right"))

    @property
    def buffer(self) -> npt.NDArray[np.uint8]:
        """The bytes, as numbers."""
        return np.frombuffer(self.data, np.uint8)


@dataclass(frozen=True, slots=True)
class Found:
    """The occurrences of one field in many messages, by message, in their order there.

    `rows`: the message of each. `wires`: its wire type. `starts` and `ends`: where its content
    lies (of a text, without its length). `values`: the number, for varints.
    """

    rows: Ints
    wires: npt.NDArray[np.uint8]
    starts: Ints
    ends: Ints
    values: Words

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, wire: int) -> bool:
        """Tell whether every occurrence has this wire type."""
        return bool((self.wires == wire).all())

    def last(self) -> Found:
        """Return the last occurrence in each message: the one that counts, if it is not a list."""
        if len(self.rows) < 2:
            return self
        kept = np.append(self.rows[1:] != self.rows[:-1], True)
        return self if kept.all() else self.take(kept)

    def take(self, chosen: Any) -> Found:
        """Return some of them."""
        return Found(
            self.rows[chosen],
            self.wires[chosen],
            self.starts[chosen],
            self.ends[chosen],
            self.values[chosen],
        )

    def within(self, messages: Messages) -> Messages:
        """Return the contents as messages of their own."""
        return Messages(messages.data, self.starts, self.ends)

    def counts(self, rows: int) -> Ints:
        """Return how many there are in each of so many messages."""
        return np.bincount(self.rows, minlength=rows).astype(np.int64)


_NONE = Found(
    np.empty(0, np.int64),
    np.empty(0, np.uint8),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.uint64),
)


class Fields:
    """What a scan has found, by the number of the field."""

    def __init__(self, found: dict[int, Found]) -> None:
        self._found = found

    def __getitem__(self, number: int) -> Found:
        return self._found.get(number, _NONE)


def scan(messages: Messages, wanted: Iterable[int] | None = None) -> Fields:
    """Return where the wanted fields of all messages lie; others are passed over.

    Raises:
        MalformedMessage: the bytes end early, or are no message.
    """
    numbers = None if wanted is None else frozenset(wanted)
    parts: Parts = {}
    rows = np.flatnonzero(messages.starts < messages.ends)
    at, ends = messages.starts[rows], messages.ends[rows]
    buffer = messages.buffer
    while len(rows) > _SIDE_BY_SIDE:
        tags = buffer[at]
        if tags[0] < 0x80 and bool((tags == tags[0]).all()):
            number, wire = int(tags[0]) >> 3, int(tags[0]) & 7
            step = _same_field(buffer, at, ends, number, wire)
            if numbers is None or number in numbers:
                parts.setdefault(number, []).append((rows, *step))
        else:
            field_numbers, step = _next_fields(buffer, at, ends)
            _keep(parts, numbers, rows, field_numbers, step)
        end = step[2]
        going = end < ends
        if going.all():
            at = end
        else:
            rows, at, ends = rows[going], end[going], ends[going]
    _walk(messages.data, rows, at, ends, numbers, parts)
    return Fields({number: _joined(steps, len(messages)) for number, steps in parts.items()})


def _same_field(
    buffer: npt.NDArray[np.uint8], at: Ints, ends: Ints, number: int, wire: int
) -> tuple[Any, ...]:
    """Read the next field of messages where it is the same in all: wire type, place and value."""
    place = at + 1
    kinds = np.broadcast_to(np.uint8(wire), len(at))
    if wire in (FIXED64, FIXED32):
        start, words = place, np.zeros(len(at), np.uint64)
        end = place + (8 if wire == FIXED64 else 4)
    else:
        words, start = _sizes(buffer, place)
        end = start
        if wire == BYTES:
            end = start + np.minimum(words, _NO_SIZE).view(np.int64)
    wrong = end > ends
    if wrong.any() or not number or wire not in _WIRES:
        which = int(np.flatnonzero(wrong)[0]) if wrong.any() else 0
        raise MalformedMessage(_complaint(number, wire), int(at[which]))
    return kinds, start, end, words


def _sizes(buffer: npt.NDArray[np.uint8], place: Ints) -> tuple[Words, Ints]:
    """Read a varint at every place, of which most have one or two bytes."""
    low = buffer[place]
    if low.max() < 0x80:
        return low.astype(np.uint64), place + 1
    if low.min() >= 0x80:
        high = buffer[place + 1]
        if high.max() < 0x80:
            words = (low & 0x7F).astype(np.uint64) | (high.astype(np.uint64) << np.uint64(7))
            return words, place + 2
    words, start = low.astype(np.uint64), place + 1
    long = np.flatnonzero(low >= 0x80)
    words[long], start[long] = varints(buffer, place[long])
    return words, start


def _next_fields(
    buffer: npt.NDArray[np.uint8], at: Ints, ends: Ints
) -> tuple[Any, tuple[Any, ...]]:
    """Read one field of every message: its number, then wire type, place and value."""
    first = buffer[at]
    place = at + 1
    number: Any = first >> 3
    wire = first & 7
    if (first >= 0x80).any():
        tags, place = varints(buffer, at)
        number, wire = (
            (tags >> np.uint64(3)).astype(np.int64),
            (tags & np.uint64(7)).astype(np.uint8),
        )
    low = buffer[place]
    words = low.astype(np.uint64)
    start = place + 1
    long = np.flatnonzero((low >= 0x80) & ((wire == VARINT) | (wire == BYTES)))
    if len(long):
        words[long], start[long] = varints(buffer, place[long])
    sized = np.where(wire == BYTES, np.minimum(words, _NO_SIZE).view(np.int64), 0)
    width = _WIDTHS[wire]
    end = np.where(width > 0, place + width, start + sized)
    start = np.where(width > 0, place, start)
    wrong = (end > ends) | (number == 0) | (number > _HIGHEST) | (width < 0)
    if wrong.any():
        which = int(np.flatnonzero(wrong)[0])
        raise MalformedMessage(_complaint(int(number[which]), int(wire[which])), int(at[which]))
    return number, (wire, start, end, words)


def _complaint(number: int, wire: int) -> str:
    if not 0 < number <= _HIGHEST:
        return f"a field has the number {number}"
    if wire not in _WIRES:
        return f"field {number} has the unknown wire type {wire}"
    return f"the message ends within field {number}"


def _keep(
    parts: Parts, wanted: frozenset[int] | None, rows: Ints, numbers: Any, columns: tuple[Any, ...]
) -> None:
    """File what one step has found under the numbers of the fields."""
    left = np.ones(len(rows), np.bool_)
    while left.any():
        number = int(numbers[int(left.argmax())])
        chosen = numbers == number
        left &= ~chosen
        if wanted is None or number in wanted:
            step = (rows[chosen], *(column[chosen] for column in columns))
            parts.setdefault(number, []).append(step)


def _walk(
    data: bytes,
    rows: Ints,
    starts: Ints,
    ends: Ints,
    wanted: frozenset[int] | None,
    parts: Parts,
) -> None:
    """Read the rest of a few messages field by field."""
    fields: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for row, at, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        while at < end:
            tag, place = data[at], at + 1
            if tag >= 0x80:
                tag, place = _varint(data, at, end)
            number, wire = tag >> 3, tag & 7
            value = 0
            if wire in (VARINT, BYTES):
                value, place = data[place], place + 1
                if value >= 0x80:
                    value, place = _varint(data, place - 1, end)
            size = value if wire == BYTES else 8 if wire == FIXED64 else 4 * (wire == FIXED32)
            after = place + size
            if after > end or not 0 < number <= _HIGHEST or wire not in _WIRES:
                raise MalformedMessage(_complaint(number, wire), at)
            if wanted is None or number in wanted:
                fields.setdefault(number, []).append((row, wire, place, after, value))
            at = after
    for number, many in fields.items():
        columns = list(zip(*many, strict=True))
        kinds = (np.int64, np.uint8, np.int64, np.int64, np.uint64)
        step = tuple(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))
        parts.setdefault(number, []).append(step)


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    begin = at
    while at < end and shift < 7 * _LONGEST:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise MalformedMessage("a number is too long" if at < end else "the message ends early", begin)


def _joined(parts: list[tuple[Any, ...]], count: int) -> Found:
    """Join what the steps have found, by message; the order within each stays.

    Each step has its messages in order, and so has what was walked one by one, which comes last.
    """
    if len(parts) == 1:
        return Found(*parts[0])
    first, last = parts[0][0], parts[-1][0]
    if len(first) == len(last) and all(part[0] is first for part in parts):
        return Found(*(np.stack(column, axis=1).reshape(-1) for column in zip(*parts, strict=True)))
    places = _places([part[0] for part in parts], count)
    return Found(*(_placed(column, places) for column in zip(*parts, strict=True)))


def _places(steps: list[Ints], count: int) -> Ints:
    """Return where each of what the steps have found belongs, if it is to be in order."""
    every = np.concatenate(steps)
    free = np.bincount(every, minlength=count)
    free = np.cumsum(free) - free  # where the next of each message belongs
    places = np.empty(len(every), np.int64)
    done = 0
    for rows in steps:
        mine = places[done : done + len(rows)]
        mine[:] = free[rows]
        if len(rows) > 1 and bool((rows[1:] == rows[:-1]).any()):  # walked one by one
            starts = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
            sizes = np.diff(np.append(starts, len(rows)))
            mine += np.arange(len(rows)) - np.repeat(starts, sizes)
            free[rows[starts]] += sizes
        else:
            free[rows] += 1
        done += len(rows)
    return places


def _placed(column: Sequence[npt.NDArray[Any]], places: Ints) -> npt.NDArray[Any]:
    ordered = np.empty(len(places), column[0].dtype)
    ordered[places] = np.concatenate(column)
    return ordered


def varints(buffer: npt.NDArray[np.uint8], at: Ints) -> tuple[Words, Ints]:
    """Read a varint at every place; return the numbers and where each ends.

    Raises:
        MalformedMessage: one is longer than ten bytes.
    """
    values = np.zeros(len(at), np.uint64)
    place = at.copy()
    going = np.arange(len(at))
    for step in range(_LONGEST):
        where = place[going]
        byte = buffer[np.minimum(where, len(buffer) - 1)]
        values[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * step)
        place[going] = where + 1
        going = going[byte >= 0x80]
        if not len(going):
            return values, place
    raise MalformedMessage("a number is too long", int(at[going[0]]))


def fixed(messages: Messages, starts: Ints, width: int) -> npt.NDArray[Any]:
    """Return the 4 or 8 bytes at each place as an unsigned number."""
    places = starts[:, None] + np.arange(width)
    raw = messages.buffer[places.reshape(-1)]
    numbers: npt.NDArray[Any] = raw.view("<u8" if width == 8 else "<u4")
    return numbers


def blobs(messages: Messages, found: Found) -> pa.Array:
    """Return the contents as binary values: one C++ copy, no object each."""
    starts, ends = found.starts, found.ends
    if not len(starts):
        return pa.array([], pa.binary())
    base = int(starts[0])
    offsets = np.empty(2 * len(starts), np.int64)
    offsets[0::2], offsets[1::2] = starts, ends
    kind: Any = pa.large_binary()
    width: Any = np.int64
    if int(ends[-1]) - base < 2**31 - 1:
        offsets -= base
        kind, width = pa.binary(), np.int32
    data = pa.py_buffer(memoryview(messages.data)[base:])
    every = pa.Array.from_buffers(
        kind, len(offsets) - 1, [None, pa.py_buffer(offsets.astype(width)), data]
    )
    kept = every.take(pa.array(np.arange(0, len(offsets), 2)[: len(starts)]))
    return kept if kind == pa.binary() else kept.cast(pa.binary())


def texts(messages: Messages, found: Found) -> pa.Array:
    """Return the contents as text.

    Raises:
        MalformedMessage: one is not UTF-8.
    """
    contents = blobs(messages, found)
    try:
        return contents.cast(pa.string())
    except pa.ArrowInvalid as error:
        for value, at in zip(contents, found.starts.tolist(), strict=True):
            try:
                value.as_py().decode()
            except UnicodeDecodeError:
                raise MalformedMessage("a text is not UTF-8", at) from error
        raise MalformedMessage("a text is not UTF-8", int(found.starts[0])) from error


def spread(values: pa.Array, rows: Ints, count: int, default: Any = None) -> pa.Array:
    """Return one value for each of `count` messages: those of `rows`, and a default elsewhere."""
    if len(rows) == count:
        return values
    source = np.full(count, -1, np.int64)
    source[rows] = np.arange(len(rows))
    missing = source < 0
    if default is None:
        return values.take(pa.array(source, mask=missing))
    both = pa.concat_arrays([values, pa.array([default], values.type)])
    source[missing] = len(values)
    return both.take(pa.array(source))


def scattered(values: npt.NDArray[Any], rows: Ints, count: int) -> npt.NDArray[Any]:
    """Return a number for each of `count` messages: those of `rows`, and 0 elsewhere."""
    if len(rows) == count:
        return values
    spread = np.zeros(count, values.dtype)
    spread[rows] = values
    return spread


def offsets_of(counts: Ints) -> pa.Array:
    """Return the offsets of lists of these lengths."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.array(offsets)


def packed_varints(messages: Messages, found: Found) -> tuple[Words, Ints]:
    """Return the numbers of packed lists, one after the other, and how many each list has.

    Raises:
        MalformedMessage: a list ends within a number.
    """
    contents = blobs(messages, found)
    lengths = found.ends - found.starts
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    size = int(bounds[-1])
    raw = np.frombuffer(contents.buffers()[2] or b"", np.uint8) if size else np.empty(0, np.uint8)
    shift = int(np.frombuffer(contents.buffers()[1], np.int32)[contents.offset]) if size else 0
    raw = raw[shift : shift + size]
    last = raw < 0x80
    ends = np.flatnonzero(last)
    full = lengths > 0
    if not last[bounds[1:][full] - 1].all():
        raise MalformedMessage("a packed list ends within a number", int(found.starts[0]))
    counts = np.concatenate([np.zeros(1, np.int64), np.cumsum(last)])
    padded = np.concatenate([raw, np.zeros(_LONGEST, np.uint8)])
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])[: len(ends)]
    values, _ = varints(padded, starts)
    return values, counts[bounds[1:]] - counts[bounds[:-1]]
