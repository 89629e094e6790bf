"""The undo buffer in front of a scripted source: what the loop hears, and what it does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headwater.core import AtHead, Blocks, Dropped, Fork, Head, PipeState, RangeEnd, Undo
from headwater.pipeline import Answers, Said
from headwater.stream.undo_buffer import UndoBuffer
from tests.unit.test_pipeline import END, ScriptedSource, blocks, cursors, fork, head, span, state

START = state("5", "5")


class Script(ScriptedSource):
    """Readings, and what is seen beyond the last range."""

    def __init__(self, *readings: Sequence[Said], beyond: Sequence[Sequence[Said]] = ()) -> None:
        self.calls: list[str] = []
        super().__init__(self.calls, *readings)  # type: ignore[arg-type]
        self._beyond = iter(beyond)

    def watch(self, state: PipeState) -> Answers:
        assert state.cursor is not None
        self.calls.append(f"watch after {str(state.cursor.hash)[1:]}")
        yield from next(self._beyond)


class Hearing:
    """Reads a buffer as the loop does, and keeps what it hears."""

    def __init__(self, source: Script, depth: int, patience: int = 5) -> None:
        self.pauses = 0
        self.buffer = UndoBuffer(source, depth, pause=self._pause, patience=patience)
        self.state = START

    def _pause(self) -> None:
        self.pauses += 1

    def read(self) -> list[Said] | None:
        """Take one reading, up to a fork or the end of a range."""
        answers = self.buffer.read(self.state)
        if answers is None:
            return None
        heard: list[Said] = []
        for answer in answers:
            heard.append(answer)
            if isinstance(answer, Blocks):
                for one in answer.headers:
                    self.state = self.state.advance((one,), answer.head)
            if isinstance(answer, Fork | Undo | RangeEnd):
                break
        answers.close()
        return heard


def given(heard: list[Said] | None) -> str:
    found = [one for one in heard or () if isinstance(one, Blocks)]
    return " ".join(line.decode() for answer in found for line in answer.lines)


def test_the_newest_blocks_are_held_back_until_newer_ones_come() -> None:
    hearing = Hearing(Script([blocks("6 7 8", "5"), blocks("9", "5")]), depth=2)
    heard = hearing.read()
    assert heard == [blocks("6", "5"), blocks("7", "5")]


def test_the_height_that_the_portal_reports_makes_blocks_old() -> None:
    """While catching up, blocks far below the head are not held at all."""
    answer = blocks("6 7 8", "5")
    far = Blocks(answer.headers, answer.lines, Head(cursors("5")[0], cursors("100")[0]))
    assert given(Hearing(Script([far]), depth=10).read()) == "6 7 8"


def test_final_blocks_pass_at_once_and_finality_is_told_even_if_nothing_may_go() -> None:
    hearing = Hearing(Script([blocks("6 7", "5"), blocks("8", "7"), blocks("9", "7")]), depth=10)
    assert hearing.read() == [
        AtHead(head("5"), confirmed=True),
        blocks("6 7", "7"),
        AtHead(head("7"), confirmed=True),
    ]


def test_finality_that_a_held_block_refutes_is_not_passed_on() -> None:
    hearing = Hearing(Script([blocks("6 7", "5"), AtHead(head("6b"), confirmed=True)]), depth=10)
    assert hearing.read() == [AtHead(head("5"), confirmed=True), AtHead(Head(), confirmed=True)]


def test_an_idle_answer_releases_by_finality_and_only_if_confirmed_by_height() -> None:
    high = Head(None, cursors("9")[0])
    script = Script([
        blocks("6 7 8", "5"), AtHead(high), AtHead(high, confirmed=True), AtHead(head("8")),
    ])  # fmt: skip
    heard = Hearing(script, depth=3).read()
    assert heard is not None
    assert [type(one) for one in heard] == [AtHead, AtHead, Blocks, AtHead, Blocks, AtHead]
    assert given(heard) == "6 7 8"
    assert given(heard[:4]) == "6"


@pytest.mark.guarantee("BUFFER-1")
def test_a_fork_among_held_blocks_is_not_heard_of_but_for_a_note() -> None:
    script = Script([blocks("6 7 8", "5"), fork("6 7b")], [blocks("7b 8b 9b", "5")])
    hearing = Hearing(script, depth=3)
    assert hearing.read() == [AtHead(head("5"), confirmed=True), Dropped(cursors("8")[0], 2)]
    assert given(hearing.read()) == "6"
    assert script.calls == ["read after 5", "read after 6"]


def test_a_fork_of_everything_held_is_read_again_from_what_was_handed_out() -> None:
    script = Script([blocks("6 7", "5"), fork("5 6b")], [blocks("6b", "5")])
    hearing = Hearing(script, depth=3)
    hearing.read()
    hearing.read()
    assert script.calls == ["read after 5", "read after 5"]


@pytest.mark.guarantee("BUFFER-2")
def test_a_deeper_fork_is_passed_on_after_everything_held_is_dropped() -> None:
    script = Script([blocks("6 7 8", "5"), fork("5 6b")], [])
    hearing = Hearing(script, depth=1)
    heard = hearing.read()
    assert heard == [blocks("6 7", "5"), Dropped(cursors("8")[0], 1), fork("5 6b")]
    hearing.state = START
    hearing.read()
    assert script.calls[-1] == "read after 5", "nothing held is left"


def test_with_nothing_held_a_fork_is_only_passed_on() -> None:
    assert Hearing(Script([fork("5b")]), depth=3).read() == [fork("5b")]


def test_a_replica_that_is_behind_is_waited_for_and_then_believed() -> None:
    behind = fork("5 6")
    script = Script([blocks("6 7", "5"), behind], [behind], [behind])
    hearing = Hearing(script, depth=5, patience=2)
    assert hearing.read() == [AtHead(head("5"), confirmed=True), AtHead(Head())]
    assert hearing.read() == [AtHead(Head())]
    assert hearing.pauses == 2
    assert hearing.read() == [Dropped(cursors("7")[0], 1)]


def test_a_loop_that_went_elsewhere_finds_nothing_held() -> None:
    script = Script([blocks("6 7", "5")], [])
    hearing = Hearing(script, depth=5)
    hearing.read()
    hearing.state = state("4", "4")
    hearing.read()
    assert script.calls == ["read after 5", "read after 4"]


def test_spans_pass_and_nothing_is_held_of_them() -> None:
    passing = span(6, 105, "500")
    script = Script([passing, blocks("106", "500"), blocks("501", "500")])
    assert Hearing(script, depth=5).read() == [
        passing, blocks("106", "500"), AtHead(head("500"), confirmed=True),
    ]  # fmt: skip


@pytest.mark.guarantee("BUFFER-3")
def test_after_the_last_range_the_chain_is_watched_until_every_block_may_go() -> None:
    script = Script(
        [blocks("6 7", "5"), END],
        beyond=[[blocks("8", "5"), AtHead(head()), blocks("9", "5")]],
    )
    hearing = Hearing(script, depth=2)
    assert hearing.read() == [AtHead(head("5"), confirmed=True)]
    assert hearing.read() == [
        blocks("6", "5"), AtHead(head()), blocks("7", "5"), RangeEnd(Head()),
    ]  # fmt: skip
    assert hearing.read() is None
    assert script.calls == ["read after 5", "read after 7", "watch after 7", "read after 7"]


def test_a_fork_while_watching_is_settled_like_any_other() -> None:
    script = Script(
        [blocks("6 7", "5"), END],
        None,  # type: ignore[arg-type]
        [blocks("7b", "5"), END],
        beyond=[[blocks("8", "5"), fork("6 7b")], [blocks("8b 9b 10b", "5")]],
    )
    hearing = Hearing(script, depth=3)
    hearing.read()
    heard = [hearing.read(), hearing.read(), hearing.read()]
    assert heard[0] == [AtHead(head("5"), confirmed=True), Dropped(cursors("8")[0], 1)]
    assert given(heard[1]) == ""
    assert given(heard[2]) == "6 7b"


def test_a_fork_of_watched_blocks_alone_is_nobodys_business() -> None:
    script = Script(
        [blocks("6 7", "5"), END],
        beyond=[[blocks("8 9", "5"), fork("8 9b")], [blocks("9b 10b", "5")]],
    )
    hearing = Hearing(script, depth=3)
    hearing.read()
    assert given(hearing.read()) == "6"
    assert given(hearing.read()) == "7"
    assert script.calls[-1] == "watch after 8"


def test_an_end_of_range_with_nothing_held_is_passed_on() -> None:
    assert Hearing(Script([blocks("6", "6"), END]), depth=3).read() == [blocks("6", "6"), END]
