"""How these tests talk to a simulated portal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headwater.portal.transport import Request
from headwater.testing import ChainSim, PortalSim, SimAnswer

FIELDS = {"block": {"number": True, "hash": True, "parentHash": True, "timestamp": True}}


def chain_of(blocks: int, *, seed: int = 7, final: int | None = None, **options: Any) -> ChainSim:
    """Make a chain of this many blocks, final up to a number."""
    chain = ChainSim(seed, **options)
    chain.grow(blocks - 1)
    if final is not None:
        chain.finalize(final)
    return chain


def ask(
    portal: PortalSim,
    from_block: int,
    *,
    route: str = "stream",
    headers: Mapping[str, str] | None = None,
    now: float | None = None,
    **query: Any,
) -> SimAnswer:
    """Ask for blocks; all of them unless the query says otherwise."""
    return portal.respond(request(portal, from_block, route=route, **query), headers, now=now)


def request(portal: PortalSim, from_block: int, *, route: str = "stream", **query: Any) -> Request:
    """Build a request for blocks."""
    kind = portal.chain.network.value
    body = {"type": kind, "fields": FIELDS, "fromBlock": from_block, "includeAllBlocks": True}
    return Request("POST", route, json.dumps({**body, **query}).encode())


def look_up(portal: PortalSim, route: str) -> SimAnswer:
    """Ask one of the routes without a body."""
    return portal.respond(Request("GET", route))


def headers_of(answer: SimAnswer) -> list[dict[str, Any]]:
    """Return the block headers of an answer."""
    return [json.loads(line)["header"] for line in answer.read().splitlines()]


def numbers(answer: SimAnswer) -> list[int]:
    """Return the block numbers of an answer."""
    return [header["number"] for header in headers_of(answer)]


def sample_of(answer: SimAnswer) -> list[tuple[int, str]]:
    """Return what a 409 says."""
    assert answer.status == 409
    blocks = json.loads(answer.read())["previousBlocks"]
    return [(block["number"], block["hash"]) for block in blocks]
