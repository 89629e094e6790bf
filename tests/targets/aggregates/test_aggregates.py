"""Aggregates equal a full recomputation from the standing rows, after every step, on both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.errors import AggregateError
from headwater.targets import (
    Delivery,
    DuckDBSettings,
    PostgresSettings,
    aggregate,
    duckdb_target,
    postgres_target,
)
from tests.sampling import examples
from tests.targets.postgres_places import database, empty

LARGEST = 2**256 - 1
Row = dict[str, Any]
ROWS = pa.schema(
    [
        ("block_number", pa.int64()),
        ("log_index", pa.int64()),
        ("token", pa.string()),
        ("from", pa.string()),
        ("to", pa.string()),
        ("value", pa.string()),
        ("fee", pa.int64()),
        ("price", pa.decimal128(20, 4)),
        ("time", pa.timestamp("us", "UTC")),
        ("note", pa.string()),
    ]
)
BALANCES = [
    aggregate(
        "balances",
        source="transfers",
        keys={"token": "token", "owner": "to"},
        add={"amount": "value", "came": 1},
        max={"largest": "value", "newest": "time"},
        min={"smallest": "value", "oldest": "time", "cheapest": "price"},
        last={"note": "note"},
    ),
    aggregate(
        "balances",
        source="transfers",
        keys={"token": "token", "owner": "from"},
        sub={"amount": "value"},
        add={"went": 1, "fees": "fee", "paid": "price"},
        last={"note": "note"},
    ),
]
COLUMNS = ("amount", "came", "went", "fees", "paid", "largest", "smallest", "cheapest")


class Place:
    """A target with the aggregates above, on a database of one kind."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.dsn = database() if kind == "postgres" else ""
        self.folder = folder
        self.numbers = itertools.count()
        self.targets: list[Any] = []

    def target(self, *aggregates: Any, **given: Any) -> Any:
        if self.kind == "postgres":
            empty(self.dsn)
            fast = PostgresSettings(lock_wait_s=0.3)
            made: Any = postgres_target(
                self.dsn, aggregates=aggregates or BALANCES, settings=fast, **given
            )
        else:
            made = duckdb_target(
                self.folder / f"{next(self.numbers)}.duckdb",
                aggregates=aggregates or BALANCES,
                settings=DuckDBSettings(config={"threads": 1}),
                **given,
            )
        self.targets.append(made)
        return made


@pytest.fixture(params=["postgres", "duckdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    for target in made.targets:
        target.close()


class Chain:
    """A target, and the rows that stand."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.state: PipeState = target.recover()
        self.standing: list[Row] = []
        self.branch = 0

    def block(self, rows: list[Row], behind: int = 1) -> None:
        number = 1 if self.state.cursor is None else self.state.cursor.number + 1
        rows = [{"block_number": number, "log_index": at, **row} for at, row in enumerate(rows)]
        held = {one.number: one for one in self.state.rollback_chain}
        final = number - behind
        head = Head(held.get(final, BlockCursor(final, "?")) if behind and final >= 0 else None)
        parent = "0" if self.state.cursor is None else str(self.state.cursor.hash)
        header = BlockHeader(number, f"{self.branch}-{number}", parent, number - 1, 1)
        state = self.state.advance([header], head)
        frame = pa.Table.from_pylist(rows, schema=ROWS)
        batch = Batch((header,), head, state, (), Delivery({"transfers": frame}))
        self.target.commit([batch], state)
        self.state = state
        self.standing += rows

    def fork(self, choice: int) -> None:
        points = self.state.landing_points()
        if not points:
            return
        safe = points[choice % len(points)]
        self.branch += 1
        state = self.state.rewind(safe)
        self.target.roll_back(state)
        self.state = state
        self.standing = [row for row in self.standing if row["block_number"] <= safe.number]

    def check(self) -> None:
        if self.state.cursor is None or self.state.cursor.number < 1:
            return
        held = {}
        for row in self.target.query("SELECT * FROM balances").to_pylist():
            numbers = {name: number(row[name]) for name in COLUMNS}
            held[row["token"], row["owner"]] = {**row, **numbers}
        assert held == recomputed(self.standing)


def number(value: Any) -> Any:
    return None if value is None else int(value) if str(value).lstrip("-").isdigit() else value


def recomputed(rows: list[Row]) -> dict[tuple[str, str], Row]:
    """Group all rows again, one by one, in the plainest way."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        for side in ("to", "from"):
            key = (row["token"], row[side])
            one = found.setdefault(
                key,
                {
                    "token": key[0],
                    "owner": key[1],
                    **dict.fromkeys((*COLUMNS, "newest", "oldest", "note")),
                },
            )
            value = None if row["value"] is None else int(row["value"])
            if side == "to":
                join(one, "amount", value, sum)
                join(one, "came", 1, sum)
                join(one, "largest", value, max)
                join(one, "smallest", value, min)
                join(one, "newest", row["time"], max)
                join(one, "oldest", row["time"], min)
                join(one, "cheapest", row["price"], min)
            else:
                join(one, "amount", None if value is None else -value, sum)
                join(one, "went", 1, sum)
                join(one, "fees", row["fee"], sum)
                join(one, "paid", row["price"], sum)
            one["note"] = row["note"]
    return {
        key: {**one, **{name: number(one[name]) for name in COLUMNS}} for key, one in found.items()
    }


def join(one: Row, name: str, value: Any, how: Any) -> None:
    if value is not None:
        one[name] = value if one[name] is None else how([one[name], value])


integers = st.one_of(
    st.none(), st.integers(0, 5), st.sampled_from([LARGEST, LARGEST - 1, 10**38, 10**76])
)
rows = st.fixed_dictionaries(
    {
        "token": st.sampled_from(["t", "T", "u/v"]),
        "from": st.sampled_from(["a", "b", "a|b"]),
        "to": st.sampled_from(["a", "b", "c"]),
        "value": integers.map(lambda one: None if one is None else str(one)),
        "fee": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        "price": st.one_of(st.none(), st.decimals(-99, 99, places=4)),
        "time": st.one_of(
            st.none(),
            st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001
                lambda one: one.replace(tzinfo=UTC)
            ),
        ),
        "note": st.one_of(st.none(), st.sampled_from(["x", "", "'"])),
    }
)
block = st.tuples(st.just("block"), st.lists(rows, max_size=5), st.integers(0, 4))
fork = st.tuples(st.just("fork"), st.integers(0, 9))
steps = st.lists(st.one_of(block, block, block, fork), min_size=1, max_size=8)


@pytest.mark.guarantee("AGG-1")
@given(steps=steps)
@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
def test_aggregates_equal_a_full_recomputation_after_every_step(
    place: Place, steps: list[Any]
) -> None:
    chain = Chain(place.target())
    try:
        for step in steps:
            if step[0] == "block":
                chain.block(step[1], step[2])
            else:
                chain.fork(step[1])
            chain.check()
    finally:
        chain.target.close()


def transfer(sender: str, receiver: str, value: int | str | None, **more: Any) -> Row:
    text = None if value is None else str(value)
    return {"token": "t", "from": sender, "to": receiver, "value": text, **more}


def held(chain: Chain, columns: str = "owner, amount") -> list[tuple[Any, ...]]:
    found = chain.target.query(f"SELECT {columns} FROM balances ORDER BY owner").to_pylist()
    return [tuple(number(value) for value in row.values()) for row in found]


def test_balances_are_signed_and_a_row_that_comes_to_zero_stays(place: Place) -> None:
    """As a recomputation has it: there are rows for the key."""
    chain = Chain(place.target())
    chain.block([transfer("mint", "a", LARGEST)])
    assert held(chain) == [("a", LARGEST), ("mint", -LARGEST)]
    chain.block([transfer("a", "b", LARGEST)])
    assert held(chain) == [("a", 0), ("b", LARGEST), ("mint", -LARGEST)]
    chain.fork(0)
    assert held(chain) == [("a", LARGEST), ("mint", -LARGEST)]


def test_rows_of_orphaned_blocks_alone_vanish(place: Place) -> None:
    chain = Chain(place.target())
    chain.block([])
    assert held(chain) == [], "the table is there before the first row"
    chain.block([transfer("a", "b", 5)], behind=1)
    chain.fork(0)
    assert held(chain) == []


def test_nulls_are_left_out_and_alone_give_null(place: Place) -> None:
    chain = Chain(place.target())
    chain.block([transfer("a", "b", None, note="x")])
    assert held(chain, "owner, amount, largest, came, note") == [
        ("a", None, None, None, "x"),
        ("b", None, None, 1, "x"),
    ]
    chain.block([transfer("a", "b", 0), transfer("a", "b", None)])
    assert held(chain, "owner, amount, largest, came, note") == [
        ("a", 0, None, None, None),
        ("b", 0, 0, 3, None),
    ]


def test_a_table_of_ones_own_may_have_other_types_and_more_columns(place: Place) -> None:
    """What is not aggregated stays as it is, or gets its default."""
    create = (
        "CREATE TABLE balances (owner varchar PRIMARY KEY, amount bigint, "
        "label varchar DEFAULT 'new')"
    )
    one = aggregate("balances", source="transfers", keys={"owner": "to"}, add={"amount": "value"})
    target = place.target(one, on_start=lambda tx: tx.execute(create))
    chain = Chain(target)
    chain.block([transfer("a", "b", 5)])
    chain.block([transfer("a", "b", 6), transfer("a", "c", 1)])
    assert held(chain, "owner, amount, label") == [("b", 11, "new"), ("c", 1, "new")]
    chain.fork(0)
    assert held(chain, "owner, amount, label") == [("b", 5, "new")]


def test_several_aggregates_beside_on_data(place: Place) -> None:
    """Each has its own table; `on_data` writes what it likes before."""
    target = place.target(
        aggregate("seen", source="transfers", keys=["token", "to"]),
        aggregate("volume", source="transfers", keys=["token"], add=["value"]),
        tables=[],
        on_data=lambda tx, data: None,
    )
    chain = Chain(target)
    chain.block([transfer("a", "b", 5), transfer("a", "b", 6)])
    assert chain.target.query("SELECT * FROM seen").to_pylist() == [{"token": "t", "to": "b"}]
    assert number(chain.target.query("SELECT value FROM volume").to_pylist()[0]["value"]) == 11


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"source": "nothing", "keys": ["to"]}, "known=transfers"),
        ({"source": "transfers", "keys": ["nobody"]}, "known=block_number"),
        ({"source": "transfers", "keys": ["to"], "add": {"x": "fees"}}, "column=fees"),
        ({"source": "transfers", "keys": ["to"], "add": {"x": "time"}}, "exactly"),
        ({"source": "transfers", "keys": ["to"], "last": ["note"], "order": ["note"]}, "integers"),
        ({"source": "transfers", "keys": ["note"]}, "null"),
    ],
)
def test_what_an_output_cannot_give_is_refused(
    place: Place, given: dict[str, Any], reason: str
) -> None:
    chain = Chain(place.target(aggregate("balances", **given)))
    with pytest.raises(AggregateError, match=f"E6014.*{reason}"):
        chain.block([transfer("a", "b", 5)])
    assert chain.target.recover() == PipeState()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: aggregate("", source="s", keys=["a"]),
        lambda: aggregate("t", source="s", keys=[]),
        lambda: aggregate("t", source="s", keys="a"),
        lambda: aggregate("t", source="s", keys=["a"], max={"x": 1}),  # type: ignore[dict-item]
    ],
)
def test_declarations_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(AggregateError, match="E6014"):
        wrong()


def test_contributions_that_contradict_each_other_are_refused() -> None:
    one = aggregate("t", source="s", keys=["a"], add=["x"])
    for other in (
        aggregate("t", source="s", keys=["b"], add=["x"]),
        aggregate("t", source="s", keys=["a"], max=["x"]),
        aggregate("t", source="s", keys=["a"], add=["a"]),
        aggregate("t", source="s", keys=["a"], add=["y"], min=["y"]),
    ):
        with pytest.raises(AggregateError, match="E6014"):
            duckdb_target("a.duckdb", aggregates=[one, other])
