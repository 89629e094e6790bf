"""What changes of one key come to, operation by operation, field by field."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headwater.changes import (
    CHANGES_SCHEMA,
    FOLDED_SCHEMA,
    Changes,
    add,
    fold,
    max_,
    min_,
    set_if_null,
    sub,
)
from headwater.errors import ChangeFormError, ChangeNumberError, DuplicateInsertError

LARGEST = 2**256 - 1


def one(changes: Changes, finalized: int | None = 100) -> dict[str, Any]:
    (row,) = fold(changes, finalized=finalized).to_pylist()
    for name in ("fields", "fresh"):
        if row[name] is not None:
            row[name] = [tuple(entry.values()) for entry in row[name]]
    return dict(row)


def outcome(changes: Changes) -> tuple[str, Any, Any]:
    row = one(changes)
    return row["operation"], row["fields"], row["fresh"]


def k(*calls: tuple[str, dict[str, object]]) -> Changes:
    changes = Changes(100)
    for name, fields in calls:
        getattr(changes, name)("t", "k", **fields)
    return changes


INSERT, UPDATE, UPSERT, DELETE = "insert", "update", "upsert", "delete"
A1, A2, B3 = {"a": 1}, {"a": 2}, {"b": 3}


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(INSERT, A1), (UPDATE, B3)], ("insert", None, [("a", "1"), ("b", "3")])),
        ([(INSERT, A1), (UPSERT, A2)], ("insert", None, [("a", "2")])),
        ([(INSERT, A1), (DELETE, {})], ("transient", None, None)),
        ([(INSERT, A1), (DELETE, {}), (UPDATE, A2)], ("transient", None, None)),
        ([(INSERT, A1), (DELETE, {}), (INSERT, A2)], ("insert", None, [("a", "2")])),
        ([(UPDATE, A1), (UPDATE, B3)], ("update", [("a", "1", "set"), ("b", "3", "set")], None)),
        ([(UPDATE, A1), (DELETE, {})], ("delete", None, None)),
        ([(UPDATE, A1), (INSERT, A2)], ("insert", None, [("a", "2")])),
        ([(UPSERT, A1), (UPDATE, A2)], ("upsert", [("a", "2", "set")], [("a", "2")])),
        ([(UPSERT, A1), (DELETE, {})], ("delete", None, None)),
        ([(DELETE, {}), (INSERT, A1)], ("replace", None, [("a", "1")])),
        ([(DELETE, {}), (UPSERT, A1), (UPDATE, B3)], ("replace", None, [("a", "1"), ("b", "3")])),
        ([(DELETE, {}), (UPDATE, A1)], ("delete", None, None)),
        ([(DELETE, {}), (UPDATE, A1), (INSERT, B3)], ("replace", None, [("b", "3")])),
        ([(DELETE, {}), (DELETE, {})], ("delete", None, None)),
        ([(DELETE, {}), (INSERT, A1), (DELETE, {})], ("delete", None, None)),
        ([(UPSERT, {})], ("upsert", [], [])),
    ],
)
def test_operations_of_one_key(calls: Any, expected: Any) -> None:
    assert outcome(k(*calls)) == expected


def test_updates_before_an_upsert_concern_only_a_row_that_was_there() -> None:
    assert outcome(k((UPDATE, {"a": 1, "b": 2}), (UPSERT, {"a": add(5)}))) == (
        "upsert",
        [("a", "6", "set"), ("b", "2", "set")],
        [("a", "5")],
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (add(5), add(-7), [("add", "-2")]),
        (add(5), sub(5), [("add", "0")]),
        (sub("0.5"), sub("-1.25"), [("add", "0.75")]),
        (add(LARGEST), add(LARGEST), [("add", str(2 * LARGEST))]),
        (max_(-9), max_(-10), [("max", "-9")]),
        (min_(9), min_(10), [("min", "9")]),
        (7, add(3), [("set", "10")]),
        (None, add(3), [("set", "3")]),
        (None, min_(3), [("set", "3")]),
        (None, max_(-3), [("set", "-3")]),
        ("-0.5", max_("-0.25"), [("set", "-0.25")]),
        (add(3), 7, [("set", "7")]),
        (add(3), None, [("set", None)]),
        (set_if_null("x"), set_if_null("y"), [("set_if_null", "x")]),
        (set_if_null(None), set_if_null("y"), [("set_if_null", "y")]),
        ("x", set_if_null("y"), [("set", "x")]),
        (None, set_if_null("y"), [("set", "y")]),
        (add(5), max_(3), [("add", "5"), ("max", "3")]),
        (min_(3), add(5), [("set_if_null", "3"), ("add", "5"), ("min", "8")]),
        (max_(3), min_(2), [("max", "3"), ("min", "2")]),
        (set_if_null(4), add(1), [("set_if_null", "4"), ("add", "1")]),
        (add(1), set_if_null(4), [("add", "1")]),
    ],
)
def test_field_operations_of_one_column(first: Any, second: Any, expected: Any) -> None:
    fields = one(k((UPDATE, {"a": first}), (UPDATE, {"a": second})))["fields"]
    assert [(operation, value) for _, value, operation in fields] == expected


@pytest.mark.parametrize("digits", [1, 17, 18, 19, 36, 37, 38, 74, 75, 76, 78, 400])
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_are_exact_at_every_width(digits: int, sign: int) -> None:
    number = sign * (10**digits - 1)
    changes = Changes(1)
    for _ in range(11):
        changes.upsert("t", "k", s=add(number), m=max_(number), n=min_(number), d=sub(number))
    row = one(changes)
    expected = [("d", str(-11 * number)), ("m", str(number)), ("n", str(number))]
    assert row["fresh"] == [*expected, ("s", str(11 * number))]


def test_integers_and_fractions_of_one_column_are_added() -> None:
    changes = Changes(1).upsert("t", "k", a=add(LARGEST)).upsert("t", "k", a=add("0.000000001"))
    assert one(changes)["fresh"] == [("a", f"{LARGEST}.000000001")]


def test_hot_blocks_are_kept_apart_and_final_ones_are_not() -> None:
    changes = Changes()
    for block in (8, 9, 10, 11):
        changes.at(block).upsert("t", "k", a=add(1))
    folded = fold(changes, finalized=9).to_pylist()
    assert [(row["block_number"], row["fresh"][0]["value"]) for row in folded] == [
        (8, "2"),
        (10, "1"),
        (11, "1"),
    ]
    assert fold(changes).num_rows == 4, "while finality is unknown, all blocks are hot"
    assert fold(changes, finalized=0).num_rows == 4


def test_the_first_touch_decides_the_order_across_tables() -> None:
    changes = Changes(1).insert("parent", 1).insert("child", 1, parent=1).update("parent", 1, n=1)
    changes.insert("child", 2, parent=1).insert("apple", 1)
    assert [row["table"] for row in fold(changes).to_pylist()] == [
        "parent", "child", "child", "apple"]  # fmt: skip


def test_keys_are_not_joined_with_a_separator() -> None:
    changes = Changes(1)
    for first, second in (("a/b", "c"), ("a", "b/c"), ("", "a/b/c"), ("A", "b/c")):
        changes.insert("t", {"x": first, "y": second})
    changes.insert("t", {"y": "a/b", "x": "c"}).insert("T", {"x": "a", "y": "b/c"})
    assert fold(changes, finalized=1).num_rows == 6


def test_the_order_of_a_keys_columns_does_not_matter() -> None:
    changes = Changes(1).upsert("t", {"x": 1, "y": 2}, n=add(1)).toArrow().to_pylist()
    turned = {**changes[0], "pk": changes[0]["pk"][::-1]}
    table = pa.Table.from_pylist([changes[0], turned], schema=CHANGES_SCHEMA)
    (row,) = fold(table, finalized=1).to_pylist()
    assert row["fresh"] == [{"name": "n", "value": "2"}]


def test_keys_with_different_columns_are_different() -> None:
    changes = Changes(1).insert("t", {"x": 1}).insert("t", {"x": 1, "y": 1}).insert("t", 1)
    assert fold(changes).num_rows == 3


@pytest.mark.parametrize("first", ["insert", "upsert"])
def test_a_second_insert_names_table_key_and_block(first: str) -> None:
    changes = Changes(1).insert("t", {"x": "a", "y": "b"}, n=1).delete("t", {"x": "a", "y": "b"})
    getattr(changes, first)("t", {"x": "a", "y": "b"}, n=2)
    changes.update("t", {"x": "a", "y": "b"}).at(2).insert("t", {"x": "a", "y": "b"}, n=3)
    with pytest.raises(DuplicateInsertError, match="E6005") as caught:
        fold(changes, finalized=5)
    assert caught.value.facts == {"table": "t", "key": "x=a, y=b", "block": 2}


@pytest.mark.parametrize("text", ["abc", "", "0x1", "1,5", "NaN", "1e99999", "٣", "9" * 1001])
def test_what_is_added_must_be_a_number(text: str) -> None:
    entry = {"name": "a", "value": text, "operation": "add"}
    change = {"table": "t", "pk": [{"name": "", "value": "k"}], "operation": "upsert",
              "fields": [entry], "ordinal": 0, "block_number": 1}  # fmt: skip
    for changes in ([change], [change, change]):
        with pytest.raises(ChangeNumberError, match="E6006"):
            fold(pa.Table.from_pylist(changes, schema=CHANGES_SCHEMA), finalized=1)


def test_text_cannot_be_added_to() -> None:
    with pytest.raises(ChangeNumberError, match="E6006"):
        fold(k((INSERT, {"a": "x"}), (UPDATE, {"a": add(1)})), finalized=100)


def test_nothing_folds_to_nothing() -> None:
    folded = fold(Changes(1))
    assert folded.num_rows == 0
    assert folded.schema == FOLDED_SCHEMA


def test_chunks_do_not_matter() -> None:
    parts = [Changes(1).upsert("t", "k", a=add(1)).toArrow() for _ in range(3)]
    table = pa.concat_tables([parts[0], parts[1].slice(0, 0), *parts[1:]])
    assert fold(table, finalized=1).to_pylist()[0]["fresh"] == [{"name": "a", "value": "3"}]
    sliced = pa.concat_tables([Changes(1).insert("t", "z", a="7" * 9).toArrow(), *parts])
    assert fold(sliced.combine_chunks().slice(1), finalized=1).to_pylist()[0]["fresh"] == [
        {"name": "a", "value": "3"}
    ]


GOOD = {"table": "t", "pk": [{"name": "k", "value": "1"}], "operation": "insert",
        "fields": [{"name": "a", "value": "1", "operation": "set"}],
        "ordinal": 0, "block_number": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operation": "merge"}, "unknown operation"),
        ({"pk": []}, "at least one column"),
        ({"pk": None}, "nulls"),
        ({"pk": [{"name": "k", "value": None}]}, "null"),
        ({"block_number": None}, "nulls"),
        ({"fields": [{"name": "a", "value": "1", "operation": "pow"}]}, "unknown field operation"),
        ({"fields": [{"name": "a", "value": None, "operation": "add"}]}, "not null"),
        ({"fields": [{"name": None, "value": "1", "operation": "set"}]}, "nulls|needs a name"),
    ],
)
def test_a_malformed_change_is_refused(change: dict[str, Any], message: str) -> None:
    loose = pa.schema([pa.field(one.name, _nullable(one.type)) for one in CHANGES_SCHEMA])
    with pytest.raises(ChangeFormError, match=f"E6001.*({message})"):
        fold(pa.Table.from_pylist([{**GOOD, **change}], schema=loose))


def _nullable(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_list(kind):
        return kind
    return pa.list_(pa.struct([pa.field(one.name, one.type) for one in kind.value_type]))


def test_fields_may_be_null() -> None:
    table = pa.Table.from_pylist([{**GOOD, "fields": None}], schema=CHANGES_SCHEMA)
    assert fold(table).to_pylist()[0]["fresh"] == []


@pytest.mark.parametrize(
    "thing",
    [
        42,
        pa.table({"table": ["t"]}),
        pa.table({name: ["x"] for name in CHANGES_SCHEMA.names}),
    ],
)
def test_what_is_no_table_of_changes_is_refused(thing: Any) -> None:
    with pytest.raises(ChangeFormError, match="E6001"):
        fold(thing)
