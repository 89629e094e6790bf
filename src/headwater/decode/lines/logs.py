"""Reads EVM logs into one flat table: the largest cost of a backfill, so it is paid once.

Measured on blocks of 100 Transfer logs, one busy core: this scan 473 MB/s, `pyarrow.json` with an
explicit schema 289, msgspec structs and column lists 179 (benchmarks/bench_decode.py measures them
again). msgspec reads each header and delimits the array of logs; `log_scan` finds the columns in
the bytes; `read_logs` reads what is not in the regular form that portals write: it is slower, takes
any JSON in any order of keys, and explains what is wrong.

Runs on the driver and on executors; the same lines always give the same table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import chain

import msgspec
import numpy as np
import pyarrow as pa

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
from headwater.decode.lines.log_scan import (
    ADDRESS_DIGITS,
    TOPIC_DIGITS,
    TOPICS,
    LogColumns,
    scan_logs,
)
from headwater.errors import BlockContentError

_POSITION = re.compile(r"`\$\[(\d+)\]")
_ADDRESS = re.compile(rf"0x[0-9a-f]{{{ADDRESS_DIGITS}}}")
_HASH = re.compile(rf"0x[0-9a-f]{{{TOPIC_DIGITS}}}")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Log(msgspec.Struct, gc=False, rename="camel"):
    log_index: int
    transaction_index: int
    transaction_hash: str
    address: str
    topics: list[str]
    data: str


_decode_logs = msgspec.json.Decoder(list[_Log]).decode


def read_logs(arrays: Sequence[bytes], numbers: Sequence[int]) -> LogColumns:
    """Return the columns of these JSON arrays of logs; `numbers` are those of their blocks.

    Raises:
        BlockContentError: a log lacks a field or has one of the wrong kind.
    """
    blocks = [_read_block(raw, number) for raw, number in zip(arrays, numbers, strict=True)]
    logs = list(chain.from_iterable(blocks))
    return LogColumns(
        logs_per_block=np.array([len(block) for block in blocks], np.int64),
        transaction_hash=pa.array([log.transaction_hash for log in logs], pa.string()),
        transaction_index=pa.array([log.transaction_index for log in logs], pa.int64()),
        log_index=pa.array([log.log_index for log in logs], pa.int64()),
        address=pa.array([log.address for log in logs], pa.string()),
        topics=tuple(
            pa.array(
                [log.topics[slot][2:] if slot < len(log.topics) else None for log in logs],
                pa.binary(),
            )
            for slot in range(TOPICS)
        ),
        data=pa.array([log.data[2:] for log in logs], pa.binary()),
    )


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
    found = _POSITION.search(str(error))
    facts: dict[str, object] = {"block": number}
    if found:
        facts["log_index"] = None
        facts["position"] = position = int(found[1])
        with suppress(*_UNREADABLE):  # another log of the block may be worse
            item = msgspec.json.decode(raw)[position]
            facts["log_index"] = item.get("logIndex") if isinstance(item, dict) else None
    return BlockContentError(f"a log is malformed: {error}", **facts)


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

_REUSED_BYTES = 31 << 20


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
    return pa.Table.from_batches([one for one in batches if one.num_rows], schema=LOG_SCHEMA)


def logs_batch(headers: Sequence[Header], arrays: Sequence[bytes]) -> pa.RecordBatch:
    """Return the logs of some blocks, given the JSON array of each. Called by `read_entities`.

    Raises:
        BlockContentError: a log lacks a field or has one of a wrong kind; two have one index.
    """
    _reuse_memory()
    columns = scan_logs(arrays)
    if columns is None:
        columns = read_logs(arrays, [header.number for header in headers])
    keys = {"log_index": columns.log_index}
    refuse_repeated_keys("logs", headers, columns.logs_per_block, keys)
    return pa.RecordBatch.from_arrays(
        [
            *header_columns(headers, columns.logs_per_block),
            columns.transaction_hash,
            columns.transaction_index,
            columns.log_index,
            columns.address,
            *columns.topics,
            columns.data,
        ],
        schema=LOG_SCHEMA,
    )


@cache
def _reuse_memory() -> None:
    """Make glibc keep the memory of freed intermediate results for the next slice.

    It gives large blocks back to the system until one as large has been freed; then every slice
    would pay for fresh pages again, a quarter of all time. The block is never touched, so it costs
    nothing; other allocators do not care.
    """
    np.empty(_REUSED_BYTES, np.uint8)
