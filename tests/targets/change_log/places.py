"""The two databases of a target with a change log, and a stream of changes into one of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from headwater.changes import Changes, TableSchema
from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.errors import HeadwaterError
from headwater.targets import Delivery, DuckDBSettings, PostgresSettings, history_target
from headwater.targets.sql.history import HistoryTarget
from tests.targets.postgres_places import database

Row = dict[str, Any]
KINDS = ["postgres", "duckdb"]
_NUMBERS = itertools.count(1)


class Place:
    """A database that is empty at first. `schema` is where its tables are by default."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.schema = "public" if kind == "postgres" else "main"
        self.address = (
            database() if kind == "postgres" else str(folder / f"{next(_NUMBERS)}.duckdb")
        )
        self.targets: list[HistoryTarget] = []

    def sql(self, sql: str) -> None:
        """Change the database behind the target's back, while it is closed or between commits."""
        if self.kind == "postgres":
            with psycopg.connect(self.address, autocommit=True) as connection:
                connection.execute(sql.encode())
        else:
            connection_ = duckdb.connect(self.address)
            connection_.execute(sql)
            connection_.close()

    def target(self, *tables: str | TableSchema, id: str | None = None, **given: Any) -> Any:
        """Return a target on this place, not opened yet."""
        settings: PostgresSettings | DuckDBSettings = (
            PostgresSettings(id=id, lock_wait_s=0.3)
            if self.kind == "postgres"
            else DuckDBSettings(id=id, config={"threads": 1})
        )
        target = history_target(self.address, tables=tables, settings=settings, **given)
        self.targets.append(target)
        return target

    def stream(self, *tables: str | TableSchema, **given: Any) -> Stream:
        """Open a target, and return what commits blocks to it."""
        return Stream(self.target(*tables, **given))


class Stream:
    """Commits blocks of changes to a target."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.state: PipeState = target.recover()

    def batch(self, number: int, changes: Any, state: PipeState, *, final: int, branch: str) -> Any:
        head = Head(BlockCursor(final, f"a{final}") if final >= 0 else None)
        held = {one.number: one for one in (*state.landing_points(), *state.rollback_chain)}
        if final in held:
            head = Head(held[final])
        parent = str(state.cursor.hash) if state.cursor else f"a{number - 1}"
        header = BlockHeader(number, f"{branch}{number}", parent, number - 1, 1000 + number)
        after = state.advance([header], head)
        return Batch((header,), head, after, (), Delivery({"changes": changes}))

    def block(
        self, number: int, changes: Changes | None = None, *, final: int = -1, branch: str = "a"
    ) -> None:
        """Commit one block, of which the portal calls `final` finalized."""
        self.flush([(number, changes)], final=final, branch=branch)

    def flush(
        self,
        blocks: Sequence[tuple[int, Changes | None]],
        *,
        final: int = -1,
        branch: str = "a",
    ) -> None:
        """Commit several blocks, each a batch, in one step."""
        state, batches = self.state, []
        for number, changes in blocks:
            table = (Changes(block=number) if changes is None else changes).toArrow()
            batch = self.batch(number, table, state, final=final, branch=branch)
            batches.append(self.target.prepare_batch(batch))
            state = batch.state
        self.target.commit(batches, state)
        self.state = state

    def prepared_ahead(self, batch: Any) -> Any:
        """Return a batch with what the target makes of its rows ahead, if they can be prepared."""
        with suppress(HeadwaterError):
            return batch.with_data(
                replace(batch.data, ahead=self.target.prepare_rows(batch.data.data))
            )
        return batch

    def settle(self, final: int) -> None:
        """Commit that finality moved while nothing arrived."""
        held = {one.number: one for one in self.state.rollback_chain}
        state = self.state.settle(Head(held[final]), confirmed=True)
        self.target.commit((), state)
        self.state = state

    def fork(self, number: int) -> None:
        """Go back to a block."""
        safe = next(one for one in self.state.landing_points() if one.number == number)
        state = self.state.rewind(safe)
        self.target.roll_back(state)
        self.state = state

    def rows(self, sql: str) -> list[Row]:
        """Read what is committed; numbers as exact text where they are no small integers."""
        found: list[Row] = self.target.query(sql).to_pylist()
        return [{name: _plain(value) for name, value in row.items()} for row in found]

    def change_log(self) -> list[tuple[Any, ...]]:
        """Return the change log, oldest first, without its ids."""
        rows = self.rows(
            "SELECT op, table_name, pk, prev_value, block_num FROM substreams_history ORDER BY id"
        )
        return [tuple(row.values()) for row in rows]


def plain_rows(rows: Iterable[Row]) -> list[str]:
    """Return rows in an order that does not depend on how they came."""
    return sorted(repr(sorted(row.items())) for row in rows)


def _plain(value: Any) -> Any:
    return format(value, "f") if isinstance(value, Decimal) else value


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty database of each kind; whatever was opened on it is closed."""
    with open_place(request.param, tmp_path) as made:
        yield made


@contextmanager
def open_place(kind: str, folder: Path) -> Iterator[Place]:
    """Yield an empty database of a kind; whatever was opened on it is closed."""
    made = Place(kind, folder)
    yield made
    for target in made.targets:
        target.close()
