"""The history target keeps the promises of every target, at every statement, on both databases."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import psycopg
import pytest
from psycopg.rows import dict_row

from headwater.changes import Changes, TableSchema
from headwater.core import Batch
from headwater.targets import Delivery, DuckDBSettings, PostgresSettings, history_target
from headwater.targets.contract import Capabilities
from headwater.targets.sql.history import HistoryTarget
from headwater.testing.conformance import TargetConformance
from headwater.testing.conformance.crash import Script
from headwater.testing.conformance.model import BALANCES, Change, Rig
from tests.sampling import every
from tests.targets import points
from tests.targets.postgres_places import database, empty

TABLES = [
    TableSchema(
        "log",
        key=["block_number", "log_index"],
        columns={"block_number": "integer", "log_index": "integer", "value": "text"},
    ),
    TableSchema(
        "balances",
        key=["owner", "token"],
        columns={"owner": "text", "token": "text", "value": "integer", "note": "text"},
    ),
]
KEYS = {one.name: one.key for one in TABLES}


def as_changes(block: int, changes: Sequence[Change]) -> Changes:
    """Say what the suite's callbacks would do as changes to rows."""
    made = Changes(block=block)
    for change in changes:
        for row in change.rows:
            key = {name: row[name] for name in KEYS[change.table]}
            rest = {name: value for name, value in row.items() if name not in key}
            match change.kind:
                case "insert":
                    made.insert(change.table, key, **rest)
                case "upsert":
                    made.upsert(change.table, key, **rest)
                case _:
                    made.delete(change.table, key)
    return made


class GivesChanges:
    """Turns what the suite prepares into changes; everything else is the target's own."""

    def __init__(self, target: HistoryTarget) -> None:
        self.inner = target

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        return replace(self.inner.capabilities, prepare_batch=self.prepare_batch)

    def prepare_batch(self, batch: Batch[Delivery]) -> Batch[Delivery]:
        made = as_changes(batch.headers[-1].number, batch.data.ctx)
        data = {"changes": made.toArrow()}
        ahead = None
        if not batch.state.is_hot and batch.headers[-1].number % 2:  # as a source might have done
            ahead = self.inner.prepare_rows(data)
        delivery = Delivery(data, side=batch.data.side, ahead=ahead)
        return self.inner.prepare_batch(batch.with_data(delivery))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _leaves_something(sql: str) -> bool:
    return not sql.lstrip().startswith(("SELECT", "CREATE", "DROP"))


class HistoryConformance(TargetConformance):
    sample = every(12)
    kind: ClassVar[str]
    keyless = False  # changes are of rows with a key
    walks: ClassVar[int] = 4

    def script(self) -> Script:
        """Do everything once, in few steps: a crash at each statement is tried."""

        def block(number: int, branch: str = "a") -> Callable[[Rig], None]:
            return lambda rig: rig.block(number, *self.everything(number), branch=branch, final=1)

        fork = [lambda rig: rig.roll_back(1), block(2, "b"), lambda rig: rig.settle(2)]
        return [block(1), block(2), *fork]

    def watch_io(self, target: Any, hook: Callable[[], None]) -> None:
        """Die only before statements that leave something, in the end or for the next ones.

        Dying before a query is dying after the statement before it, and whatever is created is
        created in the transaction that is watched.
        """
        points.watch(self.kind, target.inner, hook, _leaves_something)


@pytest.mark.guarantee("STATE-2")
class TestHistoryOnPostgres(HistoryConformance):
    kind = "PostgreSQL change log"

    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.dsn = database()

    def fresh(self) -> None:
        empty(self.dsn)

    def make_target(self, stream_id: str) -> Any:
        settings = PostgresSettings(lock_wait_s=0.3)
        target = history_target(self.dsn, tables=TABLES, settings=settings)
        target.bind(stream_id)
        return GivesChanges(target)

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            try:
                rows = connection.execute(f"SELECT * FROM {name}".encode()).fetchall()
            except psycopg.errors.UndefinedTable:
                return []
        return [plain(name, row) for row in rows]


@pytest.mark.guarantee("STATE-2")
class TestHistoryOnDuckDB(HistoryConformance):
    kind = "DuckDB change log"

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.places = (tmp_path / f"{number}.duckdb" for number in itertools.count())
        self.fresh()

    def fresh(self) -> None:
        self.path = next(self.places)

    def make_target(self, stream_id: str) -> Any:
        settings = DuckDBSettings(config={"threads": 1})
        target = history_target(self.path, tables=TABLES, settings=settings)
        target.bind(stream_id)
        return GivesChanges(target)

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        reader = history_target(self.path, tables=TABLES)
        try:
            rows: list[dict[str, Any]] = reader.query(f"FROM {name}").to_pylist()
        except duckdb.CatalogException:
            return []
        return [plain(name, row) for row in rows]


def plain(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as the suite has it: block numbers as integers, values as text."""
    if table == BALANCES:
        value = row["value"]
        return {**row, "value": None if value is None else str(int(value))}
    return {**row, "block_number": int(row["block_number"]), "log_index": int(row["log_index"])}
