"""Far behind or near the head: what a state calls for, and that an outage ends neither."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from headwater.core import (
    BYTES_PER_SECOND,
    AtHead,
    BlockHeader,
    BlockRange,
    Blocks,
    Density,
    Head,
    PipeState,
    RangeEnd,
    Span,
    SpanLimits,
    SpanSize,
)
from headwater.errors import BlockLinkError, InvalidOptionError
from headwater.portal import Notice, NoticeKind, PortalClient, PortalSource
from headwater.query import EvmQuery
from headwater.testing import ChainSim, PortalSim, SimTransport, Status, VirtualClock

QUERY = EvmQuery().add_fields(log=["address"]).add_logs()


class Setup:
    """A chain of 300 blocks, final up to 280, and a source that reads it."""

    def __init__(
        self,
        *ranges: BlockRange,
        far: int = 100,
        first_span: int | None = 60,
        limits: SpanLimits | None = None,
        executors_ready: Callable[[], bool] = lambda: True,
        planned: list[PortalSim] | None = None,
    ) -> None:
        self.chain = ChainSim(3)
        self.chain.grow(300)
        self.chain.finalize(280)
        self.portal = PortalSim(self.chain, blocks_per_answer=20)
        self.clock = VirtualClock()
        self.notices: list[Notice] = []
        client = PortalClient(
            SimTransport(self.portal, self.clock),
            clock=self.clock,
            rng=Random(1),
            on_notice=self.notices.append,
        )
        plan = [(one, QUERY) for one in ranges or (BlockRange(0),)]
        self.source = PortalSource(
            client,
            plan,
            watch=EvmQuery(),
            clock=self.clock,
            far=far,
            first_span=first_span,
            limits=limits or SpanLimits(),
            executors_ready=executors_ready,
            planner=None if planned is None else lambda: self.planning_client(planned),
        )

    def planning_client(self, planned: list[PortalSim]) -> PortalClient:
        """A client of a portal of its own, with the same chain."""
        planned.append(PortalSim(self.chain, blocks_per_answer=20))
        return PortalClient(SimTransport(planned[-1], VirtualClock()), clock=VirtualClock())

    def state(self, number: int, *, final: bool) -> PipeState:
        block = self.chain.canonical(number, number)[0]
        header = BlockHeader(number, block.hash, block.parent_hash)
        return PipeState().advance([header], Head(block.cursor if final else None))


def spans(setup: Setup, state: PipeState) -> list[str]:
    answers = setup.source.read(state)
    assert answers is not None
    return [str(one.block_range) for one in answers if isinstance(one, Span)]


def test_far_behind_spans_are_handed_out_until_the_finalized_head_is_near() -> None:
    assert spans(Setup(), PipeState()) == ["0..59", "60..119", "120..179", "180..239"]


def test_a_bounded_range_is_handed_out_to_its_end() -> None:
    assert spans(Setup(BlockRange(10, 200)), PipeState())[-1] == "190..200"


def test_spans_follow_the_cursor() -> None:
    setup = Setup()
    assert spans(setup, setup.state(99, final=True))[0] == "100..159"


def test_a_hot_block_is_never_followed_by_a_span() -> None:
    """It may have been orphaned; only a reading with its hash would tell."""
    setup = Setup()
    answers = setup.source.read(setup.state(99, final=False))
    assert answers is not None
    assert isinstance(next(answers), Blocks)
    assert setup.portal.ledger[-1].route == "stream"
    assert setup.portal.ledger[-1].parent_block_hash == setup.chain.canonical(99, 99)[0].hash


def read_here(block_range: BlockRange) -> list[int]:
    """Return the blocks that arrive if executors are never ready."""
    answers = Setup(block_range, executors_ready=lambda: False).source.read(PipeState()) or ()
    return [h.number for one in answers if isinstance(one, Blocks) for h in one.headers]


def test_until_executors_are_ready_blocks_are_read_here_and_a_span_follows_them() -> None:
    """The seam lies at the cursor: no block is left out, and none comes twice."""
    asked: list[bool] = []

    def ready() -> bool:
        asked.append(len(asked) > 3)
        return asked[-1]

    setup = Setup(executors_ready=ready)
    state, numbers = PipeState(), []
    for answer in setup.source.read(state) or ():
        assert isinstance(answer, Blocks)
        state = state.advance(answer.headers, answer.head)
        numbers += [one.number for one in answer.headers]
        setup.clock.sleep(1.0)  # 20 blocks a second: what is left would take long
    assert asked == [False, False, False, False, True]
    assert numbers == read_here(BlockRange(0, numbers[-1]))
    assert numbers[-1] < 180
    assert spans(setup, state)[0].startswith(f"{numbers[-1] + 1}..")


def test_what_was_read_here_tells_how_long_the_first_span_should_be() -> None:
    """Forty blocks a second, and a span may take three seconds."""
    ready = iter([False, False, False, True, True])
    setup = Setup(limits=SpanLimits(seconds=3.0), executors_ready=lambda: next(ready))
    state = PipeState()
    for answer in setup.source.read(state) or ():
        assert isinstance(answer, Blocks)
        state = state.advance(answer.headers, answer.head)
        setup.clock.sleep(0.5)  # as long as the target took for 20 blocks
    assert state.number == 59
    assert spans(setup, state)[0] == "60..179"


def test_what_took_no_time_tells_nothing_of_spans() -> None:
    size = SpanSize(60, SpanLimits(seconds=3.0))
    size.read_before(0.0, 500)
    assert size.blocks == 60


@pytest.mark.parametrize(("block_s", "read_here"), [(0.01, 280), (0.05, 59)])
def test_what_the_driver_reads_within_seconds_is_not_left_to_executors(
    block_s: float, read_here: int
) -> None:
    """At 59 of 280 executors are ready: 2.2 s are left at the higher rate, 11 s at the lower."""
    ready = iter([False, False, False, True])
    setup = Setup(executors_ready=lambda: next(ready))
    last = 0
    for answer in setup.source.read(PipeState()) or ():
        assert isinstance(answer, Blocks)
        last = answer.headers[-1].number
        setup.clock.sleep(block_s * len(answer.headers))
    assert read_here <= last < read_here + 20


def test_a_rate_that_falls_leaves_the_rest_to_executors() -> None:
    ready = iter([False, True, True])
    setup = Setup(executors_ready=lambda: next(ready))
    state = PipeState()
    for answer in setup.source.read(state) or ():
        assert isinstance(answer, Blocks)
        state = state.advance(answer.headers, answer.head)
        setup.clock.sleep(0.1 if answer.headers[-1].number < 100 else 5.0)
    assert state.number == 119
    assert spans(setup, state) != []


def test_a_range_that_ends_before_executors_are_ready_is_read_to_its_end() -> None:
    setup = Setup(BlockRange(0, 150), executors_ready=lambda: False)
    answers = list(setup.source.read(PipeState()) or ())
    assert isinstance(answers[-1], RangeEnd)
    assert read_here(BlockRange(0, 150))[-1] == 150


def test_near_the_head_blocks_are_read_one_after_the_other() -> None:
    setup = Setup(BlockRange(200))
    answers = setup.source.read(PipeState())
    assert answers is not None
    seen = next(answers)
    assert isinstance(seen, Blocks)
    while not isinstance(seen, AtHead):
        seen = next(answers)


def test_a_span_that_does_not_continue_what_is_committed_is_refused() -> None:
    setup = Setup()
    foreign = PipeState().advance([BlockHeader(99, "0x" + "ab" * 32)], Head())
    final = PipeState(foreign.cursor, foreign.cursor, foreign.rollback_chain)
    with pytest.raises(BlockLinkError, match="E3005"):
        spans(setup, final)


@pytest.mark.guarantee("WIRE-4")
def test_an_outage_of_any_length_is_waited_out() -> None:
    setup = Setup()
    setup.portal.faults.add(Status(503), route="finalized-head", times=200)
    assert spans(setup, PipeState())[0] == "0..59"
    assert setup.clock.monotonic() > 1000


def test_nothing_is_left_to_read_after_the_last_range() -> None:
    setup = Setup(BlockRange(10, 200))
    assert setup.source.read(setup.state(200, final=True)) is None


def test_the_size_of_spans_follows_the_time_they_take() -> None:
    size = SpanSize(100, SpanLimits(blocks=1000, seconds=10.0))
    for seconds, blocks, then in [
        (60.0, 100, 100),  # the first one pays for the warm-up
        (5.0, 100, 200),
        (0.1, 200, 800),  # at most fourfold
        (1.0, 800, 1000),  # at most the largest
        (100.0, 1000, 100),
        (0.0, 100, 100),
        (5.0, 10, 20),  # bytes or rows kept it small
    ]:
        size.took(seconds, blocks)
        assert size.blocks == then


def test_a_first_span_that_nobody_sized_holds_the_bytes_that_are_read_in_time() -> None:
    """Blocks of some 300 bytes, and time for 24,000 of them; then the time that it took counts."""
    setup = Setup(first_span=None, limits=SpanLimits(seconds=24_000 / BYTES_PER_SECOND))
    answers = setup.source.read(PipeState())
    assert answers is not None
    first = next(answers)
    assert isinstance(first, Span)
    assert 20 <= first.blocks <= 100
    assert 12_000 < sum(one.total for one in first.densities) <= 24_000
    setup.clock.advance(100.0)  # far too long: also a first span shrinks the next one
    second = next(answers)
    assert isinstance(second, Span)
    assert second.blocks == 1


def test_an_empty_beginning_makes_a_long_first_span() -> None:
    """No block of the simulator has a log of this address: the span is all that spans may read."""
    setup = Setup(first_span=None)
    nothing = EvmQuery().add_fields(log=["address"]).add_logs(address=["0x" + "00" * 20])
    setup.source._plan = ((BlockRange(0), nothing),)
    assert spans(setup, PipeState()) == ["0..280"]


def wait_for_plans() -> None:
    for thread in threading.enumerate():
        if thread.name == "headwater-plan":
            thread.join()


def test_the_next_span_is_planned_while_the_last_one_is_written() -> None:
    planned: list[PortalSim] = []
    setup = Setup(BlockRange(0, 239), planned=planned)
    answers = setup.source.read(PipeState())
    assert answers is not None
    assert str(getattr(next(answers), "block_range", None)) == "0..59"
    wait_for_plans()
    assert 118 in {one.from_block for one in planned[0].ledger}, "while 0..59 is written"
    before = len(setup.portal.ledger)
    found = []
    for answer in answers:
        found.append(str(getattr(answer, "block_range", "end")))
        wait_for_plans()
    assert found == ["60..119", "120..179", "180..239", "end"]
    assert len(setup.portal.ledger) == before, "nothing was planned twice"


def test_a_plan_made_ahead_that_does_not_fit_any_more_is_made_again() -> None:
    """The first span took a quarter of its time, and then one held far too many rows."""
    limits = SpanLimits(rows=1000, seconds=8.0)
    setup = Setup(limits=limits, planned=[])
    answers = setup.source.read(PipeState())
    assert answers is not None
    found = []
    for answer in answers:
        assert isinstance(answer, Span)
        found.append(answer.blocks)
        wait_for_plans()
        setup.clock.advance(8.0 * answer.blocks / 90)
        rows = 100 if len(found) == 1 else 10_000
        setup.source.learn(answer.block_range, 1_000_000, rows)
    assert found[:2] == [60, 90], "it was planned with 60"
    assert found[2] < 20, "it was planned with 90"


def test_a_plan_that_fails_is_made_here() -> None:
    def refuse() -> PortalClient:
        raise OSError("no socket is left")

    setup = Setup(BlockRange(0, 239))
    setup.source._planner = refuse
    assert spans(setup, PipeState()) == ["0..59", "60..119", "120..179", "180..239"]


def test_spans_keep_within_bytes_and_rows() -> None:
    """100 bytes per block by the samples; the last span held twice that, and a row per 50 bytes."""
    dense = [Density(BlockRange(0, 999), 100.0), Density(BlockRange(1000, 1999), 1000.0)]
    assert SpanSize(100, SpanLimits()).fitting(dense) == 2000
    assert SpanSize(100, SpanLimits(bytes=10_000)).fitting(dense) == 100
    assert SpanSize(100, SpanLimits(bytes=110_000)).fitting(dense) == 1010
    assert SpanSize(100, SpanLimits(bytes=10)).fitting(dense) == 1
    learned = SpanSize(100, SpanLimits(bytes=10_000, rows=1000))
    learned.held(0.0, 5, 5)
    learned.held(50.0, 0, 0)
    assert learned.fitting(dense) == 100, "nothing was learned from spans that held nothing"
    learned.held(50_000.0, 100_000, 2_000)
    assert learned.fitting(dense) == 50
    learned.held(50_000.0, 100_000, 50_000)
    assert learned.fitting(dense) == 10


@pytest.mark.parametrize("limits", [{"blocks": 0}, {"bytes": 0}, {"rows": 1.5}, {"seconds": 0}])
def test_limits_that_are_none_are_refused(limits: Any) -> None:
    with pytest.raises(InvalidOptionError, match="span"):
        SpanLimits(**limits)


def test_a_dense_stretch_makes_spans_small_before_they_are_read() -> None:
    setup = Setup(limits=SpanLimits(bytes=20_000))
    answers = setup.source.read(PipeState())
    assert answers is not None
    found = [one for one in answers if isinstance(one, Span)]
    assert len(found) > 5
    assert found[0].block_range.from_block == 0
    for before, after in pairwise(found):
        assert before.last.number + 1 == after.block_range.from_block
    for span in found:
        assert sum(one.total for one in span.densities) <= 20_000
        assert span.densities[-1].blocks.to_block == span.last.number


def test_a_span_that_held_many_rows_makes_the_next_one_small() -> None:
    setup = Setup(limits=SpanLimits(rows=100))
    answers = setup.source.read(PipeState())
    assert answers is not None
    first = next(answers)
    assert isinstance(first, Span)
    assert first.blocks == 60
    setup.source.learn(first.block_range, sum(int(one.total) for one in first.densities), 600)
    second = next(answers)
    assert isinstance(second, Span)
    assert 3 <= second.blocks <= 30


def test_without_finality_blocks_are_read_one_after_the_other() -> None:
    setup = Setup(BlockRange(0, 20))
    setup.portal.faults.add(Status(404), route="finalized-head", times=None)
    answers = list(setup.source.read(PipeState()) or ())
    assert {type(one) for one in answers} == {Blocks, RangeEnd}
    assert isinstance(answers[-1], RangeEnd)
    assert isinstance(answers[-2], Blocks)
    assert answers[-2].headers[-1].number == 20


@pytest.mark.parametrize("status", [404, 503])
def test_a_check_of_the_end_that_fails_does_not_undo_success(status: int) -> None:
    """All of the range is committed: whether its hot end stands can be asked again later."""
    setup = Setup(BlockRange(0, 290), far=1000)
    state = setup.state(290, final=False)
    setup.portal.faults.add(Status(status), route="stream", times=None)
    assert [type(one).__name__ for one in setup.source.read(state) or ()] == ["RangeEnd"]
    assert setup.source.read(state) is None
    assert NoticeKind.END_UNCHECKED in [notice.kind for notice in setup.notices]
