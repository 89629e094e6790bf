"""ClickHouse keeps the promises of every target, at every statement."""

from collections.abc import Callable
from typing import Any

import pytest

from headwater.errors import ClickHouseServerError
from headwater.targets.clickhouse import (
    ClickHouseClient,
    ClickHouseSettings,
    ClickHouseTarget,
    clickhouse_target,
    table,
)
from headwater.targets.clickhouse.client import refused_as
from headwater.testing.conformance import TargetConformance, apply_changes
from headwater.testing.conformance.crash import Script
from tests.sampling import every
from tests.targets import points
from tests.targets.clickhouse_places import admin, database
from tests.targets.places import has_effect

UNKNOWN_TABLE = 60


@pytest.mark.guarantee("STATE-2")
class TestClickHouseTarget(TargetConformance):
    sample = every(24)
    upserts = False  # rows are appended
    deletes = False
    shares = False  # shown with a stream column, in test_clickhouse
    exclusive = False  # there are no locks; a second writer is noticed, see test_clickhouse
    keyless = False
    side_tables = keeps_config = True
    side_walks = 1
    engine = "CollapsingMergeTree"
    walks = 3

    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.url = database()
        self.client = ClickHouseClient(self.url)

    def fresh(self) -> None:
        name = self.client.database
        admin(f"DROP DATABASE {name}")
        admin(f"CREATE DATABASE {name}")

    def make_target(self, stream_id: str) -> ClickHouseTarget:
        target = clickhouse_target(
            self.url,
            tables=[table("log", engine=self.engine), table("plain", engine=self.engine)],
            on_data=apply_changes,
            settings=ClickHouseSettings(attempts=1),
        )
        target.bind(stream_id)
        return target

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        shown = name if self.engine == "MergeTree" else f"{name}_live"
        try:
            found = self.client.query(f"SELECT * FROM {shown}")
        except ClickHouseServerError as error:
            if not refused_as(error, UNKNOWN_TABLE):
                raise
            return []
        return [dict(row) for row in found.to_pylist()]

    def watch_io(self, target: ClickHouseTarget, hook: Callable[[], None]) -> None:
        points.watch("ClickHouse", target, hook, has_effect)


class TestClickHouseTargetReplacing(TestClickHouseTarget):
    """The same, undone by newer versions."""

    sample = every(24)
    engine = "ReplacingMergeTree"
    side_tables = False
    first_seed = 1000
    walks = 2

    def script(self) -> Script:
        """Fewer steps: what differs is how blocks are undone."""
        steps = super().script()
        return [*steps[:3], *steps[4:]]


class TestClickHouseTargetMergeTree(TestClickHouseTarget):
    """The same, undone by deletion; identical rows may occur."""

    sample = every(24)
    engine = "MergeTree"
    side_tables = False
    watches_io = False
    first_seed = 2000
    walks = 2
