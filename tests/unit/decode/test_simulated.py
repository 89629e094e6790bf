"""Decoding what the simulated portal serves: the same rows as a plain reading of its JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.core import BlockRange
from headwater.decode import KNOWN_EVENTS, decode_outputs, evm
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


def _is_event(log: dict[str, Any], topic0: str, topics: int) -> bool:
    return log["topics"][:1] == [topic0] and len(log["topics"]) == topics
