"""A stream in a thread of its own: stop it, wait for it, ask how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headwater import create_target, evm
from headwater.core import PipeState
from headwater.errors import InvalidOptionError, NetworkError
from headwater.metrics import StreamRecord
from headwater.pipeline import Committed, Event, Settled
from headwater.portal import Timeouts
from headwater.runtime import Runtime
from headwater.spark.startup import SparkOfRun
from headwater.stream import PortalStream, Progress, StreamHandle, portal_stream
from headwater.stream.owned import Handover
from headwater.stream.portal_run import PortalRun
from headwater.stream.run import Opening
from headwater.targets import (
    MemoryTarget,
    clickhouse_target,
    delta_target,
    duckdb_target,
    iceberg_target,
    parquet_target,
    postgres_target,
)
from headwater.testing import Network, PortalServer, simulated_portal
from headwater.testing.faults import StallBeforeHeaders, Status
from tests.shared import HANG_S
from tests.stream.truth import COLUMNS, transfers


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=60, finality_depth=15) as server:
        yield server


def stream_of(portal: PortalServer, block_range: Any = 0, **options: Any) -> PortalStream:
    options = {"far": 10**9, "poll_interval_s": 0.01, **options}
    outputs = {"transfers": evm.events("erc20.Transfer", range=block_range)}
    return portal_stream(id="transfers", portal=portal.url, outputs=outputs, **options)


def opening_of(target: Any) -> Opening:
    record = StreamRecord("one", registry=CollectorRegistry())
    return Opening(target, record, Runtime.of(record))


class AtHead:
    """Tells when a stream has settled at the head."""

    def __init__(self, portal: PortalServer) -> None:
        self.portal = portal
        self.reached = threading.Event()
        self.threads: set[str] = set()

    def __call__(self, event: Event) -> None:
        self.threads.add(threading.current_thread().name)
        if isinstance(event, Settled) and event.state.cursor == self.portal.chain.head.cursor:
            self.reached.set()


def test_a_started_stream_runs_beside_the_program_until_it_is_stopped(
    portal: PortalServer, tmp_path: Path
) -> None:
    head = AtHead(portal)
    handle = stream_of(portal).start(duckdb_target(tmp_path / "a.duckdb"), on_event=head)
    assert head.reached.wait(HANG_S)
    assert handle.is_active
    assert handle.exception() is None
    assert not handle.await_termination(0.05)
    handle.stop()
    assert "headwater-transfers" not in {one.name for one in threading.enumerate()}
    assert handle.await_termination()
    assert handle.exception() is None
    assert head.threads == {"headwater-transfers"}
    rows = duckdb_target(tmp_path / "a.duckdb").query(f"SELECT {COLUMNS} FROM transfers")
    truth = transfers(portal.chain, portal.chain.canonical())
    assert sorted(tuple(row.values()) for row in rows.to_pylist()) == sorted(truth)


def test_a_handle_tells_how_far_the_stream_is(portal: PortalServer, tmp_path: Path) -> None:
    handle = stream_of(portal, (0, 50)).start(duckdb_target(tmp_path / "a.duckdb"))
    assert isinstance(handle, StreamHandle)
    assert handle.await_termination(HANG_S)
    assert isinstance(handle.last_progress, Progress)
    assert (handle.last_progress.current, handle.last_progress.percent) == (50, 100.0)
    assert handle.recent_progress[-1] == handle.last_progress
    assert [one.current for one in handle.recent_progress] == sorted(
        {one.current for one in handle.recent_progress}
    )


def test_what_ended_a_stream_is_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    with simulated_portal(seed=1, blocks=5, network=Network.SOLANA) as portal:
        handle = stream_of(portal).start(duckdb_target(tmp_path / "a.duckdb"))
        with pytest.raises(NetworkError, match="E0010"):
            handle.await_termination(HANG_S)
        assert isinstance(handle.exception(), NetworkError)
        assert handle.last_progress is None
        handle.stop()  # it has ended: nothing happens, nothing is raised


def test_a_listener_may_stop_its_own_stream(portal: PortalServer, tmp_path: Path) -> None:
    handles: list[StreamHandle] = []
    ready = threading.Event()

    def stop(event: Event) -> None:
        if isinstance(event, Committed):
            ready.wait(HANG_S)
            handles[0].stop()

    handles.append(stream_of(portal).start(duckdb_target(tmp_path / "a.duckdb"), on_event=stop))
    ready.set()
    assert handles[0].await_termination(HANG_S)
    assert len(handles[0].recent_progress) == 1


def test_a_stop_does_not_wait_for_a_portal_that_does_not_answer(
    portal: PortalServer, tmp_path: Path
) -> None:
    """Headers may take an hour here; a stop breaks the request off."""
    options = {"poll_interval_s": 0.2, "timeouts": Timeouts(headers_s=3600)}
    handle = stream_of(portal, **options).start(duckdb_target(tmp_path / "a.duckdb"))
    while handle.last_progress is None or handle.last_progress.current < 59:
        assert handle.is_active
        time.sleep(0.01)
    portal.sim.faults.add(StallBeforeHeaders(), times=None)
    while not portal.ledger.faults():
        time.sleep(0.01)
    handle.stop()
    assert handle.exception() is None


def test_a_stop_does_not_wait_for_the_end_of_a_pause(portal: PortalServer, tmp_path: Path) -> None:
    """The pause at the head takes an hour here."""
    head = AtHead(portal)
    handle = stream_of(portal, poll_interval_s=3600).start(
        duckdb_target(tmp_path / "a.duckdb"), on_event=head
    )
    assert head.reached.wait(HANG_S)
    portal.sim.faults.add(Status(503), times=None)
    handle.stop()
    assert handle.exception() is None


def test_a_stop_lets_a_target_of_ones_own_finish_its_batch(portal: PortalServer) -> None:
    written: list[int] = []
    handles: list[StreamHandle] = []
    ready = threading.Event()

    def write(read: Any) -> None:
        for batch in read(None):
            ready.wait(HANG_S)
            handles[0].interrupt.request()
            written.append(batch.ctx.stream.state.current.number)

    told: list[Event] = []
    handles.append(stream_of(portal).start(create_target(write=write), on_event=told.append))
    ready.set()
    assert handles[0].await_termination(HANG_S)
    assert len(written) == 1
    assert any(isinstance(one, Committed) for one in told)


def test_pipe_to_tells_listeners_also_of_a_target_of_ones_own(portal: PortalServer) -> None:
    told: list[Event] = []

    def write(read: Any) -> None:
        for _ in read(None):
            pass

    stream_of(portal, (0, 20)).pipe_to(create_target(write=write), on_event=told.append)
    assert any(isinstance(one, Committed) for one in told)


@pytest.mark.parametrize("target", [print, lambda read: None, 7, None, "a.duckdb", MemoryTarget])
def test_what_is_no_target_is_refused_at_once(portal: PortalServer, target: Any) -> None:
    for run in (stream_of(portal).pipe_to, stream_of(portal).start):
        with pytest.raises(InvalidOptionError, match=r"E0007.*duckdb_target.*create_target"):
            run(target)
    assert not len(portal.ledger)


def test_a_target_is_bound_as_it_takes_it(portal: PortalServer) -> None:
    """By its stream's id alone, or with what the run hands it; anything else is refused first."""

    class OfTheIdAlone(MemoryTarget[Any]):
        def bind(self, stream_id: str) -> None:  # type: ignore[override]
            bound.append(stream_id)

    class OfNothing(MemoryTarget[Any]):
        def bind(self) -> None:  # type: ignore[override]
            raise AssertionError("it is not called")

    bound: list[str] = []
    targets: list[Any] = [OfTheIdAlone(), [OfTheIdAlone(), MemoryTarget()]]
    for target in targets:
        stream_of(portal, (0, 3)).pipe_to(target, progress=False)
    assert bound == [stream_of(portal).id] * 2
    asked = len(portal.ledger)
    with pytest.raises(InvalidOptionError, match=r"E0007.*OfNothing.bind.*stream_id"):
        stream_of(portal, (0, 3)).pipe_to(OfNothing(), progress=False)  # type: ignore[arg-type]
    assert len(portal.ledger) == asked


@pytest.mark.parametrize("uses_frames", [True, False])
def test_spark_is_sized_for_dataframes_where_code_behind_the_stream_may_use_them(
    portal: PortalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses_frames: bool
) -> None:
    owned: dict[str, Any] = {"tables": ["transfers"]}
    if uses_frames:
        owned["on_data"] = lambda tx, data: None
    several: list[Any] = [
        duckdb_target(tmp_path / "a.duckdb", **owned),
        postgres_target("postgresql://nowhere/x", **owned),
        clickhouse_target("http://nowhere", **owned),
        iceberg_target(tmp_path / "iceberg", **owned),
        delta_target(tmp_path / "delta", **owned),
        parquet_target(tmp_path / "parquet", **owned),
        *([Handover(PipeState())] if uses_frames else []),
    ]
    started: list[bool] = []

    class Noted(SparkOfRun):
        def __init__(self, given: Any, *, narrow: bool = False, **others: Any) -> None:
            started.append(narrow)
            super().__init__(given, narrow=narrow, **others)

    monkeypatch.setattr("headwater.stream.run.SparkOfRun", Noted)
    for target in several:
        opening = opening_of(target)
        with stream_of(portal)._opened(opening):
            assert started.pop() is not uses_frames


def test_a_stop_reaches_the_run_that_fills_a_part_and_the_one_that_goes_on_afterwards(
    portal: PortalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_of(portal)
    target: MemoryTarget[Any] = MemoryTarget()
    opening = opening_of(target)
    cancelled: list[object] = []
    monkeypatch.setattr(PortalRun, "cancel", lambda run: cancelled.append(run))
    with stream._running(opening) as run:
        assert isinstance(run, PortalRun)
        with run.filling(stream, target, {}) as inner:
            opening.runtime.stop.break_off()
        assert cancelled == [run, inner]
        opening.runtime.stop.break_off()
        assert cancelled == [run, inner, run]
    opening.runtime.stop.break_off()
    assert cancelled == [run, inner, run], "nothing is left of a run that is over"
