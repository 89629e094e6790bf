"""Every metric by name: ours, and those of the Pipes SDK, whose dashboards then work unchanged.

One `Instruments` belongs to one Prometheus registry; all streams of a process share it and differ
by the label `id`. Counters go on when a stream is started again in the same process.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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
        self._registry = registry
        # where the stream stands
        self.cursor = self._gauge("cursor_block", "Last committed block; -1 before the first")
        self.head = self._gauge("head_block", "Newest block that the portal has reported")
        self.finalized = self._gauge("finalized_block", "High-water mark of finality")
        self.finality_unknown = self._gauge(
            "finality_unknown_seconds", "Seconds since an answer last told the finalized block"
        )
        self.ahead_seconds = self._gauge(
            "ahead_seconds",
            "Seconds that the portal's newest block has been below the cursor: it lags, or its "
            "branch is shorter so far",
        )
        self.lag_blocks = self._gauge("lag_blocks", "Blocks between the cursor and the head")
        self.lag_seconds = self._gauge("lag_seconds", "Age of the last committed block")
        self.hot_blocks = self._gauge("hot_blocks", "Committed blocks that a fork may still undo")
        self.running = self._gauge("running", "1 while the stream runs, else 0")
        self.blocks_per_second = self._gauge("blocks_per_second", "Speed over the last batches")
        self.rows_per_second = self._gauge("rows_per_second", "Speed over the last batches")
        # what it has done
        self.blocks = self._counter("blocks", "Blocks committed, those undone later included")
        self.rows = self._counter("rows", "Decoded rows committed, those undone later included")
        self.bytes = self._counter("bytes", "Bytes of block lines read")
        self.skipped = self._counter(
            "rows_skipped",
            "Rows left out by on_error='skip', or for a value without a place",
        )
        self.altered = self._counter(
            "values_unrepresentable", "Committed values that the target could not hold as they were"
        )
        self.unlike = self._counter(
            "logs_unlike", "Logs with an event's topic and other indexed parameters", "output"
        )
        self.commits = self._counter("commits", "Commits of the target")
        self.stage_seconds = self._histogram(
            "stage_seconds", "Seconds per step, by stage", _SECONDS, "stage"
        )
        # messages
        self.outbox_messages = self._gauge(
            "outbox_messages", "Messages of on_finalized that are not delivered", "outbox"
        )
        self.outbox_age = self._gauge(
            "outbox_age_blocks", "Blocks the oldest of them is behind the finalized one", "outbox"
        )
        # forks
        self.forks = self._counter("forks", "Forks that undid committed blocks")
        self.fork_depth = self._histogram("fork_depth_blocks", "Blocks undone per fork", _DEPTHS)
        self.rows_undone = self._counter("rows_undone", "Decoded rows of blocks that forks undid")
        self.undo_rows = self._gauge(
            "undo_rows", "Rows kept for undoing hot blocks, counted every 25 commits"
        )
        self.missing_blocks = self._gauge(
            "missing_blocks", "Blocks left out because the portal did not have them any more"
        )
        self.journal_blocks = self._gauge("journal_blocks", "Hot blocks in a changelog's journal")
        self.journal_bytes = self._gauge("journal_bytes", "Bytes of a changelog's journal")
        self.discarded = self._counter("blocks_discarded", "Blocks a fork took before a commit")
        # sources of a list
        self.source_in_use = self._gauge("source_in_use", "1 for the source that is read", "source")
        self.source_good = self._gauge(
            "source_good", "1 while a source works and is not behind", "source"
        )
        self.source_head = self._gauge(
            "source_head_block", "Newest block that a source has shown; -1 before one", "source"
        )
        self.source_changes = self._counter("source_changes", "Changes from a source to another")
        # what went wrong
        self.retries = self._counter(
            "retries", "Requests sent again, by reason: a status, connection, database", "reason"
        )
        self.stalls = self._counter(
            "stalls", "Times that nothing arrived or was committed for long, by reason", "reason"
        )
        self.replica_waits = self._counter("replica_waits", "Pauses for a replica that is behind")
        self.errors = self._counter("errors", "Errors that ended the stream, by code", "code")
        # the names of the Pipes SDK
        self.sqd_current = self._sqd_gauge("processed_block", "Last processed block")
        self.sqd_end = self._sqd_gauge("end_block", "Last block of the range")
        self.sqd_ratio = self._sqd_gauge("progress_ratio", "Progress from 0 to 1")
        self.sqd_eta = self._sqd_gauge("eta_seconds", "Estimated seconds to the end")
        self.sqd_blocks = self._sqd_counter("blocks_processed", "Blocks processed")
        self.sqd_bytes = self._sqd_counter("bytes_downloaded", "Bytes downloaded")
        self.sqd_forks = self._sqd_counter("forks", "Forks")
        self.sqd_skipped = self._sqd_counter("decode_errors_skipped", "Rows not decoded")
        self.sqd_requests = self._sqd_counter(
            "portal_requests", "Requests to the portal", "classification", "status"
        )
        self.sqd_batch_blocks = Histogram(
            "sqd_batch_size_blocks", "Blocks per batch", ["id"], buckets=_BATCH_BLOCKS,
            registry=registry,
        )  # fmt: skip
        self.sqd_batch_bytes = Histogram(
            "sqd_batch_size_bytes", "Bytes per batch", ["id"], buckets=_BATCH_BYTES,
            registry=registry,
        )  # fmt: skip

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"headwater_{name}", text, ["id", *labels], registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"headwater_{name}", text, ["id", *labels], registry=self._registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"headwater_{name}", text, ["id", *labels], buckets=buckets, registry=self._registry
        )

    def _sqd_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"sqd_{name}", text, ["id"], registry=self._registry)

    def _sqd_counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"sqd_{name}", text, ["id", *labels], registry=self._registry)


def instruments(registry: CollectorRegistry = REGISTRY) -> Instruments:
    """Return the metrics of a registry; made once, and kept on it: both are freed together."""
    kept: dict[str, Instruments] = vars(registry)
    if _KEPT not in kept:
        kept[_KEPT] = Instruments(registry)
    return kept[_KEPT]
