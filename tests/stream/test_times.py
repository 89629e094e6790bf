"""Ranges in times, on a service that finds no block by time, over sockets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from headwater import evm, portal_stream
from headwater.core import BlockRange, RangeSpec, parse_ranges
from headwater.core.ranges import At
from headwater.errors import TimestampError
from headwater.portal import PortalClient
from headwater.targets import duckdb_target
from headwater.testing import Network, PortalServer, simulated_portal

HEADERS = {
    Network.EVM: evm.blocks(range=0).query.headers_only(),
}


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=3, blocks=300, surface="hotblocks") as server:
        yield server


def client_of(portal: PortalServer) -> PortalClient:
    return PortalClient(portal.url, headers=HEADERS[Network.EVM])


@pytest.mark.guarantee("RANGE-2")
def test_the_first_block_at_or_after_any_time_is_found_with_few_questions(
    portal: PortalServer,
) -> None:
    blocks = portal.chain.canonical(0, portal.chain.head.number)
    random = Random(1)
    times = [block.timestamp for block in blocks]
    for moved in (-1, 0, 1):
        for at in (0, 1, 298, 299, *random.sample(range(300), 6)):
            asked = times[at] + moved
            expected = next((one.number for one in blocks if one.timestamp >= asked), None)
            before = len(portal.ledger)
            with client_of(portal) as client:
                assert client.block_at(asked) == expected
                questions = len(portal.ledger) - before
                assert questions <= 6 + len(blocks).bit_length(), "halved, not one by one"
                assert client.block_at(asked) == expected
                if expected is not None:
                    assert len(portal.ledger) - before == questions, "asked once"


def test_a_range_between_two_times_holds_the_blocks_between_them(
    portal: PortalServer, tmp_path: Path
) -> None:
    first, last = (
        datetime.fromtimestamp(portal.chain.canonical(at, at)[0].timestamp, UTC)
        for at in (100, 140)
    )
    target = duckdb_target(tmp_path / "a.duckdb")
    portal_stream(
        id="one", portal=portal.url, outputs={"blocks": evm.blocks(range=(first, last))}
    ).pipe_to(target)
    found = target.query("SELECT block_number FROM blocks ORDER BY 1")
    target.close()
    (spec,) = parse_ranges((first, last))
    with client_of(portal) as client:
        assert client.resolve_range(spec) == BlockRange(100, 139)
    assert found["block_number"].to_pylist() == list(range(100, 140))


def test_a_time_below_the_window_is_refused_and_one_beyond_the_head_is_the_next_block(
    portal: PortalServer,
) -> None:
    early = portal.chain.canonical(50, 50)[0].timestamp
    portal.sim.drop_below(100)
    with client_of(portal) as client:
        with pytest.raises(TimestampError, match=r"E3008.*below the first one.*oldest=100"):
            client.block_at(early)
        late = portal.chain.head.timestamp + 1
        assert client.block_at(late) is None
        assert client.resolve_range(RangeSpec(At(late))) == BlockRange(300)
