import json

import pytest

from headwater.errors import TransportError
from headwater.portal.outage import Clock
from headwater.portal.transport import Request, Transport
from headwater.testing import (
    Delay,
    DropAfter,
    DropBeforeHeaders,
    PortalSim,
    RetryAfter,
    SimTransport,
    StallAfter,
    StallBeforeHeaders,
    Status,
    VirtualClock,
)
from tests.unit.testing.asking import ask, chain_of, request


def carried(
    portal: PortalSim, accept_encoding: str = "identity"
) -> tuple[SimTransport, VirtualClock]:
    clock = VirtualClock()
    transport = SimTransport(portal, clock, timeout=30.0, accept_encoding=accept_encoding)
    protocol: Transport = transport
    time: Clock = clock
    assert protocol is transport
    assert time is clock
    return transport, clock


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_an_answer_arrives_decoded_in_pieces(encoding: str) -> None:
    portal = PortalSim(chain_of(200), chunk_bytes=(1, 500))
    transport, _ = carried(portal, accept_encoding=encoding)
    response = transport.send(request(portal, 0))
    pieces = list(response.chunks())
    assert response.status == 200
    assert response.headers.get("content-encoding", "identity") == encoding
    assert all(type(piece) is bytes for piece in pieces)
    assert len(pieces) > 2
    assert b"".join(pieces) == ask(PortalSim(portal.chain), 0).read()


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_a_drop_in_the_body_raises_after_what_had_arrived(encoding: str) -> None:
    portal = PortalSim(chain_of(500))
    portal.faults.add(DropAfter(9000))
    transport, clock = carried(portal, accept_encoding=encoding)
    whole = ask(PortalSim(portal.chain), 0).read()
    pieces: list[bytes] = []
    arriving = map(pieces.append, transport.send(request(portal, 0)).chunks())
    with pytest.raises(TransportError, match="closed"):
        list(arriving)
    arrived = b"".join(pieces)
    assert whole.startswith(arrived)
    assert 0 < len(arrived) < len(whole)
    assert clock.monotonic() == 0


def test_a_stall_in_the_body_costs_the_timeout() -> None:
    portal = PortalSim(chain_of(20))
    portal.faults.add(StallAfter(10))
    transport, clock = carried(portal)
    pieces = transport.send(request(portal, 0)).chunks()
    with pytest.raises(TransportError, match="stopped answering"):
        list(pieces)
    assert clock.monotonic() == 30.0
    assert clock.sleeps == []


def test_a_connection_can_fail_before_the_headers() -> None:
    portal = PortalSim(chain_of(20))
    portal.faults.add(DropBeforeHeaders()).add(StallBeforeHeaders())
    transport, clock = carried(portal)
    with pytest.raises(TransportError):
        transport.send(request(portal, 0))
    assert clock.monotonic() == 0
    with pytest.raises(TransportError):
        transport.send(request(portal, 0))
    assert clock.monotonic() == 30.0
    assert transport.open_responses == 0


def test_a_slow_answer_moves_the_clock() -> None:
    portal = PortalSim(chain_of(20), no_content_delay=5)
    portal.faults.add(Delay(2.0))
    transport, clock = carried(portal)
    assert transport.send(request(portal, 0)).status == 200
    assert clock.monotonic() == 2.0
    assert transport.send(request(portal, 20)).status == 204
    assert clock.monotonic() == 7.0


def test_a_retry_date_follows_the_virtual_clock() -> None:
    portal = PortalSim(chain_of(20))
    portal.faults.add(Status(503, RetryAfter.DATE, seconds=60))
    transport = SimTransport(portal, VirtualClock(start=0.0))
    response = transport.send(request(portal, 0))
    assert response.headers["retry-after"] == "Thu, 01 Jan 1970 00:01:00 GMT"


def test_the_clock_passes_only_when_told_and_remembers_sleeps() -> None:
    clock = VirtualClock(start=100.0)
    assert (clock.monotonic(), clock.now()) == (0.0, 100.0)
    clock.sleep(1.5)
    clock.sleep(0)
    clock.advance(10)
    assert clock.sleeps == [1.5, 0]
    assert (clock.monotonic(), clock.now()) == (11.5, 111.5)


def test_the_chain_can_move_while_a_client_sleeps_or_asks() -> None:
    chain = chain_of(10)
    portal = PortalSim(chain)
    clock = VirtualClock(on_sleep=lambda seconds: chain.grow(int(seconds)))
    transport = SimTransport(portal, clock, on_request=lambda asked: chain.grow(1))
    clock.sleep(3)
    assert chain.head.number == 12
    response = transport.send(Request("GET", "head"))
    assert json.loads(b"".join(response.chunks()))["number"] == 13


def test_open_responses_are_counted_until_closed() -> None:
    portal = PortalSim(chain_of(10))
    transport, _ = carried(portal)
    first, second = (transport.send(Request("GET", "head")) for _ in range(2))
    assert transport.open_responses == 2
    first.close()
    first.close()
    second.close()
    assert transport.open_responses == 0
    transport.close()
    assert transport.closed
