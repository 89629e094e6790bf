"""Logs of EVM blocks as one flat table: the largest cost of a backfill, so it is paid once.

Measured on blocks of 100 Transfer logs, one busy core: this scan 473 MB/s, `pyarrow.json` with an
explicit schema 289, msgspec structs and column lists 179 (benchmarks/bench_decode.py measures them
again). msgspec reads each header and delimits the array of logs; `log_scan` finds the columns in
the bytes; whatever is not in the regular form that portals write goes through `log_structs`, which
is slower, takes any JSON and explains what is wrong.

Runs on the driver and on executors; the same lines always give the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from headwater.decode.block_lines import (
    HEADER_FIELDS,
    Header,
    header_columns,
    line_type,
    read_lines,
    refuse_repeated_keys,
    slices,
)
from headwater.decode.log_scan import scan_logs
from headwater.decode.log_structs import read_logs

LOG_SCHEMA = pa.schema(
    [
        *HEADER_FIELDS,
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
