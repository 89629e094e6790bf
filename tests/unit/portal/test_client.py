"""Questions, metadata and options of `PortalClient`."""

import logging
import math
import pickle
import random
from datetime import UTC, datetime

import pytest

from headwater.core import AtHead, BlockCursor, BlockRange, RangeSpec, parse_ranges
from headwater.core.ranges import At
from headwater.errors import (
    InvalidOptionError,
    MalformedAnswerError,
    MissingBlocksError,
    PortalHttpError,
    PortalUnreachableError,
    PortalUrlError,
    TimestampError,
)
from headwater.portal import Notice, NoticeKind, PortalClient, RetryPolicy, log_notice
from headwater.portal.wire import Dataset
from tests.unit.portal.scripted import LOST, AnyQuery, Harness, Reply, lines

METADATA = b'{"dataset":"eth","real_time":true,"start_block":5,"metadata":{"kind":"evm"}}'


def routes(portal: Harness) -> list[str]:
    return [request.route for request in portal.transport.requests]


# --- questions


def test_metadata_is_asked_once() -> None:
    portal = Harness([Reply(body=[METADATA])], dataset=None)
    expected = Dataset("eth", real_time=True, start_block=5, kind="evm")
    assert portal.client.metadata() == portal.client.metadata() == expected
    assert routes(portal) == ["metadata?expand[]=metadata"]
    assert portal.transport.requests[0].method == "GET"


def test_heads_are_asked_each_time() -> None:
    portal = Harness(
        [Reply(body=[b'{"number":9,"hash":"0x9"}']), Reply(body=[b"null"]), Reply(204)]
    )
    assert portal.client.head() == BlockCursor(9, "0x9")
    assert portal.client.finalized_head() is None
    assert portal.client.head() is None
    assert routes(portal) == ["head", "finalized-head", "head"]


def test_a_block_is_found_by_time() -> None:
    portal = Harness([Reply(body=[b'{"block_number":77}'])])
    assert portal.client.block_at(1_700_000_000) == 77
    assert routes(portal) == ["timestamps/1700000000/block"]


NOW = 1_700_001_000  # of the virtual clock
NO_BLOCK = Reply(404, [b"no block that late"], {"retry-after": "soon"})
FIRST_BLOCK = Reply(body=[b'{"block_number":0}'])
HEAD = Reply(body=[b'{"number":9,"hash":"h"}'])


def test_a_time_after_the_head_has_no_block_yet() -> None:
    portal = Harness([NO_BLOCK, FIRST_BLOCK])
    assert portal.client.block_at(NOW) is None
    with pytest.raises(PortalHttpError, match="400"):
        Harness([Reply(400)]).client.block_at(5)


@pytest.mark.guarantee("RANGE-2")
@pytest.mark.parametrize("ahead_s", [-3600, 0, 14 * 3600])
def test_a_range_from_a_time_after_the_head_begins_with_the_next_block(ahead_s: int) -> None:
    """`datetime.now()`, also of a zone that was left out."""
    (spec,) = parse_ranges(datetime.fromtimestamp(NOW + ahead_s, UTC))
    portal = Harness([NO_BLOCK, FIRST_BLOCK, HEAD, NO_BLOCK])
    assert portal.client.resolve_range(spec) == BlockRange(10)


@pytest.mark.guarantee("RANGE-2")
def test_a_block_that_comes_while_the_head_is_asked_for_is_not_skipped() -> None:
    (spec,) = parse_ranges(datetime.fromtimestamp(NOW, UTC))
    late = Reply(body=[b'{"block_number":8}'])
    portal = Harness([NO_BLOCK, FIRST_BLOCK, HEAD, late])
    assert portal.client.resolve_range(spec) == BlockRange(8)


def test_a_range_up_to_now_ends_with_the_head() -> None:
    (spec,) = parse_ranges((5, datetime.fromtimestamp(NOW, UTC)))
    portal = Harness([NO_BLOCK, FIRST_BLOCK, HEAD, NO_BLOCK])
    assert portal.client.resolve_range(spec) == BlockRange(5, 9)


@pytest.mark.parametrize(
    ("written", "script"),
    [
        (datetime.fromtimestamp(NOW + 100_000, UTC), [NO_BLOCK, FIRST_BLOCK]),
        ((5, datetime.fromtimestamp(NOW + 600, UTC)), [NO_BLOCK, FIRST_BLOCK]),
        ("2020-01-01", [NO_BLOCK, NO_BLOCK]),
    ],
    ids=["begins in the future", "ends in the future", "a portal that knows no times"],
)
def test_a_time_without_a_block_is_its_own_error_where_it_cannot_mean_the_head(
    written: object, script: list[Reply]
) -> None:
    (spec,) = parse_ranges(written)
    with pytest.raises(TimestampError, match=r"\[E3008\]"):
        Harness(script).client.resolve_range(spec)


def test_a_time_beyond_the_head_may_be_an_answer_without_content() -> None:
    (spec,) = parse_ranges(datetime.fromtimestamp(NOW, UTC))
    portal = Harness([Reply(204), HEAD, Reply(204)])
    assert portal.client.resolve_range(spec) == BlockRange(10)


def test_a_time_in_the_future_is_shown_as_a_date() -> None:
    (spec,) = parse_ranges("2031-05-06")
    with pytest.raises(TimestampError, match=r"time=2031-05-06 00:00:00 UTC, now=2023-11-14 22:30"):
        Harness([NO_BLOCK, FIRST_BLOCK]).client.resolve_range(spec)
    far = RangeSpec(At(10**15))
    with pytest.raises(TimestampError, match="time=1000000000000000 s since 1970"):
        Harness([NO_BLOCK, FIRST_BLOCK]).client.resolve_range(far)


def test_a_portal_without_finality_says_so_once() -> None:
    portal = Harness([Reply(404)] * 2)
    assert portal.client.finalized_head() is None
    assert portal.client.finalized_head() is None
    assert portal.kinds == [NoticeKind.NO_FINALITY]
    (spec,) = parse_ranges("latest")
    with pytest.raises(PortalHttpError):  # block 0 is not the latest
        Harness([Reply(404)]).client.resolve_range(spec, finalized=True)


def test_a_question_is_retried_ten_times() -> None:
    portal = Harness([Reply(503), LOST, Reply(body=[b'{"num', LOST])], again=lambda: Reply(529))
    with pytest.raises(PortalUnreachableError, match=r"head failed 10 times in a row: status 529"):
        portal.client.head()
    assert len(portal.transport.requests) == 10


def test_a_question_is_answered_after_retries() -> None:
    portal = Harness([Reply(503), LOST, Reply(body=[b'{"number":1}'])])
    assert portal.client.head() == BlockCursor(1)
    assert portal.clock.sleeps == [0.01, 0.1]


def test_the_policy_bounds_questions_too() -> None:
    portal = Harness([LOST], retry=RetryPolicy(attempts=1))
    with pytest.raises(PortalUnreachableError, match="metadata failed: "):
        Harness([LOST], retry=RetryPolicy(attempts=1), dataset=None).client.metadata()
    with pytest.raises(PortalUnreachableError):
        portal.client.head()
    assert portal.clock.sleeps == []


def test_a_fatal_or_malformed_answer_to_a_question_is_an_error() -> None:
    with pytest.raises(PortalHttpError, match="404 to head"):
        Harness([Reply(404)]).client.head()
    with pytest.raises(MalformedAnswerError):
        Harness([Reply(body=[b"<html>"])]).client.head()


# --- ranges


def test_a_plain_range_needs_no_question() -> None:
    (spec,) = parse_ranges((5, "+10"))
    assert Harness([]).client.resolve_range(spec) == BlockRange(5, 15)


def test_latest_asks_for_the_head_that_fits_the_reading() -> None:
    (spec,) = parse_ranges("latest")
    head = Reply(body=[b'{"number":9,"hash":"h"}'])
    portal = Harness([head, head, Reply(204)])
    assert portal.client.resolve_range(spec) == BlockRange(9)
    assert portal.client.resolve_range(spec, finalized=True) == BlockRange(9)
    assert portal.client.resolve_range(spec) == BlockRange(0)
    assert routes(portal) == ["head", "finalized-head", "head"]


def test_each_time_is_asked_for_once() -> None:
    (spec,) = parse_ranges(("2024-01-01", "2024-01-02"))
    portal = Harness([Reply(body=[b'{"block_number":10}']), Reply(body=[b'{"block_number":20}'])])
    assert portal.client.resolve_range(spec) == BlockRange(10, 19)
    assert portal.client.resolve_range(spec) == BlockRange(10, 19)  # another output's
    assert routes(portal) == ["timestamps/1704067200/block", "timestamps/1704153600/block"]


# --- metadata in a reading


@pytest.mark.parametrize("last", [4, 6, None])
def test_a_range_that_begins_below_the_oldest_block_is_refused(last: int | None) -> None:
    """The oldest block moves, so it is asked for again before anything is said of it."""
    portal = Harness([Reply(body=[METADATA]), Reply(body=[METADATA])], dataset=None)
    with pytest.raises(MissingBlocksError, match=r"E3010.*missing=0\.\.4, oldest=5") as raised:
        list(portal.read(last, 0))
    assert raised.value.facts["oldest"] == 5
    assert routes(portal) == ["metadata?expand[]=metadata"] * 2


def test_a_window_that_has_moved_back_is_read() -> None:
    """A service that was wiped begins lower than before."""
    lower = METADATA.replace(b'"start_block":5', b'"start_block":0')
    replies = [Reply(body=[METADATA]), Reply(body=[lower]), Reply(body=[lines(0, 6)])]
    portal = Harness(replies, dataset=None)
    list(portal.read(6, 0))
    assert portal.transport.asked == [(0, 6, None)]


@pytest.mark.parametrize(
    "form", ["{}", '{{"error":{{"code":"RANGE_UNAVAILABLE","message":"{}"}}}}']
)
def test_blocks_that_are_not_available_are_named_at_any_time(form: str) -> None:
    said = form.format("blocks from 7 to 19 are not available in the dataset").encode()
    portal = Harness([Reply(body=[lines(5, 6)]), Reply(400, [said])])
    found = []
    with pytest.raises(MissingBlocksError, match=r"missing=7\.\.19, oldest=20"):
        found += list(portal.read(30, 5))
    assert portal.transport.asked == [(5, 30, None), (7, 30, "0x6")]


@pytest.mark.parametrize(
    "said",
    [
        b"blocks from 8 to 19 are not available in the dataset",  # others than were asked for
        b"blocks from 19 to 5 are not available in the dataset",
        b"'traces' data is not available for blocks 5..19",
        b"blocks from 99999999999999999999 to 99999999999999999999 are not available",
    ],
)
def test_other_refusals_stay_what_they_are(said: bytes) -> None:
    portal = Harness([Reply(400, [said])])
    with pytest.raises(PortalHttpError):
        list(portal.read(30, 5))


def test_metadata_is_fetched_once_for_all_readings() -> None:
    portal = Harness([Reply(body=[METADATA])], dataset=None, again=lambda: Reply(body=[lines(9)]))
    for _ in range(2):
        list(portal.read(9, 9))
    assert len(routes(portal)) == 3
    assert portal.notices == []


@pytest.mark.parametrize("reply", [Reply(404, [b"no route"]), Reply(body=[b"<html>"])])
def test_reading_goes_on_without_metadata(reply: Reply) -> None:
    portal = Harness([reply], dataset=None, again=lambda: Reply(body=[lines(1)]))
    for _ in range(2):
        list(portal.read(1))
    assert portal.kinds == [NoticeKind.METADATA_UNAVAILABLE]
    assert len(routes(portal)) == 3


def test_metadata_that_an_outage_hid_is_asked_for_again() -> None:
    portal = Harness(
        [LOST, Reply(body=[lines(9)]), Reply(body=[METADATA]), Reply(body=[lines(9)])],
        dataset=None,
        retry=RetryPolicy(attempts=1),
    )
    for _ in range(2):
        list(portal.read(9, 9))
    assert portal.kinds == [NoticeKind.METADATA_UNAVAILABLE]
    assert portal.client.metadata().start_block == 5


def test_a_dataset_without_a_live_head_is_pointed_out() -> None:
    reply = Reply(body=[b'{"dataset":"old"}'])
    portal = Harness([reply, Reply(204)], dataset=None)
    assert isinstance(next(portal.read(None)), AtHead)
    assert portal.kinds == [NoticeKind.NOT_REAL_TIME]
    portal = Harness([reply, Reply(body=[lines(1)])], dataset=None)
    list(portal.read(1, finalized=True))
    assert portal.notices == []


# --- the client itself


def test_a_client_is_a_context_that_releases_its_connections() -> None:
    portal = Harness([])
    with portal.client as client:
        assert client is portal.client
        assert not portal.transport.closed
    assert portal.transport.closed


@pytest.mark.parametrize(
    "options",
    [{"max_bytes": 0}, {"poll_interval_s": 0}, {"poll_interval_s": math.nan}],
)
def test_options_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        PortalClient("https://h/d", **options)  # type: ignore[arg-type]


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(PortalUrlError):
        PortalClient("h/d")


def test_a_client_of_an_address_travels_to_executors() -> None:
    client = PortalClient("https://u:p@h/d", rng=random.Random(1))
    with pickle.loads(pickle.dumps(client)) as copy:
        assert isinstance(copy, PortalClient)
        copy.read(AnyQuery(), BlockRange(0))


def test_the_same_seed_gives_the_same_pauses() -> None:
    def pauses(seed: int) -> list[float]:
        portal = Harness([LOST] * 4 + [Reply(204)])
        client = PortalClient(
            portal.transport,
            clock=portal.clock,
            rng=random.Random(seed),
            on_notice=portal.notices.append,
        )
        assert client.head() is None
        return portal.clock.sleeps

    assert pauses(1) == pauses(1) != pauses(2)


def test_notices_are_logged_unless_somebody_else_takes_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "headwater.portal")
    log_notice(Notice(NoticeKind.STALLED, "nothing has arrived", {"waited_s": 30}))
    log_notice(Notice(NoticeKind.RETRYING, "asking again"))
    log_notice(Notice(NoticeKind.RETRYING, "asking again", {"failures": 1}))
    log_notice(Notice(NoticeKind.RECOVERED, "the portal answers again"))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "stalled: nothing has arrived (waited_s=30)"),
        ("DEBUG", "retrying: asking again"),
        ("WARNING", "retrying: asking again (failures=1)"),
        ("INFO", "recovered: the portal answers again"),
    ]
