"""A node that has the simulated portal's chain gives the rows that the portal gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from headwater.core import BlockCursor, BlockRange, Blocks, RangeEnd
from headwater.errors import TransportError
from headwater.portal import PortalClient, Request, RetryPolicy, Timeouts, open_transport
from headwater.query import EvmQuery, Query
from headwater.query.networks.evm import EVM
from headwater.testing import ContentSettings, PortalServer, simulated_portal
from headwater.testing.portal.node import FAULTS
from tests.shared import HANG_S
from tests.stream.truth import TRANSFER

QUICK = RetryPolicy(schedule_s=(0.001, 0.002))
UNEQUAL = {"logsBloom"}  # drawn by chance in the simulated contents; a node's must fit its logs
QUIET = {"far": 10**9, "poll_interval_s": 0.01, "retry": QUICK}


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    content = ContentSettings(synthetic_log_share=0.2)
    with simulated_portal(seed=31, blocks=120, finality_depth=20, content=content) as server:
        yield server


def everything() -> EvmQuery:
    """Return a query that selects all fields, and no items yet."""
    chosen = {
        entity: [field.name for field in EVM.entity(entity).fields if field.wire not in UNEQUAL]
        for entity in ("block", "log", "transaction")
    }
    return EvmQuery().add_fields(**chosen)


def lines_of(url: str, query: Query, *, finalized: bool = False, **read: Any) -> dict[int, Any]:
    """Return the lines with items, by the numbers of their blocks."""
    found = {}
    with PortalClient(url, retry=QUICK, poll_interval_s=0.01, **read) as client:
        for answer in client.read(query, BlockRange(0, 90), finalized=finalized):
            if isinstance(answer, Blocks):
                for line in map(json.loads, answer.lines):
                    if len(line) > 1:
                        found[line["header"]["number"]] = line
            assert isinstance(answer, Blocks | RangeEnd)
    return found


def queries(portal: PortalServer) -> dict[str, EvmQuery]:
    people, base = portal.chain.population, everything()
    tokens, some = list(people.tokens), list(people.accounts[:5])
    return {
        "all logs": base.add_logs(),
        "one event": base.add_logs(topic0=[TRANSFER]),
        "events of contracts": base.add_logs(address=tokens[:2], topic0=[TRANSFER]),
        "an event of a contract": base.add_logs(address=tokens[:1], topic0=[TRANSFER]),
        "several filters": base.add_logs(address=tokens[:1]).add_logs(topic0=[TRANSFER]),
        "with transactions": base.add_logs(address=tokens[:2], transaction=True),
        "with other logs": base.add_logs(address=tokens[:1], transaction_logs=True),
        "all transactions": base.add_transactions(),
        "transactions of some": base.add_transactions(from_=some).add_transactions(to=some),
        "transactions with logs": base.add_transactions(from_=some, logs=True),
        "nonces": base.add_transactions(first_nonce=1000, last_nonce=500_000),
        "types": base.add_transactions(type=[0, 3]),
        "selectors": base.add_transactions(sighash=["0xa9059cbb"]),
        "nothing that there is": base.add_logs(address=["0x" + "12" * 20]),
    }


@pytest.mark.parametrize("finalized", [False, True])
def test_a_node_gives_the_lines_that_a_portal_gives(portal: PortalServer, finalized: bool) -> None:
    for name, query in queries(portal).items():
        expected = lines_of(portal.url, query, finalized=finalized)
        assert lines_of(portal.node_url, query, finalized=finalized) == expected, name
        assert bool(expected) == (name != "nothing that there is"), name


def test_a_node_without_receipts_of_blocks_is_asked_for_each(portal: PortalServer) -> None:
    portal.node.quirks.lacks = frozenset({"eth_getBlockReceipts"})
    query = queries(portal)["with transactions"]
    assert lines_of(portal.node_url, query) == lines_of(portal.url, query)
    assert portal.node.calls["eth_getTransactionReceipt"] > 0


def test_limits_of_a_provider_are_learned_and_nothing_is_lost(portal: PortalServer) -> None:
    quirks = portal.node.quirks
    quirks.max_range, quirks.max_logs, quirks.max_batch = 7, 60, 5
    query = everything().add_logs()
    assert lines_of(portal.node_url, query) == lines_of(portal.url, query)
    met = portal.node.met
    assert met["too wide"] + met["too many logs"] > 0
    assert met["batch refused"] > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_of_a_provider_adds_or_hides_a_row(portal: PortalServer, fault: str) -> None:
    node = portal.node
    node.quirks.faults, node.quirks.fault_share = (fault,), 0.15
    node.quirks.max_range = 9
    query = everything().add_logs(transaction=True)
    expected = lines_of(portal.url, query)
    found = lines_of(portal.node_url, query, timeouts=Timeouts(headers_s=0.2, chunk_s=0.2))
    assert found == expected
    assert node.met[fault] > 0


def test_heads_times_and_the_network_are_those_of_the_chain(portal: PortalServer) -> None:
    chain = portal.chain
    with PortalClient(portal.node_url, headers=EvmQuery(), retry=QUICK) as client:
        assert client.metadata().kind == "evm"
        assert client.head() == BlockCursor(chain.head.number, chain.head.hash)
        final = chain.finalized
        assert final is not None
        assert client.finalized_head() == BlockCursor(final.number, final.hash)
        for number in (0, 1, 57, chain.head.number):
            block = chain.canonical(number, number)[0]
            assert client.block_at(block.timestamp) == number
        assert client.block_at(chain.head.timestamp + 1) is None


def test_a_request_that_is_never_answered_can_be_broken_off(portal: PortalServer) -> None:
    node = portal.node
    node.quirks.faults, node.quirks.fault_share = ("silence",), 1.0
    transport = open_transport(portal.node_url, Timeouts(headers_s=HANG_S, chunk_s=HANG_S))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(transport.send, Request("GET", "head"))
        while not node.met["silence"] and not asked.done():
            pass
        while not asked.done():  # until the request is under way, there is nothing to break off
            transport.abort()
        with pytest.raises(TransportError, match="E3007"):
            asked.result()
    transport.close()


@pytest.mark.guarantee("FINAL-2")
@pytest.mark.parametrize(
    ("route", "options"),
    [("stream", ""), ("finalized-stream", ""), ("stream", "#confirmations=1")],
)
def test_blocks_of_one_server_are_not_final_because_another_one_says_so(
    route: str, options: str
) -> None:
    """A server is left on a branch that finality rules out; it is asked right after the other."""
    with simulated_portal(seed=3, blocks=10, finality_depth=5, replicas=2) as portal:
        chain, replicas = portal.chain, portal.sim.replicas
        chain.fork(3)
        orphan = chain.block(chain.forks[-1].orphaned_hashes[-1])
        replicas[1].freeze(orphan.hash)
        chain.extend(3)
        chain.finalize(orphan.number + 1)
        first = orphan.number - 2
        body = EvmQuery().add_fields(block=["number", "hash"]).add_logs().body(first)
        transport = open_transport(portal.node_url + options)
        replicas.pin(0, 2 if options else 1)
        replicas.pin(1, 1000)
        with closing(transport.send(Request("POST", route, body))) as answer:
            final = int(answer.headers.get("x-sqd-finalized-head-number", -1))
            lines = b"".join(answer.chunks())
        transport.close()
    if route == "finalized-stream":
        assert answer.status == 503  # what that server has is final on the other one alone
        return
    assert answer.status == 200
    numbers = [json.loads(line)["header"]["number"] for line in lines.splitlines()]
    assert numbers[-1] == orphan.number
    assert final == (orphan.number - 1 if options else first - 1)
