"""Which logs of a batch are an output's own: the portal's filter, applied again.

A batch answers the union of what all outputs asked for. Without this, a filter of one output would
let rows in that another output asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange
from headwater.decode.abi import Event
from headwater.decode.log_columns import TOPICS
from headwater.decode.topic_filters import TopicFilters


def select_logs(
    batch: pa.RecordBatch,
    event: Event,
    contracts: tuple[str, ...] | None,
    topics: TopicFilters,
    ranges: Sequence[BlockRange],
) -> pa.RecordBatch:
    """Return the logs of this event, these contracts, these topics and these blocks.

    The number of topics must be the event's too: ERC-20 and ERC-721 share a Transfer signature and
    differ only in what is indexed. Called by `EventsOutput.decode`.
    """
    checks = [
        *in_ranges(batch.column("block_number"), ranges),
        *_has_topics(batch, len(event.indexed) + event.first_topic),
        *(
            is_one_of(batch.column(f"topic{slot}"), [value[2:].encode() for value in values])
            for slot, values in topics
        ),
    ]
    if not event.anonymous:
        checks.append(is_one_of(batch.column("topic0"), [event.topic0[2:].encode()]))
    if contracts is not None:
        checks.append(is_one_of(batch.column("address"), contracts))
    return keep_rows(batch, checks)


def keep_rows(batch: pa.RecordBatch, checks: Sequence[pa.BooleanArray]) -> pa.RecordBatch:
    """Return the rows that pass all checks; the batch itself if all do."""
    if not checks:
        return batch
    mask = checks[0]
    for check in checks[1:]:
        mask = pc.and_(mask, check)
    return batch if pc.all(mask, min_count=0).as_py() else batch.filter(mask)


def is_one_of(column: pa.Array, values: Sequence[str | bytes | int]) -> pa.BooleanArray:
    """Whether each value is one of these; null is none."""
    if len(values) == 1:
        return pc.fill_null(pc.equal(column, pa.scalar(values[0], column.type)), False)
    return pc.is_in(column, value_set=pa.array(values, column.type))


def _has_topics(batch: pa.RecordBatch, count: int) -> list[pa.BooleanArray]:
    """Topics fill their slots from the first on, so the last one and its successor tell."""
    checks = [pc.is_valid(batch.column(f"topic{count - 1}"))] if count else []
    if count < TOPICS:
        checks.append(pc.is_null(batch.column(f"topic{count}")))
    return checks


def in_ranges(column: pa.Int64Array, ranges: Sequence[BlockRange]) -> list[pa.BooleanArray]:
    """Return the check that numbers are in one of the ranges; none where all obviously are."""
    if not len(column):
        return []
    numbers = column.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    if any(low in one and high in one for one in ranges):
        return []
    inside = np.zeros(len(numbers), bool)
    for one in ranges:
        last = numbers <= one.to_block if one.to_block is not None else True
        inside |= (numbers >= one.from_block) & last
    return [pa.array(inside)]
