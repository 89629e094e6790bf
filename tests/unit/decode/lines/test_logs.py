"""Block lines to a flat table: what is read, and what is said about lines that cannot be."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from headwater.decode import LOG_SCHEMA, parse_logs
from headwater.decode.lines.logs import scan_logs
from headwater.errors import BlockContentError
from tests.unit.decode.samples import line, log, transfer, word


def test_all_columns_are_read() -> None:
    table = parse_logs([line(5, [transfer(9, index=3)])])
    assert table.schema == LOG_SCHEMA
    (row,) = table.to_pylist()
    assert row["block_number"] == 5
    assert row["block_hash"] == f"0x{5:064x}"
    assert row["timestamp"] == datetime.fromtimestamp(1_700_000_005, UTC)
    assert (row["log_index"], row["transaction_index"]) == (3, 1)
    assert row["transaction_hash"] == f"0x{3:064x}"
    assert row["address"] == f"0x{'c' * 40}"
    assert row["topic0"].startswith(b"ddf252ad")
    assert row["topic2"] == b"0" * 24 + b"b" * 40
    assert row["topic3"] is None
    assert row["data"] == f"{9:064x}".encode()


def test_indexes_have_32_bits_without_a_sign() -> None:
    """Both readers: the fast one reads the first, and white space is for the other."""
    ends = [0, 2**31 - 1, 2**31, 0xFFFF_FFE2, 2**32 - 1]
    logs = [{**log(index=at), "transactionIndex": at} for at in ends]
    given = line(5, logs)
    assert scan_logs([json.dumps(logs, separators=(",", ":")).encode()]) is not None
    for text in (given, given.replace(b'"logs":[', b'"logs": [ ')):
        table = parse_logs([text])
        assert table["log_index"].to_pylist() == ends
        assert table["transaction_index"].to_pylist() == ends


@pytest.mark.parametrize("lines", [[], [line(1)], [line(1, [])], [line(1), line(2, []), line(3)]])
def test_no_logs_give_an_empty_table(lines: list[bytes]) -> None:
    table = parse_logs(lines)
    assert (table.num_rows, table.schema) == (0, LOG_SCHEMA)


def test_blocks_with_and_without_logs_mix_in_order() -> None:
    counts = [0, 2, 0, 1, 3, 0]
    lines = [line(at, [log(index=i) for i in range(n)]) for at, n in enumerate(counts)]
    table = parse_logs([*lines, line(6)])
    assert table["block_number"].to_pylist() == [1, 1, 3, 4, 4, 4]
    assert table["log_index"].to_pylist() == [0, 1, 0, 0, 1, 2]


def test_other_entities_of_a_line_are_passed_over() -> None:
    others = {"transactions": [{"transactionIndex": 0, "logs": [1], "input": '"logs":[{'}]}
    first = json.loads(line(1, [log(index=4)]))
    lines = [
        json.dumps({"header": first["header"], **others, "logs": first["logs"]}).encode(),
        json.dumps({"logs": first["logs"], **others, "header": first["header"]}).encode(),
    ]
    assert parse_logs(lines)["log_index"].to_pylist() == [4, 4]


def test_many_slices_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(at, [transfer(at, index=i) for i in range(at % 3)]) for at in range(20)]
    whole = parse_logs(lines)
    monkeypatch.setattr("headwater.decode.lines.block_lines._SLICE_BYTES", 1000)
    assert parse_logs(lines).combine_chunks().equals(whole.combine_chunks())


@pytest.mark.parametrize("count", range(5))
def test_every_number_of_topics_is_read(count: int) -> None:
    topics = [word(slot) for slot in range(count)]
    (row,) = parse_logs([line(1, [log(topics)])]).to_pylist()
    expected: list[Any] = [f"{slot:064x}".encode() if slot < count else None for slot in range(4)]
    assert [row[f"topic{slot}"] for slot in range(4)] == expected


@pytest.mark.parametrize(
    "form",
    [
        lambda logs: json.dumps(logs).encode(),
        lambda logs: json.dumps(logs, indent=1).encode(),
        lambda logs: json.dumps([{**one, "extra": {"a": [1]}} for one in logs]).encode(),
        lambda logs: json.dumps([dict(reversed(list(logs[0].items()))), logs[1]]).encode(),
        lambda logs: json.dumps(logs, separators=(",", ":")).encode().replace(b"0x", b"0\\u0078"),
        lambda logs: json.dumps(logs, separators=(",", ":")).encode().replace(b"cc", b"CC"),
    ],
)
def test_other_forms_of_the_same_json_are_read_too(form: Any) -> None:
    logs = [transfer(1), transfer(2, index=1)]
    header = line(3)[:-1]
    given = header + b',"logs":' + form(logs) + b"}"
    assert scan_logs([form(logs)]) is None
    assert parse_logs([given]).to_pylist() == parse_logs([line(3, logs)]).to_pylist()


def test_data_is_left_as_it_is_by_both_readers() -> None:
    upper = {**transfer(1), "data": f"0x{0xAB:064X}"}
    spaced = json.dumps(json.loads(line(3, [upper]))).encode()
    assert parse_logs([spaced]).to_pylist() == parse_logs([line(3, [upper])]).to_pylist()


@pytest.mark.parametrize(
    "change",
    [
        {"logIndex": None},
        {"logIndex": "1"},
        {"logIndex": -1},
        {"logIndex": 1.5},
        {"logIndex": True},
        {"logIndex": 2**32},
        {"transactionIndex": 2**40},
        {"address": None},
        {"address": "0x12"},
        {"address": f"0x{'g' * 40}"},
        {"address": f"1x{'c' * 40}"},
        {"address": f"0x{'é' * 20}"},
        {"transactionHash": 5},
        {"topics": None},
        {"topics": "0x"},
        {"topics": [5]},
        {"topics": [None]},
        {"topics": [[word(1)]]},
        {"topics": [word(1)[:-1]]},
        {"topics": [f"0x{'z' * 64}"]},
        {"topics": [word(1)] * 5},
        {"data": None},
        {"data": "12"},
        {"data": ["0x"]},
    ],
)
def test_a_wrong_field_names_block_and_log(change: dict[str, Any]) -> None:
    logs = [transfer(1, index=6), {**transfer(2, index=7), **change}, transfer(3, index=8)]
    with pytest.raises(BlockContentError, match="E4003") as caught:
        parse_logs([line(11, [log()]), line(12, logs)])
    assert caught.value.facts["block"] == 12
    assert caught.value.facts["position"] == 1
    if "logIndex" not in change:
        assert caught.value.facts["log_index"] == 7


@pytest.mark.parametrize("field", list(log()))
def test_a_missing_field_names_block_and_log(field: str) -> None:
    broken = transfer(2, index=7)
    del broken[field]
    with pytest.raises(BlockContentError, match=field) as caught:
        parse_logs([line(12, [transfer(1), broken])])
    assert caught.value.facts["block"] == 12


@pytest.mark.parametrize("logs", [b"[null]", b"[5]", b"{}", b"null", b'[{"a":1},5]', b"[[]]"])
def test_what_is_no_list_of_logs_is_refused(logs: bytes) -> None:
    with pytest.raises(BlockContentError, match="block=3"):
        parse_logs([line(3)[:-1] + b',"logs":' + logs + b"}"])


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"[]",
        b"{}",
        line(8)[:-5],
        b'{"header":{"number":8}}',
        b'{"header":{"number":"8","hash":"0x","timestamp":1}}',
        b'{"header":{"number":-8,"hash":"0x","timestamp":1}}',
        b'{"header":{"number":8,"hash":"0x","timestamp":-1}}',
        b'{"header":{"number":8,"hash":"0x","timestamp":253402300800}}',
        b'{"header":{"number":99999999999999999999,"hash":"0x","timestamp":1}}',
        b'{"header":' + b"[" * 5000,
    ],
)
def test_a_line_that_is_no_block_is_refused(given: bytes) -> None:
    with pytest.raises(BlockContentError, match="E4003"):
        parse_logs([line(7), given])
