"""Reads EVM logs into one flat table: the largest cost of a backfill, so it is paid once.

Measured on blocks of 100 Transfer logs, one busy core: this scan 473 MB/s, `pyarrow.json` with an
explicit schema 289, msgspec structs and column lists 179 (benchmarks/bench_decode.py measures them
again). msgspec reads each header and delimits the array of logs; `scan_logs` finds the columns in
the bytes; `read_logs` reads what is not in the regular form that portals write: it is slower, takes
any JSON in any order of keys, and explains what is wrong.

The scan builds no object per log. If no string has an escape, quotes alternate between opening and
closing, so their positions cut the text into strings and what stands between. In the form that
portals write (no white space, the same keys in the same order) a log is a fixed sequence of
strings, and columns are strided selections from that cut. The form is not trusted: every key, every
gap, every digit is compared. One byte that does not fit makes the whole scan answer None. So the
scan can be fast or absent but not wrong.

Runs on the driver and on executors; the same lines always give the same table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decode.columns.bytes_text import count_digits, is_lower_hex
from headwater.decode.lines.block_lines import (
    HEADER_FIELDS,
    MAX_INDEX,
    Header,
    header_columns,
    line_type,
    read_lines,
    refuse_repeated_keys,
    slices,
)
from headwater.errors import BlockContentError

TOPICS = 4
ADDRESS_DIGITS = 40
TOPIC_DIGITS = 64
_POSITION = re.compile(r"`\$\[(\d+)\]")
_ADDRESS = re.compile(rf"0x[0-9a-f]{{{ADDRESS_DIGITS}}}")
_HASH = re.compile(rf"0x[0-9a-f]{{{TOPIC_DIGITS}}}")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_REUSED_BYTES = 31 << 20

LOG_SCHEMA = pa.schema(
    [
        *HEADER_FIELDS,
        ("transaction_hash", pa.string()),
        ("transaction_index", pa.int64()),
        ("log_index", pa.int64()),
        ("address", pa.string()),
        ("topic0", pa.binary()),  # topics and data: hex digits without 0x, null where absent
        ("topic1", pa.binary()),
        ("topic2", pa.binary()),
        ("topic3", pa.binary()),
        ("data", pa.binary()),
    ]
)


_OWN = list(LOG_SCHEMA)[len(HEADER_FIELDS) :]
_LOG_INDEX = [field.name for field in _OWN].index("log_index")
Logs = tuple[npt.NDArray[np.int64], list[pa.Array]]
"""How many logs each block has, and the columns of `LOG_SCHEMA` behind those of the block."""


def parse_logs(lines: Sequence[bytes]) -> pa.Table:
    """Return all logs of these block lines, in order, as a table of `LOG_SCHEMA`.

    Hashes, addresses and topics are known to be lower-case hex of the right length; data is not
    looked into.

    Raises:
        BlockContentError: a line is no block, or a log lacks a field or has one of a wrong kind.
    """
    shape = line_type(("logs",))
    batches = []
    for part in slices(lines):
        blocks = read_lines(part, shape)
        arrays = [block.logs for block in blocks]  # type: ignore[attr-defined]
        batches.append(logs_batch([block.header for block in blocks], arrays))
    return pa.Table.from_batches([batch for batch in batches if batch.num_rows], schema=LOG_SCHEMA)


def logs_batch(headers: Sequence[Header], arrays: Sequence[bytes]) -> pa.RecordBatch:
    """Return the logs of some blocks, given the JSON array of each. Called by `read_entities`.

    Raises:
        BlockContentError: a log lacks a field or has one of a wrong kind; two have one index.
    """
    _reuse_memory()
    numbers = [header.number for header in headers]
    counts, columns = scan_logs(arrays) or read_logs(arrays, numbers)
    refuse_repeated_keys("logs", headers, counts, {"log_index": columns[_LOG_INDEX]})
    return pa.RecordBatch.from_arrays(
        [*header_columns(headers, counts), *columns], schema=LOG_SCHEMA
    )


@cache
def _reuse_memory() -> None:
    """Make glibc keep the memory of freed intermediate results for the next slice.

    It gives large blocks back to the system until one as large has been freed; then every slice
    would pay for fresh pages again, a quarter of all time. The block is never touched, so it costs
    nothing; other allocators do not care.
    """
    np.empty(_REUSED_BYTES, np.uint8)


# --- the scan -------------------------------------------------------------------------------------


_NUMBERS = ("logIndex", "transactionIndex")
_TEXTS = ("transactionHash", "address", "data")
_KEYS = frozenset((*_NUMBERS, *_TEXTS, "topics"))
_LITERALS = {
    **{name: f'"{name}":'.encode() for name in _NUMBERS},
    **{name: f'"{name}":"0x'.encode() for name in _TEXTS},
    "topics": b'"topics":[',
}
_MAX_DIGITS = len(str(MAX_INDEX))
_LIMIT = 2**31 - 1  # Arrow offsets are 32-bit
_COMMA, _ZERO, _QUOTE = ord(","), ord("0"), ord('"')
_OPEN, _CLOSE, _BRACKET, _END_BRACKET = ord("{"), ord("}"), ord("["), ord("]")

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class _IrregularError(Exception):
    """The text is not in the regular form; caught by `scan_logs`, never seen by others."""


def scan_logs(arrays: Sequence[bytes]) -> Logs | None:
    """Return the columns of these JSON arrays of logs, one per block; None if not in regular form.

    Called by `logs.parse_logs` with the arrays that msgspec delimited.
    """
    text = b"".join(arrays)
    if b"\\" in text or len(text) > _LIMIT:
        return None
    sizes = np.fromiter((memoryview(array).nbytes for array in arrays), np.int64, len(arrays))
    ends = np.cumsum(sizes)
    try:
        return _Scan(text, ends - sizes, ends).columns()
    except (_IrregularError, pa.ArrowInvalid):  # the latter: a text is not UTF-8
        return None


def _demand(condition: object) -> None:
    if not condition:
        raise _IrregularError


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of every log: which string of the log it is, apart from the topics before it."""

    name: str
    at: int
    after_topics: bool


def _find_order(text: bytes, start: int) -> list[_Key]:
    """Return the keys of the first log, in order; all others are compared to them."""
    end = text.find(b"}", start)
    try:
        first = json.loads(text[start : end + 1])
    except ValueError:  # there is a brace in one of its strings
        raise _IrregularError from None
    keys = list(first)
    _demand(len(keys) == len(_KEYS) and set(keys) == _KEYS)
    order, at, after_topics = [], 0, False
    for name in keys:
        order.append(_Key(name, at, after_topics))
        at += 2 if name in _TEXTS else 1
        after_topics |= name == "topics"
    return order


_STRINGS = len(_KEYS) + len(_TEXTS)  # per log, apart from topics


class _Scan:
    """One text of several arrays. `opens` and `closes` are the positions of all quotes."""

    def __init__(self, text: bytes, firsts: Positions, ends: Positions) -> None:
        self.text, self.firsts, self.ends = text, firsts, ends
        self.bytes: Bytes = np.frombuffer(text, np.uint8)
        quotes = np.flatnonzero(self.bytes == _QUOTE)
        self.opens, self.closes = quotes[0::2], quotes[1::2]

    def columns(self) -> Logs:
        begins = np.flatnonzero(self.bytes[self.opens - 1] == _OPEN)
        self.begins: Positions = begins
        starts = self.opens[begins] - 1
        counts = self._count(starts)
        if not len(begins):
            return counts, [pa.array([], field.type) for field in _OWN]
        order = _find_order(self.text, int(starts[0]))
        self.topic_counts: Positions = np.diff(begins, append=len(self.opens)) - _STRINGS
        _demand((self.topic_counts >= 0).all() and (self.topic_counts <= TOPICS).all())
        self.strings = self._strings(1)
        self.digits = self._strings(3)
        values = self._read(order, starts)
        self._check_ends(values.pop("end"), starts)
        return counts, [
            self._hex(values["transactionHash"], TOPIC_DIGITS),
            pa.array(values["transactionIndex"]),
            pa.array(values["logIndex"]),
            self._hex(values["address"], ADDRESS_DIGITS),
            *self._topics(values["topics"]),
            self._take(self.digits, values["data"]),
        ]

    def _count(self, starts: Positions) -> Positions:
        """Return how many logs each array has; an array without any must be `[]`."""
        _demand((self.bytes[self.firsts] == _BRACKET).all())
        bounds = np.searchsorted(starts, np.append(self.firsts, len(self.text)))
        counts = np.diff(bounds)
        _demand((counts[self.ends - self.firsts == 2] == 0).all())
        _demand((counts[self.ends - self.firsts != 2] > 0).all())
        return counts

    def _read(self, order: list[_Key], starts: Positions) -> dict[str, Positions]:
        """Return per key the values of a number, or which string the value is; and the end."""
        values: dict[str, Positions] = {}
        expected = starts + 1  # where the next key must open
        for index, key in enumerate(order):
            at = self.begins + key.at + (self.topic_counts if key.after_topics else 0)
            _demand(np.array_equal(self.opens[at], expected))
            after = self._check_key(_LITERALS[key.name], expected)
            if key.name in _NUMBERS:
                is_last = index + 1 == len(order)
                following = self._next_key(order, index) if not is_last else None
                stop = self._number_stop(starts) if following is None else following - 1
                values[key.name] = self._number(after, stop)
            elif key.name == "topics":
                values[key.name] = at + 1
                stop = self._check_topics(at + 1, after)
            else:
                values[key.name] = at + 1
                begin = expected + len(f'"{key.name}":')
                _demand(np.array_equal(self.opens[at + 1], begin))
                stop = self.closes[at + 1] + 1
            is_end = _CLOSE if index + 1 == len(order) else _COMMA
            _demand((self.bytes[stop] == is_end).all())
            expected = stop + 1
        values["end"] = expected - 1
        return values

    def _next_key(self, order: list[_Key], index: int) -> Positions:
        key = order[index + 1]
        at = self.begins + key.at + (self.topic_counts if key.after_topics else 0)
        opens: Positions = self.opens[at]
        return opens

    def _number_stop(self, starts: Positions) -> Positions:
        """Return where each log must end, for logs whose last value is a number."""
        stops = np.append(starts[1:] - 2, self.ends[-1] - 2)
        last = np.searchsorted(starts, self.ends) - 1  # the last log of each array, or of an older
        filled = self.ends - self.firsts > 2
        stops[last[filled]] = self.ends[filled] - 2
        return stops

    def _check_key(self, expected: bytes, opens: Positions) -> Positions:
        """Compare this text in every log, eight bytes at a time; return what is behind it."""
        eights = np.ndarray((len(self.text) - 7,), "<u8", self.text, strides=(1,))
        for offset in {*range(0, len(expected) - 8, 8), len(expected) - 8}:
            want = int.from_bytes(expected[max(offset, 0) :][:8], "little")
            mask = (1 << 8 * min(8, len(expected))) - 1
            got = eights[opens + max(offset, 0)] & np.uint64(mask)
            _demand((got == np.uint64(want)).all())
        return opens + len(expected)

    def _number(self, start: Positions, stop: Positions) -> Positions:
        """Return the values of `[start, stop)`, which must be the digits of a number."""
        lengths = stop - start
        _demand((lengths > 0).all())
        longest = int(lengths.max())
        _demand(longest <= _MAX_DIGITS)
        values = np.zeros(len(start), np.int64)
        for place in range(longest):
            inside = lengths > place
            digits = self.bytes[np.where(inside, stop - 1 - place, stop - 1)] - np.uint8(_ZERO)
            _demand((digits < 10).all())
            values += np.where(inside, digits, 0) * np.int64(10**place)
        leading_zero = (self.bytes[start] == _ZERO) & (lengths > 1)
        _demand(not leading_zero.any() and (longest < _MAX_DIGITS or values.max() <= MAX_INDEX))
        return values

    def _check_topics(self, first: Positions, after: Positions) -> Positions:
        """Compare `"…","…"]`; return the position behind it."""
        stop = after
        for slot in range(TOPICS):
            present = self._present(slot)
            if present is None:
                break
            opens = self.opens[first[present] + slot]
            _demand(np.array_equal(opens, stop[present] + (slot > 0)))
            if slot:
                _demand((self.bytes[opens - 1] == _COMMA).all())
            stop[present] = self.closes[first[present] + slot] + 1
        _demand((self.bytes[stop] == _END_BRACKET).all())
        return stop + 1

    def _present(self, slot: int) -> slice | npt.NDArray[np.bool_] | None:
        """Select the logs that have this topic: all of them as a slice, none as None."""
        present: npt.NDArray[np.bool_] = self.topic_counts > slot
        if present.all():
            return slice(None)
        return present if present.any() else None

    def _check_ends(self, end: Positions, starts: Positions) -> None:
        """Between logs stands a comma, or the end of an array and the beginning of another."""
        is_last = np.zeros(len(starts), bool)
        filled = self.ends - self.firsts > 2
        is_last[np.searchsorted(starts, self.ends[filled]) - 1] = True
        _demand(np.array_equal(end[is_last] + 2, self.ends[filled]))
        inner = np.flatnonzero(~is_last)
        _demand(np.array_equal(end[inner] + 2, starts[inner + 1]))
        _demand(np.array_equal(starts[np.searchsorted(starts, self.firsts[filled])],
                               self.firsts[filled] + 1))  # fmt: skip

    def _strings(self, skip: int) -> pa.BinaryArray:
        """Return all strings and the gaps between them, alternately, as one Arrow array.

        `skip` is 1 to leave out the opening quote, 3 to leave out `"0x` too.
        """
        offsets = np.empty(2 * len(self.opens), np.int32)
        np.minimum(self.opens + skip, self.closes, out=offsets[0::2], casting="unsafe")
        offsets[1::2] = self.closes
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.text)]
        return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)

    def _take(self, strings: pa.BinaryArray, at: Positions) -> pa.BinaryArray:
        return strings.take(pa.array(2 * at))

    def _check_prefix(self, at: Positions) -> None:
        pairs = np.ndarray((len(self.text) - 1,), "<u2", self.text, strides=(1,))
        _demand((pairs[self.opens[at] + 1] == int.from_bytes(b"0x", "little")).all())

    def _hex(self, at: Positions, digits: int) -> pa.StringArray:
        """Return strings that must be 0x and so many digits."""
        _demand((self.closes[at] - self.opens[at] == digits + 3).all())
        strings = self._take(self.strings, at)
        text = np.frombuffer(strings.buffers()[2], np.uint8)[: (digits + 2) * len(at)]
        _demand(count_digits(text) == len(text) - len(at))  # all but the x, which stands in its key
        return strings.cast(pa.string())

    def _topics(self, first: Positions) -> tuple[pa.BinaryArray, ...]:
        slots = []
        for slot in range(TOPICS):
            present = self._present(slot)
            if present is None:
                slots.append(pa.nulls(len(first), pa.binary()))
                continue
            at = first[present] + slot
            _demand((self.closes[at] - self.opens[at] == TOPIC_DIGITS + 3).all())
            self._check_prefix(at)
            digits = self._take(self.digits, at)
            _demand(is_lower_hex(np.frombuffer(digits.buffers()[2], np.uint8)
                                 [: TOPIC_DIGITS * len(at)]))  # fmt: skip
            if len(at) < len(first):
                has_it = self.topic_counts > slot
                digits = digits.take(pa.array(np.cumsum(has_it) - 1, mask=~has_it))
            slots.append(digits)
        return tuple(slots)


# --- any other JSON -------------------------------------------------------------------------------


class _Log(msgspec.Struct, gc=False, rename="camel"):
    log_index: int
    transaction_index: int
    transaction_hash: str
    address: str
    topics: list[str]
    data: str


_decode_logs = msgspec.json.Decoder(list[_Log]).decode


def read_logs(arrays: Sequence[bytes], numbers: Sequence[int]) -> Logs:
    """Return the columns of these JSON arrays of logs; `numbers` are those of their blocks.

    Raises:
        BlockContentError: a log lacks a field or has one of the wrong kind.
    """
    blocks = [_read_block(raw, number) for raw, number in zip(arrays, numbers, strict=True)]
    logs = list(chain.from_iterable(blocks))
    columns = [
        [log.transaction_hash for log in logs],
        [log.transaction_index for log in logs],
        [log.log_index for log in logs],
        [log.address for log in logs],
        *(
            [log.topics[slot][2:] if slot < len(log.topics) else None for log in logs]
            for slot in range(TOPICS)
        ),
        [log.data[2:] for log in logs],
    ]
    counts = np.array([len(block) for block in blocks], np.int64)
    return counts, [
        pa.array(column, field.type) for column, field in zip(columns, _OWN, strict=True)
    ]


def _read_block(raw: bytes, number: int) -> list[_Log]:
    try:
        logs = _decode_logs(raw)
    except _UNREADABLE as error:
        raise _explain_logs(raw, number, error) from error
    for position, log in enumerate(logs):
        log.transaction_hash = log.transaction_hash.lower()
        log.address = log.address.lower()
        log.topics = [topic.lower() for topic in log.topics]
        problem = _find_problem(log)
        if problem:
            raise BlockContentError(
                f"a log is malformed: {problem}",
                block=number,
                log_index=log.log_index,
                position=position,
            )
    return logs


def _find_problem(log: _Log) -> str | None:
    if not 0 <= log.log_index <= MAX_INDEX:
        return "logIndex is out of range"
    if not 0 <= log.transaction_index <= MAX_INDEX:
        return f"transactionIndex is out of range: {log.transaction_index}"
    if not _HASH.fullmatch(log.transaction_hash):
        return f"transactionHash is no hash: {log.transaction_hash[:80]!r}"
    if not _ADDRESS.fullmatch(log.address):
        return f"not an address: {log.address[:80]!r}"
    if len(log.topics) > TOPICS:
        return f"{len(log.topics)} topics"
    for topic in log.topics:
        if not _HASH.fullmatch(topic):
            return f"not a topic: {topic[:80]!r}"
    if not log.data.startswith("0x"):
        return f"data does not begin with 0x: {log.data[:80]!r}"
    return None


def _explain_logs(raw: bytes, number: int, error: Exception) -> BlockContentError:
    match = _POSITION.search(str(error))
    facts: dict[str, object] = {"block": number}
    if match:
        facts["log_index"] = None
        facts["position"] = position = int(match[1])
        with suppress(*_UNREADABLE):  # another log of the block may be worse
            item = msgspec.json.decode(raw)[position]
            facts["log_index"] = item.get("logIndex") if isinstance(item, dict) else None
    return BlockContentError(f"a log is malformed: {error}", **facts)
