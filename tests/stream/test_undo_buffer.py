"""An undo buffer on whole streams: most forks never reach the target."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater import create_target
from headwater.errors import ForkHandlerMissingError, InvalidOptionError
from headwater.pipeline import Discarded, Event, RolledBack, Settled
from headwater.stream import StopRequested
from headwater.targets import duckdb_target
from headwater.testing import PortalServer, simulated_portal
from tests.stream.test_stream import held, stream_of
from tests.stream.truth import transfers

DEPTH = 6


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=60, finality_depth=15) as server:
        yield server


@pytest.mark.guarantee("BUFFER-1")
def test_forks_within_the_buffer_are_seen_but_undo_nothing(
    portal: PortalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, events = tmp_path / "a.duckdb", list[Event]()

    def on_event(event: Event) -> None:
        events.append(event)
        cursor = event.state.cursor
        if cursor is not None:
            assert cursor.number <= portal.chain.head.number - DEPTH, "too new to be stored"
        if isinstance(event, Settled) and cursor is not None and cursor.number > 45:
            if len(portal.chain.forks) == 6:
                raise StopRequested
            portal.fork(depth=DEPTH, length=DEPTH + 1)

    caplog.set_level(logging.INFO, "headwater.stream")
    stream_of(portal, undo_buffer=DEPTH).pipe_to(duckdb_target(path), on_event=on_event)
    assert sum(isinstance(event, Discarded) for event in events) >= 3  # two may fall into one
    assert not any(isinstance(event, RolledBack) for event in events)
    assert "fork.discarded id=transfers" in caplog.text
    last = max(number for number, *_ in held(path))
    assert held(path) == transfers(portal.chain, portal.chain.canonical(0, last))


@pytest.mark.guarantee("BUFFER-2")
def test_a_deeper_fork_is_undone_by_the_target(portal: PortalServer, tmp_path: Path) -> None:
    path, events = tmp_path / "a.duckdb", list[Event]()

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Settled) and event.state.cursor is not None:
            if event.state.cursor.number > 55 and portal.chain.forks:
                raise StopRequested
            if not portal.chain.forks and event.state.cursor.number > 50:
                portal.fork(depth=DEPTH + 4, length=DEPTH + 9)

    stream_of(portal, undo_buffer=DEPTH).pipe_to(duckdb_target(path), on_event=on_event)
    assert any(isinstance(event, RolledBack) for event in events)
    last = max(number for number, *_ in held(path))
    assert held(path) == transfers(portal.chain, portal.chain.canonical(0, last))


@pytest.mark.guarantee("BUFFER-3")
def test_a_bounded_stream_waits_for_its_last_blocks(portal: PortalServer, tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"

    def on_event(event: Event) -> None:
        if isinstance(event, Settled):
            portal.extend(1)

    stream_of(portal, (0, 58), undo_buffer=DEPTH).pipe_to(duckdb_target(path), on_event=on_event)
    assert held(path) == transfers(portal.chain, portal.chain.canonical(0, 58))
    assert portal.chain.head.number >= 58 + DEPTH


@pytest.mark.guarantee("BUFFER-2")
def test_a_target_that_cannot_undo_needs_no_fork_callback_until_a_fork_is_deeper(
    portal: PortalServer,
) -> None:
    numbers: list[int] = []

    def write(read: Any) -> None:
        for batch in read(None):
            numbers.append(batch.ctx.stream.state.current.number)
            if numbers[-1] > 50 and not portal.chain.forks:
                portal.fork(depth=DEPTH, length=DEPTH + 6)
            elif numbers[-1] > 57 and len(portal.chain.forks) == 1:
                portal.fork(depth=DEPTH + 5, length=DEPTH + 9)

    with pytest.raises(ForkHandlerMissingError, match=r"E1001.*undo_buffer"):
        stream_of(portal, undo_buffer=DEPTH).pipe_to(create_target(write=write))
    assert len(portal.chain.forks) == 2
    assert numbers == sorted(set(numbers)), "nothing was handed out twice, or after the fork"


@pytest.mark.parametrize("wrong", [-1, 1.5, "6", True])
def test_a_depth_that_cannot_work_is_refused(portal: PortalServer, wrong: Any) -> None:
    with pytest.raises(InvalidOptionError, match="undo_buffer is a number of blocks"):
        stream_of(portal, undo_buffer=wrong)


def test_iteration_over_final_blocks_holds_nothing_back(portal: PortalServer) -> None:
    found = [
        batch.ctx.stream.state.current.number
        for batch in stream_of(portal, (0, 40), undo_buffer=1000)
    ]
    assert found[-1] == 40
