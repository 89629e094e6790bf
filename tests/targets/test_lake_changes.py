"""Aggregates and changes in Iceberg and Delta: what they keep equals the model after every step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.errors import (
    ChangeFormError,
    DuplicateInsertError,
    LakeSchemaError,
    UnknownTableError,
)
from headwater.targets import Delivery, delta_target, iceberg_target
from tests.change_model import RowExistsError
from tests.sampling import examples
from tests.targets.aggregates import test_aggregates as sums
from tests.targets.change_log import test_properties as log
from tests.targets.test_lake_admin import rows as read

KINDS = ["iceberg", "delta"]


class Readable:
    """A target whose tables can be asked for, as those of a database."""

    def __init__(self, kind: str, path: Path, **options: Any) -> None:
        self.kind, self.path = kind, path
        made: Any = {"iceberg": iceberg_target, "delta": delta_target}[kind]
        self.target = made(path, **options)
        self.target.bind("one")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def query(self, sql: str) -> pa.Table:
        name = sql.split('"')[1] if '"' in sql else "balances"
        return pa.Table.from_pylist(read(self.kind, self.path, name))


@pytest.fixture(params=KINDS)
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    return ((request.param, tmp_path / str(number)) for number in itertools.count())


def place_of(folders: Iterator[tuple[str, Path]]) -> tuple[str, Path]:
    kind, path = next(folders)
    path.mkdir()
    return kind, path


@pytest.mark.guarantee("AGG-1")
@given(steps=sums.steps)
@settings(max_examples=examples(12), suppress_health_check=list(HealthCheck))
def test_aggregates_of_a_lake_equal_a_full_recomputation_after_every_step(
    folders: Iterator[tuple[str, Path]], steps: list[Any]
) -> None:
    kind, path = place_of(folders)
    options: Any = {"tables": ["transfers"], "aggregates": sums.BALANCES}
    chain = sums.Chain(Readable(kind, path, **options))
    for step in steps:
        if step[0] == "block":
            chain.block(step[1], step[2])
        else:
            chain.fork(step[1])
        chain.check()
    chain.target.close()
    again = Readable(kind, path, **options)
    assert again.recover() == chain.state
    chain.target = again
    chain.check()
    again.close()


class Stream:
    """Commits changes of blocks to a lake."""

    def __init__(self, target: Readable) -> None:
        self.target = target
        self.state: PipeState = target.recover()

    def batch(
        self, number: int, changes: pa.Table, state: PipeState, *, final: int, branch: str
    ) -> Batch[Delivery]:
        held = {one.number: one for one in state.rollback_chain}
        head = Head(held.get(final, BlockCursor(final, "?")) if final >= 0 else None)
        parent = "0" if state.cursor is None else str(state.cursor.hash)
        header = BlockHeader(number, f"{branch}{number}", parent, number - 1, 1)
        after = state.advance([header], head)
        return Batch((header,), head, after, (), Delivery({"changes": changes}))


def apply(tx: Any, data: Any) -> None:
    tx.apply(data["changes"])


class Both:
    """A lake and its model, moved together."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.model, self.branch = stream, log.Model(), 0

    def commit(self, blocks: list[list[dict[str, Any]]], behind: int = 0) -> None:
        model = log.Model()
        model.after = dict(self.model.after)
        state, batches, refused = self.stream.state, [], False
        first = model.newest + 1
        final = max(first - behind, -1) if behind else -1
        for number, changed in enumerate(blocks, first):
            table = log.as_table(number, changed)
            try:
                model.block(number, table.to_pylist())
            except RowExistsError:
                refused = True
            one = self.stream.batch(number, table, state, final=final, branch=f"{self.branch}-")
            batches.append(one)
            state = one.state
            if refused:
                break
        if refused:
            with pytest.raises(DuplicateInsertError, match="E6005"):
                self.stream.target.commit(batches, state)
        else:
            self.stream.target.commit(batches, state)
            self.model, self.stream.state = model, state

    def fork(self, choice: int) -> None:
        points = self.stream.state.landing_points()
        if points:
            self.branch += 1
            self.stream.state = self.stream.state.rewind(points[choice % len(points)])
            self.stream.target.roll_back(self.stream.state)
            self.model.fork(self.stream.state.number)

    def check(self) -> None:
        expected = self.model.after[self.model.newest]
        for table in log.TABLES:
            held = {
                (table.name, tuple(sorted((one, str(row[one])) for one in table.key))): {
                    name: str(value)
                    for name, value in row.items()
                    if value is not None and name not in table.key
                }
                for row in self.stream.target.query(f'FROM "{table.name}"').to_pylist()
            }
            wanted = {
                key: {name: log.canonical(name, value) for name, value in row.items()}
                for key, row in expected.items()
                if key[0] == table.name
            }
            assert held == wanted


@pytest.mark.guarantee("CHANGE-2")
@given(steps=log.steps)
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
def test_changes_with_forks_leave_in_a_lake_what_the_model_says(
    folders: Iterator[tuple[str, Path]], steps: list[Any]
) -> None:
    kind, path = place_of(folders)
    options: Any = {"tables": log.TABLES, "on_data": apply}
    both = Both(Stream(Readable(kind, path, **options)))
    for step in steps:
        if step[0] == "fork":
            both.fork(step[1])
        else:
            both.commit([step[1]] if step[0] == "block" else step[1], *step[2:])
        both.check()
    both.stream.target.close()


def test_changes_of_unknown_tables_and_frames_of_another_form_are_refused(
    folders: Iterator[tuple[str, Path]],
) -> None:
    kind, path = place_of(folders)
    stream = Stream(Readable(kind, path, tables=log.TABLES, on_data=apply))
    pk = [{"name": "id", "value": "x"}]
    unknown = {"table": "three", "pk": pk, "operation": "upsert", "fields": []}
    for frame, error in (
        (log.as_table(1, [unknown]), UnknownTableError),
        (pa.table({"id": ["x"]}), ChangeFormError),
    ):
        batch = stream.batch(1, frame, stream.state, final=-1, branch="a")
        with pytest.raises(error):
            stream.target.commit([batch], batch.state)
    assert stream.target.recover() == stream.state
    stream.target.close()


def test_an_aggregate_whose_table_has_another_form_is_refused(
    folders: Iterator[tuple[str, Path]],
) -> None:
    kind, path = place_of(folders)
    other: Any = {
        "tables": ["balances"],
        "on_data": lambda tx, data: tx.insert("balances", pa.table({"x": [1]})),
    }
    chain = sums.Chain(Readable(kind, path, **other))
    chain.block([sums.transfer("a", "b", 5)])
    chain.target.close()
    chain.target = Readable(kind, path, tables=["transfers"], aggregates=sums.BALANCES)
    chain.target.recover()
    with pytest.raises(LakeSchemaError, match="E2602"):
        chain.block([sums.transfer("a", "b", 5)])
    chain.target.close()
