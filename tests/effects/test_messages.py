"""Messages: exact JSON, an order that replays repeat, keys that never change."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.effects import Subscription
from headwater.effects.message import (
    collect_messages,
    idempotency_key,
    json_rows,
    message_rows,
    read_messages,
)
from headwater.errors import InvalidOptionError, MessageRowsError
from headwater.targets import Delivery
from tests.effects.samples import message

NOON = dt.datetime(2024, 5, 6, 12, 0, 0, 250_000, dt.UTC)


def one_row(**columns: tuple[pa.DataType, Any]) -> dict[str, Any]:
    table = pa.table({name: pa.array([value], kind) for name, (kind, value) in columns.items()})
    (text,) = json_rows(table)
    row: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert list(row) == list(columns)
    return row


def test_values_are_exact_in_json() -> None:
    assert one_row(
        small=(pa.int32(), -5),
        safe=(pa.int64(), 2**53 - 1),
        large=(pa.int64(), -(2**53)),
        huge=(pa.uint64(), 2**64 - 1),
        token=(pa.decimal128(38, 0), Decimal(10**37)),
        price=(pa.decimal128(10, 3), Decimal("0.100")),
        wide=(pa.decimal256(76, 0), Decimal(10**75)),
        text=(pa.string(), '"ü\n'),
        raw=(pa.binary(), b"\x00\xff"),
        fixed=(pa.binary(2), b"\x01\x02"),
        flag=(pa.bool_(), True),
        none=(pa.string(), None),
        real=(pa.float64(), 0.5),
        odd=(pa.float64(), float("inf")),
        at=(pa.timestamp("us", "UTC"), NOON),
        local=(pa.timestamp("s"), dt.datetime(2024, 5, 6, 12)),  # noqa: DTZ001
        day=(pa.date32(), dt.date(2024, 5, 6)),
        coded=(pa.dictionary(pa.int8(), pa.string()), "a"),
    ) == {
        "small": -5,
        "safe": 2**53 - 1,
        "large": str(-(2**53)),
        "huge": str(2**64 - 1),
        "token": "1" + "0" * 37,
        "price": "0.100",
        "wide": "1" + "0" * 75,
        "text": '"ü\n',
        "raw": "0x00ff",
        "fixed": "0x0102",
        "flag": True,
        "none": None,
        "real": 0.5,
        "odd": "inf",
        "at": "2024-05-06T12:00:00.250000Z",
        "local": "2024-05-06T12:00:00",
        "day": "2024-05-06",
        "coded": "a",
    }


TIMES = st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2200, 1, 1))  # noqa: DTZ001
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    pa.decimal256(76, 0): st.integers(-(10**76) + 1, 10**76 - 1).map(Decimal),
    pa.timestamp("us"): TIMES,
    pa.timestamp("us", "UTC"): TIMES.map(lambda one: one.replace(tzinfo=dt.UTC)),
    pa.timestamp("s", "UTC"): TIMES.map(lambda one: one.replace(microsecond=0, tzinfo=dt.UTC)),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
@settings(max_examples=40)
def test_a_column_at_a_time_gives_what_value_by_value_gives(
    kind: pa.DataType, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.none() | KINDS[kind], min_size=1, max_size=6))
    inner = pa.array([[one] for one in values], pa.list_(kind))  # nested: value by value
    outer = pa.array(values, kind)
    whole = [json.loads(text) for text in json_rows(pa.table({"v": outer, "n": inner}))]
    assert [[row["v"]] for row in whole] == [row["n"] for row in whole]


def test_nested_values_are_exact_too() -> None:
    inner = pa.struct([("n", pa.uint64()), ("b", pa.list_(pa.binary()))])
    assert one_row(
        deep=(pa.list_(inner), [{"n": 2**63, "b": [b"\x01", None]}, None]),
        pairs=(pa.map_(pa.string(), pa.int64()), [("a", 2**60)]),
    ) == {
        "deep": [{"n": str(2**63), "b": ["0x01", None]}, None],
        "pairs": {"a": str(2**60)},
    }


def test_a_message_is_one_json_object_around_its_row() -> None:
    one = message(7, 2, '{"value":"5"}')
    assert json.loads(one.to_json()) == {
        "key": one.key,
        "stream": "one",
        "output": "transfers",
        "block": {"number": 7, "hash": one.block_hash},
        "ordinal": 2,
        "row": {"value": "5"},
    }
    assert one.row == {"value": "5"}
    assert read_messages("one", "transfers", message_rows([one])) == [one]


@pytest.mark.guarantee("OUTBOX-3")
def test_a_key_follows_from_stream_output_block_and_place_alone() -> None:
    keys = {
        idempotency_key(*parts)
        for parts in [
            ("s", "o", 1, "h", 0),
            ("s2", "o", 1, "h", 0),
            ("s", "o2", 1, "h", 0),
            ("s", "o", 2, "h", 0),
            ("s", "o", 1, "h2", 0),
            ("s", "o", 1, "h", 1),
        ]
    }
    assert len(keys) == 6
    assert idempotency_key("s", "o", 1, "h", 0) == "42ac87945a302e4bbd8a40bd8713f429"


# --- of a batch -----------------------------------------------------------------------------------


def batch_of(frame: Any, first: int, last: int, ctx: Any = None) -> Batch[Delivery]:
    headers = tuple(BlockHeader(n, f"h{n}", f"h{n - 1}", n - 1, n) for n in range(first, last + 1))
    return Batch(headers, Head(), PipeState(BlockCursor(last)), (), Delivery({"logs": frame}, ctx))


def rows(count: int, first: int = 1, last: int = 3) -> list[dict[str, Any]]:
    dice = Random(count)
    return [
        {
            "block_number": number,
            "block_hash": f"h{number}",
            "transaction_index": index // 2,
            "log_index": dice.choice([index, None]),
            "text": dice.choice("ab"),
        }
        for number in range(first, last + 1)
        for index in range(count)
    ]


SCHEMA = pa.schema(
    [
        ("block_number", pa.int64()),
        ("block_hash", pa.string()),
        ("transaction_index", pa.int32()),
        ("log_index", pa.int32()),
        ("text", pa.string()),
    ]
)


@pytest.mark.guarantee("OUTBOX-3")
def test_keys_and_order_are_the_same_however_the_rows_come() -> None:
    given = rows(6)
    expected = None
    for seed in range(5):
        Random(seed).shuffle(given)
        frame = pa.Table.from_pylist(given, schema=SCHEMA)
        found = collect_messages("s", "logs", batch_of(frame, 1, 3))
        whole = found.to_pylist()
        alone = [
            row
            for n in (1, 2, 3)
            for row in collect_messages(
                "s",
                "logs",
                batch_of(frame.filter(pa.compute.field("block_number") == n), n, n),
            ).to_pylist()
        ]
        assert whole == alone, "blocks together, or one by one"
        expected = expected or whole
        assert whole == expected
    assert [row["ordinal"] for row in whole] == [*range(6)] * 3
    assert len({row["key"] for row in whole}) == 18
    places = [json.loads(row["payload"])["transaction_index"] for row in whole]
    assert places == [0, 0, 1, 1, 2, 2] * 3


def test_rows_that_cannot_be_placed_are_refused() -> None:
    good = pa.Table.from_pylist(rows(1), schema=SCHEMA)
    with pytest.raises(MessageRowsError, match=r"E7001.*block_hash"):
        collect_messages("s", "logs", batch_of(good.drop_columns(["block_hash"]), 1, 3))
    with pytest.raises(MessageRowsError, match="no such output"):
        collect_messages("s", "other", batch_of(good, 1, 3))
    with pytest.raises(MessageRowsError, match=r"1\.\.3.*2\.\.3"):
        collect_messages("s", "logs", batch_of(good, 2, 3))
    with pytest.raises(MessageRowsError, match="other blocks"):
        collect_messages("s", "logs", batch_of(good, 1, 2))
    nameless = pa.Table.from_pylist([{"block_number": None, "block_hash": "h"}], schema=SCHEMA)
    with pytest.raises(MessageRowsError, match="name no block"):
        collect_messages("s", "logs", batch_of(nameless, 1, 3))


def test_a_span_knows_its_last_header_and_its_length() -> None:
    frame = pa.Table.from_pylist(rows(1, 11, 20), schema=SCHEMA)
    ctx = SimpleNamespace(batch=SimpleNamespace(blocks_count=10))
    span = replace(batch_of(frame, 20, 20, ctx))
    assert collect_messages("s", "logs", span).num_rows == 10
    ctx.batch.blocks_count = 9
    with pytest.raises(MessageRowsError, match="other blocks"):
        collect_messages("s", "logs", span)


@pytest.mark.parametrize(
    "options", [{"name": "no spaces"}, {"name": ""}, {"batch_size": 0}, {"deliver": 5}]
)
def test_a_subscription_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        Subscription(**{"output": "logs", "deliver": print, "name": "logs", **options})
