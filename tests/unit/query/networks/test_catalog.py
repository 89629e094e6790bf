"""The catalogues are complete and consistent, and the builders' types repeat them exactly."""

from typing import get_type_hints

import pytest

from headwater.query import (
    BITCOIN,
    EVM,
    HYPERLIQUID,
    NETWORKS,
    SOLANA,
    SUBSTRATE,
    TRON,
    Entity,
    Network,
    Presence,
    WireType,
)
from headwater.query.networks import bitcoin, evm, hyperliquid, solana, substrate, tron
from headwater.query.values import argument_name, snake_name

EACH = pytest.mark.parametrize("network", NETWORKS, ids=lambda one: one.type)

BUILDERS = {
    "evm": evm,
    "solana": solana,
    "bitcoin": bitcoin,
    "tron": tron,
    "hyperliquidFills": hyperliquid,
    "substrate": substrate,
}


def field_names(network: Network, entity: str) -> list[str]:
    return [field.wire for field in network.entity(entity).fields]


@EACH
def test_every_name_of_the_catalogue_is_unique_where_it_is_used(network: Network) -> None:
    entities = [entity.name for entity in network.entities]
    assert len(set(entities)) == len(entities)
    for entity in network.entities:
        names = [field.name for field in entity.fields]
        assert len(set(names)) == len(names)
    for family in network.families:
        keys = [item.name for item in family.conditions] + [item.name for item in family.relations]
        assert len(set(keys)) == len(keys)


@EACH
def test_families_and_relations_point_to_entities_that_exist(network: Network) -> None:
    known = {entity.wire for entity in network.entities}
    for family in network.families:
        assert family.entity in known
        is_main = network.entity(family.entity).collection == family.wire
        assert is_main == (family.implied is None)
        fields = {field.wire for field in network.entity(family.entity).fields}
        assert family.implied is None or family.implied[0] in fields
        assert {place[0] for item in family.conditions for place in item.at} <= fields
        assert {relation.entity for relation in family.relations} <= known


@EACH
def test_forced_fields_are_fields_and_the_block_comes_first(network: Network) -> None:
    assert network.entities[0].wire == "block"
    for entity in network.entities:
        assert set(entity.forced) <= {field.wire for field in entity.fields}


@EACH
def test_objects_and_only_objects_have_members(network: Network) -> None:
    for entity in network.entities:
        for field in entity.fields:
            assert (field.type is WireType.OBJECT) == bool(field.members)


@EACH
def test_the_typed_builders_name_exactly_the_keys_of_the_catalogue(network: Network) -> None:
    for family in network.families:
        prefix = network.type.removesuffix("Fills")
        title = "".join(part.capitalize() for part in [prefix, *family.name.split("_")])
        hints = get_type_hints(getattr(BUILDERS[network.type], title))
        keys = [item.name for item in family.conditions] + [item.name for item in family.relations]
        assert sorted(hints) == sorted(keys)
        flags = {item.name for item in family.relations} | {"is_committed", "prevout_generated"}
        assert {name for name, hint in hints.items() if hint is bool} == flags & set(keys)


@pytest.mark.parametrize(
    ("network", "counts"),
    [
        (EVM, {"block": 30, "transaction": 37, "log": 6, "trace": 28, "stateDiff": 6}),
        (
            SOLANA,
            {
                "block": 6,
                "transaction": 14,
                "instruction": 13,
                "log": 6,
                "balance": 4,
                "tokenBalance": 12,
                "reward": 5,
            },
        ),
        (BITCOIN, {"block": 15, "transaction": 9, "input": 18, "output": 8}),
        (TRON, {"block": 8, "transaction": 29, "log": 5, "internalTransaction": 9}),
        (HYPERLIQUID, {"block": 4, "fill": 20}),
        (SUBSTRATE, {"block": 12, "extrinsic": 8, "call": 7, "event": 7}),
    ],
    ids=lambda one: one.type if isinstance(one, Network) else "",
)
def test_no_field_is_lost(network: Network, counts: dict[str, int]) -> None:
    assert {entity.wire: len(entity.fields) for entity in network.entities} == counts


@pytest.mark.parametrize(
    ("wire", "path", "variant"),
    [
        ("createFrom", ("action", "from"), "create"),
        ("createResultAddress", ("result", "address"), "create"),
        ("callCallType", ("action", "callType"), "call"),
        ("callFrom", ("action", "from"), "call"),
        ("callResultOutput", ("result", "output"), "call"),
        ("suicideRefundAddress", ("action", "refundAddress"), "suicide"),
        ("rewardType", ("action", "type"), "reward"),
        ("traceAddress", ("traceAddress",), None),
    ],
)
def test_flat_trace_keys_say_where_the_value_stands_in_the_result(
    wire: str, path: tuple[str, ...], variant: str | None
) -> None:
    field = next(field for field in EVM.entity("trace").fields if field.wire == wire)
    assert (field.path, field.variant) == (path, variant)


def test_within_one_trace_type_no_two_fields_share_a_place() -> None:
    trace: Entity = EVM.entity("trace")
    for variant in ("create", "call", "suicide", "reward"):
        paths = [field.path for field in trace.fields if field.variant in (None, variant)]
        assert len(set(paths)) == len(paths)


def test_one_sided_token_balances_are_expected() -> None:
    sides = [f for f in SOLANA.entity("tokenBalance").fields if f.wire.startswith(("pre", "post"))]
    assert len(sides) == 10
    assert all(field.presence is Presence.OPTIONAL for field in sides)


def test_what_servers_know_beyond_the_sdk_can_be_asked() -> None:
    traces = next(family for family in EVM.families if family.wire == "traces")
    instructions = next(family for family in SOLANA.families if family.wire == "instructions")
    assert "createResultAddress" in [item.wire for item in traces.conditions]
    assert "a15" in [item.wire for item in instructions.conditions]
    assert {"prev", "next"} <= set(field_names(EVM, "stateDiff"))
    assert {"d1", "d2", "d4", "d8"} <= set(field_names(SOLANA, "instruction"))


@pytest.mark.parametrize(
    ("wire", "ours"),
    [
        ("transactionIndex", "transaction_index"),
        ("sha3Uncles", "sha3_uncles"),
        ("l1BlobBaseFeeScalar", "l1_blob_base_fee_scalar"),
        ("callSighash", "call_sighash"),
        ("a15", "a15"),
    ],
)
def test_names_have_one_spelling_in_python(wire: str, ours: str) -> None:
    assert snake_name(wire) == ours


def test_a_name_that_python_keeps_for_itself_gets_an_underscore_as_argument_only() -> None:
    assert argument_name("from") == "from_"
    assert snake_name("from") == "from"
