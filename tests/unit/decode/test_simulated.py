"""Decoding what the simulated portal serves: the same rows as a plain reading of its JSON."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from headwater.core import BlockRange
from headwater.decode import KNOWN_EVENTS, Output, decode_blocks, decode_outputs, evm
from headwater.decode.lines import logs as logs_module
from headwater.query import merge_queries
from headwater.testing import ChainSim, Network, Selection


def test_lines_of_the_simulator_decode_without_the_slow_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = ChainSim(seed=11)
    blocks = chain.extend(60)
    outputs = {name: evm.events(name) for name in KNOWN_EVENTS}
    query = merge_queries(output.query for output in outputs.values())
    selection = Selection(Network.EVM, json.loads(query.body(0)))
    lines = [selection.line(chain, block, boundary=True) for block in blocks]
    given = [line for line in lines if line is not None]
    monkeypatch.setattr(logs_module, "read_logs", lambda *_: pytest.fail("not in regular form"))
    decoded = decode_outputs(outputs, given, {name: [BlockRange(0)] for name in outputs})
    assert set(decoded.skipped.values()) == {0}
    for name, output in outputs.items():
        expected = [
            (block["header"]["number"], log["logIndex"], log["address"])
            for block in map(json.loads, given)
            for log in block.get("logs", [])
            if _is_event(log, output.event.topic0, len(output.event.indexed) + 1)
        ]
        table = decoded.tables[name].select(["block_number", "log_index", "address"])
        assert [tuple(row.values()) for row in table.to_pylist()] == expected
    assert decoded.tables["erc20.Transfer"].num_rows > 0


def test_blocks_that_are_decoded_at_once_give_each_what_it_gives_alone() -> None:
    chain = ChainSim(seed=12)
    blocks = chain.extend(40)
    outputs: dict[str, Output] = {
        "transfers": evm.events("erc20.Transfer"),
        "approvals": evm.events("erc20.Approval"),
        "blocks": evm.blocks(),
        "transactions": evm.transactions(),
    }
    query = merge_queries(output.query for output in outputs.values())
    selection = Selection(Network.EVM, json.loads(query.body(0)))
    lines = {one.number: selection.line(chain, one, boundary=True) for one in blocks}
    given = {number: line for number, line in lines.items() if line is not None}
    ranges = {name: [BlockRange(0)] for name in outputs}
    at_once = decode_blocks(outputs, given, ranges)
    assert at_once is not None
    alone = [decode_outputs(outputs, [line], ranges) for line in given.values()]
    assert [one.tables for one in at_once] == [one.tables for one in alone]
    assert [one.skipped for one in at_once] == [one.skipped for one in alone]
    assert any(table.num_rows for one in alone for table in one.tables.values())


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_block_with_a_bad_item_is_decoded_alone(on_error: Literal["raise", "skip"]) -> None:
    """What it leaves out counts for it, and blocks before it are not lost with it."""
    chain = ChainSim(seed=13)
    output = evm.events("erc20.Transfer", on_error=on_error)
    selection = Selection(Network.EVM, json.loads(output.query.body(0)))
    given = {}
    for block in chain.extend(5):
        line = json.loads(selection.line(chain, block, boundary=True) or b"{}")
        if block.number == 3:
            line["logs"][0]["data"] = "0x01"
        given[block.number] = json.dumps(line, separators=(",", ":")).encode()
    assert decode_blocks({"t": output}, given, {"t": [BlockRange(0)]}) is None


def _is_event(log: dict[str, Any], topic0: str, topics: int) -> bool:
    return log["topics"][:1] == [topic0] and len(log["topics"]) == topics
