"""PostgreSQL keeps the promises of every target, at every statement."""

from collections.abc import Callable
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg.rows import dict_row

from headwater.targets.postgres import PostgresSettings, PostgresTarget, postgres_target, table
from headwater.testing.conformance import TargetConformance, apply_changes
from tests.sampling import every
from tests.targets import points
from tests.targets.places import has_effect
from tests.targets.postgres_places import NEWEST, OTHER, database, empty


@pytest.mark.guarantee("STATE-2")
class TestPostgresTarget(TargetConformance):
    sample = every(10)
    side_tables = keeps_config = True
    keyless = False  # a table without a primary key is refused at the start
    version: ClassVar[int] = NEWEST
    types: ClassVar[dict[str, str] | None] = None

    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.dsn = database(self.version)

    def fresh(self) -> None:
        empty(self.dsn)

    def make_target(self, stream_id: str) -> PostgresTarget:
        target = postgres_target(
            self.dsn,
            tables=[
                table("log", append_only=True),
                table("balances", key=["owner", "token"], types=self.types),
            ],
            on_data=apply_changes,
            settings=PostgresSettings(lock_wait_s=0.3),
        )
        target.bind(stream_id)
        return target

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            try:
                rows = connection.execute(f"SELECT * FROM {name}".encode()).fetchall()
            except psycopg.errors.UndefinedTable:
                return []
        if self.types:
            for row in rows:
                if name == "balances" and row["value"] is not None:
                    row["value"] = format(row["value"], "f")
        return rows

    def watch_io(self, target: PostgresTarget, hook: Callable[[], None]) -> None:
        points.watch("PostgreSQL", target, hook, has_effect)


class TestPostgresTargetWithNumeric(TestPostgresTarget):
    """The same with integers of 256 bits as numbers, on the oldest server that is at hand."""

    sample = every(30)
    version = OTHER
    types: ClassVar[dict[str, str] | None] = {"value": "numeric(78,0)"}
    watches_io = False
    walks = 6
    first_seed = 1000
