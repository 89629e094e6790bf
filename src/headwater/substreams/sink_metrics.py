"""The SQL sink's metrics under its own names, `substreams_sink_*`, beside Headwater's.

Dashboards that were made for the sink go on. What Headwater counts anyway (rows, commits, seconds
of each step, errors) is read from its own metrics when they are asked for; messages are counted
here. All streams of a process share one set, as the sink has one. Times are sums in seconds unless
the name of the sink says otherwise. Runs on the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headwater.metrics import REGISTRY
from headwater.substreams.messages import (
    Clock,
    FatalError,
    Message,
    OtherMessage,
    Outputs,
    Progress,
    SessionInit,
    UndoSignal,
)

PREFIX = "substreams_sink_"
_KEPT = "headwater_sink_metrics"
_STAGES = "headwater_stage_seconds_sum"
_POSITIONS = ("headwater_cursor_block", "headwater_lag_seconds")
_OF_STAGE = {
    "progress_message_last_block": "reached",
    "progress_message_last_contiguous_block": "contiguous_to",
    "progress_message_running_jobs": "running_jobs",
}


class SinkMetrics(Collector):
    """Counts messages, and shows them and Headwater's own figures under the sink's names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._ids: dict[str, None] = {}  # in the order in which they began
        self._counts = dict.fromkeys(
            ("data_message", "data_message_size_bytes", "undo_message", "progress_message",
             "unknown_message"), 0,
        )  # fmt: skip
        self._progress = Progress()
        self._block: Clock | None = None
        self._block_s = 0.0

    def follow(self, stream_id: str) -> None:
        """Count the stream of this id too; the newest is the one whose position is shown."""
        self._ids.pop(stream_id, None)
        self._ids[stream_id] = None

    def hear(self, message: Message) -> None:
        """Count what an endpoint says. Called in the loop's thread."""
        match message:
            case Outputs(items, size):
                self._count("data_message")
                self._count("data_message_size_bytes", size)
                for item in items:
                    self._see(item.clock)
            case UndoSignal():
                self._count("undo_message")
            case Progress():
                self._count("progress_message")
                self._progress = message
            case OtherMessage():
                self._count("unknown_message")
            case SessionInit() | FatalError():
                pass  # the client raises what a module failed with: an error of the stream

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield every figure. Called when the registry is read, in any thread."""
        counts, progress, block = dict(self._counts), self._progress, self._block
        own = self._own()
        drift = 0.0 if block is None else max(0.0, time.time() - (block.timestamp or 0))
        number = -1.0 if block is None else float(block.number)
        shown = {
            "head_block_number": number,
            "head_block_time_drift": drift,
            "block_wait_time": own["read"],
            "block_time_delta": self._block_s,
            "local_processing_time": own["transform"] + own["commit"] + own["roll_back"],
            "message_size_bytes": counts["data_message_size_bytes"],
            "error": own["headwater_retries_total"] + own["headwater_errors_total"],
            **counts,
            "progress_message_total_processed_blocks": progress.processed_blocks,
            "progress_message_processed_bytes": progress.bytes_read + progress.bytes_written,
            "backprocessing_completion": float(counts["data_message"] > 0),
            "postgres_head_block_number": own["headwater_cursor_block"],
            "postgres_head_block_time_drift": own["headwater_lag_seconds"],
            "postgres_store_flush_count": own["headwater_commits_total"],
            "postgres_flushed_rows_count": own["headwater_rows_total"],
            "postgres_store_flush_duration": own["commit"] * 1e9,
        }
        for name, value in shown.items():
            yield GaugeMetricFamily(PREFIX + name, _words(name), value=value)
        for name, fact in _OF_STAGE.items():
            family = GaugeMetricFamily(PREFIX + name, _words(name), labels=["stage"])
            for at, stage in enumerate(progress.stages):
                family.add_metric([str(at)], getattr(stage, fact) or 0)
            yield family
        name = "sql_tx_query_execution_duration"
        family = GaugeMetricFamily(PREFIX + name, _words(name), labels=["type"])
        family.add_metric(["normal"], own["commit"])
        family.add_metric(["undo"], own["roll_back"])
        yield family

    def _own(self) -> dict[str, float]:
        """Sum up Headwater's own figures of the streams that are followed."""
        sums = dict.fromkeys(
            ("read", "transform", "commit", "roll_back", "headwater_retries_total",
             "headwater_errors_total", "headwater_cursor_block", "headwater_lag_seconds",
             "headwater_commits_total", "headwater_rows_total"), 0.0,
        )  # fmt: skip
        names = [*sums, _STAGES]
        for metric in self._registry.restricted_registry(names).collect():
            for sample in metric.samples:
                if sample.labels.get("id") not in self._ids:
                    continue
                name = sample.labels["stage"] if sample.name == _STAGES else sample.name
                if name not in _POSITIONS:
                    sums[name] = sums.get(name, 0.0) + sample.value
                elif sample.labels["id"] == next(reversed(self._ids)):
                    sums[name] = sample.value
        return sums

    def _count(self, name: str, value: int = 1) -> None:
        self._counts[name] += value

    def _see(self, clock: Clock) -> None:
        before = self._block
        if before is not None and before.timestamp is not None and clock.timestamp is not None:
            self._block_s = float(clock.timestamp - before.timestamp)
        self._block = clock


def sink_metrics(registry: CollectorRegistry = REGISTRY) -> SinkMetrics:
    """Return the sink's metrics of a registry; made once, kept on it, and shown from then on."""
    kept: dict[str, SinkMetrics] = vars(registry)
    if _KEPT not in kept:
        kept[_KEPT] = SinkMetrics(registry)
        registry.register(kept[_KEPT])
    return kept[_KEPT]


def _words(name: str) -> str:
    return f"The sink's own: {name.replace('_', ' ')}"
