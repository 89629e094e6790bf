"""The source of a Substreams endpoint, without a network: what the loop is told, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import BlockCursor, BlockHeader, Head, PipeState
from headwater.errors import QuotaExceededError
from headwater.substreams.cursors import TABLE, CursorLog
from headwater.substreams.messages import Clock, Message, ModuleOutput, Outputs, Progress
from headwater.substreams.outputs import Gathered
from headwater.substreams.source import Feed, SubstreamsSource
from tests.shared import HANG_S


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
    assert reading.over.wait(HANG_S)


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
        assert go_on.wait(HANG_S)
        pieces.append(len(outputs))
        return {}

    feed = Feed(reading, 0, ahead=1000, decode=decode)
    assert begun.wait(HANG_S)
    wait_until(lambda: reading.taken == 11)  # ten fit, and one waits to be let in
    go_on.set()
    blocks: list[int] = []
    while not feed.ended:
        taken = feed.take(120)
        if isinstance(taken, Gathered):
            assert taken.tables == {}
            blocks += blocks_of(taken)
    assert blocks == list(range(150))
    assert sum(pieces) == 150
    assert set(pieces[1:]) <= {3, 6}, "two messages are six blocks, three would be nine"
    assert 6 in pieces


def blocks_of(taken: Gathered) -> list[int]:
    return [item.clock.number for item in taken.items]


def all_of(feed: Feed) -> list[Gathered]:
    """Take everything, at once."""
    found = []
    while not feed.ended:
        taken = feed.take(120)
        if isinstance(taken, Gathered):
            found.append(taken)
    return found


def decode(outputs: Sequence[ModuleOutput]) -> dict[str, pa.Table]:
    return {"number": pa.table({"number": [one.clock.number for one in outputs]})}


def numbers_of(tables: Mapping[str, pa.Table]) -> list[int]:
    return list(tables["number"]["number"].to_pylist())


def test_what_one_commit_should_hold_is_prepared_together_while_the_loop_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the loop takes the first, the second grows; what is prepared is never joined."""
    monkeypatch.setattr("headwater.substreams.source.DECODED_BLOCKS", 6)
    monkeypatch.setattr("headwater.substreams.source.TOGETHER_BLOCKS", 12)
    reading: Any = ManyMessages(8)
    prepared: list[list[int]] = []

    def prepare(tables: Mapping[str, pa.Table]) -> int:
        prepared.append(numbers_of(tables))
        return len(prepared)

    feed = Feed(reading, 0, decode=decode, prepare=prepare)
    wait_until(lambda: sum(map(len, prepared)) == 24)
    assert feed.take_outputs() is None, "only what is not prepared is joined"
    taken = all_of(feed)
    assert [blocks_of(one) for one in taken] == prepared
    assert [one.ahead for one in taken] == list(range(1, len(prepared) + 1))
    assert [number for one in prepared for number in one] == list(range(24))
    assert max(map(len, prepared)) == 12, "no more than a commit should hold"
    assert len(prepared) <= 4, "small ones only at the beginning and at the end"


@pytest.mark.parametrize("error", [QuotaExceededError("any"), ValueError("a bug")])
def test_what_cannot_be_decoded_or_prepared_is_left_to_the_loop(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """All of it arrives, in order, whatever the error is; the loop does it again and raises."""
    monkeypatch.setattr("headwater.substreams.source.DECODED_BLOCKS", 3)
    monkeypatch.setattr("headwater.substreams.source.TOGETHER_BLOCKS", 9)
    reading: Any = ManyMessages(8)

    def fails_at(number: int, numbers: Sequence[int]) -> None:
        if number in numbers:
            raise error

    def decoding(outputs: Sequence[ModuleOutput]) -> dict[str, pa.Table]:
        fails_at(4, [one.clock.number for one in outputs])
        return decode(outputs)

    def prepare(tables: Mapping[str, pa.Table]) -> str:
        fails_at(20, numbers_of(tables))
        return "prepared"

    taken = all_of(Feed(reading, 0, decode=decoding, prepare=prepare))
    assert [number for one in taken for number in blocks_of(one)] == list(range(24))
    for one in taken:
        assert (one.tables is None) == (4 in blocks_of(one))
        assert (one.ahead is None) == bool({4, 20} & set(blocks_of(one)))
        if one.tables is not None:
            assert numbers_of(one.tables) == blocks_of(one)
    assert blocks_of(next(one for one in taken if one.tables is None)) == [3, 4, 5]


def wait_until(condition: Callable[[], bool]) -> None:
    waiting = Event()
    for _ in range(12_000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it does not come true")


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_remembered_of_blocks_does_not_grow(keeps: bool) -> None:
    """Without a target that keeps side tables the rows of one were counted all the same."""
    log, state = CursorLog(), PipeState()
    if keeps:
        target: Any = SideTables()
        log.start(target, state)
    sizes = []
    for number in range(3000):
        clock = Clock(number, f"{number:064x}")
        log.note(clock.cursor, f"c{number}")
        final = BlockCursor(number - 20, f"{number - 20:064x}") if number > 20 else None
        header = BlockHeader(number, clock.hash)
        state = state.advance([header], Head(final, clock.cursor))
        log.advanced(state)
        sizes.append(len(log._notes))
    assert max(sizes[1000:]) <= max(sizes[:1000])


class SideTables:
    """Side tables that hold nothing."""

    def read_side_table(self, name: str, **asked: Any) -> pa.Table:
        return TABLE.columns.empty_table()

    def settle_side_rows(self, name: str, up_to: tuple[int, int], moved: object) -> None: ...
