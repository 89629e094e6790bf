"""The request, its hash and its limits."""

import json
import pickle

import pytest

from headwater.errors import InvalidRangeError, QueryLimitError
from headwater.query import (
    MAX_BODY_BYTES,
    MAX_FILTERS,
    EvmQuery,
    SolanaQuery,
    check_limits,
    hash_document,
)
from tests.unit.query.test_query_filters import DAI, TOKEN, TRANSFER, USDC


def topic(number: int) -> str:
    return f"0x{number:064x}"


def test_the_smallest_request_selects_the_links_and_nothing_else() -> None:
    expected = (
        b'{"type":"evm","fields":{"block":{"hash":true,"number":true,"parentHash":true,'
        b'"timestamp":true}},"fromBlock":6}'
    )
    assert EvmQuery().body(6) == expected


def test_a_request_has_one_fixed_order_of_keys() -> None:
    query = (
        EvmQuery(include_all_blocks=True)
        .add_state_diffs()
        .add_traces(type=["call"])
        .add_transactions(to=[DAI])
        .add_logs(topic0=[TRANSFER], address=[USDC, DAI])
        .add_fields(transaction=["hash"], log=["topics", "address"])
    )
    document = json.loads(query.body(6, 7, "0x5"))
    assert list(document) == [
        *("type", "fields", "fromBlock", "toBlock", "parentBlockHash", "includeAllBlocks"),
        *("logs", "transactions", "traces", "stateDiffs"),
    ]
    assert list(document["fields"]) == ["block", "log", "transaction"]
    assert list(document["fields"]["log"]) == ["address", "topics"]
    assert document["logs"] == [{"address": [USDC, DAI], "topic0": [TRANSFER]}]
    assert (document["fromBlock"], document["toBlock"]) == (6, 7)
    assert document["parentBlockHash"] == "0x5"


def test_a_solana_request_speaks_of_slots_and_parents() -> None:
    document = json.loads(SolanaQuery().add_instructions(program_id=[TOKEN]).body(0, 0))
    assert document["type"] == "solana"
    assert document["fields"]["block"]["parentNumber"] is True
    assert document["toBlock"] == 0
    assert document["instructions"] == [{"programId": [TOKEN]}]


@pytest.mark.parametrize(("first", "last"), [(7, 6), (-1, None)])
def test_a_range_that_cannot_be_is_refused(first: int, last: int | None) -> None:
    with pytest.raises(InvalidRangeError) as caught:
        EvmQuery().body(first, last)
    assert caught.value.code == "E0002"


def test_the_hash_of_the_documented_query_is_the_documented_one() -> None:
    fields = {"block": {"hash": True, "number": True, "timestamp": True}}
    documented = "1137b8a50718df4ec48060ae5cef9c8e929b619a23846c34a2535b3548b589c5"
    assert hash_document({"type": "evm", "fields": fields}) == documented
    assert hash_document({"fields": fields, "type": "evm"}) != documented


def test_the_hash_is_that_of_the_request_without_its_position() -> None:
    query = EvmQuery().add_logs(address=[DAI, USDC], transaction=True).add_transactions()
    document = json.loads(query.body(6, 7, "0x5"))
    canonical = {**document, "logs": [{"address": [DAI, USDC], "transaction": True}]}
    for key in ("fromBlock", "toBlock", "parentBlockHash"):
        del canonical[key]
    assert query.query_hash == hash_document(canonical)


def test_queries_that_mean_the_same_are_equal_in_any_order_of_adding() -> None:
    one = (
        EvmQuery()
        .add_fields(log=["data", "address"])
        .add_logs(address=[USDC, DAI])
        .add_logs(topic0=[TRANSFER])
        .add_transactions(type=[10, 2])
    )
    other = (
        EvmQuery()
        .add_transactions(type=[2, 10])
        .add_logs(topic0=[TRANSFER])
        .add_logs(address=[DAI, USDC, DAI])
        .add_fields(log=["address"])
        .add_fields(log=["data"])
    )
    assert one.query_hash == other.query_hash
    assert one == other
    assert len({one, other}) == 1


def test_queries_that_differ_are_not_equal() -> None:
    query = EvmQuery().add_logs(address=[USDC])
    others = [
        EvmQuery(),
        EvmQuery().add_logs(address=[DAI]),
        EvmQuery().add_logs(address=[USDC], transaction=True),
        EvmQuery(include_all_blocks=True).add_logs(address=[USDC]),
        query.add_fields(log=["data"]),
    ]
    assert len({query, *others}) == 6
    assert query != query.query_hash


def test_a_query_pickles() -> None:
    query = EvmQuery(include_all_blocks=True).add_fields(log=["data"]).add_logs(address=[USDC])
    copy = pickle.loads(pickle.dumps(query))
    assert copy == query
    assert copy.body(1, 2) == query.body(1, 2)


def test_a_hundred_filters_pass_and_one_more_is_refused() -> None:
    query = EvmQuery()
    for number in range(MAX_FILTERS // 2):
        query = query.add_logs(topic0=[topic(number)]).add_transactions(type=[number])
    query.body(0)
    with pytest.raises(QueryLimitError, match="filters=101, limit=100") as caught:
        query.add_traces().body(0)
    assert caught.value.code == "E0006"


def test_a_request_may_have_exactly_256_kib() -> None:
    check_limits(b" " * MAX_BODY_BYTES, 0)
    with pytest.raises(QueryLimitError, match="bytes=262145, limit=262144") as caught:
        check_limits(b" " * (MAX_BODY_BYTES + 1), 0)
    assert caught.value.code == "E0006"


def test_a_request_that_is_too_large_is_refused_before_it_is_sent() -> None:
    query = EvmQuery().add_logs(topic0=[topic(number) for number in range(4000)])
    with pytest.raises(QueryLimitError, match="limit=262144") as caught:
        query.body(0)
    assert caught.value.code == "E0006"


def test_five_thousand_addresses_fit() -> None:
    query = EvmQuery().add_logs(address=[f"0x{number:040x}" for number in range(5000)])
    assert len(query.body(0)) < MAX_BODY_BYTES
