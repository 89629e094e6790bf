"""Messages of history come from executors, and are the same as those read block by block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater import evm, portal_stream
from headwater.effects import Message
from headwater.pipeline import Committed, Event
from headwater.targets import duckdb_target
from headwater.testing import simulated_portal
from tests.stream.truth import transfers


@pytest.mark.guarantee("OUTBOX-3")
def test_messages_of_a_span_equal_those_of_single_blocks(
    spark: SparkSession, tmp_path: Path
) -> None:
    with simulated_portal(seed=8, blocks=330, finality_depth=10) as portal:
        found: dict[int, list[Message]] = {}
        for far in (50, 10**9):
            received: list[Message] = []
            events: list[Event] = []

            def deliver(messages: Sequence[Message], into: list[Message] = received) -> None:
                into.extend(messages)

            portal.ledger.clear()
            stream = portal_stream(
                id="transfers",
                portal=portal.url,
                outputs={"transfers": evm.events("erc20.Transfer", range=(0, 310))},
                spark=spark,
                far=far,
                first_span=150,
            )
            stream.on_finalized("transfers", deliver).pipe_to(
                duckdb_target(tmp_path / f"{far}.duckdb"), on_event=events.append
            )
            largest = max(event.blocks for event in events if isinstance(event, Committed))
            assert (largest > 100) or far > 50
            found[far] = received
        rows = transfers(portal.chain, portal.chain.canonical(0, 310))
        expected = [row[:3] for row in rows]
        assert found[50] == found[10**9]
        assert [
            (one.block_number, one.block_hash, one.row["log_index"]) for one in found[50]
        ] == expected
