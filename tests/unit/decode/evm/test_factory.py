"""Factories as they are defined, and children as they are stored."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import BlockRange
from headwater.decode import LOG_SCHEMA, Factory, creations_of, evm
from headwater.decode.evm.factory import FOUND_FIELDS
from headwater.errors import (
    AddressError,
    InvalidOptionError,
    InvalidRangeError,
    ParameterError,
    SignatureError,
)
from headwater.stream.factory_index import (
    CHILDREN,
    FactoryIndex,
    factories_of,
    from_rows,
    mark,
    query_children,
    to_rows,
)

ONE, TWO = f"0x{'11' * 20}", f"0x{'22' * 20}"
CREATED = (
    "Created(address indexed token, uint24 fee, uint96 cap, uint256 n, bool open, bytes4 kind, "
    "string name, bytes note, address pool, uint256[] list)"
)
SIMPLE = ["token", "fee", "cap", "n", "open", "kind", "name", "note"]
SWAP = "Swap(uint256 amount)"


def factory(**options: Any) -> Factory:
    return evm.factory(**{"address": ONE, "event": CREATED, "child": "pool", **options})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"address": []}, AddressError),
        ({"address": None}, AddressError),
        ({"address": "0x12"}, AddressError),
        ({"event": "no event"}, SignatureError),
        ({"child": "missing"}, ParameterError),
        ({"child": "fee"}, ParameterError),
        ({"params": {"fee": 3}}, ParameterError),
        ({"columns": ["missing"]}, ParameterError),
        ({"columns": ["list"]}, ParameterError),
        ({"start": "latest"}, InvalidRangeError),
        ({"start": (1, 2)}, InvalidRangeError),
        ({"start": [1, 2]}, InvalidRangeError),
    ],
)
def test_what_no_factory_can_be_is_refused(options: dict[str, Any], error: type) -> None:
    with pytest.raises(error, match=r"^\[E[04]0"):
        factory(**options)


def test_an_error_lists_the_parameters_that_could_serve() -> None:
    with pytest.raises(ParameterError, match="token, pool"):
        factory(child="fee")
    with pytest.raises(ParameterError, match="token, fee, cap, n, open, kind, name, note, pool"):
        factory(columns="list")


def test_creations_that_cannot_be_decoded_are_left_out_if_the_factory_says_so() -> None:
    """What a factory does with them is part of what its children are stored under."""
    assert creations_of(factory(on_error="skip")).on_error == "skip"
    keys = [factory(on_error=one).key for one in ("raise", "skip", print, repr)]
    assert factory().key == keys[0]
    assert keys[2] == keys[3]
    assert len(set(keys)) == 3
    with pytest.raises(InvalidOptionError, match="on_error"):
        factory(on_error="no")


def test_columns_follow_those_of_the_output() -> None:
    made = factory(columns=["token", "fee"])
    events = evm.events(SWAP, contracts=made)
    assert events.schema.names[-3:] == ["amount", "factory_token", "factory_fee"]
    calls = evm.calls("f(uint256 x) returns (bool ok)", contracts=made, source="traces")
    assert calls.schema.names[-4:] == ["x", "ok", "factory_token", "factory_fee"]
    with pytest.raises(ParameterError, match="factory_fee"):
        evm.events("E(uint256 factory_fee)", contracts=made)
    with pytest.raises(ParameterError, match="factory_fee"):
        evm.calls("f(uint256 Factory_Fee)", contracts=made)


def test_the_key_follows_from_all_that_decides_who_is_a_child() -> None:
    keys = {
        factory(**options).key
        for options in (
            {}, {"address": TWO}, {"address": [ONE, TWO]}, {"child": "token"}, {"start": 5},
            {"params": {"token": TWO}}, {"columns": ["fee"]}, {"address": factory()},
            {"event": CREATED.replace(" indexed", "")}, {"start": "2024-01-01"},
        )
    }  # fmt: skip
    assert len(keys) == 10
    assert factory(address=[TWO, ONE]).key == factory(address=[ONE, TWO]).key
    again = pickle.loads(pickle.dumps(factory()))
    assert again == factory()
    assert again.key == factory().key


def test_factories_above_come_first_and_each_once() -> None:
    top = factory()
    middle, other = factory(address=top), factory(address=top, child="token")
    outputs = [evm.events(SWAP, contracts=one) for one in (other, middle, middle, top)]
    found = factories_of([*outputs, evm.events(SWAP)])
    assert [one.depth for one in found] == [0, 1, 1]
    assert found[0] == top


def test_each_event_of_a_union_is_asked_for_by_the_children_of_its_own_factory() -> None:
    few, many = factory(), factory(address=TWO, columns=["token", "fee"])
    parts = [evm.events(SWAP, contracts=one) for one in (few, many)]
    union = evm.union(*parts, evm.events("erc20.Transfer"))
    assert [one.key for one in factories_of([union])] == [few.key, many.key]
    index = FactoryIndex([few, many], {few.key: 0, many.key: 0})
    index.add(few.key, found_rows(few, 2), 50_000)
    index.add(many.key, found_rows(many, 5), 50_000)
    bound = index.bind({"all": union}, 50_000)["all"]
    asked = [one.document() for one in query_children([bound], 50_000).filters]
    assert [len(str(one.get("address", "")).split(",")) for one in asked] == [1, 2, 5]
    assert "address" not in asked[0]
    assert pickle.loads(pickle.dumps(bound)).schema == union.schema


def test_an_output_without_a_stream_says_that_nobody_looked_for_children() -> None:
    output = evm.events(SWAP, contracts=factory())
    logs = {"log": pa.Table.from_batches([], LOG_SCHEMA)}
    assert output.decode(logs, [BlockRange(0)]).table.num_rows == 0
    row = {**dict.fromkeys(LOG_SCHEMA.names), "block_number": 1, "topic0": b"0" * 64}
    logs = {"log": pa.Table.from_pylist([row], LOG_SCHEMA)}
    with pytest.raises(InvalidOptionError, match="E0007"):
        output.decode(logs, [BlockRange(0)])


# --- stored rows ----------------------------------------------------------------------------------


def found_rows(made: Factory, count: int = 3) -> pa.Table:
    """Creations with values of every simple type."""
    values: dict[str, Callable[[int], Any]] = {
        "block_number": lambda at: at // 2,
        "transaction_index": lambda at: at % 7,
        "log_index": lambda at: at,
        "address": lambda at: f"0x{at * 7919:040x}",
        "factory_token": lambda at: f"0x{at:040x}",
        "factory_fee": lambda at: at,
        "factory_cap": lambda at: Decimal(2**96 - 1 - at),
        "factory_n": lambda at: str(2**256 - 1 - at),
        "factory_open": lambda at: at % 2 == 0,
        "factory_kind": lambda at: bytes([at % 256, 0, 255, 10]),
        "factory_name": lambda at: f'"{at}", \\ é\n',
        "factory_note": lambda at: b"\x00\xff" * (at % 3),
    }
    schema = pa.schema([*FOUND_FIELDS, *made.fields])
    return pa.table(
        [pa.array([values[one.name](at) for at in range(count)], one.type) for one in schema],
        schema=schema,
    )


def test_every_simple_type_comes_back_from_storage_as_it_was() -> None:
    made = factory(columns=SIMPLE)
    found = found_rows(made)
    rows = to_rows(made, found)
    assert rows.schema == CHILDREN.columns
    assert from_rows(made, rows) == (found, -1)
    other = to_rows(factory(start=9), found_rows(factory(start=9)))
    mixed = pa.concat_tables([other, rows, mark(made, 4), mark(made, 9), mark(factory(), 20)])
    assert from_rows(made, mixed) == (found, 9)
    keys = mixed.select(["block_number", "ordinal"]).to_pylist()
    assert len({tuple(one.values()) for one in keys}) == mixed.num_rows


def test_fifty_thousand_children_are_stored_loaded_and_grow() -> None:
    """What a restart does, and each block with a creation after it."""
    made = factory(columns=["token", "fee"])
    found = found_rows(made, 50_000)
    index = FactoryIndex([made], {made.key: 0})
    index.add(made.key, found, 30_000)
    stored = index.take_rows(30_000)
    assert stored.num_rows == 50_001
    again = FactoryIndex([made], {made.key: 0})
    again.load(stored)
    assert not again.missing(30_000)
    for block in range(30_001, 30_061):
        one = found_rows(made, 1).set_column(0, "block_number", pa.array([block]))
        new = one.set_column(3, "address", pa.array([f"0x{'ff' * 16}{block:08x}"]))
        again.add(made.key, new, block)
        assert again.take_rows(block).num_rows == 1
    output = evm.events(SWAP, contracts=made)
    bound = again.bind({"swaps": output}, 30_060)["swaps"]
    children = bound.scope.children  # type: ignore[attr-defined]
    assert len(children) == 50_060
    assert children.details.column(0).num_chunks <= 33
    again.roll_back(30_000)
    assert again.take_rows(30_000).num_rows == 0
