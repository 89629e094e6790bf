import math
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.retry import is_retryable, parse_retry_after
from headwater.errors import InvalidOptionError
from headwater.portal import RetryPolicy

NOW = 1_700_000_000.0


def test_the_schedule_grows_and_its_last_entry_repeats() -> None:
    policy = RetryPolicy(jitter=0)
    pauses = [policy.pause_s(failures, lambda: 0.9) for failures in range(1, 9)]
    assert pauses == [0.01, 0.1, 0.5, 2, 10, 20, 20, 20]


@given(st.integers(1, 50), st.floats(0, 1, exclude_max=True), st.floats(0, 1))
def test_chance_only_shortens_a_pause(failures: int, chance: float, jitter: float) -> None:
    policy = RetryPolicy(jitter=jitter)
    longest = policy.pause_s(failures, lambda: 0.0)
    pause = policy.pause_s(failures, lambda: chance)
    assert longest * (1 - jitter) <= pause <= longest


def test_what_the_server_asks_for_wins_up_to_the_cap() -> None:
    policy = RetryPolicy(jitter=0)
    assert policy.pause_s(1, lambda: 0, 7) == 7
    assert policy.pause_s(9, lambda: 0, 1) == 1
    assert policy.pause_s(1, lambda: 0, 4_000) == 300


def test_retry_after_zero_leaves_it_to_the_schedule_so_that_nothing_spins() -> None:
    assert RetryPolicy(jitter=0).pause_s(4, lambda: 0, 0) == 2


@pytest.mark.parametrize("status", [429, 502, 503, 504, 521, 522, 523, 524, 529])
def test_overload_is_retried(status: int) -> None:
    assert is_retryable(status, None)


@pytest.mark.parametrize("status", [301, 302, 400, 401, 403, 404, 418, 501, 505])
def test_other_statuses_are_retried_only_if_the_server_says_when(status: int) -> None:
    assert not is_retryable(status, None)
    assert is_retryable(status, 0)


@pytest.mark.parametrize("status", [200, 204, 206, 409])
def test_an_answer_is_never_retried(status: int) -> None:
    assert not is_retryable(status, 1)


def test_a_server_error_is_retried_five_times_in_a_row() -> None:
    assert [is_retryable(500, None, count) for count in range(1, 8)] == [True] * 5 + [False] * 2
    assert is_retryable(500, 1, 100)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("5", 5),
        (" 5 ", 5),
        ("0", 0),
        ("1.5", 1.5),
        ("-1", None),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Wed, 99 Foo 2020", None),
        (formatdate(NOW + 30, usegmt=True), 30),
        (formatdate(NOW - 30, usegmt=True), 0),
        ("Tue, 14 Nov 2023 22:13:50 -0000", 30),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_garbage_is_ignored(
    value: str | None, seconds: float | None
) -> None:
    assert parse_retry_after(value, NOW) == seconds


@given(st.text(max_size=40))
def test_no_retry_after_can_break_the_client(value: str) -> None:
    seconds = parse_retry_after(value, NOW)
    assert seconds is None or 0 <= seconds < math.inf


@pytest.mark.parametrize(
    "options",
    [
        {"schedule_s": ()},
        {"schedule_s": (1, -1)},
        {"schedule_s": (math.inf,)},
        {"schedule_s": (math.nan,)},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"attempts": 0},
        {"retry_after_cap_s": -1},
        {"retry_after_cap_s": math.nan},
        {"stall_after_s": 0},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOptionError, match=rf"\[E0007\] {next(iter(options))}"):
        RetryPolicy(**options)  # type: ignore[arg-type]
