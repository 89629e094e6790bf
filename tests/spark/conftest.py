"""One small chain for all tests of this folder, and what the driver makes of its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa
import pytest

from headwater.core import BlockRange, Blocks
from headwater.decode import Output, decode_outputs, evm
from headwater.portal import PortalClient
from headwater.query import Query
from headwater.testing import PortalServer, simulated_portal

LAST = 379
ALL = BlockRange(0, LAST)
TRANSFER = evm.events("erc20.Transfer")
APPROVAL = evm.events("erc20.Approval")


@pytest.fixture(scope="session")
def served() -> Iterator[PortalServer]:
    with simulated_portal(seed=7, blocks=LAST + 21, blocks_per_answer=50) as portal:
        yield portal


@pytest.fixture
def portal(served: PortalServer) -> Iterator[PortalServer]:
    served.ledger.clear()
    yield served
    served.sim.faults.clear()


def lines(portal: PortalServer, query: Query, block_range: BlockRange = ALL) -> list[bytes]:
    with closing(PortalClient(portal.url)) as client:
        answers = client.read(query, block_range, finalized=True)
        return [line for answer in answers if isinstance(answer, Blocks) for line in answer.lines]


def decoded(
    portal: PortalServer,
    outputs: Mapping[str, Output],
    ranges: Mapping[str, Sequence[BlockRange]],
    query: Query,
    block_range: BlockRange = ALL,
) -> dict[str, pa.Table]:
    """What the driver makes of the same blocks: the truth that Spark's rows are compared with."""
    return decode_outputs(outputs, lines(portal, query, block_range), ranges).tables


def requested(portal: PortalServer) -> list[int]:
    """Every block number that answers covered, as often as they did."""
    return sorted(
        number
        for one in portal.ledger.stream_requests()
        if one.first is not None and one.last is not None
        for number in range(one.first, one.last + 1)
    )
