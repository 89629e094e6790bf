import json
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from headwater.errors import InvalidOptionError
from headwater.testing import (
    CATALOGUE,
    Break,
    Delay,
    DropAfter,
    DropBeforeHeaders,
    DuplicateBlock,
    EmptyAnswer,
    EmptySample,
    Fault,
    FaultPlan,
    FinalityRegressed,
    ForeignBlock,
    GarbageLine,
    InvalidUtf8,
    MissingBlock,
    Network,
    NewestFirst,
    NoHeadHeaders,
    NonBlockLine,
    NoPreviousBlocks,
    PortalSim,
    RetryAfter,
    Rule,
    SampleBelowFinality,
    SampleOfOne,
    ShuffledSample,
    SimAnswer,
    StallAfter,
    StallBeforeHeaders,
    Status,
    SwappedBlocks,
    TornLine,
    WrongFinalityHash,
    fault_from_json,
)
from headwater.testing.faults import FAULTS, RETRYABLE_STATUSES, foreign_hash
from tests.unit.testing.asking import ask, chain_of, headers_of, look_up, numbers, sample_of


def hit(fault: Fault, from_block: int = 0, *, blocks: int = 30, **query: Any) -> SimAnswer:
    """Ask a portal whose first answer has this fault."""
    portal = PortalSim(chain_of(blocks, final=20), faults=FaultPlan([Rule(fault)]))
    answer = ask(portal, from_block, **query)
    assert answer.fault == fault
    return answer


# --- the connection -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (DropBeforeHeaders(), Break(stall=False)),
        (DropBeforeHeaders(reset=True), Break(stall=False, reset=True)),
        (StallBeforeHeaders(), Break(stall=True)),
        (DropAfter(100), Break(stall=False, after=100)),
        (DropAfter(100, reset=True), Break(stall=False, after=100, reset=True)),
        (StallAfter(0), Break(stall=True, after=0)),
    ],
)
def test_a_connection_breaks_where_the_fault_says(fault: Fault, broken: Break) -> None:
    answer = hit(fault)
    assert answer.broken == broken
    assert answer.sent == len(answer.read()) == (broken.after or 0)


@pytest.mark.parametrize("kind", [DropAfter, StallAfter])
def test_by_default_a_body_breaks_anywhere(kind: type[DropAfter | StallAfter]) -> None:
    portal = PortalSim(chain_of(30))
    portal.faults.add(kind(), times=None)
    answers = [ask(portal, 0) for _ in range(50)]
    ends = {answer.sent for answer in answers}
    assert len(ends) > 40
    assert max(ends) < answers[0].size


def test_a_break_in_the_body_waits_for_an_answer_that_has_one() -> None:
    portal = PortalSim(chain_of(5))
    portal.faults.add(DropAfter(3))
    assert ask(portal, 5).broken is None
    assert look_up(portal, "head").broken == Break(stall=False, after=3)


def test_a_delay_leaves_the_answer_right() -> None:
    answer = hit(Delay(2.5))
    assert (answer.status, answer.delay, len(numbers(answer))) == (200, 2.5, 30)


# --- statuses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [400, 404, 500, *RETRYABLE_STATUSES])
@pytest.mark.parametrize("retry_after", [None, *RetryAfter])
def test_a_status_comes_with_or_without_retry_after(
    code: int, retry_after: RetryAfter | None
) -> None:
    fault = Status(code, retry_after, seconds=7)
    portal = PortalSim(chain_of(5), faults=FaultPlan([Rule(fault)]))
    answer = ask(portal, 0, now=1_800_000_000.0)
    assert answer.status == code
    value = answer.headers.get("retry-after")
    match retry_after:
        case None:
            assert value is None
        case RetryAfter.SECONDS:
            assert value == "7"
        case RetryAfter.DATE:
            assert value is not None
            assert parsedate_to_datetime(value).timestamp() == 1_800_000_007
        case RetryAfter.GARBAGE:
            assert value is not None
            assert not value.isdigit()
    assert not any(name.startswith("x-sqd-finalized") for name in answer.headers)


# --- lines ----------------------------------------------------------------------------------------


def test_a_torn_line_ends_the_body_inside_a_line() -> None:
    body = hit(TornLine(at=4)).read()
    *whole, torn = body.split(b"\n")
    assert [json.loads(line)["header"]["number"] for line in whole] == [0, 1, 2, 3]
    assert torn.startswith(b'{"header"'[: len(torn)])
    with pytest.raises(ValueError, match=r"."):
        json.loads(torn)


def test_a_garbage_line_is_no_json() -> None:
    lines = hit(GarbageLine(at=2)).read().splitlines()
    assert len(lines) == 30
    with pytest.raises(ValueError, match=r"."):
        json.loads(lines[2])


def test_invalid_utf8_cannot_be_decoded() -> None:
    lines = hit(InvalidUtf8(at=2)).read().splitlines()
    with pytest.raises(UnicodeDecodeError):
        lines[2].decode()


def test_a_non_block_line_is_json_without_a_header() -> None:
    assert "header" not in json.loads(hit(NonBlockLine(at=2)).read().splitlines()[2])


def test_blocks_can_be_doubled_left_out_or_swapped() -> None:
    assert numbers(hit(DuplicateBlock(at=3), blocks=6)) == [0, 1, 2, 3, 3, 4, 5]
    assert numbers(hit(MissingBlock(at=3), blocks=6)) == [0, 1, 2, 4, 5]
    assert numbers(hit(SwappedBlocks(at=3), blocks=6)) == [0, 1, 2, 4, 3, 5]


def test_a_missing_block_is_never_the_first_or_the_last() -> None:
    portal = PortalSim(chain_of(4))
    portal.faults.add(MissingBlock(), times=None)
    seen = {tuple(numbers(ask(portal, 0))) for _ in range(40)}
    assert seen == {(0, 2, 3), (0, 1, 3)}
    assert numbers(ask(portal, 2)) == [2, 3]


def test_any_line_can_be_hit() -> None:
    portal = PortalSim(chain_of(5))
    portal.faults.add(DuplicateBlock(), times=None)
    assert len({tuple(numbers(ask(portal, 0))) for _ in range(60)}) == 5


@pytest.mark.parametrize("network", Network)
def test_a_foreign_block_has_hashes_that_belong_to_nobody(network: Network) -> None:
    chain = chain_of(10, network=network)
    portal = PortalSim(chain, faults=FaultPlan([Rule(ForeignBlock(at=4))]))
    headers = headers_of(ask(portal, 0))
    honest = chain.canonical()[4]
    assert headers[4]["number"] == honest.number
    assert chain.find(headers[4]["hash"]) is None
    assert len(headers[4]["hash"]) == len(honest.hash)
    assert headers[4]["parentHash"] != honest.parent_hash
    assert headers[5]["parentHash"] == honest.hash


@pytest.mark.parametrize("block_hash", ["0x" + "1" * 64, "0x" + "0" * 64, "1" * 44, "0xabcd"])
def test_a_foreign_hash_is_always_another(block_hash: str) -> None:
    other = foreign_hash(block_hash)
    assert other != block_hash
    assert len(other) == len(block_hash)
    assert other.startswith("0x") == block_hash.startswith("0x")


def test_an_empty_answer_has_no_line_but_a_head() -> None:
    answer = hit(EmptyAnswer())
    assert (answer.status, answer.read()) == (200, b"")
    assert answer.headers["x-sqd-head-number"] == "29"


# --- conflicts ------------------------------------------------------------------------------------


def test_a_conflict_can_name_no_block_one_block_or_old_blocks() -> None:
    assert sample_of(hit(EmptySample(), 25, parentBlockHash="0x1")) == []
    assert [number for number, _ in sample_of(hit(SampleOfOne(), 25, parentBlockHash="0x1"))] == [
        24
    ]
    old = sample_of(hit(SampleBelowFinality(), 25, parentBlockHash="0x1"))
    assert [number for number, _ in old] == list(range(20))


def test_a_conflict_can_lack_its_sample() -> None:
    answer = hit(NoPreviousBlocks(), 25, parentBlockHash="0x1")
    assert answer.status == 409
    assert "previousBlocks" not in json.loads(answer.read())


def test_a_sample_can_come_newest_first_or_in_no_order() -> None:
    honest = sample_of(ask(PortalSim(chain_of(30, final=20)), 25, parentBlockHash="0x1"))
    assert sample_of(hit(NewestFirst(), 25, parentBlockHash="0x1")) == honest[::-1]
    shuffled = sample_of(hit(ShuffledSample(), 25, parentBlockHash="0x1"))
    assert shuffled != honest
    assert sorted(shuffled) == honest


def test_a_conflict_is_made_up_only_if_forced() -> None:
    portal = PortalSim(chain_of(30, final=20))
    portal.faults.add(SampleOfOne())
    assert ask(portal, 5).status == 200
    portal.faults.add(SampleOfOne(forced=True))
    assert sample_of(ask(portal, 30)) == [(29, portal.chain.head.hash)]
    assert ask(portal, 5, parentBlockHash="0x1").fault == SampleOfOne()


def test_old_blocks_can_only_be_shown_where_there_is_finality() -> None:
    portal = PortalSim(chain_of(30))
    portal.faults.add(SampleBelowFinality(forced=True))
    assert ask(portal, 5).status == 200
    portal.chain.finalize(10)
    assert [number for number, _ in sample_of(ask(portal, 5))] == list(range(10))


# --- the head -------------------------------------------------------------------------------------


def test_the_finalized_head_can_be_wrong_old_or_absent() -> None:
    chain = chain_of(30, final=20)
    final = chain.finalized
    assert final is not None
    wrong = hit(WrongFinalityHash()).headers
    assert wrong["x-sqd-finalized-head-number"] == "20"
    assert wrong["x-sqd-finalized-head-hash"] != final.hash
    old = hit(FinalityRegressed(by=6)).headers
    assert old["x-sqd-finalized-head-number"] == "14"
    assert old["x-sqd-finalized-head-hash"] == chain.canonical(14, 14)[0].hash
    assert hit(FinalityRegressed(by=600)).headers["x-sqd-finalized-head-number"] == "0"
    absent = hit(NoHeadHeaders()).headers
    assert not any(name.startswith("x-sqd") and "head" in name for name in absent)


def test_the_head_of_an_answer_without_blocks_can_be_hit_too() -> None:
    portal = PortalSim(chain_of(30, final=20))
    portal.faults.add(FinalityRegressed())
    assert ask(portal, 30).headers["x-sqd-finalized-head-number"] == "10"


# --- plans ----------------------------------------------------------------------------------------


def statuses(portal: PortalSim, count: int, from_block: int = 0) -> list[int]:
    return [ask(portal, from_block).status for _ in range(count)]


def test_a_rule_waits_for_its_turn_and_stops_after_its_times() -> None:
    portal = PortalSim(chain_of(5))
    portal.faults.add(Status(503), nth=3, times=2)
    assert statuses(portal, 6) == [200, 200, 503, 503, 200, 200]
    assert portal.faults.rules == []


def test_a_rule_without_limit_never_stops_until_cleared() -> None:
    portal = PortalSim(chain_of(5))
    portal.faults.add(Status(500), times=None)
    assert statuses(portal, 3) == [500] * 3
    portal.faults.clear()
    assert statuses(portal, 1) == [200]


def test_a_rule_can_look_at_route_position_and_more() -> None:
    portal = PortalSim(chain_of(50))
    portal.faults.add(Status(500), route="head")
    portal.faults.add(Status(502), from_block=(10, 20))
    portal.faults.add(Status(503), from_block=(40, None))
    portal.faults.add(Status(504), where=lambda asked: asked.parent_block_hash == "0x1")
    assert ask(portal, 0).status == 200
    assert ask(portal, 21).status == 200
    assert ask(portal, 20).status == 502
    assert ask(portal, 41).status == 503
    assert ask(portal, 5, parentBlockHash="0x1").status == 504
    assert look_up(portal, "finalized-head").status == 200
    assert look_up(portal, "head").status == 500


def test_the_first_rule_that_fires_wins_and_the_others_wait() -> None:
    portal = PortalSim(chain_of(5))
    portal.faults.add(Status(500)).add(Status(503))
    assert statuses(portal, 3) == [500, 503, 200]


def test_probability_is_repeatable_by_seed() -> None:
    def run(seed: int) -> list[int]:
        plan = FaultPlan([Rule(Status(503), probability=0.3, times=None)], seed=seed)
        return statuses(PortalSim(chain_of(5), faults=plan), 200)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert 30 < run(1).count(503) < 90


def test_a_random_plan_reaches_every_fault_of_the_catalogue() -> None:
    chain = chain_of(40, final=20)
    portal = PortalSim(chain, faults=FaultPlan.random(3, 0.9))
    kinds: set[str] = set()
    wanted = {200, 400, 404, 409, 500, *RETRYABLE_STATUSES}
    for turn in range(6000):
        anchor: dict[str, Any] = {"parentBlockHash": "0x1"} if turn % 2 else {}
        ask(portal, 30, **anchor)
        if turn % 500 == 499:
            names = portal.ledger.faults()
            kinds = {name.split("-")[0] if name[:6] == "status" else name for name in names}
            if kinds == set(FAULTS) and set(portal.ledger.statuses()) >= wanted:
                break
    assert kinds == set(FAULTS)
    assert set(portal.ledger.statuses()) >= wanted


def test_a_random_plan_keeps_to_its_rates() -> None:
    plan = FaultPlan.random(3, {"overloaded": 0.5, "torn-line": 0.0})
    portal = PortalSim(chain_of(5), faults=plan)
    share = sum(status != 200 for status in statuses(portal, 600)) / 600
    assert 0.35 < share < 0.6
    assert not any(name == "torn-line" for name in portal.ledger.faults())


def test_a_random_plan_refuses_names_it_does_not_know() -> None:
    with pytest.raises(InvalidOptionError, match="gremlins"):
        FaultPlan.random(1, {"gremlins": 0.5})


def test_every_fault_is_explained_named_and_in_the_catalogue() -> None:
    listed = {type(fault) for group in CATALOGUE.values() for fault in group}
    assert listed == set(FAULTS.values())
    for name, kind in FAULTS.items():
        assert kind.__doc__
        assert name == name.lower()
        assert "(" not in kind.__doc__.splitlines()[0][:20]


def test_a_fault_can_be_written_as_json() -> None:
    assert fault_from_json({"fault": "torn-line", "at": 3}) == TornLine(3)
    written = {"fault": "status", "code": 529, "retry_after": "date"}
    assert fault_from_json(written) == Status(529, RetryAfter.DATE)
    for wrong in (
        {},
        {"fault": 7},
        {"fault": "gremlins"},
        {"fault": "torn-line", "colour": "red"},
        {"fault": "torn-line", "at": "third"},
        {"fault": "line-fault"},
    ):
        with pytest.raises(InvalidOptionError):
            fault_from_json(wrong)


def test_a_fault_shows_what_is_unusual_about_it() -> None:
    assert str(TornLine()) == "torn-line"
    assert str(TornLine(at=3)) == "torn-line(at=3)"
    assert str(Status(503)) == "status-503"
    assert str(Status(529, RetryAfter.SECONDS, 4)) == "status-529(retry_after=seconds, seconds=4)"
