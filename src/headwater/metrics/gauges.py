"""Gauges that ask a record when the registry is read: positions, speeds, the sources of a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headwater.core import Head
from headwater.metrics.facts import newest
from headwater.metrics.instruments import Instruments
from headwater.portal import SourceState

if TYPE_CHECKING:
    from headwater.metrics.record import StreamRecord

CONNECTION, DATABASE = "connection", "database"


def show_record(record: StreamRecord, meters: Instruments) -> None:
    """Let the registry ask for positions and speeds when it is read, not at every block."""
    name = record.id
    for gauge, value in (
        (meters.cursor, lambda: record.state.number),
        (meters.head, lambda: newest(record.head, -1) or 0),
        (meters.finalized, lambda: newest(Head(record.state.finalized), -1) or 0),
        (meters.finality_unknown, lambda: record.finality_unknown_s or 0.0),
        (meters.ahead_seconds, lambda: record.ahead_s),
        (meters.lag_blocks, lambda: record.lag_blocks or 0),
        (meters.lag_seconds, lambda: record.lag_seconds or 0.0),
        (meters.hot_blocks, lambda: max(0, len(record.state.landing_points()) - 1)),
        (meters.blocks_per_second, lambda: record.speed()[0]),
        (meters.rows_per_second, lambda: record.speed()[1]),
        (meters.sqd_current, lambda: record.state.number),
        (meters.sqd_end, lambda: (record.facts and record.facts.to_block) or 0),
        (meters.sqd_ratio, lambda: ((record.facts and record.facts.percent) or 0.0) / 100),
        (meters.sqd_eta, lambda: (record.facts and record.facts.eta_s) or 0.0),
    ):
        gauge.labels(name).set_function(value)
    meters.running.labels(name).set(1)
    for counter in (meters.blocks, meters.rows, meters.commits, meters.forks):
        counter.labels(name)
    for reason in (CONNECTION, DATABASE):  # a rate needs a beginning
        meters.retries.labels(name, reason)
        meters.stalls.labels(name, reason)


def show_sources(
    stream_id: str, sources: Callable[[], Sequence[SourceState]], meters: Instruments
) -> None:
    """Let the registry ask for the sources of a list."""

    def asked(place: int, value: Callable[[SourceState], float]) -> float:
        return value(sources()[place])

    for place, state in enumerate(sources()):
        for gauge, value in (
            (meters.source_in_use, _in_use),
            (meters.source_good, _works),
            (meters.source_head, _head_of),
        ):
            gauge.labels(stream_id, state.source).set_function(partial(asked, place, value))


def _in_use(source: SourceState) -> float:
    return float(source.in_use)


def _works(source: SourceState) -> float:
    return float(source.verdict in ("good", "unknown"))


def _head_of(source: SourceState) -> float:
    return -1 if source.head is None else source.head
