"""What a quiet head means is shown: finality that nobody tells, and a branch that is shorter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from headwater import evm, portal_stream
from headwater.pipeline import Event, RolledBack
from headwater.stream import StreamHandle, portal_run
from headwater.targets.memory import MemoryTarget
from headwater.testing import simulated_portal
from tests.shared import HANG_S


def wait_until(handle: StreamHandle, condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(int(HANG_S * 100)):
        if condition():
            return
        assert handle.is_active, handle.exception()
        waiting.wait(0.01)
    raise AssertionError(f"it does not come true: {handle.record.snapshot()}")


@pytest.mark.guarantee("METRICS-1")
@pytest.mark.parametrize("surface", ["hotblocks", "portal"])
def test_a_stream_on_a_longer_orphan_branch_shows_for_how_long_it_waits(
    surface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service tells a conflict only once its branch is as long; until then nothing is new."""
    monkeypatch.setattr(portal_run, "ASK_HEAD_S", 0.0)
    rolled_back: list[int] = []

    def on_event(event: Event) -> None:
        if isinstance(event, RolledBack):
            rolled_back.append(event.state.number)

    with simulated_portal(seed=7, blocks=60, finality_depth=20, surface=surface) as portal:
        outputs: dict[str, Any] = {"transfers": evm.events("erc20.Transfer", range=30)}
        stream = portal_stream(
            id=f"waits-{surface}", portal=portal.url, outputs=outputs, poll_interval_s=0.01
        )
        handle = stream.start(MemoryTarget(), on_event=on_event)
        record, head = handle.record, portal.chain.head.number
        wait_until(handle, lambda: record.state.number == head)
        assert record.ahead_s == 0
        portal.chain.fork(5, 2)
        newest = portal.chain.head.number
        assert newest < head
        wait_until(handle, lambda: record.snapshot()["ahead_seconds"] > 0)
        wait_until(handle, lambda: f"newest block is {newest}" in (record.trouble or ""))
        assert record.snapshot()["status"] == "waiting"
        assert not rolled_back, "nothing tells yet that the stored blocks are orphaned"
        portal.extend(6)
        wait_until(handle, lambda: record.state.cursor == portal.chain.head.cursor)
        assert rolled_back
        wait_until(handle, lambda: record.ahead_s == 0 and record.trouble is None)
        handle.stop()


@pytest.mark.guarantee("METRICS-1")
def test_a_real_time_service_leaves_finality_unknown_until_the_next_block() -> None:
    """Its 204 has no headers, so how old the last word on finality is can be seen."""
    with simulated_portal(seed=7, blocks=60, finality_depth=20, surface="hotblocks") as portal:
        outputs: dict[str, Any] = {"transfers": evm.events("erc20.Transfer", range=30)}
        stream = portal_stream(
            id="unknown-finality", portal=portal.url, outputs=outputs, poll_interval_s=0.01
        )
        handle = stream.start(MemoryTarget())
        record, head = handle.record, portal.chain.head.number
        wait_until(handle, lambda: record.state.number == head)
        wait_until(handle, lambda: bool(record.snapshot()["finality_unknown_seconds"]))
        with portal.chain.lock:
            portal.chain.finalize(50)
        assert record.state.finalized is not None
        assert record.state.finalized.number == 39
        portal.extend(3)
        wait_until(handle, lambda: record.state.cursor == portal.chain.head.cursor)
        assert record.state.finalized.number == 50
        wait_until(handle, lambda: bool(record.snapshot()["finality_unknown_seconds"]))
        shown = record.snapshot()  # the head that was asked for before was that of its time
        assert (shown["ahead_seconds"], shown["trouble"]) == (0, None)
        handle.stop()
