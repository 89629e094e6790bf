from headwater.testing import Exchange, Ledger, PortalSim, Status
from tests.unit.testing.asking import ask, chain_of, look_up


def test_the_ledger_tells_what_was_asked_and_answered() -> None:
    chain = chain_of(30, final=20)
    portal = PortalSim(chain, blocks_per_answer=10)
    anchor = chain.canonical(4, 4)[0].hash
    answer = ask(portal, 5, toBlock=25, parentBlockHash=anchor)
    assert portal.ledger[0] == Exchange(
        sequence=1,
        replica=0,
        method="POST",
        route="stream",
        status=200,
        from_block=5,
        to_block=25,
        parent_block_hash=anchor,
        first=5,
        last=14,
        count=10,
        sent=len(answer.read()),
        fault=None,
        head=29,
        finalized=20,
    )


def test_answers_without_blocks_cover_nothing() -> None:
    portal = PortalSim(chain_of(30, final=20))
    portal.faults.add(Status(503))
    ask(portal, 5)
    ask(portal, 5, parentBlockHash="0x1")
    ask(portal, 30)
    failed, conflict, nothing = portal.ledger
    assert (failed.status, failed.fault, failed.count, failed.head) == (503, "status-503", 0, None)
    assert (conflict.status, conflict.first, conflict.count) == (409, None, 0)
    assert (nothing.status, nothing.head, nothing.finalized) == (204, 29, 20)


def test_requests_can_be_picked_and_counted() -> None:
    portal = PortalSim(chain_of(30, final=20))
    portal.faults.add(Status(429))
    look_up(portal, "metadata")
    look_up(portal, "head")
    ask(portal, 0, includeAllBlocks=False)
    ask(portal, 0, route="finalized-stream")
    ask(portal, 30)
    ledger = portal.ledger
    assert [one.route for one in ledger.stream_requests()] == [
        "stream",
        "finalized-stream",
        "stream",
    ]
    assert ledger.statuses() == {200: 3, 204: 1, 429: 1}
    assert ledger.faults() == {"status-429": 1}
    assert [one.sequence for one in ledger.of_status(204)] == [5]
    assert ledger.lines_sent() == 2 + 21


def test_a_bounded_ledger_forgets_requests_but_not_counts() -> None:
    portal = PortalSim(chain_of(5), ledger=Ledger(limit=3))
    for _ in range(10):
        ask(portal, 0)
    assert [one.sequence for one in portal.ledger] == [8, 9, 10]
    assert len(portal.ledger) == 3
    assert portal.ledger.statuses() == {200: 10}


def test_a_cleared_ledger_goes_on_numbering() -> None:
    portal = PortalSim(chain_of(5))
    ask(portal, 0)
    portal.ledger.clear()
    assert str(portal.ledger) == "(no requests)"
    assert portal.ledger.statuses() == {}
    ask(portal, 0)
    assert portal.ledger[0].sequence == 2


def test_the_ledger_prints_a_line_per_request_and_exports_them() -> None:
    portal = PortalSim(chain_of(30))
    portal.faults.add(Status(500))
    look_up(portal, "head")
    ask(portal, 3, toBlock=9)
    ask(portal, 3, parentBlockHash="0x1")
    printed = str(portal.ledger).splitlines()
    assert printed[0] == "    1  r0 head -> 500  !status-500"
    assert printed[1].startswith("    2  r0 stream 3..9 after ? -> 200 3..9, 7 lines, ")
    assert printed[2] == "    3  r0 stream 3.. after 0x1 -> 409"
    exported = portal.ledger.to_json()
    assert [one["status"] for one in exported] == [500, 200, 409]
    assert exported[1]["to_block"] == 9
