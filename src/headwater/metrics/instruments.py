"""Every metric by name: ours, and those of the Pipes SDK, whose dashboards then work unchanged.

One `Instruments` belongs to one Prometheus registry; all streams of a process share it and differ
by the label `id`. Counters go on when a stream is started again in the same process. Gauges ask a
record when the registry is read: positions, speeds, the sources of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headwater.core import Head
from headwater.metrics.facts import newest
from headwater.portal import SourceState

if TYPE_CHECKING:
    from headwater.metrics.record import StreamRecord

CONNECTION, DATABASE = "connection", "database"
REGISTRY = CollectorRegistry()
"""The registry behind `/metrics` of this process."""

_KEPT = "headwater_instruments"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_DEPTHS = (1, 2, 3, 5, 8, 13, 21, 34, 64, 128, 256, 512, 1024)
_BATCH_BLOCKS = (1, 5, 10, 50, 100, 500, 1000, 2000, 3000, 5000)
_BATCH_BYTES = (1e3, 1e4, 1e5, 512e3, 1e6, 5e6, 1e7, 11e6)


class Instruments:
    """The metrics of one registry. Each has the label `id`, the stream's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str, prefix: str = "headwater") -> Gauge:
            return Gauge(f"{prefix}_{name}", text, ["id", *labels], registry=registry)

        def counter(name: str, text: str, *labels: str, prefix: str = "headwater") -> Counter:
            return Counter(f"{prefix}_{name}", text, ["id", *labels], registry=registry)

        def histogram(
            name: str, text: str, buckets: Sequence[float], *labels: str, prefix: str = "headwater"
        ) -> Histogram:
            names = ["id", *labels]
            return Histogram(f"{prefix}_{name}", text, names, buckets=buckets, registry=registry)

        # where the stream stands
        self.cursor = gauge("cursor_block", "Last committed block; -1 before the first")
        self.head = gauge("head_block", "Newest block that the portal has reported")
        self.finalized = gauge("finalized_block", "High-water mark of finality")
        self.finality_unknown = gauge(
            "finality_unknown_seconds", "Seconds since an answer last told the finalized block"
        )
        self.ahead_seconds = gauge(
            "ahead_seconds",
            "Seconds that the portal's newest block has been below the cursor: it lags, or its "
            "branch is shorter so far",
        )
        self.lag_blocks = gauge("lag_blocks", "Blocks between the cursor and the head")
        self.lag_seconds = gauge("lag_seconds", "Age of the last committed block")
        self.hot_blocks = gauge("hot_blocks", "Committed blocks that a fork may still undo")
        self.running = gauge("running", "1 while the stream runs, else 0")
        self.blocks_per_second = gauge("blocks_per_second", "Speed over the last batches")
        self.rows_per_second = gauge("rows_per_second", "Speed over the last batches")
        # what it has done
        self.blocks = counter("blocks", "Blocks committed, those undone later included")
        self.rows = counter("rows", "Decoded rows committed, those undone later included")
        self.bytes = counter("bytes", "Bytes of block lines read")
        self.skipped = counter(
            "rows_skipped",
            "Rows left out by on_error='skip', or for a value without a place",
        )
        self.altered = counter(
            "values_unrepresentable", "Committed values that the target could not hold as they were"
        )
        self.unlike = counter(
            "logs_unlike", "Logs with an event's topic and other indexed parameters", "output"
        )
        self.commits = counter("commits", "Commits of the target")
        self.stage_seconds = histogram(
            "stage_seconds", "Seconds per step, by stage", _SECONDS, "stage"
        )
        # messages
        self.outbox_messages = gauge(
            "outbox_messages", "Messages of on_finalized that are not delivered", "outbox"
        )
        self.outbox_age = gauge(
            "outbox_age_blocks", "Blocks the oldest of them is behind the finalized one", "outbox"
        )
        # forks
        self.forks = counter("forks", "Forks that undid committed blocks")
        self.fork_depth = histogram("fork_depth_blocks", "Blocks undone per fork", _DEPTHS)
        self.rows_undone = counter("rows_undone", "Decoded rows of blocks that forks undid")
        self.undo_rows = gauge(
            "undo_rows", "Rows kept for undoing hot blocks, counted every 25 commits"
        )
        self.missing_blocks = gauge(
            "missing_blocks", "Blocks left out because the portal did not have them any more"
        )
        self.journal_blocks = gauge("journal_blocks", "Hot blocks in a changelog's journal")
        self.journal_bytes = gauge("journal_bytes", "Bytes of a changelog's journal")
        self.discarded = counter("blocks_discarded", "Blocks a fork took before a commit")
        # sources of a list
        self.source_in_use = gauge("source_in_use", "1 for the source that is read", "source")
        self.source_good = gauge(
            "source_good", "1 while a source works and is not behind", "source"
        )
        self.source_head = gauge(
            "source_head_block", "Newest block that a source has shown; -1 before one", "source"
        )
        self.source_changes = counter("source_changes", "Changes from a source to another")
        # what went wrong
        self.retries = counter(
            "retries", "Requests sent again, by reason: a status, connection, database", "reason"
        )
        self.stalls = counter(
            "stalls", "Times that nothing arrived or was committed for long, by reason", "reason"
        )
        self.replica_waits = counter("replica_waits", "Pauses for a replica that is behind")
        self.errors = counter("errors", "Errors that ended the stream, by code", "code")
        # the names of the Pipes SDK
        self.sqd_current = gauge("processed_block", "Last processed block", prefix="sqd")
        self.sqd_end = gauge("end_block", "Last block of the range", prefix="sqd")
        self.sqd_ratio = gauge("progress_ratio", "Progress from 0 to 1", prefix="sqd")
        self.sqd_eta = gauge("eta_seconds", "Estimated seconds to the end", prefix="sqd")
        self.sqd_blocks = counter("blocks_processed", "Blocks processed", prefix="sqd")
        self.sqd_bytes = counter("bytes_downloaded", "Bytes downloaded", prefix="sqd")
        self.sqd_forks = counter("forks", "Forks", prefix="sqd")
        self.sqd_skipped = counter("decode_errors_skipped", "Rows not decoded", prefix="sqd")
        self.sqd_requests = counter(
            "portal_requests", "Requests to the portal", "classification", "status", prefix="sqd"
        )
        self.sqd_batch_blocks = histogram(
            "batch_size_blocks", "Blocks per batch", _BATCH_BLOCKS, prefix="sqd"
        )
        self.sqd_batch_bytes = histogram(
            "batch_size_bytes", "Bytes per batch", _BATCH_BYTES, prefix="sqd"
        )


def instruments(registry: CollectorRegistry = REGISTRY) -> Instruments:
    """Return the metrics of a registry; made once, and kept on it: both are freed together."""
    kept: dict[str, Instruments] = vars(registry)
    if _KEPT not in kept:
        kept[_KEPT] = Instruments(registry)
    return kept[_KEPT]


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
            (meters.source_in_use, lambda source: float(source.in_use)),
            (meters.source_good, lambda source: float(source.verdict in ("good", "unknown"))),
            (meters.source_head, lambda source: -1 if source.head is None else source.head),
        ):
            gauge.labels(stream_id, state.source).set_function(partial(asked, place, value))
