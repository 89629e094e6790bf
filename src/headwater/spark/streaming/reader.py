"""Spark's reader of a changelog: offsets as JSON in, partitions and rows out.

Spark makes one in a Python process of its own on the driver's machine, which lives as long as the
query runs and answers `latestOffset`, `partitions` and `commit`; and one for each scan, which is
pickled to executors and only reads. The former holds a `Follower`, the latter nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from headwater.errors import coded_line_first
from headwater.spark.streaming.journal import Offset
from headwater.spark.streaming.source import ChangelogPart, FinalPart, Follow, LoadedStream

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.stream.changelog import Follower
    from headwater.stream.module_changelog import LoadedModule


class ChangelogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a changelog. `loaded` says what it reads; `follow` stays on the driver."""

    def __init__(self, loaded: LoadedStream | LoadedModule, follow: Follow | None = None) -> None:
        self._loaded = loaded
        self._follow = follow
        self._follower: Follower | None = None

    def __reduce__(self) -> tuple[type[ChangelogReader], tuple[LoadedStream | LoadedModule]]:
        return ChangelogReader, (self._loaded,)

    @coded_line_first()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - a method of Spark's
        """Return where the changelog begins. Called for a query without a checkpoint."""
        return self._following.begin(self._loaded.first_block()).to_json()

    @coded_line_first()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - a method of Spark's
        """Note the head of now: the query ends there."""
        self._following.end_at_head()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - a method of Spark's
        """Return the limit that the options set; `Follower` keeps it, whatever Spark passes on."""
        return ReadMaxBytes(self._loaded.limits.span.bytes)

    @coded_line_first()
    def latestOffset(  # noqa: N802 - a method of Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends; `start` itself if there is nothing new."""
        begins = Offset.from_json(start)
        end = self._following.next(begins)
        return start if end == begins else end.to_json()

    @coded_line_first()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - a method of Spark's
        """Return the newest block, lag and size of the journal, for `query.lastProgress`."""
        return self._following.newest()

    @coded_line_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what tasks read, also when a micro-batch is replayed."""
        parts = self._following.plan(Offset.from_json(start), Offset.from_json(end))
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition. Called on an executor, once per attempt of the task."""
        part: ChangelogPart = partition.value
        if isinstance(part, FinalPart):
            assert isinstance(self._loaded, LoadedStream), "of modules the journal has all blocks"
            return self._loaded.part_reader(part).read(part.part)
        return iter(part.rows().to_batches())

    @coded_line_first()
    def commit(self, end: dict[str, Any]) -> None:
        """Let the journal forget what Spark will not ask for again."""
        self._following.commit(Offset.from_json(end))

    def stop(self) -> None:
        """Release the portal and the journal. Called when the query ends."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    @property
    def _following(self) -> Follower:
        if self._follower is None:
            assert self._follow is not None, "executors only read"
            self._follower = self._follow(self._loaded)
        return self._follower
