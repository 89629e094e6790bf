"""Changes written by hand and taken from columns."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.changes import (
    CHANGES_SCHEMA,
    Changes,
    FieldOperation,
    add,
    from_columns,
    max_,
    set_,
    sub,
)
from headwater.errors import ChangeFormError, ChangeNumberError

LARGEST = 2**256 - 1
MOMENT = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_changes_are_collected_in_order() -> None:
    changes = Changes(block=100).insert("transfer", "tx1", value=1000, **{"from": "alice"})
    changes.upsert("balance", {"token": "usdc", "owner": "bob"}, amount=add(1000))
    changes.at(101).update("transfer", "tx1", table="odd").delete("transfer", "tx1")
    table = changes.toArrow()
    assert table.schema == CHANGES_SCHEMA
    assert len(changes) == 4
    rows = table.to_pylist()
    assert [(row["operation"], row["ordinal"], row["block_number"]) for row in rows] == [
        ("insert", 0, 100), ("upsert", 1, 100), ("update", 2, 101), ("delete", 3, 101)]  # fmt: skip
    assert rows[0]["pk"] == [{"name": "", "value": "tx1"}]
    assert rows[0]["fields"] == [
        {"name": "value", "value": "1000", "operation": "set"},
        {"name": "from", "value": "alice", "operation": "set"},
    ]
    assert rows[1]["pk"] == [
        {"name": "owner", "value": "bob"},
        {"name": "token", "value": "usdc"},
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (LARGEST, str(LARGEST)),
        (Decimal("1E-20"), "0.00000000000000000001"),
        (Decimal("1E+3"), "1000"),
        (True, "true"),
        (b"\x01\xff", "0x01ff"),
        (MOMENT, "2024-01-02T03:04:05+00:00"),
        (MOMENT.astimezone(timezone(timedelta(hours=2))), "2024-01-02T03:04:05+00:00"),
        (MOMENT.replace(tzinfo=None), "2024-01-02T03:04:05"),
        (date(2024, 1, 2), "2024-01-02"),
        (None, None),
        ("", ""),
    ],
)
def test_values_become_exact_text(value: object, text: str | None) -> None:
    assert Changes(1).insert("t", 1, a=value).toArrow()["fields"][0][0]["value"].as_py() == text


@pytest.mark.parametrize("value", [1.5, Decimal("NaN"), [1], {"a": 1}, object()])
def test_a_value_without_exact_text_is_refused(value: object) -> None:
    with pytest.raises(ChangeFormError, match="E6001"):
        Changes(1).insert("t", 1, a=value)


@pytest.mark.parametrize("pk", [None, {}, {"": 1}, {"a": None}, {1: 2}, 1.5])
def test_a_bad_key_is_refused(pk: object) -> None:
    with pytest.raises(ChangeFormError, match="E6001"):
        Changes(1).delete("t", pk)


def test_a_change_needs_a_block_and_a_table() -> None:
    with pytest.raises(ChangeFormError, match=r"E6001.*block"):
        Changes().delete("t", 1)
    with pytest.raises(ChangeFormError, match=r"E6001.*table"):
        Changes(1).delete("", 1)


def test_a_field_operation_needs_a_number() -> None:
    with pytest.raises(ChangeNumberError, match="E6006"):
        Changes(1).upsert("t", 1, a=add("many"))
    with pytest.raises(ChangeFormError, match="E6001"):
        Changes(1).upsert("t", 1, a=max_(None))
    with pytest.raises(ChangeFormError, match="E6001"):
        Changes(1).upsert("t", 1, a=FieldOperation("pow", 2))  # type: ignore[arg-type]


class Frame:
    """Anything with toArrow, as a DataFrame has it."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def toArrow(self) -> pa.Table:  # noqa: N802 - as a DataFrame has it
        return self._table


def frame(**more: Any) -> pa.Table:
    columns = {
        "block_number": pa.chunked_array([[1], [1, 2]], pa.int64()),
        "log_index": [0, 1, 0],
        "to": ["a", "b", "a"],
        "from": ["b", "c", "c"],
        "value": [str(LARGEST), "2", "3"],
    }
    return pa.table({**columns, **more})


@pytest.mark.parametrize("wrap", [lambda table: table, Frame])
def test_columns_become_the_changes_one_would_write(wrap: Any) -> None:
    table = from_columns(
        wrap(frame()),
        table="balance",
        operation="upsert",
        key={"owner": "to", "Token": "from"},
        fields={"amount": add("value"), "to": "set", "spent": sub("value"), "last": set_("from")},
        ordinal="log_index",
    )
    changes = Changes()
    for row in frame().to_pylist():
        changes.at(row["block_number"]).upsert(
            "balance",
            {"owner": row["to"], "Token": row["from"]},
            amount=add(row["value"]),
            to=row["to"],
            spent=sub(row["value"]),
            last=row["from"],
        )
    expected = changes.toArrow().set_column(4, CHANGES_SCHEMA.field("ordinal"), pa.array([0, 1, 0]))
    assert table == expected
    table.validate(full=True)


def test_without_an_ordinal_the_order_of_rows_counts() -> None:
    table = from_columns(frame(), table="t", operation="delete", key=["to"])
    assert table["ordinal"].to_pylist() == [0, 1, 2]
    assert table["fields"].to_pylist() == [[], [], []]


def test_an_empty_frame_has_no_changes() -> None:
    none = frame().slice(0, 0)
    table = from_columns(none, table="t", operation="insert", key=["to"], fields=["value"])
    assert table.num_rows == 0
    assert table.schema == CHANGES_SCHEMA


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([1, -2, None], pa.int8()), ["1", "-2", None]),
        (pa.array([2**64 - 1, 0, 1], pa.uint64()), [str(2**64 - 1), "0", "1"]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (
            pa.array([Decimal("0"), Decimal("1E-18"), Decimal("-1.5")], pa.decimal128(38, 18)),
            ["0.000000000000000000", "0.000000000000000001", "-1.500000000000000000"],
        ),
        (pa.array([b"\x01", None, b""]), ["0x01", None, "0x"]),
        (pa.array([b"\x01"] * 3, pa.binary(1)), ["0x01"] * 3),
        (pa.array(["x", None, "y"]).dictionary_encode(), ["x", None, "y"]),
        (pa.array(["x", None, "y"], pa.large_string()), ["x", None, "y"]),
        (pa.array([MOMENT] * 3, pa.timestamp("us", "UTC")), ["2024-01-02T03:04:05+00:00"] * 3),
        (pa.array([date(2024, 1, 2)] * 3), ["2024-01-02"] * 3),
        (pa.nulls(3), [None] * 3),
    ],
)
def test_columns_become_exact_text(array: pa.Array, text: list[str | None]) -> None:
    table = from_columns(frame(x=array), table="t", operation="update", key=["to"], fields=["x"])
    assert [row[0]["value"] for row in table["fields"].to_pylist()] == text


@pytest.mark.parametrize(
    "options",
    [
        {"fields": ["x"]},
        {"fields": ["missing"]},
        {"fields": "value"},
        {"fields": {"value": "pow"}},
        {"fields": {"value": add(5)}},
        {"fields": {"n": add("gap")}},
        {"key": ["gap"]},
        {"key": ["missing"]},
        {"key": []},
        {"key": "to"},
        {"table": ""},
        {"operation": "merge"},
        {"block": "to"},
        {"ordinal": "gap"},
    ],
)
def test_columns_that_cannot_serve_are_refused(options: dict[str, Any]) -> None:
    source = frame(x=[1.5, 2.5, 3.5], gap=pa.array([None, 1, 2]))
    with pytest.raises(ChangeFormError, match="E6001"):
        from_columns(source, **{"table": "t", "operation": "update", "key": ["to"], **options})
