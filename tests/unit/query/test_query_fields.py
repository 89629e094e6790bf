"""Selecting fields: names, forced fields, errors."""

from typing import Any, cast

import pytest

from headwater.errors import QueryError
from headwater.query import EvmQuery, Query, SolanaQuery


def wires(query: Query, entity: str) -> list[str]:
    return [field.wire for field in query.selected(entity)]


def test_an_evm_query_always_selects_what_links_blocks() -> None:
    assert wires(EvmQuery(), "block") == ["number", "hash", "parentHash", "timestamp"]


def test_a_solana_query_always_selects_the_parent_slot_too() -> None:
    linked = ["number", "hash", "parentNumber", "parentHash", "timestamp"]
    assert wires(SolanaQuery(), "block") == linked


def test_fields_add_up_over_calls_and_come_in_catalogue_order() -> None:
    query = EvmQuery().add_fields(log=["data"]).add_fields(log=["topics", "address", "data"])
    assert wires(query, "log") == ["address", "data", "topics"]
    assert wires(query, "transaction") == []


def test_adding_leaves_the_query_it_started_from_alone() -> None:
    query = EvmQuery()
    query.add_fields(log=["data"]).add_logs()
    assert query == EvmQuery()


def test_python_spelling_becomes_wire_spelling() -> None:
    query = EvmQuery().add_fields(state_diff=["transaction_index", "prev"], transaction=["from"])
    assert wires(query, "state_diff") == ["transactionIndex", "prev"]
    assert wires(query, "transaction") == ["from"]


def test_selecting_any_trace_field_selects_its_type() -> None:
    assert wires(EvmQuery().add_fields(trace=["call_to"]), "trace") == ["type", "callTo"]
    assert wires(EvmQuery(), "trace") == []


def test_selecting_no_field_of_an_entity_selects_none_of_it() -> None:
    assert EvmQuery().add_fields(trace=[]) == EvmQuery()


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(QueryError, match="did you mean 'address'") as caught:
        EvmQuery().add_fields(log=["adress"])
    assert caught.value.code == "E0005"
    valid = "address, data, log_index, topics, transaction_hash, transaction_index"
    assert caught.value.facts["valid"] == valid


def test_the_wire_spelling_of_a_field_is_refused_with_ours() -> None:
    with pytest.raises(QueryError, match="did you mean 'transaction_index'") as caught:
        EvmQuery().add_fields(log=["transactionIndex"])
    assert caught.value.code == "E0005"


def test_a_name_like_no_other_gets_the_list_and_no_guess() -> None:
    with pytest.raises(QueryError) as caught:
        EvmQuery().add_fields(log=["zzz"])
    assert caught.value.code == "E0005"
    assert "did you mean" not in str(caught.value)


def test_an_unknown_entity_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(QueryError, match="did you mean 'token_balance'") as caught:
        SolanaQuery().add_fields(token_balances=["account"])
    assert caught.value.code == "E0005"


def test_asking_for_the_selection_of_an_unknown_entity_is_refused() -> None:
    with pytest.raises(QueryError, match="evm entity 'instruction' is not known") as caught:
        EvmQuery().selected("instruction")
    assert caught.value.code == "E0005"


@pytest.mark.parametrize("fields", ["address", b"address", None, 7])
def test_fields_that_are_not_a_list_are_refused(fields: object) -> None:
    with pytest.raises(QueryError, match="must be a list of names") as caught:
        EvmQuery().add_fields(log=cast("Any", fields))
    assert caught.value.code == "E0005"


@pytest.mark.parametrize("name", [b"address", None, ["address"]])
def test_a_field_name_that_is_no_text_is_refused(name: object) -> None:
    with pytest.raises(QueryError, match="is not known") as caught:
        EvmQuery().add_fields(log=cast("Any", [name]))
    assert caught.value.code == "E0005"
