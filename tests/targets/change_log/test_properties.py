"""Random operations with forks on real databases against the plain model, after every step."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.changes import CHANGES_SCHEMA, TableSchema
from headwater.errors import DuplicateInsertError
from tests.change_model import (
    RowExistsError,
    Rows,
    apply_one_by_one,
    exact_number,
    exact_text,
)
from tests.sampling import examples
from tests.targets.change_log.places import Place, Stream

LARGEST = 2**256 - 1
NUMBERS = ("n", "m")
TABLES = [
    TableSchema("one", key=["id"], columns={"id": "text", "n": "integer", "note": "text"}),
    TableSchema(
        "Two",
        key=["a", "B"],
        columns={"a": "text", "B": "integer", "n": "integer", "m": "integer", "note": "text"},
    ),
]
COLUMNS = {"one": ("n",), "Two": ("n", "m")}
integers = st.one_of(st.integers(-3, 3), st.sampled_from([LARGEST, -LARGEST, 10**37, 10**75]))
texts = st.sampled_from(["a", "A", "a/b", "é🙂", "", "'", '"', "\\", "null", "{}"])
keys = {
    "one": st.sampled_from(["x", "y", "x/y", "X", '"']).map(lambda one: [("id", one)]),
    "Two": st.tuples(st.sampled_from(["a", "a/b", "b"]), st.sampled_from(["1", "-2"])).map(
        lambda pair: [("a", pair[0]), ("B", pair[1])]
    ),
}


@st.composite
def changes(draw: Any) -> dict[str, Any]:
    table = draw(st.sampled_from(["one", "Two"]))
    operation = draw(st.sampled_from(["insert", "update", "upsert", "upsert", "delete"]))
    fields = []
    for _ in range(draw(st.integers(0, 3)) if operation != "delete" else 0):
        if draw(st.booleans()):
            step = draw(st.sampled_from(["set", "set_if_null"]))
            fields.append(("note", draw(st.one_of(st.none(), texts)), step))
        else:
            step = draw(st.sampled_from(["set", "add", "sub", "min", "max", "set_if_null"]))
            column = draw(st.sampled_from(COLUMNS[table]))
            fields.append((column, str(draw(integers)), step))
    return {
        "table": table,
        "pk": [{"name": name, "value": value} for name, value in draw(keys[table])],
        "operation": operation,
        "fields": [dict(zip(("name", "value", "operation"), one, strict=True)) for one in fields],
    }


block = st.tuples(st.just("block"), st.lists(changes(), max_size=6), st.integers(0, 6))
flush = st.tuples(
    st.just("flush"), st.lists(st.lists(changes(), max_size=4), min_size=2, max_size=4)
)
fork = st.tuples(st.just("fork"), st.integers(0, 20))
steps = st.lists(st.one_of(block, block, flush, fork), min_size=1, max_size=9)
_NUMBERS = itertools.count()


class Model:
    """The rows after each block that is still standing."""

    def __init__(self) -> None:
        self.after: dict[int, Rows] = {0: {}}

    @property
    def newest(self) -> int:
        return max(self.after)

    def block(self, number: int, changed: list[dict[str, Any]]) -> None:
        self.after[number] = apply_one_by_one(self.after[self.newest], changed)

    def fork(self, number: int) -> None:
        for one in [one for one in self.after if one > number]:
            del self.after[one]


def as_table(number: int, changed: list[dict[str, Any]]) -> pa.Table:
    rows = [{**one, "ordinal": at, "block_number": number} for at, one in enumerate(changed)]
    return pa.Table.from_pylist(rows, schema=CHANGES_SCHEMA)


class Both:
    """A target and its model, moved together."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.model = Model()
        self.branch = 0

    def commit(self, blocks: list[list[dict[str, Any]]], behind: int = 0) -> None:
        """Commit blocks in one step; `behind` is how far finality lags, if it is reported."""
        model = Model()
        model.after = dict(self.model.after)
        numbers = [model.newest + 1 + at for at in range(len(blocks))]
        state, batches, refused = self.stream.state, [], False
        final = max(numbers[0] - behind, -1) if behind else -1
        for number, changed in zip(numbers, blocks, strict=True):
            try:
                model.block(number, as_table(number, changed).to_pylist())
            except RowExistsError:
                refused = True
            batch = self.stream.batch(
                number, as_table(number, changed), state, final=final, branch=f"{self.branch}-"
            )
            if number % 2 and not batch.state.is_hot:
                batch = self.stream.prepared_ahead(batch)
            batches.append(self.stream.target.prepare_batch(batch))
            state = batch.state
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
            number = points[choice % len(points)].number
            self.branch += 1
            self.model.fork(number)
            self.stream.fork(number)

    def check(self) -> None:
        expected = self.model.after[self.model.newest]
        for table in TABLES:
            held = {
                (table.name, tuple(sorted((one, plain(row[one])) for one in table.key))): {
                    name: plain(value)
                    for name, value in row.items()
                    if value is not None and name not in table.key
                }
                for row in self.stream.rows(f'SELECT * FROM "{table.name}"')
            }
            wanted = {
                key: {name: canonical(name, value) for name, value in row.items()}
                for key, row in expected.items()
                if key[0] == table.name
            }
            assert held == wanted
        floor = self.stream.state.landing_points()
        kept = {row[-1] for row in self.stream.change_log()}
        assert not floor or all(number > floor[0].number for number in kept)


def plain(value: object) -> str:
    return str(value)


def canonical(name: str, value: str) -> str:
    return exact_text(exact_number(value)) if name in NUMBERS else value


@pytest.mark.guarantee("CHANGE-2")
@given(steps=steps)
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
def test_operations_with_forks_leave_what_the_model_says(place: Place, steps: list[Any]) -> None:
    place.sql(
        'DROP TABLE IF EXISTS one; DROP TABLE IF EXISTS "Two"; '
        "DROP TABLE IF EXISTS substreams_history"
    )
    both = Both(place.stream(*TABLES, id=f"run {next(_NUMBERS)}"))
    try:
        for step in steps:
            if step[0] == "fork":
                both.fork(step[1])
            else:
                both.commit([step[1]] if step[0] == "block" else step[1], *step[2:])
            both.check()
    finally:
        both.stream.target.close()
