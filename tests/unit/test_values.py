"""Values without a place in a column: what is done with them, in every type and at every end."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.rooms import (
    Policy,
    Room,
    clickhouse_room,
    duckdb_room,
    lake_room,
    postgres_room,
)
from headwater.errors import InvalidOptionError, PostgresTableError
from headwater.targets.value_checks import check_of
from headwater.targets.values import Altered, Fitting, Tally, check_policy

TEXT = postgres_room("text", "text")
KEY = replace(TEXT, unique=True, required=True, size=120)
INT32 = (-(2**31), -30_000, 2**31 - 1)
INT64 = (-(2**63), -1, 0, 1, 1_500, 2**31, 2**63 - 1)
TEXTS = (
    *("", "a", "a\0b", "\0", "a\ufffdb", "é" * 90, "x" * 5_000, "1.5", "-7", "007", "1e3", "-0"),
    *(str(2**256), str(-(2**255)), "9" * 80, '{"a": "\\u0000"}', '"\\\\u0000"', "{", "[1e99999]"),
    *("0x", "0xzz", "0x0aFF", "123e4567-e89b-12d3-a456-426614174000", "\ufffd~" + "0" * 32),
)
DAYS = pa.array([-(2**31), 0, 2**31 - 1, None], pa.int32()).cast(pa.date32())


def nested(first: pa.DataType, second: pa.DataType, third: pa.DataType) -> pa.DataType:
    """Return a structure of three types, one of which is deep in it."""
    inner = pa.struct([("t", second), ("l", pa.list_(second))])
    return pa.struct([("t", first), ("d", third), ("in", inner)])


COLUMNS: list[pa.Array] = [
    *(pa.array([*INT64, None]).cast(pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")),
    DAYS,
    pa.array([*INT64, None], pa.int64()),
    pa.array([0, 2**64 - 1, None], pa.uint64()),
    pa.array([0, 10**38 - 1, 1 - 10**38, None], pa.decimal128(38, 0)),
    pa.array([0, 10**76 - 1, 1 - 10**76, None], pa.decimal256(76, 0)),
    pa.array([*TEXTS, None], pa.string()),
    pa.array([*TEXTS, None], pa.large_string()),
    pa.array([*TEXTS, None], pa.string()).dictionary_encode(),
    pa.array([b"", b"\0" * 5_000, None], pa.binary()),
    pa.array([[*TEXTS], None, [], ["a"]], pa.list_(pa.string())),
    pa.array([{"t": "a\0", "f": float("inf"), "l": ["\0"]}, None, {"t": "a", "f": 1.0, "l": None}]),
    pa.StructArray.from_arrays([DAYS, DAYS.cast(pa.timestamp("s"))], names=["day", "time"]),
    pa.ListArray.from_arrays([0, 1, 2, 4], pa.StructArray.from_arrays([DAYS], names=["day"])),
    pa.ListArray.from_arrays([0, 1, 2], pa.ListArray.from_arrays([0, 3, 4], DAYS)),
    pa.array(
        [{"t": end, "d": 0, "in": {"t": end, "l": [end]}} for end in INT64]
        + [{"t": 0, "d": end, "in": {"t": 0, "l": None}} for end in INT32]
        + [{"t": 0, "d": 0, "in": None}, None],
        nested(pa.int64(), pa.int64(), pa.int32()),
    ).cast(nested(pa.timestamp("s"), pa.timestamp("us"), pa.date32())),
    pa.array([[[*INT64], [], None], [], None], pa.list_(pa.list_(pa.int64()))).cast(
        pa.list_(pa.list_(pa.timestamp("us")))
    ),
    pa.array([[("a", end)] for end in INT64] + [[], None], pa.map_(pa.string(), pa.int64())).cast(
        pa.map_(pa.string(), pa.timestamp("us"))
    ),
    pa.ListArray.from_arrays(
        pa.array([0, 2, 2], pa.int32()), pa.array(["a\0", None]).dictionary_encode()
    ),
    pa.nulls(3),
]
PAIRS = pa.array([[("a\0", "b\0"), ("c", None)], None, []], pa.map_(pa.string(), pa.string()))
MAPS: list[pa.Array] = [PAIRS, pa.StructArray.from_arrays([PAIRS], names=["pairs"])]
ROOMS: dict[str, Room] = {
    **{
        kind: postgres_room(kind, bare)
        for kind, bare in (
            *((one, one) for one in ("smallint", "integer", "bigint", "numeric", "text", "bytea")),
            *((one, one) for one in ("uuid", "jsonb", "date", "timestamp with time zone")),
            ("numeric(10,2)", "numeric"),
            ("character varying(3)", "character varying"),
            ("text[]", "text[]"),
        )
    },
    **{
        kind: clickhouse_room(kind)
        for kind in (
            *("UInt8", "Int64", "UInt256", "Int256", "Decimal(10, 2)", "Date", "Date32", "UUID"),
            *("FixedString(2)", "LowCardinality(Nullable(String))", "Array(Nullable(Date))"),
            *("DateTime", "DateTime64(3)", "DateTime64(6, 'UTC')", "DateTime64(9)"),
            *("Tuple(`day` Nullable(Date32))", "Array(Tuple(`day` Date32))", "IPv4", "Bool"),
            *("Map(String, DateTime64(6))", "JSON", r"Enum8('a' = 1, 'b\\'c' = -2)"),
        )
    },
    **{
        kind: duckdb_room(kind)
        for kind in (
            *("BIGINT", "UHUGEINT", "BIGNUM", "DECIMAL(38,0)", "DATE", "TIMESTAMP", "DATE[][]"),
            *("STRUCT(day DATE)", "MAP(VARCHAR, TIMESTAMP)"),
        )
    },
    **{
        kind: lake_room(kind) for kind in ("int32", "timestamp[us]", "decimal128(38, 0)", "list<x>")
    },
    "key": KEY,
}


def fitted(
    values: pa.Array, room: Room, policy: str = "replace", **options: Any
) -> tuple[pa.Table, Tally]:
    """Return what becomes of a column, beside the numbers of blocks."""
    frame = pa.table({"block_number": pa.array(range(5, len(values) + 5)), "x": values})
    rooms, tally = {"x": room}, Tally()
    fitting = Fitting.plan(
        frame.schema, rooms, Policy(policy), PostgresTableError, "block_number", **options
    )
    return fitting.apply(frame, tally), tally


def texts(values: pa.Array, room: Room, policy: str = "replace") -> list[Any]:
    """Return what becomes of texts."""
    found: list[Any] = fitted(values, room, policy)[0]["x"].to_pylist()
    return found


def plain(values: Any) -> pa.Array:
    """Return a column as one array without a dictionary."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole


@pytest.mark.parametrize("values", [*COLUMNS, *MAPS], ids=lambda one: str(one.type))
def test_what_comes_out_fits_and_what_fitted_is_as_it_was(values: pa.Array) -> None:
    before = pa.table({"b": pa.array(range(5, len(values) + 5)), "x": values})
    for room in ROOMS.values():
        check = check_of(plain(values).type, room)
        wrong = None if check is None else check.wrong(plain(values))
        count = 0 if wrong is None else wrong.true_count
        for policy in ("replace", "null", "skip"):
            rows, tally = fitted(values, room, policy)
            assert tally.values.get("x", 0) == count
            assert rows.num_rows == len(values) - tally.rows
            assert rows["x"].type == values.type
            if check is not None and room is not KEY:  # there a mark is marked again
                assert check.wrong(plain(rows["x"])) is None
            right = before if wrong is None else before.filter(pa.compute.invert(wrong))
            after = rows.filter(pa.compute.is_in(rows["block_number"], right["b"]))
            assert plain(after["x"]).equals(plain(right["x"]))


def test_the_character_zero_is_replaced_nulled_left_out_or_an_error() -> None:
    given = pa.array(["a", "b\0c", None])
    assert texts(given, TEXT) == ["a", "b\ufffdc", None]
    assert texts(given, TEXT, "null") == ["a", None, None]
    assert texts(given, TEXT, "skip") == ["a", None]
    with pytest.raises(PostgresTableError, match=r"column=x.*b\\x00c.*block=6"):
        texts(given, TEXT, "stop")


def test_numbers_and_times_become_the_nearest_that_there_is() -> None:
    assert texts(pa.array([2**40, -(2**40), 1]), ROOMS["integer"]) == [2**31 - 1, -(2**31), 1]
    given = pa.array(["12345678901.256", "-1.239", "-0", "0", "x", "-99999999999"])
    assert texts(given, ROOMS["numeric(10,2)"]) == [
        *("99999999.99", "-1.23", "-0", "0", None, "-99999999.99")
    ]
    assert texts(pa.array(["-1", str(2**256), "7", "-0"]), ROOMS["UInt256"]) == [
        *("0", str(2**256 - 1), "7", "0")
    ]
    items = pa.array([["-0", None], ["7"]])
    assert texts(items, clickhouse_room("Array(UInt256)")) == [["0", "0"], ["7"]]
    years = pa.array([-315_619_200, 4_417_977_600, 1]).cast(pa.timestamp("s"))  # 1960, 2110
    found = fitted(years, ROOMS["DateTime"])[0]["x"].cast(pa.int64()).to_pylist()
    assert found == [0, 2**32 - 1, 1]


def test_documents_lose_the_character_zero_and_no_more() -> None:
    given = pa.array(['{"a": "\\u0000\\u0000"}', '"\\\\u0000"', "{", "[1]"])
    assert texts(given, ROOMS["jsonb"]) == ['{"a": "\ufffd\ufffd"}', '"\\\\u0000"', '"{"', "[1]"]


@pytest.mark.parametrize("number", ["1e99999", "1." + "1" * 17_000, "0." + "0" * 9_000 + "1e-9000"])
def test_a_number_of_json_with_too_many_digits_is_a_text(number: str) -> None:
    assert texts(pa.array([number, "1.5e3"]), ROOMS["jsonb"]) == [f'"{number}"', "1.5e3"]


@given(st.lists(st.text(st.sampled_from("a\0\ufffd~0"), max_size=9), unique=True, max_size=12))
def test_texts_of_a_key_never_become_one(given: list[str]) -> None:
    """Not even with those that look like what another one has become."""
    once = texts(pa.array(given, pa.string()), KEY)
    both = texts(pa.array([*given, *once], pa.string()), KEY)
    assert len({*both}) == len({*given, *once})
    assert all("\0" not in one and len(one.encode()) <= 120 for one in both)


def test_long_bytes_of_a_key_keep_their_beginning_and_stay_apart() -> None:
    room = replace(postgres_room("bytea", "bytea"), unique=True, required=True, size=60)
    given = [b"x" * 99 + b"1", b"x" * 99 + b"2", b"x" * 60]
    given.append(texts(pa.array(given), room)[0])
    found = texts(pa.array(given), room)
    assert len({*found}) == 4
    assert all(len(one) <= 60 and one.startswith(b"x" * 40) for one in found)


def test_a_key_that_is_no_text_leaves_its_row_out_and_a_value_that_must_be_there_is_zero() -> None:
    key = replace(ROOMS["integer"], unique=True, required=True)
    rows, tally = fitted(pa.array([2**40, 1]), key)
    assert rows["x"].to_pylist() == [1]
    assert tally.rows == 1
    assert texts(pa.array(["x", "1"]), replace(ROOMS["integer"], required=True)) == ["0", "1"]
    assert texts(pa.array([2**40]), replace(ROOMS["integer"], required=True), "null") == [2**31 - 1]


def test_columns_that_hold_everything_have_no_check() -> None:
    frame = pa.schema([("x", pa.int32()), ("y", pa.string()), ("z", pa.binary())])
    rooms = {"x": postgres_room("bigint", "bigint"), "y": lake_room("string"),
             "z": postgres_room("bytea", "bytea")}  # fmt: skip
    assert not Fitting.plan(frame, rooms, Policy.REPLACE, PostgresTableError)


def test_what_was_done_is_counted_with_its_commit_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    altered = Altered()
    for _ in range(2):
        altered.begin()
        altered.note("t", fitted(pa.array(["a", "\0", "\0"]), TEXT)[1])
        altered.begin()  # the transaction is tried again
        altered.note("t", Tally.load(fitted(pa.array(["a", "\0"]), TEXT, "skip")[1].dump()))
        altered.committed()
    assert (altered.values, altered.rows) == (2, 2)
    told = [one.getMessage() for one in caplog.records if "unrepresentable" in one.getMessage()]
    assert len(told) == 1
    assert "table=t column=x block=6" in told[0]


def test_the_number_of_a_block_is_never_replaced() -> None:
    frame = pa.table({"block_number": [2**40]})
    rooms = {"block_number": ROOMS["integer"]}
    fitting = Fitting.plan(frame.schema, rooms, Policy.SKIP, PostgresTableError, "block_number")
    with pytest.raises(PostgresTableError, match="column=block_number"):
        fitting.apply(frame, Tally())


def test_an_unknown_policy_is_refused() -> None:
    assert check_policy("skip") is Policy.SKIP
    with pytest.raises(InvalidOptionError, match="replace, null, skip, stop"):
        check_policy("ignore")
