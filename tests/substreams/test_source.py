"""The source of a Substreams endpoint, without a network: what the loop is told, and when."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from headwater.core import PipeState
from headwater.errors import QuotaExceededError
from headwater.substreams.cursors import CursorLog
from headwater.substreams.messages import Message, Progress
from headwater.substreams.source import SubstreamsSource


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
