"""Several events, of several ABIs, in one table; and the events of proxies, by address list."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from headwater.core import BlockRange
from headwater.decode import Output, decode_outputs, evm
from headwater.errors import InvalidOptionError, ParameterError, UndecodableLogError
from headwater.spark.frames import spark_schema
from tests.unit.decode.samples import ALICE, BOB, EVERYTHING, TOKEN, line, log_of, transfer

V2 = evm.abi([{"type": "event", "name": "Swap", "inputs": [
    {"name": "sender", "type": "address", "indexed": True},
    {"name": "amount0", "type": "uint256", "indexed": False}]}])  # fmt: skip
V3 = evm.abi([{"type": "event", "name": "Swap", "inputs": [
    {"name": "sender", "type": "address", "indexed": True},
    {"name": "amount0", "type": "int256", "indexed": False},
    {"name": "tick", "type": "int24", "indexed": False}]}])  # fmt: skip


def rows_of(
    output: Output, lines: list[bytes], ranges: Sequence[BlockRange] = EVERYTHING
) -> list[dict[str, Any]]:
    table = decode_outputs({"t": output}, lines, {"t": ranges}).tables["t"]
    table.validate(full=True)
    assert table.schema == output.schema
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def swaps() -> list[bytes]:
    two, three = V2.event("Swap"), V3.event("Swap")
    logs = [
        log_of(three, {"sender": ALICE, "amount0": -5, "tick": -3}, index=0),
        log_of(two, {"sender": BOB, "amount0": 2**200}, index=1),
        log_of(three, {"sender": BOB, "amount0": 7, "tick": 9}, index=2),
    ]
    return [line(4, logs), line(5, [transfer(1, index=9), *logs[:2]])]


def test_swaps_of_two_abis_are_one_table_in_the_order_of_the_chain() -> None:
    output = evm.union(evm.events(V2.event("Swap")), evm.events(V3.event("Swap")))
    assert output.schema.names[6:] == ["address", "event", "sender", "amount0", "tick"]
    rows = rows_of(output, swaps())
    assert [(row["block_number"], row["log_index"], row["event"][:22], row["amount0"], row["tick"])
            for row in rows] == [
        (4, 0, "Swap(address,int256,in", "-5", -3),
        (4, 1, "Swap(address,uint256)", str(2**200), None),
        (4, 2, "Swap(address,int256,in", "7", 9),
        (5, 0, "Swap(address,int256,in", "-5", -3),
        (5, 1, "Swap(address,uint256)", str(2**200), None),
    ]  # fmt: skip
    assert pickle.loads(pickle.dumps(output)) == output
    assert spark_schema(output.schema)


def test_each_event_of_a_union_keeps_its_own_filters() -> None:
    output = evm.union(
        evm.events(V2.event("Swap"), params={"sender": ALICE}),
        evm.events(V3.event("Swap"), params={"sender": BOB}, contracts=[TOKEN]),
    )
    assert [row["log_index"] for row in rows_of(output, swaps())] == [2]
    assert rows_of(output, swaps(), [BlockRange(5)]) == []
    asked = json.loads(output.query.body(0))["logs"]
    assert len(asked) == 2


def test_a_malformed_log_of_a_union_is_named_or_skipped() -> None:
    three = V3.event("Swap")
    bad = log_of(three, {"sender": ALICE, "amount0": 1, "tick": 1}, index=3)
    lines = [line(8, [{**bad, "data": bad["data"][:-64] + "7" * 64}])]
    with pytest.raises(UndecodableLogError, match=r"block=8, log_index=3"):
        rows_of(evm.union(evm.events(three)), lines)
    skipping = evm.union(evm.events(three, on_error="skip"), evm.events(V2.event("Swap")))
    decoded = decode_outputs({"t": skipping}, lines, {"t": EVERYTHING})
    assert (decoded.tables["t"].num_rows, decoded.skipped) == (0, {"t": 1})


def test_what_does_not_fit_into_one_table_is_refused() -> None:
    swap = evm.events(V2.event("Swap"))
    with pytest.raises(ParameterError, match="one event at least"):
        evm.union()
    with pytest.raises(ParameterError, match=r"'amount0'.*types differ"):
        evm.union(swap, evm.events("Swap(address sender, bool amount0)"))
    with pytest.raises(ParameterError, match="the name is taken"):
        evm.union(evm.events("Made(uint8 event)"))
    with pytest.raises(ParameterError, match="one range"):
        evm.union(swap, evm.events(V3.event("Swap"), range=5))
    pools = evm.factory(TOKEN, "PoolCreated(address pool, int8 n)", child="pool", columns="n")
    others = evm.factory(TOKEN, "Created(address pool, bool n)", child="pool", columns="n")
    with pytest.raises(ParameterError, match=r"'factory_n'.*types differ"):
        evm.union(*(evm.events(V2.event("Swap"), contracts=one) for one in (pools, others)))


def test_an_event_of_a_union_may_be_of_the_children_of_a_factory() -> None:
    pools = evm.factory(TOKEN, "PoolCreated(address pool, int8 n)", child="pool", columns="n")
    output = evm.union(evm.events(V2.event("Swap"), contracts=pools), evm.events(V3.event("Swap")))
    assert output.schema.names[7:] == ["event", "sender", "amount0", "factory_n", "tick"]
    assert len(json.loads(output.query.body(0))["logs"]) == 2
    with pytest.raises(InvalidOptionError, match="only a stream knows"):
        rows_of(output, swaps())


def test_a_proxy_emits_the_events_of_its_implementation() -> None:
    proxies = [f"0x{'d' * 40}", f"0x{'e' * 40}"]
    output = evm.events(V2.event("Swap"), contracts=proxies)
    event = V2.event("Swap")
    logs = [
        {**log_of(event, {"sender": ALICE, "amount0": at}, index=at), "address": address}
        for at, address in enumerate([proxies[0], TOKEN, proxies[1]])
    ]
    assert [row["amount0"] for row in rows_of(output, [line(3, logs)])] == ["0", "2"]
    assert json.loads(output.query.body(0))["logs"][0]["address"] == proxies
