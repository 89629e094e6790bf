"""A list of sources: which one is asked, and what is never believed of one that is not ours."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from headwater.address import HttpAddress
from headwater.core import BlockCursor, BlockRange, Blocks, Fork
from headwater.errors import (
    InvalidOptionError,
    MalformedLineError,
    MissingBlocksError,
    NetworkError,
    NodeLacksError,
    PortalHttpError,
    PortalUnreachableError,
    PortalUrlError,
    TransportError,
)
from headwater.portal import (
    LineSplitter,
    Notice,
    NoticeKind,
    PortalClient,
    Request,
    Response,
    RetryPolicy,
    Sources,
    SourcesTransport,
    Timeouts,
    source_address,
)
from headwater.query import EvmQuery
from headwater.testing import ChainSim, PortalSim
from headwater.testing.faults import GarbageLine, Status
from headwater.testing.portal.dataset import SimTransport, VirtualClock
from headwater.testing.portal.replicas import Finality
from tests.shared import at_once

LAG_S, PROVE_S, PROBE_S = 20.0, 60.0, 10.0
EVERY_BLOCK = EvmQuery(include_all_blocks=True)


@dataclass
class Rig:
    """A list of simulated portals, and a client that reads it."""

    portals: Sequence[PortalSim]
    down: set[int] = field(default_factory=set)
    lacking: set[int] = field(default_factory=set)
    notices: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        addresses = [f"http://{place}" for place in range(len(self.portals))]
        self.sources = SourcesTransport(
            Sources(addresses, lag_s=LAG_S, prove_s=PROVE_S, probe_s=PROBE_S),
            self.open,
            clock=self.clock.monotonic,
            spawn=at_once,
            notify=self.notices.append,
        )
        self.client = PortalClient(
            self.sources,
            clock=self.clock,
            retry=RetryPolicy(jitter=0),
            on_notice=self.notices.append,
            headers=EvmQuery(),
        )

    def open(self, address: HttpAddress, timeouts: Timeouts | None, hold_s: float | None) -> Cut:
        return Cut(
            self, int(address.host), SimTransport(self.portals[int(address.host)], self.clock)
        )

    def read(
        self, first: int, last: int, after: BlockCursor | None = None, *, finalized: bool = False
    ) -> list[str]:
        """Return the hashes of a range."""
        hashes: list[str] = []
        for answer in self.client.read(
            EVERY_BLOCK, BlockRange(first, last), after, finalized=finalized, attempts=3
        ):
            assert not isinstance(answer, Fork), answer
            if isinstance(answer, Blocks):
                hashes += [header.hash for header in answer.headers]
        return hashes

    def wait(self, seconds: float) -> None:
        """Let time pass in steps, with a question in each, as a stream at the head does."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.client.head()

    @property
    def used(self) -> int:
        return next(place for place, one in enumerate(self.sources.states()) if one.in_use)

    def verdicts(self) -> list[str]:
        return [one.verdict for one in self.sources.states()]


class Cut:
    """The transport of one source, which may be down, or lack what it is asked for."""

    def __init__(self, rig: Rig, place: int, transport: SimTransport) -> None:
        self._rig, self._place, self._transport = rig, place, transport
        self.close = transport.close

    def send(self, request: Request) -> Response:
        if self._place in self._rig.down:
            raise TransportError("the connection failed", reason="refused")
        if self._place in self._rig.lacking and request.body is not None:
            raise NodeLacksError("a node is not asked for this", lacks="traces")
        return self._transport.send(request)

    def abort(self) -> None:
        """Nothing waits."""


def grown(seed: int = 1, blocks: int = 60, final: int = 40) -> ChainSim:
    chain = ChainSim(seed)
    chain.grow(blocks)
    chain.finalize(final)
    return chain


def several(count: int = 2, chain: ChainSim | None = None) -> Rig:
    shared = chain or grown()
    return Rig([PortalSim(shared, seed=place) for place in range(count)])


def hashes_of(chain: ChainSim, first: int, last: int) -> list[str]:
    return [block.hash for block in chain.canonical(first, last)]


# --- which one is asked ---------------------------------------------------------------------------


def test_the_first_of_a_list_is_read_while_it_works() -> None:
    rig = several(3)
    assert rig.read(0, 50) == hashes_of(rig.portals[0].chain, 0, 50)
    assert rig.used == 0
    assert not any(one.from_block is not None for one in rig.portals[1].ledger)


@pytest.mark.guarantee("SOURCE-1")
def test_a_source_that_goes_down_between_two_answers_is_left_behind_the_last_good_block() -> None:
    chain = grown()
    rig = Rig([PortalSim(chain, seed=one, blocks_per_answer=7) for one in range(2)])
    hashes = []
    for answer in rig.client.read(EVERY_BLOCK, BlockRange(0, 50)):
        if isinstance(answer, Blocks):
            hashes += [header.hash for header in answer.headers]
            rig.down = {0} if answer.headers[-1].number < 25 else {1}
    assert hashes == hashes_of(chain, 0, 50)
    asked = [one for one in rig.portals[1].ledger if one.parent_block_hash]
    assert asked
    assert asked[0].parent_block_hash == chain.canonical(6, 6)[0].hash
    assert [n for n in rig.notices if n.kind is NoticeKind.SOURCE_CHANGED]
    assert not [n for n in rig.notices if n.kind is NoticeKind.RETRYING], "nobody had to wait"


def test_a_source_that_comes_back_proves_itself_before_it_is_read_again() -> None:
    rig = several()
    rig.read(0, 10)
    rig.down = {0}
    rig.wait(2)
    assert rig.used == 1
    rig.down = set()
    rig.wait(PROVE_S - PROBE_S)
    assert rig.used == 1
    rig.wait(PROVE_S)
    assert rig.used == 0


def test_a_source_that_fails_again_and_again_is_trusted_later_each_time() -> None:
    rig = several()
    rig.read(0, 10)
    waits = []
    for _ in range(4):
        rig.down = {0}
        rig.wait(2)
        rig.down, waited = set(), 0
        while rig.used != 0:
            rig.wait(1)
            waited += 1
        waits.append(waited)
    assert waits == sorted(waits)
    assert waits[-1] > 3 * waits[0]


def test_the_one_that_works_is_kept_if_the_better_one_fails_while_it_proves_itself() -> None:
    rig = several()
    rig.read(0, 10)
    rig.down = {0}
    rig.wait(2)
    for _ in range(10):
        rig.down = set()
        rig.wait(PROVE_S / 2)
        rig.down = {0}
        rig.wait(PROBE_S * 2)
        assert rig.used == 1


def test_a_source_that_lags_is_left_for_one_that_does_not() -> None:
    rig = several()
    chain = rig.portals[0].chain
    rig.read(0, 10)
    rig.portals[0].replicas[0].freeze()
    for _ in range(int(LAG_S * 2)):
        chain.extend(1)
        rig.wait(1)
    assert rig.used == 1
    assert rig.verdicts()[0] == "lagging"
    assert "its head is 60" in rig.sources.states()[0].reason
    for _ in range(int(LAG_S * 3)):
        chain.extend(1)
        rig.wait(1)
    assert rig.verdicts()[0] == "stale"


def test_a_source_a_few_blocks_behind_the_others_stays_in_use() -> None:
    rig = several()
    chain = rig.portals[0].chain
    rig.portals[0].replicas[0].lag(5)
    for _ in range(200):
        chain.extend(1)
        rig.wait(1)
    assert rig.used == 0
    assert not [n for n in rig.notices if n.kind is NoticeKind.SOURCE_CHANGED]


def test_a_chain_that_stands_still_is_no_reason_to_leave_a_source() -> None:
    rig = several()
    rig.read(0, 10)
    rig.wait(1000)
    assert rig.used == 0
    assert rig.verdicts() == ["good", "good"]


def test_a_head_without_blocks_below_it_does_not_win() -> None:
    rig = several()
    chain = rig.portals[0].chain
    liar = rig.sources._panel
    for second in range(int(LAG_S) + 2):
        liar.sent(0, float(second), 61, blocks=False)
        liar.showed(0, float(second), 10**9, None)
    liar.review(LAG_S + 2)
    assert rig.verdicts()[0] == "stale"
    rig.clock.advance(LAG_S + 2)
    assert rig.read(0, 20) == hashes_of(chain, 0, 20)
    assert rig.used == 1


def test_what_a_source_sends_that_is_no_chain_is_read_from_the_next_one() -> None:
    chain = grown()
    rig = Rig([PortalSim(chain, seed=one, blocks_per_answer=7) for one in range(2)])
    rig.portals[0].faults.add(GarbageLine(), times=None, probability=1.0)
    assert rig.read(0, 50) == hashes_of(chain, 0, 50)
    assert rig.used == 1
    assert "not a block" in rig.sources.states()[0].reason


def test_a_head_that_cannot_be_read_is_asked_of_the_next_one() -> None:
    rig = several()
    rig.client.metadata()
    garbled = Status(200, text="{not json")
    rig.portals[0].faults.add(garbled, times=None, where=lambda asked: asked.route == "head")
    head = rig.client.head()
    assert head is not None
    assert head.number == 60
    assert rig.used == 1


def test_if_all_send_what_is_no_chain_the_error_is_raised() -> None:
    rig = several()
    for portal in rig.portals:
        portal.faults.add(GarbageLine(), times=None, probability=1.0)
    with pytest.raises(MalformedLineError, match="E3003"):
        rig.read(0, 50)


# --- what a source lacks --------------------------------------------------------------------------


def test_blocks_that_one_source_does_not_have_any_more_are_read_from_another() -> None:
    chain = grown()
    rig = Rig([PortalSim(chain, surface="hotblocks", window=15), PortalSim(chain, seed=1)])
    assert rig.read(0, 55) == hashes_of(chain, 0, 55)
    assert rig.client.metadata().start_block == 0


def test_blocks_that_no_source_has_any_more_are_an_error_that_says_so() -> None:
    chain = grown()
    rig = Rig([PortalSim(chain, surface="hotblocks", window=15, seed=one) for one in range(2)])
    with pytest.raises(MissingBlocksError, match="E3010"):
        rig.read(0, 55)


def test_a_query_that_one_source_refuses_is_answered_by_another() -> None:
    rig = several()
    rig.lacking = {0}
    assert rig.read(0, 55) == hashes_of(rig.portals[0].chain, 0, 55)
    rig.lacking = {0, 1}
    with pytest.raises(NodeLacksError, match="E3011"):
        rig.read(0, 55)


def test_a_query_that_all_refuse_ends_with_the_words_of_the_first() -> None:
    rig = several()
    for portal in rig.portals:
        refusal = Status(400, text="unknown field")
        portal.faults.add(refusal, times=None, where=lambda asked: asked.from_block is not None)
    with pytest.raises(PortalHttpError, match=r"E3001.*400.*unknown field"):
        rig.read(0, 55)


def test_final_blocks_are_asked_of_a_source_that_knows_which_are_final() -> None:
    rig = several()
    rig.portals[0].replicas[0].report(Finality.HIDDEN)
    final = rig.client.finalized_head()
    assert final is not None
    assert final.number == 40
    assert rig.read(0, 40, finalized=True) == hashes_of(rig.portals[0].chain, 0, 40)


def test_if_none_knows_what_is_final_the_list_has_no_finality() -> None:
    rig = several()
    for portal in rig.portals:
        portal.replicas[0].report(Finality.HIDDEN)
    assert rig.client.finalized_head() is None
    rig.down = {1}
    assert rig.client.finalized_head() is None, "one that is away is not waited for"


def test_times_are_searched_by_headers_whatever_source_is_read() -> None:
    rig = several()
    block = rig.portals[0].chain.canonical(31, 31)[0]
    for down in (set[int](), {0}, {1}):
        rig.down = down
        rig.client._blocks_at.clear()
        assert rig.client.block_at(block.timestamp) == 31


# --- what is not our chain ------------------------------------------------------------------------


class OfChain(PortalSim):
    """A portal that names the chain that it holds."""

    chain_id = 1

    def respond(self, request: Request, *args: object, **options: object):  # type: ignore[no-untyped-def]
        answer = super().respond(request, *args, **options)  # type: ignore[arg-type]
        if request.route.startswith("metadata"):
            said = json.loads(b"".join(answer.chunks()))
            said["metadata"] = {"kind": "evm", "evm": {"chain_id": self.chain_id}}
            answer = type(answer)(200, {}, (json.dumps(said).encode(),))
        return answer


@pytest.mark.guarantee("SOURCE-2")
def test_a_list_with_another_network_is_refused_before_anything_is_read() -> None:
    rig = Rig([OfChain(grown()), OfChain(grown(seed=2))])
    rig.portals[1].chain_id = 137  # type: ignore[attr-defined]
    with pytest.raises(NetworkError, match=r"E1009|different networks") as refused:
        rig.client.metadata()
    assert "chain id 137, not 1" in str(refused.value)


@pytest.mark.guarantee("SOURCE-2")
def test_another_network_that_was_away_at_the_start_is_never_read() -> None:
    rig = Rig([OfChain(grown()), OfChain(grown(seed=2))], down={1})
    rig.portals[1].chain_id = 137  # type: ignore[attr-defined]
    rig.read(0, 10)
    rig.down = {0}
    with pytest.raises(PortalUnreachableError, match=r"E3002.*none of the 2 sources"):
        rig.read(11, 20)
    assert rig.verdicts() == ["failing", "foreign"]
    assert not [one for one in rig.portals[1].ledger if one.from_block]


@pytest.mark.guarantee("SOURCE-2")
def test_a_chain_that_contradicts_our_final_block_is_never_read() -> None:
    rig = Rig([PortalSim(grown()), PortalSim(grown(seed=2))])
    rig.read(0, 50)
    rig.sources.trust(rig.portals[0].chain.canonical(40, 40)[0].cursor)
    rig.down = {0}
    with pytest.raises(PortalUnreachableError):
        rig.read(51, 55)
    assert "contradicts our final block 40" in rig.sources.states()[1].reason
    rig.down = set()
    assert rig.read(51, 55) == hashes_of(rig.portals[0].chain, 51, 55)


def test_executors_begin_with_the_source_that_works() -> None:
    rig = several(3)
    addresses = Sources([f"http://{place}" for place in range(3)], lag_s=LAG_S)
    assert rig.client.best_first(addresses) == addresses
    rig.read(0, 10)
    rig.down = {0}
    rig.read(11, 20)
    best = rig.client.best_first(addresses)
    assert str(best) == "http://1, http://2, http://0"
    one = source_address("http://a")
    assert rig.client.best_first(one) is one


@pytest.mark.guarantee("SOURCE-2")
def test_executors_know_the_network_of_the_driver() -> None:
    rig = Rig([OfChain(grown()), OfChain(grown(seed=2))], down={0})
    rig.portals[1].chain_id = 137  # type: ignore[attr-defined]
    known = PortalClient(SimTransport(rig.portals[0], rig.clock)).metadata()
    rig.sources._panel.network = known
    with pytest.raises(PortalUnreachableError):
        rig.read(0, 10, finalized=True)


def test_a_source_on_another_branch_answers_with_a_fork() -> None:
    chain = grown()
    rig = Rig([PortalSim(chain), PortalSim(chain, seed=1)])
    rig.portals[1].replicas[0].freeze()
    chain.fork(5, 9)
    rig.read(0, 62)
    rig.down = {0}
    ours = chain.canonical(60, 60)[0].cursor
    answers = rig.client.read(EVERY_BLOCK, BlockRange(61, 62), ours)
    fork = next(one for one in answers if isinstance(one, Fork))
    assert ours not in fork.previous_blocks
    assert chain.canonical(50, 50)[0].cursor in fork.previous_blocks


# --- all of them, and addresses -------------------------------------------------------------------


def test_if_none_answers_the_error_names_each_and_why() -> None:
    rig = several(3)
    rig.read(0, 10)
    rig.down = {0, 1, 2}
    with pytest.raises(PortalUnreachableError) as failed:
        rig.read(11, 20)
    for place in range(3):
        assert f"{place + 1} http://{place}" in str(failed.value)
    assert str(failed.value).count("refused") >= 3
    rig.down = {0, 2}
    assert rig.read(11, 20) == hashes_of(rig.portals[0].chain, 11, 20)


def test_the_shortest_way_back_is_taken_when_all_were_away() -> None:
    rig = several()
    rig.read(0, 10)
    rig.down = {0, 1}
    with pytest.raises(PortalUnreachableError):
        rig.client.head()
    rig.down = {1}
    assert rig.client.head() is not None
    assert rig.used == 0


def test_addresses_are_a_list_a_text_with_spaces_or_one() -> None:
    assert isinstance(source_address("http://a"), HttpAddress)
    assert isinstance(source_address(["http://a"]), HttpAddress)
    several_of_them = source_address("http://a  rpc+https://b/key")
    assert several_of_them == source_address(["http://a", "rpc+https://b/key"])
    assert pickle.loads(pickle.dumps(several_of_them)) == several_of_them


@pytest.mark.parametrize(
    "wrong", [[], ["http://a", "http://a"], [["http://a", "http://b"]], {"a": "http://a"}, 5]
)
def test_a_list_that_is_none_is_refused(wrong: object) -> None:
    with pytest.raises((InvalidOptionError, PortalUrlError)):
        source_address(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="lag_s"):
        Sources(["http://a", "http://b"], lag_s=0)


def test_addresses_of_a_list_show_no_secret_and_name_the_place_of_what_is_wrong() -> None:
    good = source_address(
        ["https://ann:hunter22@a.example/x?key=topsecret", "rpc+https://b/the-key"]
    )
    for text in (str(good), repr(good), f"{good}"):
        assert not {"hunter22", "topsecret", "the-key"} & set(text.replace("/", " ").split())
        assert "hunter22" not in text
        assert "the-key" not in text
        assert "topsecret" not in text
    assert good.has_secrets
    with pytest.raises(PortalUrlError, match="source=2 of 2") as wrong:
        source_address(["http://a", "ftp://user:hunter22@b"])
    assert "hunter22" not in str(wrong.value)


def test_a_client_of_a_list_travels_and_knows_its_addresses_alone() -> None:
    with PortalClient("http://a http://b") as client:
        client._conditions.transport.pass_over("told so")  # type: ignore[attr-defined]
        with pickle.loads(pickle.dumps(client)) as copy:
            sources = copy._conditions.transport
            assert [one.source for one in sources.states()] == ["1 http://a", "2 http://b"]
            assert [one.verdict for one in sources.states()] == ["unknown", "unknown"]
            assert copy._sources is sources


def test_lines_of_an_answer_arrive_as_they_were_sent() -> None:
    rig = several()
    query = EVERY_BLOCK.body(0, 9)
    rig.client.metadata()
    with_list = rig.sources.send(Request("POST", "stream", query))
    alone = SimTransport(rig.portals[0], rig.clock).send(Request("POST", "stream", query))
    assert with_list.status == alone.status
    bodies = [b"".join(one.chunks()) for one in (with_list, alone)]
    assert bodies[0] == bodies[1]
    assert len(LineSplitter().feed(bodies[0])) == 10


def test_a_fork_among_final_blocks_is_no_answer_while_another_source_has_them() -> None:
    chain = grown()
    rig = Rig([PortalSim(chain, surface="hotblocks"), PortalSim(chain, seed=1)])
    rig.portals[0].replicas[0].freeze()
    chain.fork(10, 15)
    chain.finalize(58)
    ours = chain.canonical(55, 55)[0].cursor
    assert rig.read(56, 58, ours, finalized=True) == hashes_of(chain, 56, 58)
    assert rig.used == 1
