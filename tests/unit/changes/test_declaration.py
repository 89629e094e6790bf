"""Changes checked against the declared tables."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headwater.changes import Changes, TableSchema, add, check, fold, max_
from headwater.errors import (
    ChangeKeyError,
    ChangeNumberError,
    TableDeclarationError,
    UnknownColumnError,
    UnknownTableError,
)

TRANSFER = TableSchema("transfer", ["id"], {"id": "text", "from": "text", "value": "integer"})
BALANCE = TableSchema(
    "Balance",
    ["owner", "Token"],
    {"owner": "text", "Token": "text", "amount": "decimal", "seen": "timestamp"},
)
TABLES = [TRANSFER, BALANCE]


def test_a_key_of_one_value_gets_its_name() -> None:
    changes = Changes(1).insert("transfer", "tx1", value=1).insert("transfer", {"id": "tx2"})
    checked = check(changes, TABLES)
    assert [row[0]["name"] for row in checked["pk"].to_pylist()] == ["id", "id"]
    assert check(checked, TABLES) == checked
    assert fold(checked).num_rows == 2


def test_good_changes_pass() -> None:
    changes = Changes(1).upsert("Balance", {"Token": "t", "owner": "o"}, amount=add("0.5"))
    changes.update("Balance", {"Token": "t", "owner": "o"}, seen=None, amount=None)
    changes.delete("transfer", 1).insert("transfer", 1, value="1.0")
    assert check(changes, TABLES).num_rows == 4
    assert check(Changes(1), TABLES).num_rows == 0


def test_an_unknown_table_lists_the_known_ones() -> None:
    with pytest.raises(UnknownTableError, match=r"E6002.*table=balance, known=Balance, transfer"):
        check(Changes(1).delete("balance", 1), TABLES)


def test_an_unknown_column_lists_the_known_ones() -> None:
    with pytest.raises(UnknownColumnError, match=r"E6004.*column=Value, known=from, id, value"):
        check(Changes(1).insert("transfer", 1, Value=1), TABLES)


@pytest.mark.parametrize(
    ("table", "pk"),
    [
        ("Balance", "o"),
        ("Balance", {"owner": "o"}),
        ("Balance", {"owner": "o", "token": "t"}),
        ("Balance", {"owner": "o", "Token": "t", "more": 1}),
        ("transfer", {"ID": 1}),
    ],
)
def test_a_key_must_be_the_tables(table: str, pk: Any) -> None:
    good = Changes(1).delete("transfer", 1).delete("Balance", {"owner": "o", "Token": "t"})
    with pytest.raises(ChangeKeyError, match="E6003"):
        check(good.delete(table, pk), TABLES)


def test_fields_may_repeat_the_key_but_not_change_it() -> None:
    changes = Changes(1).insert("transfer", "a", id="a", value=1).insert("transfer", "b", value=2)
    fields = check(changes, TABLES)["fields"].to_pylist()
    assert [[one["name"] for one in row] for row in fields] == [["value"], ["value"]]
    for value in ("b", None):
        with pytest.raises(ChangeKeyError, match="E6003"):
            check(Changes(1).update("transfer", "a", id=value), TABLES)


@pytest.mark.parametrize(
    ("table", "fields"),
    [
        ("transfer", {"value": "1.5"}),
        ("transfer", {"value": "many"}),
        ("transfer", {"value": ""}),
        ("transfer", {"from": add(1)}),
    ],
)
def test_numbers_go_where_numbers_are_declared(table: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ChangeNumberError, match="E6006"):
        check(Changes(1).upsert(table, 1, value=1).upsert(table, 1, **fields), TABLES)


def test_a_time_is_no_number() -> None:
    changes = Changes(1).upsert("Balance", {"owner": "o", "Token": "t"}, seen=max_(5))
    with pytest.raises(ChangeNumberError, match="E6006"):
        check(changes, TABLES)


@pytest.mark.parametrize(
    ("name", "key", "columns"),
    [
        ("", ["id"], {"id": "text"}),
        ("t", [], {"id": "text"}),
        ("t", "id", {"id": "text"}),
        ("t", ["no"], {"id": "text"}),
        ("t", ["id", "id"], {"id": "text"}),
        ("t", ["id"], {"id": "float"}),
        ("t", ["id"], {"id": "text", "": "text"}),
    ],
)
def test_a_declaration_must_make_sense(name: str, key: Any, columns: Any) -> None:
    with pytest.raises(TableDeclarationError, match="E6009"):
        TableSchema(name, key, columns)


def test_a_declaration_pickles() -> None:
    assert pickle.loads(pickle.dumps(BALANCE)) == BALANCE
