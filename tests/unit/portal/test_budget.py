"""What a budget lets begin, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from headwater.errors import InvalidOptionError, TransportError
from headwater.portal import LimitedTransport, PortalBudget, PortalLimits, Request
from headwater.portal.budget import Permits


class Waited(Exception):  # noqa: N818 - no error
    """A request would have waited."""


class Time:
    """A clock that only sleeping moves; a sleep that is too long shows a request that waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def refuse(self, seconds: float) -> None:
        raise Waited

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def begins(budget: PortalBudget, time: Time) -> int:
    """Let as many requests begin as may, and tell how many those are."""
    count = 0
    with suppress(Waited):
        while count < 50:
            budget.begin(time.refuse)
            count += 1
    return count


def test_no_more_requests_begin_than_the_limit_allows() -> None:
    time = Time()
    budget = PortalBudget(PortalLimits(requests=3), time)
    assert begins(budget, time) == 3
    budget.end(succeeded=True)
    assert begins(budget, time) == 1


def test_a_refusal_lets_nothing_begin_for_as_long_as_the_portal_says() -> None:
    time = Time()
    budget = PortalBudget(clock=time)
    budget.begin()
    budget.refused(7.0)
    budget.end(succeeded=False)
    assert begins(budget, time) == 0
    budget.begin(time.sleep)
    assert time.now >= 107.0


def test_after_a_refusal_half_as_many_run_at_once_and_more_as_they_succeed() -> None:
    time = Time()
    budget = PortalBudget(PortalLimits(requests=8), time)
    assert begins(budget, time) == 8
    for _ in range(8):  # all of them are refused: that is one refusal
        budget.refused(1.0)
    for _ in range(8):
        budget.end(succeeded=False)
    time.now += 1.1
    assert begins(budget, time) == 4
    for _ in range(100):
        budget.end(succeeded=True)
        begins(budget, time)
    budget.end(succeeded=True)
    assert begins(budget, time) == 1, "eight run at once again, and not more"


def test_refusals_that_name_no_time_pause_longer_each_time() -> None:
    time = Time()
    budget = PortalBudget(clock=time)
    pauses = []
    for _ in range(3):
        budget.begin(time.sleep)
        before = time.now
        budget.refused(None)
        budget.end(succeeded=False)
        budget.begin(time.sleep)
        budget.end(succeeded=False)
        pauses.append(round(time.now - before, 1))
    assert pauses == [0.5, 1.0, 2.0]


def test_bytes_come_no_faster_than_the_rate_but_for_the_first_second() -> None:
    time = Time()
    budget = PortalBudget(PortalLimits(bytes_per_second=1000), time)
    for _ in range(50):
        budget.spend(100, time.sleep)
    assert time.now == pytest.approx(104.0)
    budget.spend(5000, lambda seconds: None)
    assert begins(budget, time) == 0, "nothing new begins while bytes are owed"


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "8"])
def test_a_limit_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(InvalidOptionError, match="requests"):
        PortalLimits(requests=given)  # type: ignore[arg-type]


class Answer:
    """One answer of a portal that is asked too much, or breaks."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers

    def chunks(self) -> Iterator[bytes]:
        yield b"rows"
        if self.status == 200:
            raise TransportError("cut", phase="body")

    def close(self) -> None:
        pass


class Portal:
    """A transport that gives one answer."""

    def __init__(self, status: int, **headers: str) -> None:
        self._answer = Answer(status, {name.replace("_", "-"): v for name, v in headers.items()})

    def send(self, request: Request) -> Answer:
        return self._answer

    def close(self) -> None:
        pass


class Noted(Permits):
    """Permits that note what they are told."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def begin(self) -> None:
        self.said.append("begin")

    def spend(self, size: int) -> None:
        self.said.append(size)

    def refused(self, retry_after_s: float | None) -> None:
        self.said.append(("refused", retry_after_s))

    def end(self, *, succeeded: bool) -> None:
        self.said.append(("end", succeeded))


@pytest.mark.parametrize(
    ("portal", "said"),
    [
        (Portal(429, retry_after="3"), [("refused", 3.0)]),
        (Portal(429), [("refused", None)]),
        (Portal(503, retry_after="3"), [("refused", 3.0)]),
        (Portal(503), []),
        (Portal(404), []),
    ],
)
def test_only_an_overload_slows_down(portal: Portal, said: list[object]) -> None:
    noted = Noted()
    response = LimitedTransport(portal, noted).send(Request("GET", "head"))
    list(response.chunks())
    response.close()
    assert noted.said == ["begin", *said, 4, ("end", False)]


def test_an_answer_that_breaks_gives_its_place_back_once() -> None:
    noted = Noted()
    response = LimitedTransport(Portal(200), noted).send(Request("GET", "head"))
    with pytest.raises(TransportError):
        list(response.chunks())
    response.close()
    response.close()
    assert noted.said == ["begin", ("end", True)]
