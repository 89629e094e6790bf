"""DuckDB keeps the promises of every target, at every statement."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from headwater.targets.duckdb import DuckDBSettings, DuckDBTarget, duckdb_target, table
from headwater.testing.conformance import TargetConformance, apply_changes
from tests.sampling import every
from tests.targets import points
from tests.targets.places import has_effect


@pytest.mark.guarantee("STATE-2")
class TestDuckDBTarget(TargetConformance):
    sample = every(10)
    side_tables = keeps_config = True
    types: dict[str, str] | None = None

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.places = (tmp_path / f"{number}.duckdb" for number in itertools.count())
        self.fresh()

    def fresh(self) -> None:
        self.path = next(self.places)

    def make_target(self, stream_id: str) -> DuckDBTarget:
        target = duckdb_target(
            self.path,
            tables=[
                table("log", append_only=True),
                table("balances", key=["owner", "token"], types=self.types),
                "plain",
            ],
            on_data=apply_changes,
            settings=DuckDBSettings(config={"threads": 1}),
        )
        target.bind(stream_id)
        return target

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        reader = duckdb_target(self.path)
        try:
            rows: list[dict[str, Any]] = reader.query(f"FROM {name}").to_pylist()
        except duckdb.CatalogException:
            return []
        return rows

    def watch_io(self, target: DuckDBTarget, hook: Callable[[], None]) -> None:
        points.watch("DuckDB", target, hook, has_effect)


class TestDuckDBTargetWithBignum(TestDuckDBTarget):
    """The same with integers of 256 bits as numbers."""

    sample = every(30)
    types = {"value": "BIGNUM"}  # noqa: RUF012
    side_tables = watches_io = False
    walks = 6
    first_seed = 1000
