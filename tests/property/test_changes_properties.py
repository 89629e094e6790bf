"""Folding against the plain model: random changes, cut into batches and finality anyhow."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.changes import CHANGES_SCHEMA, FOLDED_SCHEMA, Changes, fold
from headwater.changes.fold import Chain
from headwater.errors import DuplicateInsertError
from tests.change_model import (
    BeforeImage,
    RowExistsError,
    Rows,
    apply_one_by_one,
    apply_to_model,
    fold_one_by_one,
    key_of,
    step,
    undo,
)
from tests.sampling import examples

Change = dict[str, Any]

LARGEST = 2**256 - 1
integers = st.one_of(
    st.integers(-20, 20),
    st.integers(-LARGEST, LARGEST),
    st.sampled_from([LARGEST, -LARGEST, 10**17, -(10**18) + 1, 10**37, 10**75]),
)
numbers = st.one_of(
    integers.map(str),
    st.tuples(st.integers(-(10**20), 10**20), st.integers(1, 30)).map(
        lambda pair: f"{'-' if pair[0] < 0 else ''}{abs(pair[0])}.{pair[1]:03d}"
    ),
    st.sampled_from(["0", "-0", "007", "1.50", "+3", "1e3", "-2.5E-4", "0E-18"]),
)
parts = st.sampled_from(["a", "A", "a/b", "b", "/", '"', "'", "é🙂", "", "a b", "\\", "\x00"])
keys = st.one_of(
    st.sampled_from(["x", "y", "X"]).map(lambda one: [{"name": "", "value": one}]),
    st.tuples(parts, parts).map(
        lambda pair: [{"name": "Key", "value": pair[0]}, {"name": "key", "value": pair[1]}]
    ),
)
columns = st.sampled_from(["n", "N", "balance"])
fields = st.lists(
    st.one_of(
        st.tuples(columns, st.one_of(st.none(), numbers), st.sampled_from(["set", "set_if_null"])),
        st.tuples(columns, numbers, st.sampled_from(["add", "sub", "min", "max"])),
        st.tuples(st.just("Note"), st.one_of(st.none(), parts), st.just("set")),
        st.tuples(st.just("Note"), st.one_of(st.none(), parts), st.just("set_if_null")),
    ).map(lambda one: dict(zip(("name", "value", "operation"), one, strict=True))),
    max_size=4,
)
operations = st.sampled_from(["insert", "update", "upsert", "delete"])


@st.composite
def scenarios(draw: st.DrawFn, *, legal: bool = True) -> list[Change]:
    """Changes in order. In a legal history no row is inserted while it is there."""
    few = draw(st.lists(keys, min_size=1, max_size=4))
    changes: list[Change] = []
    there: set[object] = set()
    block = 0
    for ordinal in range(draw(st.integers(0, 24))):
        block += draw(st.integers(0, 1))
        change: Change = {
            "table": draw(st.sampled_from(["t", "T"])),
            "pk": draw(st.sampled_from(few)),
            "operation": draw(operations),
            "fields": draw(fields),
            "ordinal": ordinal,
            "block_number": block,
        }
        if legal and change["operation"] == "insert" and key_of(change) in there:
            change["operation"] = "upsert"
        if change["operation"] in ("insert", "upsert"):
            there.add(key_of(change))
        elif change["operation"] == "delete":
            there.discard(key_of(change))
        changes.append(change)
    return changes


def as_table(changes: list[Change]) -> pa.Table:
    return pa.Table.from_pylist(changes, schema=CHANGES_SCHEMA)


def before(changes: list[Change], row: dict[str, str] | None) -> Rows:
    """Rows for every key, or none; keys that are inserted first have none, as they must."""
    if row is None:
        return {}
    first: dict[Any, str] = {}
    for change in changes:
        if change["operation"] != "update":
            first.setdefault(key_of(change), change["operation"])
    every = {key_of(change) for change in changes}
    return {key: dict(row) for key in every if first.get(key) != "insert"}


beginnings = st.one_of(
    st.none(),
    st.fixed_dictionaries({}, optional={"n": numbers, "N": numbers, "Note": parts}),
)


@given(scenarios(), beginnings, st.integers(-1, 25), st.lists(st.integers(0, 24), max_size=4))
@settings(max_examples=examples(400, part=10), deadline=None)
def test_folded_changes_do_what_the_changes_do_however_they_are_cut(
    changes: list[Change], row: dict[str, str] | None, finalized: int, cuts: list[int]
) -> None:
    expected = apply_one_by_one(before(changes, row), changes)
    rows = before(changes, row)
    edges = sorted({0, len(changes), *(cut for cut in cuts if cut < len(changes))})
    for begin, end in pairwise(edges):
        folded = fold(as_table(changes[begin:end]), finalized=finalized)
        assert folded.schema == FOLDED_SCHEMA
        folded.validate(full=True)
        rows, _ = apply_to_model(rows, folded.to_pylist())
    assert rows == expected


@given(scenarios(), beginnings, st.integers(-1, 25))
@settings(max_examples=examples(400, part=10), deadline=None)
def test_undo_to_any_hot_block_gives_the_rows_of_that_block(
    changes: list[Change], row: dict[str, str] | None, finalized: int
) -> None:
    rows = before(changes, row)
    folded = fold(as_table(changes), finalized=finalized).to_pylist()
    after, images = apply_to_model(rows, folded)
    newest = max((change["block_number"] for change in changes), default=0)
    for block in range(max(finalized, -1), newest + 1):
        kept = [change for change in changes if change["block_number"] <= block]
        assert undo(after, images, to_block=block) == apply_one_by_one(rows, kept)


@given(scenarios(), st.integers(-1, 25))
@settings(max_examples=examples(300, part=10), deadline=None)
def test_the_rows_are_those_of_the_plain_fold_in_the_order_of_the_first_touch(
    changes: list[Change], finalized: int
) -> None:
    ours = fold(as_table(changes), finalized=finalized).to_pylist()
    plain = fold_one_by_one(changes, finalized=finalized)
    outline = ("table", "operation", "ordinal", "block_number")
    assert [[one[name] for name in outline] for one in ours] == [
        [one[name] for name in outline] for one in plain
    ]
    for one, other in zip(ours, plain, strict=True):
        assert key_of(one) == key_of(other)
        assert _held(one["fresh"]) == _held(other["fresh"])


def _held(fresh: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return (
        None
        if fresh is None
        else {one["name"]: one["value"] for one in fresh if one["value"] is not None}
    )


@given(scenarios(legal=False), st.integers(-1, 25))
@settings(max_examples=examples(300, part=10), deadline=None)
def test_an_insert_of_a_row_that_is_there_is_refused_in_one_batch_and_in_many(
    changes: list[Change], finalized: int
) -> None:
    try:
        expected: Rows | None = apply_one_by_one({}, changes)
    except RowExistsError:
        expected = None
    try:
        rows, _ = apply_to_model({}, fold(as_table(changes), finalized=finalized).to_pylist())
    except (DuplicateInsertError, RowExistsError):
        assert expected is None
    else:
        assert rows == expected


@given(scenarios(), st.randoms(use_true_random=False), st.integers(-1, 25))
@settings(max_examples=examples(100, part=10), deadline=None)
def test_the_order_of_the_rows_of_a_table_of_changes_does_not_matter(
    changes: list[Change], chance: Any, finalized: int
) -> None:
    shuffled = list(changes)
    chance.shuffle(shuffled)
    ours = fold(as_table(shuffled), finalized=finalized)
    assert ours == fold(as_table(changes), finalized=finalized)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["add", "sub", "min", "max", "set_if_null"]), numbers),
            st.tuples(st.just("set"), st.one_of(st.none(), numbers)),
        ),
        max_size=8,
    ),
    st.one_of(st.none(), numbers),
)
@settings(max_examples=examples(600, part=10), deadline=None)
@example([("min", "3"), ("add", "5")], None)
@example([("min", "-3")], None)
@example([("max", "-3")], None)
@example([("add", "1"), ("max", "10"), ("add", "-20"), ("min", "-5"), ("max", "-7")], "0")
def test_any_chain_of_field_operations_folds_to_one_of_five_steps_or_fewer(
    steps: list[tuple[str, str | None]], held: str | None
) -> None:
    chain, expected = Chain(), held
    for operation, value in steps:
        chain = chain.then(operation, value)
        expected = step(expected, operation, value)
    assert chain.on(held) == expected
    names = [name for name, _ in chain.steps()]
    assert names in (["set"], [one for one in ("set_if_null", "add", "max", "min") if one in names])


@pytest.mark.parametrize("finalized", [None, 99, 100, 101, 102])
def test_two_writes_of_a_row_in_hot_blocks_are_undone_one_by_one(finalized: int | None) -> None:
    changes = Changes(100).insert("t", "k", v=1).at(101).update("t", "k", v=2)
    changes.at(102).delete("t", "k")
    rows, images = apply_to_model({}, fold(changes, finalized=finalized).to_pylist())
    assert rows == {}
    state: dict[int, list[str]] = {}
    for block in range(finalized or 99, 103):
        undone = undo(rows, images, to_block=block)
        state[block] = [row["v"] for row in undone.values()]
    full: dict[int, list[str]] = {99: [], 100: ["1"], 101: ["2"], 102: []}
    assert state == {block: held for block, held in full.items() if block in state}
    assert all(isinstance(image, BeforeImage) for image in images)
