"""Delta keeps the promises of every target, at every step of I/O."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headwater.targets.delta import DeltaSettings, DeltaTarget, delta_target, table
from headwater.targets.lake.target import SWEEP_S
from headwater.testing.conformance import TargetConformance, apply_changes
from tests.sampling import every
from tests.targets import points


@pytest.mark.guarantee("STATE-2")
class TestDeltaTarget(TargetConformance):
    sample = every(12)
    side_tables = keeps_config = True
    shares = exclusive = False  # a table has one stream; a second writer takes over
    settings = DeltaSettings(maintain_every=0)
    walks = 4

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.places = (tmp_path / str(number) for number in itertools.count())
        self.fresh()

    def fresh(self) -> None:
        self.path = next(self.places)

    def make_target(self, stream_id: str) -> DeltaTarget:
        target = delta_target(
            self.path,
            tables=["log", table("balances", key=["owner", "token"]), "plain"],
            on_data=apply_changes,
            settings=self.settings,
        )
        target.clock = itertools.count(step=2 * SWEEP_S).__next__
        target.bind(stream_id)
        return target

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        if not (self.path / name / "_delta_log").exists():
            return []
        rows: list[dict[str, Any]] = DeltaTable(self.path / name).to_pyarrow_table().to_pylist()
        return rows

    def watch_io(self, target: DeltaTarget, hook: Callable[[], None]) -> None:
        target.on_step = points.watching("Delta", hook)


class TestDeltaTargetThatIsMaintained(TestDeltaTarget):
    """The same while every commit compacts, and deletes all that no rollback needs."""

    sample = every(24)
    settings = DeltaSettings(maintain_every=1, compact_files=2, retention_hours=0)
    side_tables = False
    walks = 2
    first_seed = 300
