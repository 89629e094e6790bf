"""Probing: one short request per sample, closed early, and cuts that follow what was measured."""

from __future__ import annotations

from headwater.core import BLOCK_COST, BlockRange, Density, even_partitions
from headwater.portal import PortalClient, probe
from headwater.query import EvmQuery
from headwater.spark.parts import plan_parts
from headwater.testing import (
    ChainSim,
    ContentSettings,
    EmptyAnswer,
    PortalSim,
    SimTransport,
    VirtualClock,
)
from tests.spark.conftest import TRANSFER

BLOCKS = BlockRange(0, 399)
EVERY_LOG = EvmQuery().add_fields(log=["address", "data", "topics"]).add_logs()


def transport(**content: float) -> SimTransport:
    chain = ChainSim(3, content=ContentSettings(**content))  # type: ignore[arg-type]
    chain.grow(419)
    chain.finalize(400)
    return SimTransport(PortalSim(chain, chunk_bytes=(1_000, 2_000)), VirtualClock())


def client(to: SimTransport) -> PortalClient:
    return PortalClient(to, clock=to.clock)


def test_a_sample_is_one_request_that_is_closed_early() -> None:
    to = transport(transactions_per_block=20)
    measured = probe(client(to), EVERY_LOG, BLOCKS, 5)
    requests = to.portal.ledger.stream_requests()
    assert [one.route for one in requests] == ["finalized-stream"] * 5
    assert [one.from_block for one in requests] == [40, 120, 200, 280, 360]
    assert to.open_responses == 0
    assert [one.blocks.from_block for one in measured] == [0, 80, 160, 240, 320]
    mean = sum(one.bytes_per_block for one in measured) / 5
    assert all(0.5 * mean < one.bytes_per_block < 2 * mean for one in measured)


def test_an_answer_without_blocks_counts_as_average() -> None:
    to = transport(transactions_per_block=20)
    to.portal.faults.add(EmptyAnswer(), nth=2, times=1, route="finalized-stream")
    measured = probe(client(to), EVERY_LOG, BLOCKS, 4)
    others = [one.bytes_per_block for one in measured if one is not measured[1]]
    assert abs(measured[1].bytes_per_block - sum(others) / 3) < 1


def test_blocks_that_hold_nothing_still_count() -> None:
    to = transport(transactions_per_block=0)
    measured = probe(client(to), TRANSFER.query, BLOCKS, 4)
    assert all(BLOCK_COST <= one.bytes_per_block < 50 for one in measured)
    assert len(even_partitions(measured, 4)) == 4


def test_what_needs_no_measuring_is_not_measured() -> None:
    to = transport()
    for partitions, samples in ((1, 8), (3, 0)):
        plan_parts(client(to), EVERY_LOG, BLOCKS, cores=2, partitions=partitions, samples=samples)
    known = [Density(BLOCKS, 100.0)]
    plan_parts(client(to), EVERY_LOG, BLOCKS, cores=2, partitions=3, densities=known)
    plan_parts(client(to), EVERY_LOG, BlockRange(7, 7), partitions=None, cores=2)
    assert to.portal.ledger.stream_requests() == []


def test_more_samples_than_blocks_are_no_harm() -> None:
    to = transport()
    parts = plan_parts(client(to), EVERY_LOG, BlockRange(0, 2), partitions=9, cores=2)
    assert parts == [BlockRange(number, number) for number in range(3)]
