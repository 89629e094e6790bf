"""A thread reads what follows while a task works: bounded, in order, and it ends with the task."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from headwater.errors import TransportError
from headwater.read_ahead import ReadAhead
from tests.shared import HANG_S


def test_items_come_in_order_and_are_read_before_they_are_asked_for() -> None:
    read, ahead = [], Event()

    def source() -> Iterator[int]:
        for number in range(10):
            read.append(number)
            if number == 3:
                ahead.set()  # one is worked on, two wait, and the next one is there already
            yield number

    with ReadAhead(source, depth=2) as items:
        assert next(items) == 0
        assert ahead.wait(HANG_S)
        assert read == [0, 1, 2, 3]
        assert list(items) == list(range(1, 10))


def test_an_error_comes_after_what_was_read_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise TransportError("gone")

    with ReadAhead(source) as items:
        assert next(items) == 1
        with pytest.raises(TransportError, match="gone"):
            next(items)


def test_a_task_that_leaves_early_lets_the_thread_end_and_the_source_close() -> None:
    closed = Event()

    def source() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    ahead = ReadAhead(source, depth=1)
    with ahead as items:
        assert next(items) == 1
    assert closed.wait(HANG_S)
    ahead._thread.join(HANG_S)
    assert not ahead._thread.is_alive()
