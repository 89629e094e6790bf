"""Delivery in order, with pauses, taken apart where a batch is refused; and never in the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from headwater.effects import Message
from headwater.effects.outbox import Courier, Dead, Report
from headwater.errors import DeliveryError, DeliveryRefusedError
from headwater.portal import RetryPolicy
from tests.effects.samples import messages

RETRY = RetryPolicy(schedule_s=(1, 2, 4), jitter=0, attempts=3)
Calls = list[list[int]]


def courier(
    fails: Callable[[list[int]], Exception | None], *, batch_size: int = 4
) -> tuple[Courier, Calls]:
    calls: Calls = []

    def deliver(batch: Sequence[Message]) -> None:
        numbers = [one.block_number for one in batch]
        calls.append(numbers)
        error = fails(numbers)
        if error is not None:
            raise error

    return Courier(deliver, batch_size, RETRY, background=False), calls


def carry(one: Courier, count: int) -> Report:
    one.hand(messages(count))
    return one.report()


def dead(report: Report) -> list[int]:
    return [one.message.block_number for one in report.dead]


def test_messages_go_in_batches_and_in_order() -> None:
    one, calls = courier(lambda numbers: None)
    report = carry(one, 10)
    assert calls == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert (report.settled, report.count, report.pause_s) == (messages(10)[-1], 10, None)
    assert one.report().count == 0


def test_a_failure_stops_there_and_pauses_grow() -> None:
    broken = True
    one, calls = courier(lambda numbers: OSError("down") if broken and 5 in numbers else None)
    first = carry(one, 10)
    assert (first.count, first.pause_s, first.reason) == (4, 1, "OSError: down")
    rest = messages(10)[4:]
    one.hand(rest)
    assert one.report().pause_s == 2
    broken = False
    one.hand(rest)
    assert one.report().count == 6
    assert calls[1:] == [[5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 8], [9, 10]]


def test_a_receiver_says_how_long_to_wait() -> None:
    one, _ = courier(lambda numbers: DeliveryError("busy", retry_after_s=77.0))
    assert carry(one, 1).pause_s == 77


def test_a_refused_batch_is_taken_apart_and_only_the_refused_die() -> None:
    one, calls = courier(lambda numbers: DeliveryRefusedError("no") if 3 in numbers else None)
    report = carry(one, 5)
    assert calls == [[1, 2, 3, 4], [1], [2], [3], [4], [5]]
    assert (report.count, dead(report), report.pause_s) == (5, [3], None)
    assert isinstance(report.dead[0], Dead)
    assert "[E7002] no" in report.dead[0].reason


def test_while_a_batch_is_taken_apart_a_failure_for_now_kills_nobody() -> None:
    def fails(numbers: list[int]) -> Exception | None:
        if 2 in numbers and len(numbers) > 1:
            return DeliveryRefusedError("no")
        return OSError("down") if numbers == [3] else None

    one, _ = courier(fails)
    report = carry(one, 4)
    assert (report.count, dead(report), report.pause_s) == (2, [], 1)


def test_after_so_many_attempts_a_message_dies_and_the_next_goes_on() -> None:
    one, calls = courier(lambda numbers: OSError("down") if 2 in numbers else None, batch_size=1)
    assert carry(one, 3).pause_s == 1
    for pause in (2, None):
        one.hand(messages(3)[1:])
        report = one.report()
        assert report.pause_s == pause
    assert (report.count, dead(report), report.dead[0].attempts) == (2, [2], 3)
    assert calls == [[1], [2], [2], [2], [3]]


def test_a_slow_receiver_is_waited_for_by_nobody_and_reports_as_it_goes() -> None:
    go, reached = threading.Semaphore(0), threading.Semaphore(0)

    def deliver(batch: Sequence[Message]) -> None:
        reached.release()
        go.acquire()

    one = Courier(deliver, 1, RETRY)
    one.hand(messages(3))
    reached.acquire()
    assert one.report() == Report(True, None, 0, (), None, "")
    go.release()
    reached.acquire()
    report = one.report()
    assert (report.busy, report.count) == (True, 1)
    go.release(2)
    one.wait()
    report = one.report()
    assert (report.busy, report.count, report.settled) == (False, 2, messages(3)[-1])
    one.stop()


def test_what_is_no_failure_of_a_delivery_ends_the_run() -> None:
    def deliver(batch: Sequence[Message]) -> None:
        raise SystemExit(3)

    one = Courier(deliver, 1, RETRY)
    one.hand(messages(1))
    one.wait()
    with pytest.raises(SystemExit):
        one.report()


def test_stopping_ends_with_the_delivery_under_way_and_closes_the_deliverer() -> None:
    class Slow:
        def __init__(self) -> None:
            self.calls, self.closed = 0, False
            self.reached, self.go = threading.Event(), threading.Event()

        def __call__(self, batch: Sequence[Message]) -> None:
            self.calls += 1
            self.reached.set()
            self.go.wait()

        def close(self) -> None:
            self.closed = True

    slow = Slow()
    one = Courier(slow, 1, RETRY)
    one.hand(messages(5))
    slow.reached.wait()
    stopper = threading.Thread(target=one.stop)
    stopper.start()
    while not one._stopping.is_set():
        stopper.join(0.001)
    slow.go.set()
    stopper.join()
    assert (slow.calls, slow.closed, one.report().count) == (1, True, 1)
