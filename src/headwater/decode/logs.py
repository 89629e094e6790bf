"""Block lines to one flat table of logs: the largest cost of a backfill, so it is paid once.

Measured on blocks of 100 Transfer logs, one busy core: this scan 473 MB/s, `pyarrow.json` with an
explicit schema 289, msgspec structs and column lists 179 (benchmarks/bench_decode.py measures them
again). msgspec reads each header and delimits the array of logs; `log_scan` finds the columns in
the bytes; whatever is not in the regular form that portals write goes through `log_structs`, which
is slower, takes any JSON and explains what is wrong.

Runs on the driver and on executors; the same lines always give the same table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import msgspec
import numpy as np
import pyarrow as pa

from headwater.decode.log_columns import LogColumns
from headwater.decode.log_scan import scan_logs
from headwater.decode.log_structs import explain_line, read_logs
from headwater.errors import BlockContentError

TIMESTAMP = pa.timestamp("us", tz="UTC")
LOG_SCHEMA = pa.schema(
    [
        ("block_number", pa.int64()),
        ("block_hash", pa.string()),
        ("timestamp", TIMESTAMP),
        ("transaction_hash", pa.string()),
        ("transaction_index", pa.int32()),
        ("log_index", pa.int32()),
        ("address", pa.string()),
        ("topic0", pa.binary()),  # topics and data: hex digits without 0x, null where absent
        ("topic1", pa.binary()),
        ("topic2", pa.binary()),
        ("topic3", pa.binary()),
        ("data", pa.binary()),
    ]
)

_SLICE_BYTES = 8 << 20  # scanned at once: small beside the caches, large beside the cost of calls
_REUSED_BYTES = 31 << 20
_LAST_SECOND = 253_402_300_799  # 9999-12-31, the last that calendars of all targets can hold
_MAX_NUMBER = 2**63 - 1


class _Header(msgspec.Struct, gc=False):
    number: int
    hash: str
    timestamp: int


class _Line(msgspec.Struct, gc=False):
    header: _Header
    logs: msgspec.Raw = msgspec.Raw(b"[]")


_decode_line = msgspec.json.Decoder(_Line).decode


def parse_logs(lines: Sequence[bytes]) -> pa.Table:
    """Return all logs of these block lines, in order, as a table of `LOG_SCHEMA`.

    Address and topics are known to be lower-case hex of the right length; data is not looked into.
    Called by `decode_outputs`, once per batch however many outputs there are.

    Raises:
        BlockContentError: a line is no block, or a log lacks a field or has one of a wrong kind.
    """
    _reuse_memory()
    batches = [_parse_slice(part) for part in _slices(lines)]
    return pa.Table.from_batches([one for one in batches if one.num_rows], schema=LOG_SCHEMA)


@cache
def _reuse_memory() -> None:
    """Make glibc keep the memory of freed intermediate results for the next slice.

    It gives large blocks back to the system until one as large has been freed; then every slice
    would pay for fresh pages again, a quarter of all time. The block is never touched, so it costs
    nothing; other allocators do not care.
    """
    np.empty(_REUSED_BYTES, np.uint8)


def _slices(lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    first, size = 0, 0
    for index, line in enumerate(lines):
        size += len(line)
        if size >= _SLICE_BYTES:
            yield lines[first : index + 1]
            first, size = index + 1, 0
    if first < len(lines):
        yield lines[first:]


def _parse_slice(lines: Sequence[bytes]) -> pa.RecordBatch:
    blocks = [_read_line(line) for line in lines]
    arrays = [block.logs for block in blocks]
    columns = scan_logs(arrays)
    if columns is None:
        columns = read_logs(arrays, [block.header.number for block in blocks])
    return _with_headers([block.header for block in blocks], columns)


def _read_line(line: bytes) -> _Line:
    try:
        block = _decode_line(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise explain_line(line, error) from error
    header = block.header
    if not 0 <= header.number <= _MAX_NUMBER or not 0 <= header.timestamp <= _LAST_SECOND:
        raise BlockContentError(
            "a block has an impossible number or timestamp",
            block=header.number,
            timestamp=header.timestamp,
        )
    return block


def _with_headers(headers: Sequence[_Header], columns: LogColumns) -> pa.RecordBatch:
    """Repeat each block's header for each of its logs."""
    counts = columns.logs_per_block
    numbers = np.array([header.number for header in headers], dtype=np.int64)
    seconds = np.array([header.timestamp for header in headers], dtype=np.int64)
    hashes = pa.array([header.hash for header in headers], pa.string())
    which = pa.array(np.repeat(np.arange(len(headers), dtype=np.int32), counts))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.repeat(numbers, counts)),
            hashes.take(which),
            pa.array(np.repeat(seconds * 1_000_000, counts)).cast(TIMESTAMP),
            columns.transaction_hash,
            columns.transaction_index,
            columns.log_index,
            columns.address,
            *columns.topics,
            columns.data,
        ],
        schema=LOG_SCHEMA,
    )
