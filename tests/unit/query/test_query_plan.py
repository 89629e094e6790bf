"""Several outputs: one union per segment of blocks."""

import pytest

from headwater.core import BlockRange
from headwater.errors import QueryError
from headwater.query import EvmQuery, SolanaQuery, merge_queries, plan_requests
from tests.unit.query.test_query_filters import DAI, USDC

LOGS = EvmQuery().add_fields(log=["address"]).add_logs(address=[USDC])
CALLS = EvmQuery().add_fields(trace=["call_to"]).add_traces(call_to=[DAI], transaction=True)
BOTH = (
    EvmQuery()
    .add_fields(log=["address"], trace=["call_to"])
    .add_logs(address=[USDC])
    .add_traces(call_to=[DAI], transaction=True)
)


def test_a_union_asks_for_all_fields_and_all_filters() -> None:
    assert merge_queries([LOGS, CALLS]) == BOTH


def test_a_union_is_a_query_of_the_same_kind() -> None:
    assert merge_queries([LOGS, CALLS]).network is EvmQuery.network
    assert isinstance(merge_queries(iter([LOGS])), EvmQuery)


def test_a_filter_that_two_outputs_share_is_sent_once() -> None:
    twice = merge_queries([LOGS, EvmQuery().add_logs(address=[USDC.upper().replace("X", "x")])])
    assert twice.filters == LOGS.filters


def test_events_of_one_contract_share_one_filter() -> None:
    """A contract with more events than a request may have filters can be read."""
    several = [
        EvmQuery().add_logs(address=[USDC], topic0=[f"0x{number:064x}"], transaction=True)
        for number in range(101)
    ]
    other = EvmQuery().add_logs(address=[DAI], topic0=[f"0x{0:064x}"], transaction=True)
    blocks = BlockRange(0)
    ((_, asked),) = plan_requests([(blocks, query) for query in (*several, other, LOGS)])
    (first, second, third) = asked.filters
    assert first.condition("topic0") == tuple(f"0x{number:064x}" for number in range(101))
    assert first.condition("address") == (USDC,)
    assert second == other.filters[0]
    assert third == LOGS.filters[0]
    assert plan_requests([(blocks, query) for query in several])[0][1].body(0)


def test_one_output_that_wants_all_blocks_gets_them() -> None:
    assert merge_queries([LOGS, EvmQuery(include_all_blocks=True)]).include_all_blocks
    assert not merge_queries([LOGS, CALLS]).include_all_blocks


def test_nothing_has_no_union() -> None:
    with pytest.raises(QueryError, match="no query to merge") as caught:
        merge_queries([])
    assert caught.value.code == "E0005"


def test_queries_of_different_networks_have_no_union() -> None:
    with pytest.raises(QueryError, match="got=evm, solana") as caught:
        merge_queries([EvmQuery(), SolanaQuery()])
    assert caught.value.code == "E0005"


def test_a_plan_refuses_different_networks_even_where_ranges_do_not_meet() -> None:
    with pytest.raises(QueryError, match="got=evm, solana") as caught:
        plan_requests([(BlockRange(0, 1), EvmQuery()), (BlockRange(5), SolanaQuery())])
    assert caught.value.code == "E0005"


def test_no_output_needs_no_request() -> None:
    assert plan_requests([]) == []


def test_each_segment_asks_for_what_applies_there() -> None:
    assert plan_requests([(BlockRange(0, 9), LOGS), (BlockRange(5), CALLS)]) == [
        (BlockRange(0, 4), LOGS),
        (BlockRange(5, 9), BOTH),
        (BlockRange(10), CALLS),
    ]


def test_blocks_that_nobody_wants_are_not_asked_for() -> None:
    assert plan_requests([(BlockRange(9, 9), LOGS), (BlockRange(0, 2), LOGS)]) == [
        (BlockRange(0, 2), LOGS),
        (BlockRange(9, 9), LOGS),
    ]


def test_neighbours_that_ask_for_the_same_become_one_request() -> None:
    same = EvmQuery().add_logs(address=[USDC]).add_fields(log=["address"])
    assert plan_requests([(BlockRange(0, 4), LOGS), (BlockRange(5, 9), same)]) == [
        (BlockRange(0, 9), LOGS)
    ]


def test_an_output_that_adds_nothing_new_cuts_nothing() -> None:
    assert plan_requests([(BlockRange(0), BOTH), (BlockRange(5, 9), LOGS)]) == [
        (BlockRange(0), BOTH)
    ]
