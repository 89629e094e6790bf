"""The progress of changelogs as metrics: what Spark says of queries, in this process's registry.

    spark.streams.addListener(ChangelogMetrics())

The journal is kept by another process, which has no registry; its size comes with the progress of
the query. Spark calls a listener on the driver, or in the client of Spark Connect, after each
micro-batch. Nothing is stored: a restart counts forks from those that the checkpoint has.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headwater.metrics import REGISTRY, instruments
from headwater.spark.executors import known_failure

logger = logging.getLogger("headwater.stream")


class ChangelogMetrics(StreamingQueryListener):
    """Feeds the metrics of every query that reads a changelog.

    The label `id` is the name of the query, or its id if it has none; with the number of the source
    behind it where a query has several.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._meters = instruments(registry)
        self._forks: dict[str, int] = {}
        self._names: dict[str, list[str]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's
        """Do nothing: what the query reads is not known yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's
        """Do nothing: what was told last is still so."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's
        """Take the figures of the sources that are changelogs."""
        progress = event.progress
        sources = [
            (end, latest)
            for source in progress.sources
            if (end := _offset(source.endOffset)) and (latest := _offset(source.latestOffset))
        ]
        query = progress.name or str(progress.id)
        names = (
            [query] if len(sources) == 1 else [f"{query}/{place}" for place in range(len(sources))]
        )
        self._names[str(progress.id)] = names
        for name, (end, latest) in zip(names, sources, strict=True):
            self._set(name, end, latest)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's
        """Note that a query no longer runs; say why, where Spark's text hides a known reason."""
        failure = known_failure(event.exception or "")
        if failure is not None:
            logger.error("query.failed id=%s error=%s", event.id, failure)
        for name in self._names.pop(str(event.id), []):
            self._meters.running.labels(name).set(0)

    def _set(self, name: str, end: dict[str, Any], latest: dict[str, Any]) -> None:
        meters = self._meters
        meters.running.labels(name).set(1)
        meters.cursor.labels(name).set(end["number"])
        meters.head.labels(name).set(latest["number"])
        meters.lag_blocks.labels(name).set(latest["lag"])
        if end["finalized"] is not None:
            meters.finalized.labels(name).set(end["finalized"])
        meters.forks.labels(name).inc(end["forks"] - self._forks.get(name, end["forks"]))
        self._forks[name] = end["forks"]
        if "journal_bytes" in latest:
            meters.journal_blocks.labels(name).set(latest["journal_blocks"])
            meters.journal_bytes.labels(name).set(latest["journal_bytes"])


def _offset(text: str | None) -> dict[str, Any] | None:
    """Return an offset of a changelog; None for that of another source."""
    try:
        figures = json.loads(text or "null")
    except ValueError:
        return None
    is_ours = isinstance(figures, dict) and {"version", "number", "finalized", "forks"} <= set(
        figures
    )
    return figures if is_ours else None
