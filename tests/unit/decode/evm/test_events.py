"""`evm.events`: what it asks for, what it delivers, what it refuses."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import BlockRange, RangeSpec
from headwater.decode import EventsOutput, decode_outputs, evm, parse_event, parse_logs
from headwater.errors import (
    AddressError,
    InvalidOptionError,
    InvalidRangeError,
    ParameterError,
    SignatureError,
    UndecodableLogError,
)
from tests.unit.decode.samples import (
    ALICE,
    BOB,
    EVERYTHING,
    TOKEN,
    decode_logs,
    line,
    log,
    log_of,
    topic_of_address,
    transfer,
    word,
)

# --- what is asked for ----------------------------------------------------------------------------


def body(output: EventsOutput) -> Any:
    return json.loads(output.query.body(0))


def test_the_query_asks_for_one_event_and_only_the_fields_that_are_used() -> None:
    asked = body(evm.events("erc20.Transfer"))
    assert asked["logs"] == [{"topic0": [parse_event("erc20.Transfer").topic0]}]
    assert set(asked["fields"]) == {"block", "log"}
    assert set(asked["fields"]["log"]) == set(log())


def test_contracts_and_parameters_are_asked_for_as_padded_lower_case() -> None:
    checksummed = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
    asked = body(
        evm.events(
            "erc20.Transfer",
            contracts=[checksummed, checksummed.lower()],
            params={"to": [ALICE, BOB]},
        )
    )
    (only,) = asked["logs"]
    assert only["address"] == [checksummed.lower()]
    assert only["topic2"] == [topic_of_address(ALICE), topic_of_address(BOB)]
    assert "topic1" not in only


def test_parameters_take_their_topic_even_behind_unindexed_ones() -> None:
    event = "A(uint8 a, int16 indexed b, string c, bool indexed d, bytes4 indexed e)"
    asked = body(evm.events(event, params={"d": True, "b": -2, "e": "0x01020304"}))
    assert asked["logs"][0]["topic1"] == [f"0x{'f' * 63}e"]
    assert asked["logs"][0]["topic2"] == [word(1)]
    assert asked["logs"][0]["topic3"] == [f"0x01020304{'0' * 56}"]


@pytest.mark.parametrize(
    ("kind", "value", "topic"),
    [
        ("string", "abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
        ("bytes", b"abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
        ("bytes", "0x616263", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
        ("uint8[]", f"0x{'12' * 32}", "12" * 32),
        ("uint256", 2**256 - 1, "f" * 64),
        ("int256", -(2**255), "8" + "0" * 63),
        ("bytes32", b"\x01" * 32, "01" * 32),
    ],
)
def test_a_filter_value_becomes_its_topic(kind: str, value: object, topic: str) -> None:
    output = evm.events(f"A({kind} indexed x)", params={"x": value})
    assert output.topics == ((1, (f"0x{topic}",)),)


def test_ranges_are_those_of_the_core() -> None:
    assert evm.events("erc20.Transfer", range=(5, 9)).ranges == (RangeSpec(5, 9),)
    assert evm.events("erc20.Transfer").ranges == (RangeSpec(),)
    with pytest.raises(InvalidRangeError):
        evm.events("erc20.Transfer", range=(9, 5))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("contracts", [[], ["0x12"], [None], "0x12", [TOKEN, TOKEN[:-1]]])
def test_contracts_that_match_nothing_are_refused(contracts: Any) -> None:
    with pytest.raises(AddressError, match="E4004"):
        evm.events("erc20.Transfer", contracts=contracts)


@pytest.mark.parametrize(
    ("event", "params", "said"),
    [
        ("erc20.Transfer", {"value": 5}, "not indexed.*from, to"),
        ("erc20.Transfer", {"sender": ALICE}, "does not exist.*from, to"),
        ("erc20.Transfer", {"to": []}, "empty"),
        ("A(uint8 x)", {"x": 5}, "none"),
        ("A(uint8 indexed x)", {"x": 256}, "uint8"),
        ("A(uint8 indexed x)", {"x": True}, "uint8"),
        ("A(uint8 indexed x)", {"x": "5"}, "uint8"),
        ("A(int8 indexed x)", {"x": 128}, "int8"),
        ("A(bool indexed x)", {"x": 1}, "True or False"),
        ("A(bytes4 indexed x)", {"x": "0x010203"}, "4 bytes"),
        ("A(bytes4 indexed x)", {"x": "01020304"}, "4 bytes"),
        ("A(string indexed x)", {"x": b"a"}, "text"),
        ("A(bytes indexed x)", {"x": "a"}, "hex"),
        ("A(uint8[] indexed x)", {"x": [1, 2]}, "hash"),
    ],
)
def test_filters_that_cannot_work_are_refused(event: str, params: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=rf"(?s)\[E4005\].*{said}"):
        evm.events(event, params=params)


def test_a_filter_on_an_address_takes_an_address() -> None:
    with pytest.raises(AddressError, match="filter on 'to'"):
        evm.events("erc20.Transfer", params={"to": "0x1"})


def test_other_options_are_checked() -> None:
    with pytest.raises(InvalidOptionError):
        evm.events("erc20.Transfer", on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="these can: value"):
        evm.events("erc20.Transfer", decimals=["from"])
    with pytest.raises(SignatureError):
        evm.events("A(uint8 address, uint8 arg_address)")


# --- what is delivered ----------------------------------------------------------------------------


def test_a_transfer_becomes_a_row() -> None:
    output = evm.events("erc20.Transfer")
    rows = decode_logs(output, [transfer(2**256 - 1, index=4)])
    assert rows.table.schema == output.schema
    (row,) = rows.table.to_pylist()
    assert list(row) == ["block_number", "block_hash", "timestamp", "transaction_hash",
                         "transaction_index", "log_index", "address", "from", "to",
                         "value"]  # fmt: skip
    assert (row["from"], row["to"], row["address"]) == (ALICE, BOB, TOKEN)
    assert row["value"] == str(2**256 - 1)
    assert (row["block_number"], row["log_index"], rows.skipped) == (7, 4, 0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bool", pa.bool_()), ("address", pa.string()), ("bytes1", pa.binary()),
        ("bytes", pa.binary()), ("string", pa.string()),
        ("uint8", pa.int32()), ("uint24", pa.int32()), ("uint32", pa.int64()),
        ("int32", pa.int32()), ("int40", pa.int64()), ("uint56", pa.int64()),
        ("int64", pa.int64()), ("uint64", pa.decimal128(38, 0)), ("int72", pa.decimal128(38, 0)),
        ("uint120", pa.decimal128(38, 0)), ("int120", pa.decimal128(38, 0)),
        ("uint128", pa.string()), ("int128", pa.string()), ("uint256", pa.string()),
        ("uint8[]", pa.list_(pa.int32())), ("bool[2]", pa.list_(pa.bool_())),
        ("(uint8 a, string b)", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ],
)  # fmt: skip
def test_types_become_columns(kind: str, expected: pa.DataType) -> None:
    assert evm.events(f"A({kind} x)").schema.field("x").type == expected


def test_indexed_values_that_fill_no_word_are_their_hash() -> None:
    schema = evm.events("A(string indexed a, uint8[2] indexed b, (bool) indexed c)").schema
    assert [schema.field(name).type for name in "abc"] == [pa.binary()] * 3


def test_a_parameter_called_like_a_column_is_prefixed() -> None:
    names = evm.events("A(uint8 address, uint8 Timestamp, uint8 data)").schema.names
    assert names[-3:] == ["arg_address", "arg_Timestamp", "data"]


@pytest.mark.parametrize("value", [0, 1, 10**38 - 1, 2**64, 2**96])
def test_a_wide_integer_can_be_asked_for_as_decimal(value: int) -> None:
    output = evm.events("A(uint256 x, int256 y)", decimals=["x", "y"])
    row = log_of(output.event, {"x": value, "y": -value})
    decoded = decode_logs(output, [row]).table
    assert decoded["x"].to_pylist() == [Decimal(value)]
    assert decoded["y"].to_pylist() == [Decimal(-value)]


@pytest.mark.parametrize(
    "values",
    [{"x": 10**38, "y": 0}, {"x": 2**256 - 1, "y": 0}, {"x": 0, "y": -(10**38)},
     {"x": 0, "y": 2**128}, {"x": 0, "y": -(2**255)}, {"x": 2**127, "y": 0}],
)  # fmt: skip
def test_a_value_that_does_not_fit_the_decimal_is_an_error(values: dict[str, int]) -> None:
    output = evm.events("A(uint256 x, int256 y)", decimals=["x", "y"])
    with pytest.raises(UndecodableLogError, match="38 digits"):
        decode_logs(output, [log_of(output.event, values)])


def test_no_logs_give_an_empty_table_of_the_same_columns() -> None:
    output = evm.events("erc20.Transfer")
    assert decode_logs(output, []).table.schema == output.schema
    assert output.decode({"log": parse_logs([])}, EVERYTHING).table.num_rows == 0


def test_outputs_pickle() -> None:
    output = evm.events(
        "erc20.Transfer", contracts=[TOKEN], params={"to": BOB}, decimals=["value"], range=5
    )
    copy = pickle.loads(pickle.dumps(output))
    assert copy == output
    assert copy.schema == output.schema
    assert copy.query.body(5) == output.query.body(5)


def test_events_that_differ_only_in_what_is_indexed_are_told_apart() -> None:
    topics = [*transfer(0)["topics"], word(77)]
    logs = [transfer(5), log(topics, "0x", index=1)]
    fungible = decode_logs(evm.events("erc20.Transfer"), logs).table
    unique = decode_logs(evm.events("erc721.Transfer"), logs).table
    assert fungible["value"].to_pylist() == ["5"]
    assert unique["tokenId"].to_pylist() == ["77"]


def test_data_may_be_longer_than_the_types_need() -> None:
    longer = {**transfer(5), "data": f"{word(5)}abcd"}
    rows = decode_logs(evm.events("erc20.Transfer"), [longer, transfer(6, index=1)])
    assert rows.table["value"].to_pylist() == ["5", "6"]


def test_hex_in_capitals_is_the_same_data() -> None:
    upper = {**transfer(0xABCDEF), "data": f"0x{0xABCDEF:064X}"}
    assert decode_logs(evm.events("erc20.Transfer"), [upper]).table["value"][0].as_py() == str(
        0xABCDEF
    )


# --- malformed content ----------------------------------------------------------------------------

BAD = [
    ("erc20.Transfer", [ALICE, BOB], "", "shorter than 32"),
    ("erc20.Transfer", [ALICE, BOB], "00" * 31, "shorter than 32"),
    ("erc20.Transfer", [ALICE, BOB], "0" * 65, "odd"),
    ("erc20.Transfer", [ALICE, BOB], "0" * 63 + "g", "not hex"),
    ("erc20.Transfer", [word(2**160), BOB], "00" * 32, "'from' is wider"),
    ("A(bool x)", [], word(2)[2:], "'x' is neither"),
    ("A(bool x)", [], word(2**255 + 1)[2:], "'x' is neither"),
    ("A(uint8 x)", [], word(256)[2:], "range of uint8"),
    ("A(uint8 x)", [], word(2**255)[2:], "range of uint8"),
    ("A(int8 x)", [], word(128)[2:], "range of int8"),
    ("A(int8 x)", [], word(-129)[2:], "range of int8"),
    ("A(int32 x)", [], word(2**31)[2:], "range of int32"),
    ("A(int64 x)", [], word(2**63)[2:], "range of int64"),
    ("A(uint128 x)", [], word(2**128)[2:], "range of uint128"),
    ("A(int128 x)", [], word(2**127)[2:], "range of int128"),
    ("A(int128 x)", [], word(-(2**127) - 1)[2:], "range of int128"),
    ("A(bytes4 x)", [], "00" * 31 + "01", "longer than 4"),
    ("A(string x)", [], word(64)[2:], "offset of 'x'"),
    ("A(string x)", [], word(2**255)[2:], "offset of 'x'"),
    ("A(string x)", [], word(32)[2:] + word(1)[2:], "length of 'x'"),
    ("A(string x)", [], word(32)[2:] + word(2**64 - 1)[2:], "length of 'x'"),
    ("A(string x)", [], word(32)[2:] + word(1)[2:] + "ff" + "00" * 31, "UTF-8"),
    ("A(uint8[] x)", [], word(32)[2:] + word(2)[2:] + word(1)[2:], "length of 'x'"),
    ("A(uint8[] x)", [], word(32)[2:] + word(2**59)[2:] + word(1)[2:], "length of 'x'"),
    ("A(uint8[] x)", [], word(32)[2:] + word(1)[2:] + word(256)[2:], "item of 'x'"),
    ("A(string[] x)", [], word(32)[2:] + word(2)[2:] + word(0)[2:] * 2, "offset of an item of 'x'"),
    ("A((string s) x)", [], word(0)[2:], "offset of 'x'"),
]


@pytest.mark.parametrize(("event", "topics", "data", "said"), BAD)
def test_malformed_content_is_an_error_that_says_where_and_why(
    event: str, topics: list[str], data: str, said: str
) -> None:
    output = evm.events(event)
    padded = [one if len(one) == 66 else topic_of_address(one) for one in topics]
    bad = log([output.event.topic0, *padded], f"0x{data}", index=9)
    with pytest.raises(UndecodableLogError, match=rf"\[E4002\].*({said})") as caught:
        decode_logs(output, [bad])
    assert caught.value.facts["block"] == 7
    assert caught.value.facts["log_index"] == 9


def test_skipped_logs_are_counted_and_the_rest_is_kept() -> None:
    bad = [{**transfer(1, index=at), "data": data} for at, data in enumerate(["0x", "0x1", "0xzz"])]
    logs = [transfer(5, index=3), *bad, transfer(6, index=4)]
    rows = decode_logs(evm.events("erc20.Transfer", on_error="skip"), logs)
    assert rows.table["value"].to_pylist() == ["5", "6"]
    assert rows.skipped == 3


def test_a_function_is_told_of_each_log_that_cannot_be_decoded_and_may_raise() -> None:
    bad = [{**transfer(1, index=at), "data": data} for at, data in enumerate(["0x", "0x", "0xzz"])]
    logs = [transfer(5, index=3), *bad, transfer(6, index=4)]
    told: list[Any] = []
    rows = decode_logs(evm.events("erc20.Transfer", on_error=told.append), logs)
    assert rows.table["value"].to_pylist() == ["5", "6"]
    assert rows.skipped == 3
    assert {one.code for one in told} == {"E4002"}
    assert sorted(one.facts["log_index"] for one in told) == [0, 1, 2]

    def strict(error: Exception) -> None:
        raise error

    with pytest.raises(UndecodableLogError, match="E4002"):
        decode_logs(evm.events("erc20.Transfer", on_error=strict), logs)

    async def later(error: Exception) -> None: ...

    for wrong, code in ((lambda: None, "E0007"), (later, "E0015")):
        with pytest.raises(InvalidOptionError, match=code):
            evm.events("erc20.Transfer", on_error=wrong)  # type: ignore[arg-type]


def test_a_log_that_another_output_wants_is_not_this_ones_error() -> None:
    foreign = {**transfer(1, address=BOB), "data": "0x"}
    rows = decode_logs(evm.events("erc20.Transfer", contracts=[TOKEN]),
                       [foreign, transfer(2, index=1)])  # fmt: skip
    assert rows.table["value"].to_pylist() == ["2"]


def test_nested_offsets_that_unfold_into_more_than_the_log_are_refused() -> None:
    """All items of a level point at the same next level: 200 words would become 50 ** 4 items."""
    output = evm.events("A(uint8[][][][] x)", on_error="skip")
    count = 50
    level = word(count)[2:] + word(32 * count)[2:] * count
    last = word(count)[2:] + word(1)[2:] * count
    bomb = log([output.event.topic0], f"0x{word(32)[2:]}{level * 3}{last}")
    rows = decode_logs(output, [bomb])
    assert (rows.table.num_rows, rows.skipped) == (0, 1)
    with pytest.raises(UndecodableLogError, match="overlap"):
        decode_logs(evm.events(output.event), [bomb])


def test_values_behind_each_other_in_any_order_are_read() -> None:
    """Encoders write in order; the offsets alone decide."""
    output = evm.events("A(string a, string b)")
    tail = [word(1)[2:] + "62".ljust(64, "0"), word(1)[2:] + "61".ljust(64, "0")]
    data = word(128)[2:] + word(64)[2:] + "".join(tail)
    row = decode_logs(output, [log([output.event.topic0], f"0x{data}")]).table.to_pylist()[0]
    assert (row["a"], row["b"]) == ("a", "b")
    listed = evm.events("A(string[] a)")
    data = word(32)[2:] + word(2)[2:] + word(128)[2:] + word(64)[2:] + "".join(tail)
    row = decode_logs(listed, [log([listed.event.topic0], f"0x{data}")]).table.to_pylist()[0]
    assert row["a"] == ["a", "b"]


# --- several outputs ------------------------------------------------------------------------------


def test_outputs_share_one_parse_and_keep_their_own_ranges_and_filters() -> None:
    lines = [line(at, [transfer(at, to=BOB if at % 2 else ALICE)]) for at in range(6)]
    decoded = decode_outputs(
        {
            "all": evm.events("erc20.Transfer"),
            "bob": evm.events("erc20.Transfer", params={"to": BOB}),
            "none": evm.events("erc20.Approval"),
        },
        lines,
        {
            "all": [BlockRange(0, 1), BlockRange(4)],
            "bob": [BlockRange(2, 5)],
            "none": [],
        },
    )
    values = {name: table["value"].to_pylist() for name, table in decoded.tables.items()}
    assert values == {"all": ["0", "1", "4", "5"], "bob": ["3", "5"], "none": []}
    assert decoded.skipped == {"all": 0, "bob": 0, "none": 0}
