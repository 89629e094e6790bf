"""Far behind or near the head: what a state calls for, and that an outage ends neither."""

from __future__ import annotations

from random import Random

import pytest

from headwater.core import AtHead, BlockHeader, BlockRange, Blocks, Head, PipeState, Span
from headwater.errors import BlockLinkError
from headwater.portal import HistorySource, PortalClient
from headwater.portal.history import SpanSize
from headwater.query import EvmQuery
from headwater.testing import ChainSim, PortalSim, SimTransport, Status, VirtualClock

QUERY = EvmQuery().add_fields(log=["address"]).add_logs()


class Setup:
    """A chain of 300 blocks, final up to 280, and a source that reads it."""

    def __init__(self, *ranges: BlockRange, far: int = 100) -> None:
        self.chain = ChainSim(3)
        self.chain.grow(300)
        self.chain.finalize(280)
        self.portal = PortalSim(self.chain)
        self.clock = VirtualClock()
        client = PortalClient(
            SimTransport(self.portal, self.clock),
            clock=self.clock,
            rng=Random(1),
            on_notice=lambda notice: None,
        )
        plan = [(one, QUERY) for one in ranges or (BlockRange(0),)]
        self.source = HistorySource(
            client, plan, watch=EvmQuery(), clock=self.clock, far=far, first_span=60
        )

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
    size = SpanSize(100, 1000, 10.0)
    size.took(60.0)
    assert size.blocks == 100  # the first one pays for the warm-up
    size.took(5.0)
    assert size.blocks == 200
    size.took(0.1)
    assert size.blocks == 800  # at most fourfold
    size.took(1.0)
    assert size.blocks == 1000  # at most the largest
    size.took(100.0)
    assert size.blocks == 100
    size.took(0.0)
    assert size.blocks == 100
