"""The algebra of queries: union, planning, and the request as JSON, over arbitrary queries."""

import json
from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headwater.core import BlockRange
from headwater.query import (
    BitcoinQuery,
    EvmQuery,
    Filter,
    HyperliquidQuery,
    Query,
    SolanaQuery,
    SubstrateQuery,
    TronQuery,
)
from headwater.query import merge_queries as merge
from headwater.query import plan_requests as plan
from headwater.query.catalog import Network
from headwater.query.filters import Family
from headwater.query.values import Condition, ValueKind

BOUND = 30  # ranges end below it or never

BITCOIN_ADDRESSES = (
    "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa",
    "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4",
)
TRON_ADDRESSES = (
    "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t",
    "41A614F803B6FD780986A42C78EC9C7F77E6DED13C",
    "0x39dd12a54e2bab7c82aa14a1e158b34263d2d510",
)
PUBKEYS = ("1" * 32, "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")


def items_of(condition: Condition) -> st.SearchStrategy[object]:
    match condition.kind:
        case ValueKind.HEX:
            digits = st.sampled_from("0aB9").map(lambda digit: "0x" + digit * 2 * condition.width)
            return digits | st.sampled_from(condition.choices) if condition.choices else digits
        case ValueKind.BARE_HEX:
            return st.sampled_from("0aB9").map(lambda digit: digit * 2 * condition.width)
        case ValueKind.PUBKEY:
            return st.sampled_from(PUBKEYS)
        case ValueKind.BITCOIN_ADDRESS:
            return st.sampled_from(BITCOIN_ADDRESSES)
        case ValueKind.TRON_ADDRESS:
            return st.sampled_from(TRON_ADDRESSES)
        case ValueKind.QUALIFIED_NAME:
            return st.sampled_from(["Balances.Transfer", "EVM.Log"])
        case ValueKind.TEXT:
            return st.text(min_size=1, max_size=5)
        case ValueKind.NUMBER:
            return st.integers(0, 3)
        case ValueKind.CHOICE:
            return st.sampled_from(condition.choices)
        case ValueKind.BOOL:
            return st.booleans()


@st.composite
def arguments_of(draw: st.DrawFn, family: Family) -> dict[str, object]:
    some = st.lists(st.sampled_from(family.conditions or [None]), max_size=3, unique=True)
    chosen = [item for item in draw(some) if item is not None]
    widths = [item for item in chosen if item.wire in family.discriminators]
    arguments: dict[str, object] = {}
    for condition in chosen:
        if condition in widths[1:]:
            continue
        item = items_of(condition)
        values = st.lists(item, min_size=1, max_size=3) if condition.is_list else item
        arguments[condition.name] = draw(values)
    for relation in family.relations:
        if draw(st.booleans()):
            arguments[relation.name] = True
    return arguments


@st.composite
def queries_on(draw: st.DrawFn, make: type[Query]) -> Query:
    network: Network = make.network
    query = make(include_all_blocks=draw(st.booleans()))
    for entity in draw(st.lists(st.sampled_from(network.entities), max_size=2)):
        names = [field.name for field in entity.fields]
        query = query.add_fields(**{entity.name: draw(st.lists(st.sampled_from(names)))})
    for family in draw(st.lists(st.sampled_from(network.families), max_size=3)):
        query = query.add_filter(family.name, **draw(arguments_of(family)))
    return query


EVM_QUERIES = queries_on(EvmQuery)
BUILDERS = (EvmQuery, SolanaQuery, BitcoinQuery, TronQuery, HyperliquidQuery, SubstrateQuery)
QUERIES = st.sampled_from(BUILDERS).flatmap(queries_on)
LISTS = st.lists(EVM_QUERIES, min_size=1, max_size=4)
RANGES = st.builds(
    lambda first, more: BlockRange(first, None if more is None else min(first + more, BOUND - 1)),
    st.integers(0, BOUND - 1),
    st.none() | st.integers(0, BOUND),
)
OUTPUTS = st.lists(st.tuples(RANGES, EVM_QUERIES), max_size=4)


def meanings(query: Query) -> set[Filter]:
    """Return what is asked for, with filters of several events taken apart, one event each."""
    found = set()
    for item in query.filters:
        rest, events = item.without("topic0").canonical(), item.condition("topic0")
        parts = events if isinstance(events, tuple) else (events,)
        found |= {
            rest if one is None else replace(rest, conditions=(*rest.conditions, ("topic0", one)))
            for one in parts
        }
    return found


def selection(query: Query) -> set[tuple[str, str]]:
    return {(entity, name) for entity, names in query.fields for name in names}


@given(LISTS, st.randoms(use_true_random=False))
def test_a_union_does_not_depend_on_the_order_of_outputs(queries: list[Query], rng: Random) -> None:
    shuffled = sorted(queries, key=lambda _: rng.random())
    assert merge(shuffled).query_hash == merge(queries).query_hash


@given(LISTS)
def test_a_union_with_itself_changes_nothing(queries: list[Query]) -> None:
    union = merge(queries)
    assert merge([union, union]) == union
    assert merge([union, *queries]) == union
    assert merge([merge(queries[:1]), *queries[1:]]) == union


@given(LISTS)
def test_a_union_holds_all_filters_and_fields_and_no_others(queries: list[Query]) -> None:
    union = merge(queries)
    assert meanings(union) == set().union(*map(meanings, queries))
    assert selection(union) == set().union(*map(selection, queries))
    assert len(union.filters) == len({item.canonical() for item in union.filters})


@given(OUTPUTS)
def test_a_plan_asks_in_every_block_for_exactly_what_applies_there(
    outputs: list[tuple[BlockRange, Query]],
) -> None:
    requests = plan(outputs)
    for number in range(BOUND + 2):
        applying = [query for block_range, query in outputs if number in block_range]
        asked = [query for block_range, query in requests if number in block_range]
        assert len(asked) == bool(applying)
        for query in asked:
            assert meanings(query) == set().union(*map(meanings, applying))
            assert selection(query) == set().union(*map(selection, applying))
            assert query.include_all_blocks == any(one.include_all_blocks for one in applying)


@given(OUTPUTS)
def test_a_plan_ascends_and_its_neighbours_differ(
    outputs: list[tuple[BlockRange, Query]],
) -> None:
    requests = plan(outputs)
    for (lower, before), (upper, after) in pairwise(requests):
        assert lower.to_block is not None
        assert lower.to_block < upper.from_block
        assert lower.to_block + 1 < upper.from_block or before != after


@given(QUERIES, RANGES, st.none() | st.just("0x5"))
def test_a_request_is_json_that_says_what_the_query_says(
    query: Query, block_range: BlockRange, parent: str | None
) -> None:
    body = query.body(block_range.from_block, block_range.to_block, parent)
    document = json.loads(body)
    assert json.dumps(document, separators=(",", ":")).encode() == body
    assert document.pop("type") == query.network.type
    assert document.pop("fromBlock") == block_range.from_block
    assert document.pop("toBlock", None) == block_range.to_block
    assert document.pop("parentBlockHash", None) == parent
    assert document.pop("includeAllBlocks", False) == query.include_all_blocks
    selected = {
        (entity, name) for entity, names in document.pop("fields").items() for name in names
    }
    assert selected == selection(query)
    assert document == {
        family.wire: [item.document() for item in query.filters_of(family.name)]
        for family in query.network.families
        if query.filters_of(family.name)
    }


@given(QUERIES)
def test_forced_fields_are_in_every_query(query: Query) -> None:
    block = query.network.entities[0]
    assert {("block", name) for name in block.forced} <= selection(query)


@given(QUERIES, st.randoms(use_true_random=False))
def test_the_order_of_adding_does_not_show_in_the_hash(query: Query, rng: Random) -> None:
    filters = sorted(query.filters, key=lambda _: rng.random())
    again = type(query)(
        fields=query.fields[::-1],
        filters=tuple(filters),
        include_all_blocks=query.include_all_blocks,
    )
    assert again == query
