"""The whole way over real sockets: simulated portal, HTTP, client, loop, stored rows.

Pauses are virtual (`VirtualClock`), connections are real. Every test ends by comparing what is
stored with the canonical chain: each block once, in order, with its logs.
"""

from __future__ import annotations

import base64
import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from types import TracebackType
from typing import Any

import pytest

from headwater.core import AtHead, Batch, BlockCursor, BlockRange, Blocks, Head, PipeState, RangeEnd
from headwater.errors import HeadwaterError, PortalHttpError, PortalUnreachableError
from headwater.pipeline import Committed, Event, Host, Pipeline, Raw, RolledBack, Settled, Waited
from headwater.portal import (
    HttpTransport,
    Notice,
    NoticeKind,
    PortalClient,
    Request,
    RetryPolicy,
    Timeouts,
)
from headwater.portal import transport as portal_transport
from headwater.portal.outage import Clock, SystemClock
from headwater.portal.source import PortalSource
from headwater.portal.transport import Response
from headwater.query import EvmQuery, Query, SolanaQuery, plan_requests
from headwater.targets import MemoryStore, MemoryTarget
from headwater.testing import (
    CATALOGUE,
    Balance,
    Behind,
    ChainSim,
    Delay,
    DropAfter,
    DropBeforeHeaders,
    EmptyAnswer,
    Fault,
    FaultPlan,
    Finality,
    ForeignBlock,
    Network,
    PortalServer,
    PortalSim,
    RetryAfter,
    StallAfter,
    StallBeforeHeaders,
    Status,
    TornLine,
    VirtualClock,
    simulated_portal,
)
from headwater.testing.chain.content import content_of
from headwater.testing.faults import RETRYABLE_STATUSES, ConflictFault
from tests.sampling import every
from tests.shared import HANG_S

SEED = 11
LOGS = replace(
    EvmQuery().add_fields(log=["log_index", "address", "data", "topics"]).add_logs(),
    include_all_blocks=True,
)
HEADERS = replace(EvmQuery(), include_all_blocks=True)
SLOTS = replace(SolanaQuery(), include_all_blocks=True)
LOG_FIELDS = ("logIndex", "address", "data", "topics")
STEADY = RetryPolicy(jitter=0)
PATIENT = Timeouts(connect_s=20, headers_s=20, chunk_s=20)
IMPATIENT = Timeouts(connect_s=20, headers_s=0.3, chunk_s=0.3)
EVERYTHING = (BlockRange(0),)

Row = tuple[int, str, list[dict[str, Any]]]  # a block's number, hash and logs
Rows = tuple[Row, ...]


class PassesOn(Host[Raw]):
    def transform(self, batch: Batch[Raw]) -> Batch[Raw]:
        return batch

    def pause(self) -> None:
        pass


class Rig(Host[Rows]):
    """A pipeline on a real connection, what it has stored, and what it said on the way."""

    def __init__(
        self,
        portal: PortalServer,
        *,
        ranges: Sequence[BlockRange] = EVERYTHING,
        query: Query = LOGS,
        watch: Query = HEADERS,
        finalized: bool = False,
        url: str | None = None,
        retry: RetryPolicy = STEADY,
        timeouts: Timeouts = PATIENT,
        clock: Clock | None = None,
        store: MemoryStore[Rows] | None = None,
        patience: int = 5,
    ) -> None:
        self.portal = portal
        self.ranges = ranges
        self.clock = VirtualClock(time.time()) if clock is None else clock
        self.notices: list[Notice] = []
        self.events: list[Event] = []
        self.store: MemoryStore[Rows] = MemoryStore() if store is None else store
        self.client = PortalClient(
            url or portal.url,
            retry=retry,
            clock=self.clock,
            on_notice=self.notices.append,
            timeouts=timeouts,
        )
        plan = plan_requests([(one, query) for one in ranges])
        self._steps: Iterator[Event] | None = Pipeline(
            PortalSource(self.client, plan, watch=watch, finalized=finalized),
            MemoryTarget(self.store),
            self,
            patience=patience,
        ).steps()

    def transform(self, batch: Batch[Raw]) -> Batch[Rows]:
        return rows_of_lines(batch)

    def pause(self) -> None:
        self.clock.sleep(0.1)

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._steps = None
        self.client.close()

    @property
    def state(self) -> PipeState:
        return self.store.committed.state

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.store.committed.batches for row in batch.data]

    def step(self) -> Event | None:
        """Run to the next event, after which the stored state is the event's."""
        assert self._steps is not None
        event = next(self._steps, None)
        if event is not None:
            self.events.append(event)
            assert self.state == event.state
        return event

    def until(self, arrived: Callable[[Event], bool]) -> Event:
        for _ in range(2_000):
            event = self.step()
            assert event is not None, "the stream ended"
            if arrived(event):
                return event
        raise AssertionError(f"never arrived; {self.state.cursor}\n{self.portal.ledger}")

    def to_head(self) -> Rig:
        """Read until nothing is new and the cursor is the head of the chain."""
        head = self.portal.chain.head.cursor
        self.until(lambda event: isinstance(event, Settled) and event.state.cursor == head)
        return self

    def to_end(self) -> Rig:
        """Read to the end of the range."""
        for _ in range(2_000):
            if self.step() is None:
                return self
        raise AssertionError(f"never ended; {self.portal.ledger}")

    def fails(self, code: str) -> HeadwaterError:
        """Read until an error; the state is that of the last event, whatever was under way."""
        before = self.state
        with pytest.raises(HeadwaterError) as caught:
            self.until(lambda event: False)
        assert caught.value.code == code, str(caught.value)
        assert self.state == (self.events[-1].state if self.events else before)
        return caught.value

    def seen(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    def pauses(self) -> list[Any]:
        """Return the pauses between attempts, as they were announced."""
        return [n.facts["pause_s"] for n in self.notices if n.kind is NoticeKind.RETRYING]

    def kinds(self) -> list[NoticeKind]:
        return [notice.kind for notice in self.notices]

    def check(self) -> None:
        """Compare with the canonical chain up to the cursor, and every anchor with its block."""
        cursor = self.state.cursor
        assert cursor is not None
        wanted = [
            row
            for row in canonical(self.portal.chain, cursor.number)
            if any(row[0] in one for one in self.ranges)
        ]
        stored = [row for row in self.rows if any(row[0] in one for one in self.ranges)]
        assert [row[:2] for row in stored] == [row[:2] for row in wanted]
        assert stored == wanted
        check_anchors(self.portal)


def rows_of_lines(batch: Batch[Any]) -> Batch[Rows]:
    blocks = [json.loads(line) for line in batch.data]
    rows = ((b["header"]["number"], b["header"]["hash"], b.get("logs", [])) for b in blocks)
    return batch.with_data(tuple(rows))


def canonical(chain: ChainSim, to_block: int) -> list[Row]:
    """Say what the chain holds, without any code of the client or the queries."""
    solana = chain.network is Network.SOLANA
    return [
        (
            block.number,
            block.hash,
            []
            if solana
            else [
                {name: log[name] for name in LOG_FIELDS}
                for log in content_of(chain, block).rows("logs")
            ],
        )
        for block in chain.canonical(to_block=to_block)
    ]


def check_anchors(portal: PortalServer) -> None:
    """Whatever was sent as parentBlockHash is the hash of the block just before the request."""
    for exchange in portal.ledger.stream_requests():
        if exchange.parent_block_hash is None or exchange.from_block is None:
            continue
        block = portal.chain.find(exchange.parent_block_hash)
        if block is not None:  # else: it came with a foreign block
            assert block.number + 1 == exchange.from_block, str(exchange)


def restart(portal: PortalServer, store: MemoryStore[Rows]) -> None:
    """Start again on what is stored, and arrive."""
    with Rig(portal, store=store) as again:
        again.to_head().check()


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(SEED, blocks=40, finality_depth=12, blocks_per_answer=(6, 12)) as server:
        yield server


# --- every fault there is -------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What becomes of a fault: survived, or an error with this code.

    `takes_blocks`: the good blocks before a bad one are stored, so the state may have moved.
    """

    code: str | None = None
    takes_blocks: bool = False


SURVIVED = Expected()
EXPECTED: Mapping[str, Expected] = {
    "drop-before-headers": SURVIVED,
    "drop-after": SURVIVED,
    "stall-before-headers": SURVIVED,
    "stall-after": SURVIVED,
    "delay": SURVIVED,
    "refused": Expected("E3001"),
    "failed": SURVIVED,
    "overloaded": SURVIVED,
    "torn-line": SURVIVED,
    "garbage-line": Expected("E3003", takes_blocks=True),
    "invalid-utf8": Expected("E3003", takes_blocks=True),
    "non-block-line": Expected("E3003", takes_blocks=True),
    "duplicate-block": Expected("E3004", takes_blocks=True),
    "missing-block": Expected("E3005", takes_blocks=True),
    "swapped-blocks": Expected("E3005", takes_blocks=True),
    "foreign-block": Expected("E3005", takes_blocks=True),
    "empty-answer": SURVIVED,
    "empty-sample": Expected("E1002"),
    "sample-of-one": SURVIVED,
    "sample-below-finality": SURVIVED,
    "no-previous-blocks": Expected("E3006"),
    "shuffled-sample": SURVIVED,
    "newest-first": SURVIVED,
    "wrong-finality-hash": SURVIVED,
    "finality-regressed": SURVIVED,
    "no-head-headers": SURVIVED,
}
FAULTS = [
    pytest.param(name, fault, id=str(fault)) for name, kind in CATALOGUE.items() for fault in kind
]


def test_every_fault_of_the_catalogue_has_an_expectation() -> None:
    assert EXPECTED.keys() == CATALOGUE.keys()


@pytest.mark.guarantee("WIRE-1")
@pytest.mark.guarantee("WIRE-3")
@pytest.mark.parametrize("seed", every(2).seeds([1, 2]))
@pytest.mark.parametrize("forked", [False, True], ids=["grown", "forked"])
@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_fault_is_survived_or_stops_the_stream_with_its_code(
    name: str, fault: Fault, forked: bool, seed: int
) -> None:
    if isinstance(fault, ConflictFault) and not forked:
        forked, seed = True, seed + 2  # without a fork there is no 409; two seeds more instead
    timeouts = IMPATIENT if name == "delay" or name.startswith("stall") else PATIENT
    with (
        simulated_portal(seed, blocks=40, finality_depth=12, blocks_per_answer=(6, 12)) as portal,
        Rig(portal, timeouts=timeouts) as rig,
    ):
        rig.to_head()
        before, chain = rig.state, portal.chain
        if forked:
            portal.fork(depth=5, length=14)
        else:
            portal.extend(14)
        chain.finalize(32)
        portal.sim.faults.add(fault, route="stream")
        expected = EXPECTED[name]
        if expected.code is None:
            rig.to_head().check()
            assert rig.state.finalized == chain.canonical(32, 32)[0].cursor
        else:
            rig.fails(expected.code)
            if not expected.takes_blocks:
                assert rig.state == before
            cursor = rig.state.cursor
            assert cursor is not None
            if not forked or expected.takes_blocks:
                assert chain.is_ancestor(cursor.hash or "", chain.head.hash)
                rig.check()
            restart(portal, rig.store)
        assert portal.ledger.faults().total() == 1


@pytest.mark.parametrize("name", ["sample-of-one", "sample-below-finality", "shuffled-sample"])
def test_a_bad_sample_never_undoes_final_blocks(portal: PortalServer, name: str) -> None:
    with Rig(portal) as rig:
        rig.to_head()
        final = rig.state.finalized
        assert final is not None
        portal.fork(depth=11)
        portal.sim.faults.add(CATALOGUE[name][0], times=3)
        rig.to_head().check()
        landings = [event.state.cursor for event in rig.events if isinstance(event, RolledBack)]
        assert landings
        assert all(cursor is not None and cursor.number >= final.number for cursor in landings)


@pytest.mark.guarantee("WIRE-3")
def test_a_portal_that_goes_on_sending_bad_blocks_adds_nothing(portal: PortalServer) -> None:
    with Rig(portal) as rig:
        rig.to_head()
    before = rig.state
    portal.extend(9)
    portal.sim.faults.add(ForeignBlock(at=0), times=None)
    for _ in range(3):
        with Rig(portal, store=rig.store) as again:
            again.fails("E3005")
        assert rig.state == before
    portal.sim.faults.clear()
    restart(portal, rig.store)


@pytest.mark.guarantee("WIRE-3")
def test_a_line_that_is_always_torn_is_malformed_in_the_end(portal: PortalServer) -> None:
    with Rig(portal) as rig:
        rig.to_head()
        before, asked = rig.state, len(portal.ledger)
        portal.extend(3)
        portal.sim.faults.add(TornLine(at=0), times=None)
        rig.fails("E3003")
        assert rig.state == before
        assert len(portal.ledger) - asked == 5
        assert "the body ended inside a line" in str(rig.notices[0])
    portal.sim.faults.clear()
    restart(portal, rig.store)


def test_a_whole_history_of_faults_at_once_ends_in_the_canonical_chain() -> None:
    names = [name for name, expected in EXPECTED.items() if expected.code is None]
    rates = {name: 0.03 for name in names if not name.startswith("stall") and name != "delay"}
    with simulated_portal(
        SEED, blocks=60, finality_depth=12, blocks_per_answer=(1, 9), replicas=2
    ) as portal:
        portal.sim.faults = FaultPlan.random(SEED, rates)
        with Rig(portal) as rig:
            for depth in (3, 1, 8, 2, 5, 9):
                rig.to_head().check()
                portal.fork(depth, depth + 4)
                portal.finalize(portal.chain.head.number - 12)
            rig.to_head().check()
        assert len(portal.ledger.faults()) > 5


# --- every status ---------------------------------------------------------------------------------


def test_blocks_nothing_new_and_a_fork(portal: PortalServer) -> None:
    with Rig(portal) as rig:
        rig.to_head()
        portal.fork(depth=3)
        rig.to_head().check()
        assert rig.seen(RolledBack) == 1
    assert set(portal.ledger.statuses()) == {200, 204, 409}
    assert rig.notices == []


@pytest.mark.parametrize("sample_size", [1, 3, 50])
@pytest.mark.parametrize("depth", [1, 5, 12])  # 12 is all that is not final
def test_a_fork_while_nobody_was_reading_is_found_at_the_restart(
    depth: int, sample_size: int
) -> None:
    with simulated_portal(
        SEED, blocks=40, finality_depth=12, sample_size=sample_size, blocks_per_answer=7
    ) as portal:
        with Rig(portal) as rig:
            rig.to_head()
        portal.fork(depth)
        with Rig(portal, store=rig.store) as again:
            again.to_head().check()
            landings = [
                event.state.cursor.number
                for event in again.events
                if isinstance(event, RolledBack) and event.state.cursor is not None
            ]
            assert landings == sorted(set(landings), reverse=True)
            assert landings[-1] >= 27  # final


FORMS = [None, *RetryAfter]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("code", RETRYABLE_STATUSES)
def test_overload_is_waited_out_for_as_long_as_the_portal_asks(
    portal: PortalServer, code: int, form: RetryAfter | None
) -> None:
    portal.sim.faults.add(Status(code, form, seconds=9), times=3, route="stream")
    with Rig(portal) as rig:
        rig.to_head().check()
        told = [
            notice.facts["status"] for notice in rig.notices if notice.kind is NoticeKind.RETRYING
        ]
        assert told == [code] * 3
        match form:
            case RetryAfter.SECONDS:
                assert rig.pauses() == [9, 9, 9]
            case RetryAfter.DATE:  # a date has whole seconds, and this machine may be slow
                assert all(0 < pause < 9 + 60 for pause in rig.pauses())
                assert rig.pauses()[0] > 7
            case _:
                assert rig.pauses() == [0.01, 0.1, 0.5]


@pytest.mark.parametrize("form", [None, RetryAfter.GARBAGE], ids=str)
@pytest.mark.parametrize("code", [400, 404])
def test_a_refusal_is_final_and_carries_the_portals_words(
    portal: PortalServer, code: int, form: RetryAfter | None
) -> None:
    fault = Status(code, form, text='{"message":"no such thing"}')
    portal.sim.faults.add(fault, route="stream", nth=2)
    with Rig(portal) as rig:
        error = rig.fails("E3001")
        assert error.facts["status"] == code
        assert "no such thing" in str(error)
        assert rig.state.cursor is not None
        rig.check()
    restart(portal, rig.store)


@pytest.mark.parametrize("form", [RetryAfter.SECONDS, RetryAfter.DATE], ids=str)
@pytest.mark.parametrize("code", [400, 404, 500])
def test_any_status_that_names_a_time_is_asked_again_then(
    portal: PortalServer, code: int, form: RetryAfter
) -> None:
    portal.sim.faults.add(Status(code, form, seconds=9), times=8, route="stream")
    with Rig(portal) as rig:
        rig.to_head().check()
        assert len(rig.pauses()) == 8


@pytest.mark.parametrize("form", [None, RetryAfter.GARBAGE], ids=str)
def test_a_brief_500_is_survived(portal: PortalServer, form: RetryAfter | None) -> None:
    portal.sim.faults.add(Status(500, form), times=5, route="stream")
    with Rig(portal) as rig:
        rig.to_head().check()
        assert rig.pauses() == [0.01, 0.1, 0.5, 2, 10]


def test_a_permanent_500_is_fatal_and_leaves_the_state_alone(portal: PortalServer) -> None:
    with Rig(portal) as rig:
        rig.to_head()
        before, asked = rig.state, len(portal.ledger)
        portal.extend(5)
        portal.sim.faults.add(Status(500), times=None)
        error = rig.fails("E3001")
        assert error.facts["status"] == 500
        assert rig.state == before
        assert len(portal.ledger) - asked == 6
    portal.sim.faults.clear()
    restart(portal, rig.store)


def test_the_longest_wait_is_ours_to_bound(portal: PortalServer) -> None:
    portal.sim.faults.add(Status(503, RetryAfter.SECONDS, seconds=86_400), route="stream")
    with Rig(portal, retry=RetryPolicy(jitter=0, retry_after_cap_s=7)) as rig:
        rig.to_head().check()
        assert rig.pauses() == [7]


def test_a_bounded_number_of_attempts_ends_in_a_coded_error(portal: PortalServer) -> None:
    with Rig(portal) as rig:
        rig.to_head()
    before = rig.state
    portal.extend(5)
    portal.sim.faults.add(DropBeforeHeaders(), times=None, route="stream")
    with Rig(portal, store=rig.store, retry=RetryPolicy(jitter=0, attempts=4)) as bounded:
        error = bounded.fails("E3002")
        assert isinstance(error, PortalUnreachableError)
        assert error.facts["attempts"] == 4
        assert rig.state == before
    portal.sim.faults.clear()
    restart(portal, rig.store)


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (Status(404), 1),
        (Status(503), 10),
        (Status(500), 6),
        (DropBeforeHeaders(), 10),
        (DropAfter(3), 10),
    ],
    ids=str,
)
def test_reading_goes_on_without_metadata(portal: PortalServer, fault: Fault, times: int) -> None:
    portal.sim.faults.add(fault, times=times, route="metadata")
    with Rig(portal) as rig:
        rig.to_head().check()
        assert rig.kinds().count(NoticeKind.METADATA_UNAVAILABLE) == 1
        assert portal.ledger.faults().total() == times


def test_a_portal_that_restarts_is_found_again() -> None:
    chain = ChainSim(SEED)
    chain.grow(30)
    first = PortalServer(PortalSim(chain, blocks_per_answer=5)).start()
    port = int(first.base_url.rpartition(":")[2])
    later: list[PortalServer] = []

    def repair(seconds: float) -> None:
        if len(rig.pauses()) == 4 and not later:
            later.append(PortalServer(PortalSim(chain, blocks_per_answer=5), port=port).start())

    try:
        with Rig(first, clock=VirtualClock(on_sleep=repair)) as rig:
            rig.until(lambda event: event.state.cursor == chain.canonical(9, 9)[0].cursor)
            first.stop()
            rig.to_head().check()
            assert rig.pauses()[:4] == [0.01, 0.1, 0.5, 2]
    finally:
        first.stop()
        for server in later:
            server.stop()
    assert len(later) == 1


# --- credentials ----------------------------------------------------------------------------------

USER, PASSWORD, KEY = "anna", "wr0ng-p4ssw0rd", "k3y-0f-anna"


def all_that_was_shown(error: BaseException, rig: Rig, log: str) -> str:
    told = "\n".join(f"{notice} {notice!r}" for notice in rig.notices)
    trace = "".join(traceback.format_exception(error))
    return "\n".join([trace, repr(error), str(error), told, log])


def is_shown(text: str) -> bool:
    encoded = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    return any(secret in text for secret in (PASSWORD, KEY, encoded, f"{USER}:"))


@pytest.mark.guarantee("WIRE-5")
def test_wrong_credentials_are_refused_and_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with simulated_portal(SEED, auth=(USER, "right")) as portal:
        where = portal.url.partition("://")[2]
        url = f"http://{USER}:{PASSWORD}@{where}?key={KEY}"
        with Rig(portal, url=url) as rig:
            error = rig.fails("E3001")
            assert isinstance(error, PortalHttpError)
            assert error.facts["status"] == 401
            assert NoticeKind.METADATA_UNAVAILABLE in rig.kinds()
            assert not is_shown(all_that_was_shown(error, rig, caplog.text))
        with closing(PortalClient(url)) as client, pytest.raises(PortalHttpError) as caught:
            client.head()
        assert not is_shown("".join(traceback.format_exception(caught.value)) + caplog.text)
        with Rig(portal, url=f"http://{USER}:right@{where}?key={KEY}") as let_in:
            let_in.to_head().check()
        assert not is_shown("\n".join(map(str, let_in.notices)) + caplog.text)
        assert KEY not in str(portal.ledger.to_json())


@pytest.mark.guarantee("WIRE-5")
@pytest.mark.parametrize(
    "fault",
    [DropBeforeHeaders(), DropBeforeHeaders(reset=True), DropAfter(5), Status(503), Status(400)],
    ids=str,
)
def test_no_failure_shows_the_credentials(
    fault: Fault, caplog: pytest.LogCaptureFixture, portal: PortalServer
) -> None:
    caplog.set_level(logging.DEBUG)
    portal.sim.faults.add(fault, times=None)
    url = f"http://{USER}:{PASSWORD}@{portal.url.partition('://')[2]}?key={KEY}"
    with Rig(portal, url=url, retry=RetryPolicy(jitter=0, attempts=3)) as rig:
        error = rig.fails("E3001" if fault == Status(400) else "E3002")
        assert not is_shown(all_that_was_shown(error, rig, caplog.text))


@pytest.mark.guarantee("WIRE-5")
def test_the_default_observer_and_a_refused_connection_show_none_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with simulated_portal(SEED, blocks=2) as portal:
        where = portal.url.partition("://")[2]
    url = f"http://{USER}:{PASSWORD}@{where}?key={KEY}"  # nobody listens there any more
    policy = RetryPolicy(jitter=0, attempts=2, stall_after_s=0.05)
    transport = HttpTransport(url)
    client = PortalClient(transport, retry=policy, clock=VirtualClock())
    with closing(client), pytest.raises(PortalUnreachableError) as caught:
        list(client.read(HEADERS, BlockRange(0)))
    assert "retrying" in caplog.text
    text = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(transport)
    assert not is_shown(text)


# --- bodies ---------------------------------------------------------------------------------------


class Tap:
    """A real transport that remembers how the answers were encoded."""

    def __init__(self, url: str) -> None:
        self.encodings: list[str | None] = []
        self._transport = HttpTransport(url, PATIENT)

    def send(self, request: Request) -> Response:
        response = self._transport.send(request)
        if response.status == 200 and request.body is not None:
            self.encodings.append(response.headers.get("content-encoding"))
        return response

    def close(self) -> None:
        self._transport.close()


ENCODINGS = [("gzip",), ("zstd",), ()]


@pytest.mark.parametrize("offered", ENCODINGS, ids=str)
def test_each_encoding_is_used_and_understood(offered: tuple[str, ...]) -> None:
    with simulated_portal(SEED, encodings=offered, blocks_per_answer=30) as portal:
        tap = Tap(portal.url)
        with closing(PortalClient(tap)) as client:
            found = list(client.read(LOGS, BlockRange(0, 99)))
        assert set(tap.encodings) == {offered[0] if offered else None}
        assert numbers(found) == list(range(100))
        with Rig(portal) as rig:
            rig.to_head().check()


@pytest.mark.parametrize("offered", ENCODINGS, ids=str)
@pytest.mark.parametrize("cuts", [(1, 1), (1, 50)], ids=str)
def test_bodies_may_be_cut_into_the_smallest_pieces(
    offered: tuple[str, ...], cuts: tuple[int, int]
) -> None:
    with (
        simulated_portal(
            SEED, blocks=12, finality_depth=6, encodings=offered, chunk_bytes=cuts
        ) as portal,
        Rig(portal) as rig,
    ):
        rig.to_head()
        portal.fork(depth=3)
        rig.to_head().check()


def numbers(answers: Sequence[object]) -> list[int]:
    return [one.number for a in answers if isinstance(a, Blocks) for one in a.headers]


# --- broken connections ---------------------------------------------------------------------------


@pytest.mark.guarantee("WIRE-1")
@pytest.mark.guarantee("WIRE-2")
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("offered", ENCODINGS, ids=str)
def test_however_often_a_connection_breaks_each_block_comes_once(
    offered: tuple[str, ...], reset: bool
) -> None:
    with simulated_portal(
        SEED, blocks=150, blocks_per_answer=(10, 40), encodings=offered, chunk_bytes=(1, 900)
    ) as portal:
        faults = portal.sim.faults
        faults.add(DropBeforeHeaders(reset), times=10, probability=0.2, route="stream")
        faults.add(DropAfter(reset=reset), times=40, probability=0.9, route="stream")
        with Rig(portal, ranges=[BlockRange(0, 149)]) as rig:
            rig.to_end().check()
        assert len(portal.ledger.faults()) == 2
        requests = portal.ledger.stream_requests()
        asked = [e for e in requests if e.from_block != e.to_block]  # without that of the end
        assert all(a.from_block <= b.from_block for a, b in pairwise(asked))  # type: ignore[operator]
        for exchange in asked:  # the anchor is there whenever the true predecessor is known
            known = exchange.from_block != 0
            assert (exchange.parent_block_hash is not None) is known
    assert [row[0] for row in rig.rows] == list(range(150))


@pytest.mark.guarantee("WIRE-1")
@pytest.mark.parametrize("offered", ENCODINGS, ids=str)
def test_wherever_a_body_breaks_each_block_comes_once(offered: tuple[str, ...]) -> None:
    with simulated_portal(SEED, blocks=6, finality_depth=3, encodings=offered) as portal:
        with closing(PortalClient(portal.url, retry=STEADY, clock=VirtualClock())) as client:
            whole = list(client.read(HEADERS, BlockRange(0, 5)))
            size = portal.ledger[-1].sent
            for cut in range(0, size + 1, 1 + size // 60):
                portal.sim.faults.add(DropAfter(cut), route="stream")
                found = list(client.read(HEADERS, BlockRange(0, 5)))
                assert numbers(found) == numbers(whole) == list(range(6))
        check_anchors(portal)


@pytest.mark.guarantee("WIRE-1")
def test_a_connection_that_breaks_between_fork_and_resume_costs_nothing(
    portal: PortalServer,
) -> None:
    with Rig(portal) as rig:
        rig.to_head()
        portal.fork(depth=6, length=8)
        portal.sim.faults.add(DropAfter(20), times=2, route="stream")
        portal.sim.faults.add(DropAfter(200, reset=True), times=2, route="stream")
        rig.to_head().check()
        assert rig.seen(RolledBack) == 1


@pytest.mark.guarantee("WIRE-1")
@pytest.mark.parametrize("fault", [StallBeforeHeaders(), StallAfter(), StallAfter(0)], ids=str)
def test_a_connection_that_hangs_is_given_up_and_replaced(
    portal: PortalServer, fault: Fault
) -> None:
    portal.sim.faults.add(fault, times=2, route="stream")
    with Rig(portal, timeouts=IMPATIENT) as rig:
        rig.to_head().check()
        assert portal.ledger.faults().total() == 2
        assert "took too long" in str(rig.notices[0])


def test_a_slow_answer_is_waited_for(portal: PortalServer) -> None:
    portal.sim.faults.add(Delay(0.2), route="stream")
    with Rig(portal) as rig:
        rig.to_head().check()
        assert rig.notices == []


# --- pace and stalls ------------------------------------------------------------------------------


@pytest.mark.guarantee("WIRE-4")
def test_empty_answers_are_asked_for_ever_more_slowly(portal: PortalServer) -> None:
    portal.sim.faults.add(EmptyAnswer(), times=9, route="stream")
    with Rig(portal) as rig:
        rig.until(lambda event: rig.seen(Settled) == 9)
        assert isinstance(rig.clock, VirtualClock)
        assert rig.clock.sleeps == [0.25, 0.25, 0.5, 2, 10, 20, 20, 20]
        assert len(portal.ledger.stream_requests()) == 9
        rig.to_head().check()


@pytest.mark.guarantee("WIRE-4")
@pytest.mark.parametrize("empty", [True, False], ids=["empty-200", "204"])
def test_with_a_real_clock_an_idle_portal_is_polled_at_its_interval(
    portal: PortalServer, empty: bool
) -> None:
    interval, times = 0.04, 8
    if empty:
        portal.sim.faults.add(EmptyAnswer(), times=None, route="stream")
    after = BlockCursor(38, portal.chain.canonical(38, 38)[0].hash)
    if not empty:
        after = portal.chain.head.cursor
    with closing(
        PortalClient(
            portal.url,
            retry=RetryPolicy(schedule_s=(0.001,), jitter=0),
            poll_interval_s=interval,
        )
    ) as client:
        reading = client.read(HEADERS, BlockRange(0), after)
        began = time.monotonic()
        found = [next(reading) for _ in range(times)]
        assert time.monotonic() - began >= interval * (times - 1)
        del reading
    assert all(isinstance(answer, AtHead) and answer.confirmed is empty for answer in found)
    assert len(portal.ledger.stream_requests()) == times


def test_a_reader_at_the_head_is_not_kept_by_a_portal_that_holds_its_answer_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the head is known it waits: a slow answer does not mean that there is nothing."""
    monkeypatch.setattr(portal_transport, "_RIGHT_BACK_S", HANG_S)  # a busy machine comes back late
    with simulated_portal(SEED, blocks=40, no_content_delay=3600) as portal:
        portal.sim.faults.add(Delay(0.3), route="stream")
        transport = HttpTransport(portal.url, hold_s=0.05)
        with closing(PortalClient(transport)) as client:
            reading = client.read(HEADERS, BlockRange(0))
            blocks = next(reading)
            assert isinstance(blocks, Blocks)
            assert blocks.headers[-1].hash == portal.chain.head.hash
            asked = len(portal.ledger.stream_requests())
            for _ in range(3):
                assert next(reading) == AtHead(blocks.head)
            portal.extend()
            found = next(one for one in reading if isinstance(one, Blocks))
            assert found.headers[0].hash == portal.chain.head.hash
            reading.close()
        assert len(portal.ledger.stream_requests()) <= asked + 2


@pytest.mark.guarantee("WIRE-4")
@pytest.mark.parametrize(
    "fault",
    [Status(503, RetryAfter.SECONDS, seconds=0), Status(429, RetryAfter.DATE, seconds=-99),
     DropBeforeHeaders(), DropAfter(0)],
    ids=str,
)  # fmt: skip
def test_a_failure_without_a_time_is_no_leave_to_hurry(portal: PortalServer, fault: Fault) -> None:
    portal.sim.faults.add(fault, times=7, route="stream")
    with Rig(portal) as rig:
        rig.to_head().check()
        assert rig.pauses() == [0.01, 0.1, 0.5, 2, 10, 20, 20]


@pytest.mark.guarantee("WIRE-4")
def test_a_stall_is_visible_and_so_is_its_end(portal: PortalServer) -> None:
    portal.sim.faults.add(Status(503), times=10, route="stream")
    with Rig(portal) as rig:
        rig.to_head().check()
        shown = [n for n in rig.notices if n.kind is not NoticeKind.RETRYING]
        assert [n.kind for n in shown] == [
            NoticeKind.STALLED,
            NoticeKind.STALLED,
            NoticeKind.RECOVERED,
        ]
        assert [n.facts["waited_s"] for n in shown[:2]] == [30, 60]
        assert shown[0].facts["reason"] == "status 503"


@pytest.mark.guarantee("WIRE-4")
def test_a_real_stall_is_noticed_in_real_time(portal: PortalServer) -> None:
    portal.sim.faults.add(StallBeforeHeaders(), times=2, route="stream")
    policy = RetryPolicy(schedule_s=(0.01,), stall_after_s=0.1)
    with Rig(portal, clock=SystemClock(), retry=policy, timeouts=IMPATIENT) as rig:
        rig.to_head().check()
        kinds = [kind for kind in rig.kinds() if kind is not NoticeKind.RETRYING]
        assert kinds[0] is NoticeKind.STALLED
        assert kinds[-1] is NoticeKind.RECOVERED
        assert kinds.count(NoticeKind.RECOVERED) == 1


# --- replicas -------------------------------------------------------------------------------------


@pytest.mark.parametrize("balance", list(Balance))
@pytest.mark.parametrize("behind", list(Behind))
def test_replicas_at_different_heights_cost_no_data(behind: Behind, balance: Balance) -> None:
    with simulated_portal(
        SEED, blocks=40, finality_depth=12, replicas=3, behind=behind, balance=balance,
        blocks_per_answer=(3, 9),
    ) as portal:  # fmt: skip
        portal.sim.replicas[1].lag(4)
        portal.sim.replicas[2].lag(9)
        with Rig(portal, patience=50) as rig:
            for _ in range(5):
                rig.to_head().check()
                portal.extend(3)
                portal.finalize(portal.chain.head.number - 12)
            rig.to_head().check()
            assert rig.seen(RolledBack) == 0
            assert (rig.seen(Waited) > 0) is (behind is Behind.CONFLICT)
        assert {e.replica for e in portal.ledger.stream_requests()} == {0, 1, 2}


def test_replicas_on_two_branches_agree_in_the_end() -> None:
    with (
        simulated_portal(SEED, blocks=40, finality_depth=12, replicas=2) as portal,
        Rig(portal) as rig,
    ):
        rig.to_head()
        portal.sim.replicas[1].freeze()
        portal.fork(depth=4, length=6)
        for _ in range(40):
            rig.step()
        portal.sim.replicas[1].live()
        rig.to_head().check()
        assert rig.seen(RolledBack) > 0


def finality_rules_out_a_branch(portal: PortalServer, rig: Rig) -> str:
    """Let the chain fork and become final above the fork; return the tip that was orphaned."""
    orphaned = rig.to_head().state.cursor
    portal.fork(depth=4, length=6)
    rig.to_head()
    final = portal.finalize(38).cursor  # the orphaned tip is 39
    rig.until(lambda event: event.state.finalized == final)
    assert orphaned is not None
    return str(orphaned.hash)


@pytest.mark.guarantee("FORK-6")
def test_a_replica_on_a_branch_that_finality_ruled_out_is_given_time() -> None:
    """A 409 of it is no reason to end: other replicas hold the chain that we hold."""
    with (
        simulated_portal(
            SEED, blocks=40, finality_depth=12, replicas=2, behind=Behind.CONFLICT
        ) as portal,
        Rig(portal) as rig,
    ):
        portal.sim.replicas[1].freeze(finality_rules_out_a_branch(portal, rig))
        undone = rig.seen(RolledBack)
        for _ in range(5):
            portal.extend(2)
            rig.to_head().check()
        assert rig.seen(Waited) > 0
        assert rig.seen(RolledBack) == undone


@pytest.mark.guarantee("FORK-4")
@pytest.mark.guarantee("FORK-6")
def test_a_contradiction_of_finality_that_persists_is_an_error_and_nothing_was_changed() -> None:
    with (
        simulated_portal(SEED, blocks=40, finality_depth=12, behind=Behind.CONFLICT) as portal,
        Rig(portal, patience=3) as rig,
    ):
        portal.sim.replicas[0].freeze(finality_rules_out_a_branch(portal, rig))
        before, rows, undone = rig.state, rig.rows, rig.seen(RolledBack)
        rig.fails("E1003")
        assert rig.seen(Waited) == 3
        assert (rig.state, rig.rows, rig.seen(RolledBack)) == (before, rows, undone)


def test_replicas_that_disagree_on_finality_never_lower_it() -> None:
    with simulated_portal(SEED, blocks=40, finality_depth=12, replicas=4) as portal:
        for index, shown in enumerate(
            [Finality.TRUE, Finality.LAGGING, Finality.HIDDEN, Finality.REGRESSED]
        ):
            portal.sim.replicas[index].report(shown, 5)
        with Rig(portal) as rig:
            rig.to_head()
            for _ in range(12):
                portal.extend(2)
                portal.finalize(portal.chain.head.number - 12)
                rig.to_head().check()
            marks = [event.state.finalized for event in rig.events if event.state.finalized]
            assert all(a.number <= b.number for a, b in pairwise(marks))
            assert len(set(marks)) > 4


def test_a_portal_that_stays_below_a_final_cursor_is_an_error_and_a_restart_is_safe() -> None:
    with simulated_portal(
        SEED, blocks=40, finality_depth=12, replicas=2, behind=Behind.CONFLICT
    ) as portal:
        portal.sim.replicas.pin(0, 9_999)
        with Rig(portal, patience=3) as rig:
            rig.to_head()
            portal.finalize(39)
            rig.until(lambda event: event.state.finalized == portal.chain.head.cursor)
            before = rig.state
            for replica in portal.sim.replicas:
                replica.lag(20)
            rig.fails("E1004")
            assert rig.state == before
            assert rig.seen(Waited) == 3
        for replica in portal.sim.replicas:
            replica.live()
        portal.extend(2)
        restart(portal, rig.store)


def test_a_violation_of_finality_is_refused_and_touches_nothing(portal: PortalServer) -> None:
    with Rig(portal) as rig:
        rig.to_head()
        before, rows = rig.state, rig.rows
        portal.chain.fork(15, 20, force=True)
        rig.fails("E1003")
        assert rig.state.finalized == before.finalized
        final = before.finalized
        assert final is not None
        kept = [row for row in rows if row[0] <= final.number]
        assert rig.rows[: len(kept)] == kept


# --- ranges ---------------------------------------------------------------------------------------


def stream_requests(portal: PortalServer) -> list[tuple[int | None, int | None]]:
    return [(one.from_block, one.to_block) for one in portal.ledger.stream_requests()]


def test_a_gap_between_ranges_is_watched_while_it_is_hot(portal: PortalServer) -> None:
    ranges = [BlockRange(5, 33), BlockRange(45)]  # final up to 27, the head is 39
    with Rig(portal, ranges=ranges) as rig:
        rig.until(lambda event: isinstance(event, Settled))
        assert rig.state.cursor == portal.chain.head.cursor  # six blocks of the gap
        watched = [e for e in portal.ledger.stream_requests() if e.to_block == 44]
        assert watched[0].from_block == 34
        assert watched[0].parent_block_hash == portal.chain.canonical(33, 33)[0].hash
        portal.fork(depth=10, length=20)  # below the gap, into the first range
        rig.to_head().check()
        assert rig.seen(RolledBack) == 1
        assert [row[0] for row in rig.rows if not 34 <= row[0] <= 44] == [
            *range(5, 34),
            *range(45, 50),
        ]
        assert not any(row[2] for row in rig.rows if 34 <= row[0] <= 44)


def test_a_gap_between_ranges_is_skipped_once_it_is_final(portal: PortalServer) -> None:
    with Rig(portal, ranges=[BlockRange(0, 8), BlockRange(20)]) as rig:
        rig.to_head().check()
    assert [row[0] for row in rig.rows] == [*range(9), *range(20, 40)]
    first = next(e for e in portal.ledger.stream_requests() if e.from_block == 20)
    assert first.parent_block_hash is None  # block 8 is not its predecessor
    assert all(asked[0] not in range(9, 20) for asked in stream_requests(portal))


def test_the_hot_end_of_the_last_range_is_checked_once() -> None:
    """By its number: a portal would hold the answer to a request for what follows back."""
    with (
        simulated_portal(SEED, blocks=40, finality_depth=12, no_content_delay=3600) as portal,
        Rig(portal, ranges=[BlockRange(0, 39)]) as rig,
    ):
        rig.to_end().check()
    asked = stream_requests(portal)
    assert asked.count((39, 39)) == 1
    assert all((first or 0) < 40 for first, _ in asked)


def test_the_final_end_of_the_last_range_needs_no_check(portal: PortalServer) -> None:
    with Rig(portal, ranges=[BlockRange(0, 20)]) as rig:
        rig.to_end().check()
    assert all((asked[0] or 0) <= 20 for asked in stream_requests(portal))


def test_a_fork_at_the_end_of_the_last_range_is_still_found(portal: PortalServer) -> None:
    with Rig(portal, ranges=[BlockRange(0, 39)]) as rig:
        last = portal.chain.head.cursor
        rig.until(lambda event: event.state.cursor == last)
        portal.fork(depth=3, length=5)
        rig.to_end().check()
        assert rig.seen(RolledBack) == 1
        assert rig.state.cursor == portal.chain.canonical(39, 39)[0].cursor
    tail = [e for e in portal.ledger.stream_requests() if e.from_block == 40]
    assert [e.status for e in tail] == [409]
    assert stream_requests(portal).count((39, 39)) == 2, "before the fork was known, and after"


def test_a_range_that_begins_before_the_dataset_is_refused_before_any_block_is_read() -> None:
    chain = ChainSim(SEED, start_block=1_000)
    chain.grow(20)
    with (
        simulated_portal(SEED, chain=chain) as portal,
        Rig(portal, ranges=[BlockRange(0)]) as rig,
    ):
        assert rig.fails("E3010").facts["missing"] == BlockRange(0, 999)
        assert stream_requests(portal) == []


def test_the_real_time_service_is_read_through_its_forks_and_refused_below_its_window() -> None:
    """One hint in a 409, no heads on 204, always compressed, a window that moves."""
    with (
        simulated_portal(SEED, blocks=90, surface="hotblocks", window=60) as portal,
        Rig(portal, ranges=[BlockRange(40)]) as rig,
    ):
        rig.to_head().check()
        for depth in (1, 2, 15):
            portal.fork(depth=depth, length=depth + 1)
            rig.to_head().check()
        last = rig.state.number
        portal.extend(100)
        assert rig.fails("E3010").facts["missing"] == BlockRange(last + 1, portal.sim.oldest - 1)


def test_finalized_reading_uses_its_own_route_and_waits_for_finality() -> None:
    with simulated_portal(SEED, blocks=40, finality_depth=12, blocks_per_answer=9) as portal:
        clock = VirtualClock(on_sleep=lambda seconds: portal.finalize(36))
        with Rig(portal, ranges=[BlockRange(0, 33)], finalized=True, clock=clock) as rig:
            rig.to_end().check()
            assert rig.state.cursor == portal.chain.canonical(33, 33)[0].cursor
            assert rig.seen(Settled) == 1
        assert {e.route for e in portal.ledger.stream_requests()} == {"finalized-stream"}


# --- slots without blocks -------------------------------------------------------------------------


def solana(blocks: int = 80) -> ChainSim:
    chain = ChainSim(SEED, network=Network.SOLANA, skipped_share=0.4)
    chain.grow(blocks)
    return chain


def slot_before_a_gap(chain: ChainSim, from_slot: int = 0) -> int:
    """Return a slot with a block whose next slot has none."""
    held = chain.canonical(from_slot)
    return next(a.number for a, b in pairwise(held) if b.number > a.number + 1)


def test_a_final_range_ends_though_its_last_slots_hold_no_block() -> None:
    chain = solana()
    last = slot_before_a_gap(chain, 20)
    chain.finalize(chain.head.number - 5)
    with simulated_portal(SEED, chain=chain) as portal:
        ranges = [BlockRange(0, last + 1)]
        with Rig(portal, ranges=ranges, query=SLOTS, watch=SLOTS) as rig:
            rig.to_end().check()
            assert rig.state.cursor == chain.at_or_below(last).cursor  # type: ignore[union-attr]
            assert rig.kinds() == [NoticeKind.EMPTY_TAIL]
        asked = [one for one in stream_requests(portal) if one[0] == last + 1]
        assert len(asked) == 2  # again with what follows, and not when the source is asked again


def test_a_hot_range_that_ends_in_skipped_slots_ends_once_they_are_final() -> None:
    chain = solana()
    chain.finalize(30)
    last = slot_before_a_gap(chain, 60)
    settle = VirtualClock()

    def finalize_in_time(seconds: float) -> None:
        if len(settle.sleeps) == 6:
            chain.finalize(chain.head.number - 1)

    settle.on_sleep = finalize_in_time
    with simulated_portal(SEED, chain=chain) as portal:
        ranges = [BlockRange(0, last + 1)]
        with Rig(portal, ranges=ranges, query=SLOTS, watch=SLOTS, clock=settle) as rig:
            rig.to_end().check()
            assert len(settle.sleeps) == 7
            assert rig.kinds() == [NoticeKind.EMPTY_TAIL]


def test_a_gap_that_ends_in_skipped_slots_leads_to_the_next_range() -> None:
    chain = solana()
    chain.finalize(20)
    last = slot_before_a_gap(chain, 60)
    clock = VirtualClock(on_sleep=lambda seconds: chain.finalize(chain.head.number - 1))
    with simulated_portal(SEED, chain=chain) as portal:
        ranges = [BlockRange(0, 50), BlockRange(last + 2)]
        with Rig(portal, ranges=ranges, query=SLOTS, watch=SLOTS, clock=clock) as rig:
            rig.to_head().check()
            assert rig.rows[-1][0] == chain.head.number


def test_a_gap_that_ends_in_skipped_slots_is_left_though_finality_is_unknown() -> None:
    chain = solana(2_500)
    last = slot_before_a_gap(chain, 60)
    with simulated_portal(SEED, chain=chain) as portal:
        for replica in portal.sim.replicas:
            replica.report(Finality.HIDDEN)
        ranges = [BlockRange(0, 50), BlockRange(last + 2, last + 40)]
        with Rig(portal, ranges=ranges, query=SLOTS, watch=SLOTS) as rig:
            rig.until(lambda event: (event.state.cursor or BlockCursor(0)).number > last + 1)
            rig.check()


@pytest.mark.guarantee("WIRE-4")
@pytest.mark.parametrize("later", [[], [BlockRange(300, 320)]], ids=["last", "followed"])
def test_far_behind_the_head_a_range_ends_though_its_last_slots_hold_no_block(
    later: list[BlockRange],
) -> None:
    chain = solana(400)
    last = slot_before_a_gap(chain, 60)
    chain.finalize(chain.head.number - 5)
    with simulated_portal(SEED, chain=chain) as portal:
        plan = [(one, SLOTS) for one in (BlockRange(0, last + 1), *later)]
        clock, target = VirtualClock(), MemoryTarget[Any]()
        with closing(PortalClient(portal.url, clock=clock, retry=STEADY)) as client:
            source = PortalSource(client, plan, watch=SLOTS, clock=clock, far=50, first_span=40)
            steps = Pipeline(source, target, PassesOn()).steps()
            for _ in steps:
                assert len(portal.ledger) < 100, str(portal.ledger)
        end = chain.at_or_below(320 if later else last)
        assert end is not None
        assert target.recover().cursor == end.cursor


def test_a_range_beyond_the_cursor_asks_nothing(portal: PortalServer) -> None:
    with closing(PortalClient(portal.url)) as client:
        plan = [(BlockRange(0, 10), HEADERS)]
        source = PortalSource(client, plan, watch=HEADERS)
        final = BlockCursor(10, portal.chain.canonical(10, 10)[0].hash)
        assert source.read(PipeState(final, final, (final,))) is None
        left = client.read(HEADERS, BlockRange(0, 10), final)
        assert list(left) == [RangeEnd(Head())]
    assert portal.ledger.stream_requests() == []


def test_events_tell_how_many_blocks_were_committed(portal: PortalServer) -> None:
    with Rig(portal) as rig:
        rig.to_head()
        counts = [event.blocks for event in rig.events if isinstance(event, Committed)]
        assert sum(counts) == 40
        assert counts[-2:] == [10, 2]  # hot blocks of one answer are committed together
        portal.extend(1)
        rig.to_head()
        assert [event.blocks for event in rig.events if isinstance(event, Committed)][-1] == 1
