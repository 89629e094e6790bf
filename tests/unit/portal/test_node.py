"""What refusals of nodes mean, what is learned from them, and what blooms say."""

from __future__ import annotations

import pytest

from headwater.errors import NodeLacksError
from headwater.portal.node.answers import Log, bloom_mask
from headwater.portal.node.rpc import LearnedSize, RpcError
from headwater.portal.node.selection import Selection

ADDRESS, OTHER = "0x" + "12" * 20, "0x" + "34" * 20
TOPIC = "0x" + "ab" * 32


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-32005, "daily request count exceeded, request rate limited"),
        (-32005, "Too Many Requests"),
        (429, "Your app has exceeded its compute units per second capacity"),
        (-32029, "anything"),
        (-32000, "call rate limit exhausted, retry in 10s"),
        (-32000, "project ID request rate exceeded: 10 requests per second"),
    ],
)
def test_texts_that_say_that_a_node_is_asked_too_much(code: int, message: str) -> None:
    error = RpcError(code, message)
    assert error.is_rate
    assert error.status == 429


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-32005, "query returned more than 10000 results"),
        (-32602, "query exceeds max block range 1000"),
        (-32000, "exceed maximum block range: 50000"),
        (-32614, "eth_getLogs is limited to a 10,000 range"),
        (-32000, "Log response size exceeded"),
        (-32000, "query timeout exceeded"),
        (-32701, "Please limit the query to at most 1000 blocks"),
    ],
)
def test_texts_that_say_that_a_range_is_too_wide_are_no_rates(code: int, message: str) -> None:
    error = RpcError(code, message)
    assert not error.is_rate
    assert not error.is_missing_method


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-32601, "no"),
        (-32000, "the method eth_getBlockReceipts does not exist/is not available"),
        (-32004, "method not supported: Method eth_getBlockReceipts is not supported"),
        (-32001, "Unsupported method: eth_getBlockReceipts"),
    ],
)
def test_texts_that_say_that_a_method_is_not_there(code: int, message: str) -> None:
    error = RpcError(code, message)
    assert error.is_missing_method
    assert error.status == 400


@pytest.mark.parametrize("message", ["header not found", "Internal error", "", "¯\\_(ツ)_/¯"])
def test_what_nobody_knows_may_pass(message: str) -> None:
    assert RpcError(-32000, message).status == 503


def test_a_suggested_range_is_taken() -> None:
    said = "Log response size exceeded. this block range should work: [0x64, 0xc7]"
    assert RpcError(-32602, said).suggested == 100
    assert RpcError(-32602, "[0xc7, 0x64]").suggested is None


def test_a_size_grows_shrinks_and_tries_a_refused_size_again_much_later() -> None:
    size = LearnedSize(16, 2000)
    limit, refusals = 300, []
    for step in range(500):
        asked = size.size
        if asked > limit:
            refusals.append(step)
            size.refused(asked)
        else:
            size.answered(asked)
    assert limit // 2 < size.size <= limit
    assert len(refusals) < 30
    for _ in range(200):  # the provider allows more now
        size.answered(size.size)
    assert size.size == 2000


def test_a_size_follows_the_memory_that_answers_take() -> None:
    size = LearnedSize(16, 2000)
    size.answered(16, share=4.0)
    assert size.size == 4
    size.answered(4, share=0.5)
    assert size.size == 8


def log(address: str, topics: list[str]) -> Log:
    return Log("0x1", "0x2", "0x3", "0x0", "0x0", address, topics, "0x")


def test_a_bloom_has_a_place_for_each_log_that_matches() -> None:
    selection = Selection({"type": "evm", "logs": [{"address": [ADDRESS], "topic0": [TOPIC]}]})
    both = bloom_mask(ADDRESS) | bloom_mask(TOPIC)
    assert selection.may_have_logs(both)
    assert not selection.may_have_logs(bloom_mask(ADDRESS))
    assert not selection.may_have_logs(0)
    assert selection.choose([log(ADDRESS, [TOPIC]), log(ADDRESS, []), log(OTHER, [TOPIC])]) == [
        log(ADDRESS, [TOPIC])
    ]


def test_the_bits_of_a_bloom_are_those_of_the_yellow_paper() -> None:
    # of the address and the topics of a log, as geth's tests have them: keccak("") begins so
    mask = bloom_mask("0x")
    places = {place for place in range(2048) if mask >> place & 1}
    assert places == {0xC5D2 & 2047, 0x4601 & 2047, 0x86F7 & 2047}


def test_a_call_for_logs_matches_at_least_what_all_filters_want() -> None:
    filters = [{"address": [ADDRESS], "topic0": [TOPIC]}, {"topic0": [TOPIC], "topic2": [TOPIC]}]
    assert Selection({"type": "evm", "logs": filters}).log_filters() == [{"topics": [[TOPIC]]}]
    narrow = Selection({"type": "evm", "logs": [{"address": [OTHER, ADDRESS]}]})
    assert narrow.log_filters() == [{"address": [ADDRESS, OTHER]}]


@pytest.mark.parametrize(
    "query",
    [
        {"type": "solana"},
        {"type": "evm", "traces": [{}]},
        {"type": "evm", "stateDiffs": [{}]},
        {"type": "evm", "logs": [{"transactionTraces": True}]},
        {"type": "evm", "transactions": [{"stateDiffs": True}]},
    ],
)
def test_what_a_node_is_not_asked_for_is_refused(query: dict[str, object]) -> None:
    with pytest.raises(NodeLacksError, match="E3011"):
        Selection(query)
