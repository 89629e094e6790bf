"""A place for a target, DuckDB or PostgreSQL, that operators and streams share in a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.targets import duckdb_target, postgres_target
from headwater.targets.duckdb import DuckDBSettings
from headwater.targets.duckdb import table as duckdb_table
from headwater.targets.postgres import PostgresSettings
from headwater.targets.postgres import table as postgres_table
from headwater.testing.conformance.model import BALANCES, LOG, Rig, Row, apply_changes
from tests.targets.postgres_places import database


@dataclass
class Place:
    """One database: its address, and targets on it."""

    kind: str
    address: str
    lock_wait_s: float = 0.2

    def target(self, stream_id: str = "one", *, only: str = "") -> Any:
        """Return a target that applies changes, to one table if named, not opened yet."""
        make, table, settings = _KINDS[self.kind]
        tables = [table(LOG, append_only=True), table(BALANCES, key=["owner", "token"])]
        target = make(
            self.address,
            tables=[one for one in tables if not only or one.name == only],
            on_data=apply_changes,
            settings=settings(self.lock_wait_s),
        )
        target.bind(stream_id)
        return target

    def rig(self, stream_id: str = "one") -> Rig:
        """Return a target that has recovered from nothing, with its model."""
        target = self.target(stream_id)
        target.recover()
        return Rig(target, self.rows, [LOG, BALANCES])

    def rows(self, table: str) -> list[Row]:
        """Return the committed rows of a table."""
        found: list[Row] = self.query(f"SELECT * FROM {table}")
        return found

    def query(self, sql: str, params: Sequence[object] = ()) -> list[Row]:
        """Read what is committed."""
        make, *_ = _KINDS[self.kind]
        found: list[Row] = make(self.address).query(sql, params).to_pylist()
        return found


_KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "duckdb": (duckdb_target, duckdb_table, lambda wait: DuckDBSettings()),
    "postgres": (postgres_target, postgres_table, lambda wait: PostgresSettings(lock_wait_s=wait)),
}


def make_place(kind: str, folder: Path) -> Place:
    """Return an empty one."""
    return Place(kind, str(folder / "a.duckdb") if kind == "duckdb" else database())


def has_effect(sql: str) -> bool:
    """Tell whether a crash before a statement differs from one before the next statement.

    A query leaves nothing: dying before it is dying after the statement that preceded it.
    """
    return not sql.lstrip().startswith("SELECT")
