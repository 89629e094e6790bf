"""The loop of `PortalClient.read`, one branch at a time, against a scripted portal."""

import json
from itertools import islice, pairwise

import pytest

from headwater.core import Answer, AtHead, BlockCursor, Blocks, Fork, Head, RangeEnd
from headwater.errors import (
    BlockLinkError,
    BlockOrderError,
    MalformedAnswerError,
    MalformedLineError,
    PortalHttpError,
    PortalUnreachableError,
    TransportError,
)
from headwater.portal import NoticeKind, RetryPolicy
from tests.unit.portal.scripted import LOST, Harness, Reply, heads, line, lines


def numbers(answers: list[Answer]) -> list[list[int]]:
    return [[h.number for h in a.headers] for a in answers if isinstance(a, Blocks)]


# --- the straight way


def test_blocks_are_delivered_with_their_lines_and_head_and_the_range_ends() -> None:
    portal = Harness([Reply(body=[lines(1, 2, 3)], headers=heads(2, 9))])
    head = Head(BlockCursor(2, "0x2"), BlockCursor(9))
    blocks, end = portal.read()
    assert isinstance(blocks, Blocks)
    assert blocks.lines == (line(1), line(2), line(3))
    assert [h.cursor for h in blocks.headers] == [BlockCursor(n, f"0x{n}") for n in (1, 2, 3)]
    assert blocks.head == head
    assert end == RangeEnd(head)
    assert portal.transport.requests[0].route == "stream"
    assert portal.transport.asked == [(1, 3, None)]
    assert portal.clock.sleeps == []


def test_finalized_reading_uses_the_finalized_route() -> None:
    portal = Harness([Reply(body=[lines(1, 2, 3)])])
    list(portal.read(finalized=True))
    assert portal.transport.requests[0].route == "finalized-stream"


def test_a_response_that_ends_early_is_continued_at_once_from_its_last_block() -> None:
    portal = Harness([Reply(body=[lines(1)]), Reply(body=[lines(2)]), Reply(body=[lines(3)])])
    assert numbers(list(portal.read())) == [[1], [2], [3]]
    assert portal.transport.asked == [(1, 3, None), (2, 3, "0x1"), (3, 3, "0x2")]
    assert portal.clock.sleeps == []
    assert all(reply.closed for reply in portal.transport.replies if isinstance(reply, Reply))


def test_the_anchor_is_sent_only_by_its_true_successor() -> None:
    """CASE-13."""
    for after, asked in [
        (BlockCursor(4, "0x4"), (5, 6, "0x4")),
        (BlockCursor(4), (5, 6, None)),  # no hash, no anchor
        (BlockCursor(2, "0x2"), (5, 6, None)),  # another range lies between
        (BlockCursor(5, "0x5"), (6, 6, "0x5")),  # a cursor outranks the beginning of the range
    ]:
        portal = Harness([Reply(body=[lines(*range(asked[0], 7))])])
        list(portal.read(6, 5, after))
        assert portal.transport.asked == [asked]


def test_a_range_that_lies_behind_the_cursor_is_at_its_end() -> None:
    portal = Harness([])
    assert list(portal.read(3, 1, BlockCursor(3, "0x3"))) == [RangeEnd(Head())]


def test_a_filtered_stream_may_leave_blocks_out() -> None:
    portal = Harness([Reply(body=[lines(1, 5, 9)])])
    assert numbers(list(portal.read(9))) == [[1, 5, 9]]


# --- when blocks are passed on


def test_final_blocks_are_gathered_over_chunks() -> None:
    portal = Harness([Reply(body=[lines(1), lines(2), lines(3), lines(4)], headers=heads(9))])
    assert numbers(list(islice(portal.read(9), 1))) == [[1, 2, 3, 4]]


def test_final_blocks_are_passed_on_when_there_are_enough() -> None:
    body = b"".join(line(n, pad=400) + b"\n" for n in range(1, 6))
    portal = Harness([Reply(body=[body], headers=heads(9))], max_bytes=900)
    assert numbers(list(portal.read(5))) == [[1, 2], [3, 4], [5]]


def test_one_line_may_be_larger_than_the_limit() -> None:
    body = b"".join(line(n, pad=400) + b"\n" for n in range(1, 4))
    portal = Harness([Reply(body=[body], headers=heads(9))], max_bytes=1)
    assert numbers(list(portal.read(3))) == [[1], [2], [3]]


def test_a_hot_block_is_passed_on_before_the_next_chunk_is_read() -> None:
    reply = Reply(body=[lines(1), lines(2, 3), lines(4)], headers=heads(2))
    reading = Harness([reply]).read(9)
    assert numbers([next(reading)]) == [[1, 2, 3]]
    assert reply.read == 2
    assert numbers([next(reading)]) == [[4]]
    assert reply.read == 3


def test_hot_blocks_are_gathered_up_to_the_newest_that_the_portal_had() -> None:
    body: list[bytes | TransportError] = [lines(1), lines(2), lines(3), lines(4), LOST]
    reply = Reply(body=body, headers=heads(latest=3))
    reading = Harness([reply]).read(9)
    assert numbers([next(reading)]) == [[1, 2, 3]]
    assert reply.read == 3
    assert numbers([next(reading)]) == [[4]]


def test_without_a_latest_head_a_hot_block_waits_for_nothing() -> None:
    reply = Reply(body=[lines(1), lines(2)], headers=heads(0))
    assert numbers(list(islice(Harness([reply]).read(9), 2))) == [[1], [2]]


def test_a_finalized_head_of_zero_is_finality() -> None:
    reply = Reply(body=[lines(0), lines(1)], headers=heads(0))
    assert numbers(list(islice(Harness([reply]).read(9, 0), 1))) == [[0, 1]]


def test_in_finalized_reading_no_block_is_hot() -> None:
    reply = Reply(body=[lines(1), lines(2), lines(3)])
    assert numbers(list(Harness([reply]).read(3, finalized=True))) == [[1, 2, 3]]


def test_the_last_block_of_the_range_does_not_wait_for_the_end_of_the_body() -> None:
    reply = Reply(body=[lines(1), lines(2, 3), LOST], headers=heads(9))
    portal = Harness([reply])
    reading = portal.read()
    assert numbers([next(reading)]) == [[1, 2, 3]]
    assert reply.read == 2
    assert list(reading) == [RangeEnd(Head(BlockCursor(9, "0x9")))]
    assert portal.notices == []  # what broke after the last block is nobody's concern


def test_lines_may_be_cut_anywhere() -> None:
    body = lines(1, 2, 3)
    for cut in range(1, len(body)):
        portal = Harness([Reply(body=[body[:cut], body[cut:]], headers=heads(9))])
        assert numbers(list(portal.read())) == [[1, 2, 3]]


def test_closing_the_iterator_closes_the_response() -> None:
    reply = Reply(body=[lines(1), lines(2)])
    reading = Harness([reply]).read(9)
    next(reading)
    assert not reply.closed
    reading.close()  # type: ignore[attr-defined]
    assert reply.closed


# --- broken bodies


def test_a_break_costs_the_partial_line_and_nothing_else() -> None:
    """CASE-17."""
    body = lines(1, 2, 3)
    for cut in range(len(body) + 1):
        left = range(body[:cut].count(b"\n") + 1, 4)
        again = [Reply(body=[lines(*left)])] if left else []
        portal = Harness([Reply(body=[body[:cut], LOST], headers=heads(9)), *again])
        assert [n for found in numbers(list(portal.read())) for n in found] == [1, 2, 3]


def test_a_break_after_progress_waits_little_and_without_progress_longer() -> None:
    portal = Harness(
        [
            Reply(body=[lines(1), LOST], headers=heads(9)),
            Reply(body=[LOST]),
            TransportError("refused", phase="connect"),
            Reply(body=[lines(2), LOST], headers=heads(9)),
            Reply(body=[lines(3)]),
        ]
    )
    assert numbers(list(portal.read())) == [[1], [2], [3]]
    assert portal.clock.sleeps == [0.01, 0.1, 0.5, 0.01]
    assert portal.kinds == [NoticeKind.RETRYING] * 4
    assert portal.notices[2].facts["phase"] == "connect"


def test_an_unterminated_last_line_is_taken_if_it_is_whole() -> None:
    portal = Harness([Reply(body=[lines(1, 2) + line(3)], headers=heads(9))])
    assert numbers(list(portal.read())) == [[1, 2, 3]]
    assert len(portal.transport.requests) == 1


def test_an_unterminated_last_line_that_is_cut_is_asked_for_again() -> None:
    portal = Harness(
        [
            Reply(body=[lines(1, 2) + line(3)[:-5]], headers=heads(9)),
            Reply(body=[lines(3)[:9]]),
            Reply(body=[lines(3)]),
        ]
    )
    assert numbers(list(portal.read())) == [[1, 2], [3]]
    assert portal.transport.asked == [(1, 3, None), (3, 3, "0x2"), (3, 3, "0x2")]
    assert portal.clock.sleeps == [0.01, 0.1]


def test_a_line_that_is_always_cut_is_malformed_in_the_end() -> None:
    portal = Harness([], again=lambda: Reply(body=[line(1)[:-1]]))
    with pytest.raises(MalformedLineError, match="before any block"):
        list(portal.read())
    assert len(portal.transport.requests) == 5


def test_progress_forgives_lines_that_were_cut() -> None:
    cut = [Reply(body=[line(1)[:-1]]) for _ in range(4)]
    cut += [Reply(body=[lines(1) + b"{"])] + [Reply(body=[line(2)[:-1]]) for _ in range(3)]
    portal = Harness([*cut, Reply(body=[lines(2, 3)])])
    assert numbers(list(portal.read())) == [[1], [2, 3]]


# --- wrong bodies


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (b'{"header":{"number":3}}\n', MalformedLineError),
        (lines(2), BlockOrderError),
        (lines(1), BlockOrderError),
        (lines(10), BlockOrderError),
        (line(3, parentHash="0xother") + b"\n", BlockLinkError),
        (line(2), BlockOrderError),  # unterminated, but whole
    ],
)
def test_good_blocks_are_delivered_before_the_error_of_a_bad_one(
    bad: bytes, error: type[Exception]
) -> None:
    reply = Reply(body=[lines(1, 2) + bad], headers=heads(9))
    reading = Harness([reply]).read(9)
    assert numbers([next(reading)]) == [[1, 2]]
    with pytest.raises(error, match=r"2"):
        next(reading)
    assert reply.closed


@pytest.mark.guarantee("RANGE-1")
@pytest.mark.parametrize(("sent", "kept"), [((2, 1), []), ((1, 3, 4, 2), [[1]])])
def test_blocks_above_one_that_came_late_are_not_passed_on(
    sent: tuple[int, ...], kept: list[list[int]]
) -> None:
    """A stream that went on behind them would leave that block out for good."""
    answers: list[Answer] = []
    with pytest.raises(BlockOrderError, match="out of order"):
        answers.extend(Harness([Reply(body=[lines(*sent)], headers=heads(9))]).read(9))
    assert numbers(answers) == kept


def test_a_bad_first_line_is_an_error_at_once() -> None:
    """CASE-17."""
    with pytest.raises(MalformedLineError):
        next(Harness([Reply(body=[b"<html>\n"])]).read())


def test_the_first_block_must_follow_the_anchor() -> None:
    portal = Harness([Reply(body=[lines(5)])])
    with pytest.raises(BlockLinkError, match="not a descendant of block 4"):
        list(portal.read(9, 5, BlockCursor(4, "0xother")))


def test_a_gap_is_an_error_if_all_blocks_were_asked_for() -> None:
    portal = Harness([Reply(body=[lines(1, 3)])])
    with pytest.raises(BlockLinkError, match="missing between 1 and 3"):
        list(portal.read(complete=True))


# --- nothing new


def test_at_the_head_requests_start_no_closer_than_the_poll_interval() -> None:
    portal = Harness([], again=lambda: Reply(204, headers=heads(7, 9)))
    answers = list(islice(portal.read(None), 5))
    assert answers == [AtHead(Head(BlockCursor(7, "0x7"), BlockCursor(9)))] * 5
    starts = portal.transport.starts
    assert [b - a for a, b in pairwise(starts)] == [0.25] * 4


def test_a_portal_that_holds_its_answer_back_is_not_waited_for_again() -> None:
    portal = Harness([], again=lambda: Reply(204, takes_s=5))
    list(islice(portal.read(None), 4))
    assert portal.clock.sleeps == []


def test_a_204_response_is_closed_before_the_caller_sees_it() -> None:
    reply = Reply(204)
    next(Harness([reply]).read(None))
    assert reply.closed


def test_an_empty_200_is_no_busy_loop() -> None:
    portal = Harness([], again=lambda: Reply(headers=heads(0, 1)))
    answers = list(islice(portal.read(None), 8))
    assert answers == [AtHead(Head(BlockCursor(0, "0x0"), BlockCursor(1)))] * 8
    assert portal.clock.sleeps == [0.25, 0.25, 0.5, 2, 10, 20, 20]


def test_progress_and_204_end_a_row_of_empty_answers() -> None:
    empty, nothing = Reply(headers=heads(9)), Reply(204, headers=heads(9))
    portal = Harness([empty, empty, nothing, empty, empty, Reply(body=[lines(2)]), empty, empty,
                      Reply(body=[lines(3)])])  # fmt: skip
    assert numbers(list(portal.read())) == [[2], [3]]


@pytest.mark.parametrize(
    ("headers", "finalized"), [(heads(9, 12), False), (heads(9), True), (heads(latest=9), True)]
)
def test_the_empty_tail_of_a_final_range_ends_it_once_a_block_beyond_has_come(
    headers: dict[str, str], finalized: bool
) -> None:
    portal = Harness([Reply(body=[lines(1)], headers=headers), Reply(headers=headers),
                      Reply(body=[line(5, parent=False)], headers=headers)])  # fmt: skip
    first, *waits, end = portal.read(finalized=finalized)
    assert isinstance(first, Blocks)
    assert [type(wait) for wait in waits] == [AtHead]
    assert isinstance(end, RangeEnd)
    assert portal.kinds == [NoticeKind.EMPTY_TAIL]
    assert portal.notices[0].facts["range"] == "2..3"
    assert [one[:2] for one in portal.transport.asked[1:]] == [(2, 3), (2, 9)]


def test_empty_answers_do_not_hide_blocks_of_a_final_range() -> None:
    """Three in a row were believed, and the blocks were lost."""
    empty = [Reply(headers=heads(9))] * 5
    portal = Harness([*empty, Reply(body=[lines(2, 3, 4, 5)], headers=heads(9))])
    *waits, blocks, end = portal.read()
    assert [type(wait) for wait in waits] == [AtHead] * 5
    assert isinstance(blocks, Blocks)
    assert [one.number for one in blocks.headers] == [2, 3]
    assert isinstance(end, RangeEnd)
    assert portal.kinds == []


@pytest.mark.parametrize(
    ("headers", "to_block"),
    [
        (heads(2, 9), 3),
        (heads(3), 3),
        (heads(9), 3),
        (heads(latest=9), 3),
        ({}, 3),
        (heads(9), None),
    ],
)
def test_an_empty_answer_alone_does_not_end_a_range(
    headers: dict[str, str], to_block: int | None
) -> None:
    portal = Harness([], again=lambda: Reply(headers=headers))
    assert all(isinstance(a, AtHead) for a in islice(portal.read(to_block), 10))


# --- forks


def test_a_fork_ends_the_reading() -> None:
    body = json.dumps({"previousBlocks": [{"number": 4, "hash": "a"}]}).encode()
    portal = Harness([Reply(409, [body[:9], body[9:]])])
    assert list(portal.read(9, 5, BlockCursor(4, "b"))) == [Fork((BlockCursor(4, "a"),))]
    assert portal.transport.replies[0].closed  # type: ignore[union-attr]


def test_a_fork_after_blocks_of_the_same_reading() -> None:
    portal = Harness([Reply(body=[lines(1)]), Reply(409, [b'{"previousBlocks":[]}'])])
    blocks, fork = portal.read()
    assert isinstance(blocks, Blocks)
    assert fork == Fork(())


def test_a_fork_that_cannot_be_read_is_an_error_and_one_that_breaks_is_asked_again() -> None:
    portal = Harness([Reply(409, [b'{"prev', LOST]), Reply(409, [b"conflict"])])
    with pytest.raises(MalformedAnswerError):
        list(portal.read())
    assert len(portal.transport.requests) == 2


# --- refusals


@pytest.mark.parametrize("status", [429, 502, 503, 504, 521, 522, 523, 524, 529])
def test_overload_is_waited_out(status: int) -> None:
    portal = Harness([Reply(status, [b"busy"]) for _ in range(8)] + [Reply(body=[lines(1, 2, 3)])])
    assert numbers(list(portal.read())) == [[1, 2, 3]]
    assert sum(portal.clock.sleeps) == pytest.approx(0.01 + 0.1 + 0.5 + 2 + 10 + 20 * 3)
    assert portal.notices[0].facts["status"] == status


def test_the_server_says_how_long_to_wait() -> None:
    portal = Harness(
        [
            Reply(529, headers={"retry-after": "3"}),
            Reply(400, headers={"retry-after": "1.5"}),
            Reply(503, headers={"retry-after": "Tue, 14 Nov 2023 22:30:12 GMT"}),
            Reply(503, headers={"retry-after": "soon"}),
            Reply(body=[lines(1, 2, 3)]),
        ]
    )
    list(portal.read())
    assert portal.clock.sleeps[:2] == [3, 1.5]
    assert sum(portal.clock.sleeps[2:-1]) == pytest.approx(7.5)
    assert portal.clock.sleeps[-1] == 2


@pytest.mark.parametrize("status", [206, 301, 400, 401, 403, 404, 418, 501])
def test_a_fatal_status_carries_the_servers_words(status: int) -> None:
    reply = Reply(status, [b'{"error":{"message":"dataset starts ', b'from block 7"}}'])
    portal = Harness([reply])
    with pytest.raises(PortalHttpError, match=rf"\[E3001\] the portal answered {status} to stream"
                       ".*dataset starts from block 7"):  # fmt: skip
        list(portal.read())
    assert reply.closed


def test_a_refusal_with_a_broken_or_endless_body_is_still_a_refusal() -> None:
    with pytest.raises(PortalHttpError, match="too m"):
        list(Harness([Reply(400, [b"too m", LOST])]).read())
    endless = Reply(400, [b"x" * 40_000] * 1_000)
    with pytest.raises(PortalHttpError):
        list(Harness([endless]).read())
    assert endless.read == 2


def test_500_is_tried_six_times_in_a_row_and_any_other_answer_starts_over() -> None:
    broken = Reply(500, [b"panic"])
    portal = Harness([broken] * 5 + [Reply(503)] + [broken] * 6)
    with pytest.raises(PortalHttpError, match="500"):
        list(portal.read())
    assert len(portal.transport.requests) == 12
    portal = Harness([broken] * 5 + [LOST] + [broken] * 5 + [Reply(body=[lines(1, 2, 3)])])
    assert numbers(list(portal.read())) == [[1, 2, 3]]


def test_a_policy_may_bound_the_attempts_without_progress() -> None:
    portal = Harness(
        [LOST, LOST, Reply(body=[lines(1), LOST]), Reply(503)],
        again=lambda: LOST,
        retry=RetryPolicy(attempts=3, jitter=0),
    )
    with pytest.raises(PortalUnreachableError, match=r"\[E3002\] stream failed 3 times.*lost"):
        list(portal.read())
    assert len(portal.transport.requests) == 5


# --- stalls


def test_a_stall_is_reported_at_doubling_intervals_and_its_end_once() -> None:
    portal = Harness([LOST] * 16 + [Reply(body=[lines(1)]), Reply(body=[lines(2, 3)])])
    list(portal.read())
    shown = [notice for notice in portal.notices if notice.kind != NoticeKind.RETRYING]
    assert [notice.kind for notice in shown] == [NoticeKind.STALLED] * 3 + [NoticeKind.RECOVERED]
    assert [notice.facts["waited_s"] for notice in shown[:3]] == [30, 60, 120]
    assert shown[3].facts["waited_s"] == pytest.approx(232.61)


def test_a_stall_within_a_long_pause_is_reported_in_time() -> None:
    portal = Harness([Reply(503, headers={"retry-after": "100"}), Reply(204)])
    next(portal.read(None))
    assert portal.clock.sleeps == [30, 30, 40]
    assert portal.kinds == [
        NoticeKind.RETRYING,
        NoticeKind.STALLED,
        NoticeKind.STALLED,
        NoticeKind.RECOVERED,
    ]


def test_one_long_wait_counts_once() -> None:
    portal = Harness([Reply(body=[LOST], takes_s=100), Reply(204)])
    next(portal.read(None))
    assert portal.kinds.count(NoticeKind.STALLED) == 1


def test_the_time_that_the_caller_takes_is_no_stall() -> None:
    portal = Harness([Reply(body=[lines(1), LOST]), Reply(204), LOST, Reply(204)])
    for _ in portal.read(None):
        portal.clock.time += 3_600
        if len(portal.transport.requests) == 4:
            break
    assert set(portal.kinds) == {NoticeKind.RETRYING}
