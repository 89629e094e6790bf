"""The source of a Substreams endpoint, without a network: what the loop is told, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import PipeState
from headwater.errors import QuotaExceededError
from headwater.substreams.cursors import CursorLog
from headwater.substreams.messages import Clock, Message, ModuleOutput, Outputs, Progress
from headwater.substreams.source import Feed, Gathered, SubstreamsSource


class FailsAfterProgress:
    """A reading that says how far it is, and then fails; `over` once that has happened."""

    def __init__(self) -> None:
        self.over = Event()

    def __iter__(self) -> Iterator[Message]:
        yield Progress()
        self.over.set()
        raise QuotaExceededError("the endpoint answered RESOURCE_EXHAUSTED")

    def abort(self) -> None: ...


class Client:
    """Gives out one reading."""

    def __init__(self, reading: FailsAfterProgress) -> None:
        self.reading = reading

    def read(self, **asked: Any) -> FailsAfterProgress:
        return self.reading


@pytest.mark.parametrize("stop", [0, 100])
def test_a_failure_that_comes_with_the_last_message_is_no_end_of_the_range(stop: int) -> None:
    """The failure is there before the message is taken: the loop must not hear of an end."""
    reading = FailsAfterProgress()
    client: Any = Client(reading)
    source = SubstreamsSource(client, CursorLog(), stop=stop, on_message=lambda _: wait(reading))
    answers = source.read(PipeState())
    assert answers is not None
    with pytest.raises(QuotaExceededError):
        next(answers)


def wait(reading: FailsAfterProgress) -> None:
    assert reading.over.wait(120)


class ManyMessages:
    """A reading of final blocks, three to a message of 100 bytes; it counts what was taken."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0

    def __iter__(self) -> Iterator[Message]:
        for at in range(self.count):
            self.taken += 1
            numbers = range(3 * at, 3 * at + 3)
            clocks = [Clock(number, f"{number:064x}") for number in numbers]
            yield Outputs(tuple(ModuleOutput(one, f"c{one.number}", 10**6) for one in clocks), 100)

    def abort(self) -> None: ...


def test_what_is_received_ahead_is_bounded_and_decoded_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headwater.substreams.source.DECODED_BLOCKS", 7)
    reading: Any = ManyMessages(50)
    begun, go_on = Event(), Event()
    pieces: list[int] = []

    def decode(outputs: Sequence[ModuleOutput]) -> dict[str, pa.Table]:
        begun.set()
        assert go_on.wait(120)
        pieces.append(len(outputs))
        return {}

    feed = Feed(reading, 0, ahead=1000, decode=decode)
    assert begun.wait(120)
    wait_until(lambda: reading.taken == 11)  # ten fit, and one waits to be let in
    go_on.set()
    blocks: list[int] = []
    while not feed.ended:
        taken = feed.take(120)
        if isinstance(taken, Gathered):
            assert taken.tables == {}
            blocks += [item.clock.number for one in taken.messages for item in one.items]
    assert blocks == list(range(150))
    assert sum(pieces) == 150
    assert set(pieces[1:]) <= {3, 6}, "two messages are six blocks, three would be nine"
    assert 6 in pieces


def wait_until(condition: Callable[[], bool]) -> None:
    waiting = Event()
    for _ in range(12_000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it does not come true")
