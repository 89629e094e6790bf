"""What user code is told beside the rows: finality that never goes back, honest progress."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from headwater import evm
from headwater.pipeline import Event, Settled
from headwater.stream import BatchContext, PortalStream, StopRequested, portal_stream
from headwater.stream.context import ProgressTracker
from headwater.targets import duckdb_target
from headwater.testing import PortalServer, simulated_portal
from headwater.testing.faults import Fault, FinalityRegressed, NoHeadHeaders
from headwater.testing.portal.answer import Draft


@dataclass(frozen=True, slots=True)
class NoLatestFault(Fault):
    """The header of the latest block is missing; finality is reported as ever."""

    def applies(self, draft: Draft) -> bool:
        return draft.reports_head

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        draft.latest = None


def stop_at_head(event: Event) -> None:
    if isinstance(event, Settled):
        raise StopRequested


def run(portal: PortalServer, path: Path, block_range: Any = 0) -> list[BatchContext]:
    """Run to the head; return what a transform was told of each batch."""
    told: list[BatchContext] = []

    def keep(data: Any, ctx: BatchContext) -> Any:
        told.append(ctx)
        return data

    stream: PortalStream = portal_stream(
        id="s",
        portal=portal.url,
        outputs={"transfers": evm.events("erc20.Transfer", range=block_range)},
        far=10**9,
        poll_interval_s=0.01,
    )
    stream.pipe_batches(keep).pipe_to(duckdb_target(path), on_event=stop_at_head)
    return told


def test_the_finalized_head_does_not_go_back_over_a_restart(tmp_path: Path) -> None:
    with simulated_portal(seed=3, blocks=40, finality_depth=10) as portal:
        before = run(portal, tmp_path / "a.duckdb")[-1].stream.head.finalized
        portal.extend(3)
        portal.sim.faults.add(FinalityRegressed(by=20), times=None)
        after = run(portal, tmp_path / "a.duckdb")
        portal.sim.faults.clear()
        portal.sim.faults.add(NoHeadHeaders(), times=None)
        portal.extend(1)
        last = run(portal, tmp_path / "a.duckdb")
    assert before is not None
    for ctx in (*after, *last):
        assert ctx.stream.head.finalized is not None
        assert ctx.stream.head.finalized.number >= before.number


def test_progress_is_unknown_while_the_latest_block_is(tmp_path: Path) -> None:
    with simulated_portal(seed=3, blocks=40, finality_depth=10) as portal:
        portal.sim.faults.add(NoLatestFault(), times=None)
        told = run(portal, tmp_path / "a.duckdb")
    assert told
    for ctx in told:
        progress = ctx.stream.progress
        assert (ctx.stream.state.last, progress.to_block) == (None, None)
        assert (progress.percent, progress.eta_s) == (None, None)


def test_progress_goes_by_the_latest_block_that_was_reported_last(tmp_path: Path) -> None:
    with simulated_portal(seed=3, blocks=40, finality_depth=10, blocks_per_answer=20) as portal:
        portal.sim.faults.add(NoLatestFault(), nth=2, times=None, route="stream")
        told = run(portal, tmp_path / "a.duckdb")
    assert {ctx.stream.progress.to_block for ctx in told} == {39}


def test_at_the_end_of_a_range_nothing_is_left_to_wait_for(tmp_path: Path) -> None:
    with simulated_portal(seed=3, blocks=40, finality_depth=10) as portal:
        one_batch = run(portal, tmp_path / "a.duckdb", (5, 20))
        one_block = run(portal, tmp_path / "b.duckdb", (5, 5))
    for told in (one_batch, one_block):
        assert told[-1].stream.progress.percent == 100.0
        assert told[-1].stream.progress.eta_s == 0.0


class StandingClock:
    """Time that passes only when a test says so."""

    at = 0.0

    def monotonic(self) -> float:
        return self.at

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def test_the_speed_is_that_of_the_last_batches() -> None:
    clock = StandingClock()
    tracker = ProgressTracker(clock)
    first = tracker.reached(0, 10, 100)
    assert (first.blocks_per_s, first.eta_s) == (None, None)
    clock.sleep(2)
    then = tracker.reached(0, 50, 100)
    assert (then.percent, then.blocks_per_s, then.eta_s) == (50.0, 20.0, 2.5)
