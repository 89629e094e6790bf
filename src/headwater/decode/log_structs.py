"""Logs read as objects: any JSON, any order of keys, and words for what is wrong.

Used when `log_scan` does not recognise the form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain

import msgspec
import numpy as np
import pyarrow as pa

from headwater.decode.log_columns import ADDRESS_DIGITS, TOPIC_DIGITS, TOPICS, LogColumns
from headwater.errors import BlockContentError

_POSITION = re.compile(r"`\$\[(\d+)\]")
_ADDRESS = re.compile(rf"0x[0-9a-f]{{{ADDRESS_DIGITS}}}")
_HASH = re.compile(rf"0x[0-9a-f]{{{TOPIC_DIGITS}}}")
_MAX_INDEX = 2**31 - 1
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
        transaction_index=pa.array([log.transaction_index for log in logs], pa.int32()),
        log_index=pa.array([log.log_index for log in logs], pa.int32()),
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
    if not 0 <= log.log_index <= _MAX_INDEX:
        return "logIndex is out of range"
    if not 0 <= log.transaction_index <= _MAX_INDEX:
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
