"""Parquet keeps the promises of every target, at every change of a file."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headwater.targets.lake.paths import Place
from headwater.targets.parquet import ParquetSettings, Rollover, parquet_target
from headwater.targets.parquet.state import read_stored
from headwater.testing.conformance import TargetConformance, apply_changes
from tests.sampling import every
from tests.targets import points
from tests.targets.replayed import Journal, Replayed


def held_rows(target: Any, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table that are not published yet."""
    parts = [part for batch in target._folders.held for part in batch.parts.get(table, ())]
    return [row for part in parts if part.memory is not None for row in part.memory.to_pylist()]


@pytest.mark.guarantee("STATE-2")
class TestParquetTarget(TargetConformance):
    """Everything that is final is published at every commit."""

    sample = every(8)
    upserts = deletes = shares = False
    keeps_config = True
    rollover = Rollover(bytes=None, seconds=None)

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.places = (tmp_path / str(number) for number in itertools.count())
        self.fresh()

    def fresh(self) -> None:
        self.path = next(self.places)
        self.journal: Journal = []
        self.recovered: Replayed | None = None
        self.read: dict[tuple[Path, int, int], list[dict[str, Any]]] = {}

    def make_target(self, stream_id: str) -> Any:
        target = parquet_target(
            self.path,
            tables=["log", "plain"],
            on_data=apply_changes,
            settings=ParquetSettings(rollover=self.rollover),
        )
        made = Replayed(target, self.journal, lambda one: setattr(self, "recovered", one))
        made.bind(stream_id)
        return made

    def read_rows(self, table: str) -> list[dict[str, Any]]:
        visible = sorted((self.path / table).glob("[!_.]*"))
        rows = [row for file in visible for row in self.rows_of(file)]
        held = [] if self.recovered is None else held_rows(self.recovered.target, table)
        if table == "log":
            stored = read_stored(Place.of(self.path), "one")
            cursor = -1 if stored is None else stored.state.number
            assert all(row["block_number"] <= cursor for row in rows), "published above the cursor"
            assert all(row["block_number"] > cursor for row in held), "held below the cursor"
        return [*rows, *held]

    def rows_of(self, file: Path) -> list[dict[str, Any]]:
        """Read a file once: it never changes while it is the same one."""
        key = (file, file.stat().st_ino, file.stat().st_mtime_ns)
        if key not in self.read:
            self.read[key] = pq.ParquetFile(file).read().to_pylist()
        return self.read[key]

    def watch_io(self, target: Replayed, hook: Callable[[], None]) -> None:
        target.target.on_step = points.watching("Parquet", hook)


class TestParquetTargetThatRollsOver(TestParquetTarget):
    """Final rows wait for others; windows of several blocks, and restarts that lose them."""

    sample = every(16)
    rollover = Rollover(rows=4, bytes=None, seconds=None)
    first_seed = 500
