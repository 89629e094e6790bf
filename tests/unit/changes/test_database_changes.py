"""DatabaseChanges messages, encoded here by hand as the protobuf definition says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.changes import CHANGES_SCHEMA, TableSchema, read_database_changes
from headwater.errors import DatabaseChangesError, UnsetOperationError

CREATE, UPDATE, DELETE, UPSERT = 1, 2, 3, 4


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def blob(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def field(name: str, value: str, update_op: int = 0, old: str = "") -> bytes:
    inner = blob(1, name) + blob(2, value)
    inner += blob(3, old) if old else b""
    return blob(5, inner + (number(4, update_op) if update_op else b""))


def change(table: str, pk: str | dict[str, str], operation: int, *fields: bytes) -> bytes:
    if isinstance(pk, str):
        key = blob(2, pk)
    else:
        key = blob(6, b"".join(blob(1, blob(1, k) + blob(2, v)) for k, v in pk.items()))
    head = blob(1, table) + key + number(3, 7)
    return blob(1, head + (number(4, operation) if operation else b"") + b"".join(fields))


def test_a_first_version_message() -> None:
    message = change("transfer", "tx1", CREATE, field("value", "1000", old="5"))
    message += change("transfer", "tx0", DELETE)
    table = read_database_changes([(100, message), (101, b""), (102, message)])
    assert table.schema == CHANGES_SCHEMA
    rows = table.to_pylist()
    assert rows[0] == {
        "table": "transfer",
        "pk": [{"name": "", "value": "tx1"}],
        "operation": "insert",
        "fields": [{"name": "value", "value": "1000", "operation": "set"}],
        "ordinal": 0,
        "block_number": 100,
    }
    assert [(row["operation"], row["ordinal"], row["block_number"]) for row in rows[1:]] == [
        ("delete", 1, 100), ("insert", 0, 102), ("delete", 1, 102)]  # fmt: skip


def test_composite_keys_are_read_by_name() -> None:
    message = change("t", {"b": "1/2", "a": "é"}, UPSERT)
    assert read_database_changes([(1, message)]).to_pylist()[0]["pk"] == [
        {"name": "a", "value": "é"},
        {"name": "b", "value": "1/2"},
    ]


@pytest.mark.parametrize(
    ("numbering", "names"),
    [
        ("released", ["set", "set", "add", "max", "min", "set_if_null"]),
        ("draft", ["set", "add", "max", "min", "set_if_null"]),
    ],
)
def test_field_operations(numbering: str, names: list[str]) -> None:
    fields = [field(f"c{code}", "5", code) for code in range(len(names))]
    table = read_database_changes(
        [(1, change("t", "k", UPSERT, *fields))],
        numbering=numbering,  # type: ignore[arg-type]
    )
    assert [one["operation"] for one in table["fields"][0].as_py()] == names
    with pytest.raises(UnsetOperationError, match="E6008"):
        read_database_changes(
            [(1, change("t", "k", UPSERT, field("c", "5", len(names))))],
            numbering=numbering,  # type: ignore[arg-type]
        )


def test_empty_is_null_where_the_column_is_declared_and_not_text() -> None:
    message = change("t", "k", UPDATE, field("n", ""), field("s", ""), field("other", ""))
    declared = TableSchema("t", ["k"], {"k": "text", "n": "integer", "s": "text"})
    rows = read_database_changes([(1, message)], tables=[declared]).to_pylist()
    assert [one["value"] for one in rows[0]["fields"]] == [None, "", ""]
    with pytest.raises(DatabaseChangesError, match=r"E6007.*empty"):
        read_database_changes([(1, change("t", "k", UPSERT, field("n", "", 2)))])


@pytest.mark.parametrize("operation", [0, 5, 99])
def test_a_change_needs_an_operation(operation: int) -> None:
    with pytest.raises(UnsetOperationError, match=r"E6008.*block=7, change=1"):
        read_database_changes([(7, change("t", "a", CREATE) + change("t", "k", operation))])


def test_fields_of_later_versions_are_left_out() -> None:
    later = number(9, 1) + blob(10, "x") + varint(11 << 3 | 1) + bytes(8) + varint(12 << 3 | 5)
    inner = blob(1, "t") + blob(2, "k") + number(4, CREATE) + later + bytes(4)
    assert read_database_changes([(1, blob(1, inner) + blob(2, "y"))]).num_rows == 1


@pytest.mark.parametrize(
    "message",
    [
        blob(1, "t")[:-1],
        b"\x0a",
        b"\x80",
        b"\xff" * 11,
        b"\x00\x00",
        varint(1 << 3 | 3),
        number(1, 5),
        blob(1, number(1, 5)),
        blob(1, blob(4, "x")),
        blob(1, blob(1, b"\xff") + blob(2, "k") + number(4, 1)),
        blob(1, blob(2, "k") + number(4, 1)),
        blob(1, blob(1, "t") + number(4, 1)),
        change("t", {}, CREATE),
        change("t", {"": "x"}, CREATE),
        change("t", "k", CREATE, blob(5, blob(2, "x"))),
    ],
)
def test_malformed_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(DatabaseChangesError, match="E6007"):
        read_database_changes([(1, message)])


@given(st.binary(max_size=40))
def test_any_bytes_give_changes_or_a_coded_error(data: bytes) -> None:
    for message in (data, blob(1, data), change("t", "k", CREATE, blob(5, data))):
        try:
            table = read_database_changes([(1, message)])
        except (DatabaseChangesError, UnsetOperationError):
            continue
        table.validate(full=True)


def test_many_messages_read_together_give_what_each_gives_alone() -> None:
    """Few messages are walked one by one, many side by side; both must find the same."""
    long = "x" * 300
    message = change("t", {"a": long, "b": ""}, UPSERT, field("n", "5", 2), field(long, "é"))
    others = [change("u", f"k{at}", CREATE, *[field(f"c{one}", long) for one in range(at % 5)])
              for at in range(60)]  # fmt: skip
    messages = [(at, other + message * (at % 3)) for at, other in enumerate(others)]
    alone = [read_database_changes([one]) for one in messages]
    assert read_database_changes(messages).to_pylist() == [
        row for table in alone for row in table.to_pylist()
    ]


def test_the_later_of_two_keys_and_of_two_equal_columns_counts() -> None:
    both = blob(2, "single") + blob(6, blob(1, blob(1, "a") + blob(2, "1")) * 1)
    twice = blob(6, blob(1, blob(1, "a") + blob(2, "1")) + blob(1, blob(1, "a") + blob(2, "2")))
    head = blob(1, "t") + number(4, CREATE)
    table = read_database_changes([(1, blob(1, head + both) + blob(1, head + twice))])
    assert table["pk"].to_pylist() == [
        [{"name": "a", "value": "1"}],
        [{"name": "a", "value": "2"}],
    ]


def test_names_of_field_operations_may_come_from_the_package() -> None:
    message = change("t", "k", UPSERT, field("n", "5", 7))
    table = read_database_changes([(1, message)], numbering={0: "set", 7: "max"})
    assert table["fields"][0].as_py()[0]["operation"] == "max"
