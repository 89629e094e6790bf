"""The loop and the undo buffer told to undo: straight to the last valid block, once."""

from __future__ import annotations

import pytest

from headwater.core import (
    Blocks,
    Dropped,
    Flush,
    FlushRules,
    ForkResolution,
    ForkRule,
    PipeState,
    Undo,
    resolve_undo,
)
from headwater.errors import UndoDepthError
from headwater.pipeline import (
    Buffered,
    Committed,
    Discarded,
    Recovered,
    RolledBack,
)
from tests.unit.test_pipeline import END, Run, blocks, cursors, state
from tests.unit.test_undo_buffer import Hearing, Script, given

START = state("5", "5")


def undo(name: str) -> Undo:
    return Undo(cursors(name)[0])


@pytest.mark.guarantee("UNDO-1")
def test_an_undo_goes_straight_to_the_last_valid_block_and_reads_on() -> None:
    run = Run(
        [blocks("6 7 8", "5"), undo("6")], [undo("6"), undo("6")], [blocks("7b", "5"), END],
        start=START,
    )  # fmt: skip
    events = run.events()
    assert events[-2:] == [
        RolledBack(
            state("5 6", "5"), cursors("8")[0], ForkResolution(cursors("6")[0], ForkRule.UNDO)
        ),
        Committed(state("5 6 7b", "5"), 1),
    ]
    assert run.rows == "6 7b"
    assert run.calls.count("roll_back to 6") == 1, "the same signal again undoes nothing"


@pytest.mark.guarantee("UNDO-1")
def test_an_undo_to_a_block_without_output_lands_on_the_one_below() -> None:
    run = Run([blocks("6 9", "5"), undo("8")], [blocks("9b", "5"), END], start=START)
    run.events()
    assert run.rows == "6 9b"


def test_an_undo_that_comes_first_after_a_resume_undoes_what_is_stored() -> None:
    run = Run([undo("6")], [blocks("7b 8b", "5"), END], start=state("5 6 7", "5"))
    assert run.events()[1] == RolledBack(
        state("5 6", "5"), cursors("7")[0], ForkResolution(cursors("6")[0], ForkRule.UNDO)
    )


@pytest.mark.guarantee("UNDO-2")
@pytest.mark.parametrize("last_valid", ["4", "7b", "8b"])
def test_an_undo_that_cannot_be_is_an_error_before_anything_changes(last_valid: str) -> None:
    run = Run([undo(last_valid)], start=state("5 6 7 8", "5"))
    events = run.pipeline.steps()
    assert next(events) == Recovered(state("5 6 7 8", "5"))
    with pytest.raises(UndoDepthError, match="undo signal"):
        next(events)
    assert run.state == state("5 6 7 8", "5")


@pytest.mark.guarantee("UNDO-1")
def test_an_undo_drops_what_waits_for_a_flush_and_undoes_the_rest() -> None:
    run = Run(
        [blocks("6 7 8", "5"), undo("6")], [blocks("7b", "5"), END],
        start=START, flush=FlushRules(Flush(blocks=2)),
    )  # fmt: skip
    two = state("5 6 7", "5")
    assert run.events()[1:] == [
        Buffered(START, cursors("6")[0], 1),
        Committed(two, 2),
        Buffered(two, cursors("8")[0], 1),
        Discarded(two, cursors("8")[0], 1),
        RolledBack(
            state("5 6", "5"), cursors("7")[0], ForkResolution(cursors("6")[0], ForkRule.UNDO)
        ),
        Buffered(state("5 6", "5"), cursors("7b")[0], 1),
        Committed(state("5 6 7b", "5"), 1),
    ]


def test_an_undo_above_what_waits_leaves_it_waiting() -> None:
    run = Run(
        [blocks("6", "5"), undo("6")], [blocks("7", "5"), END],
        start=START, flush=FlushRules(Flush(blocks=9)),
    )  # fmt: skip
    assert [type(one) for one in run.events()[1:]] == [Buffered, Buffered, Committed]
    assert run.rows == "6 7"


def test_before_the_first_block_there_is_nothing_to_undo() -> None:
    assert resolve_undo(PipeState(), cursors("3")[0]) is None


@pytest.mark.guarantee("UNDO-1")
def test_the_undo_buffer_settles_what_it_holds_and_passes_the_rest_on() -> None:
    hearing = Hearing(
        Script(
            [blocks("6 7 8 9", "5"), undo("7")], [blocks("8b 9b", "5"), undo("6")],
            [blocks("7c", "5")],
        ),
        depth=2,
    )  # fmt: skip
    first = hearing.read()
    assert given(first) == "6 7"
    assert Dropped(cursors("9")[0], 2) in (first or ())
    second = hearing.read()
    assert second is not None
    assert second[-1] == undo("6"), "7 was handed out: the loop undoes it"
    assert not [one for one in second if isinstance(one, Blocks)]
    assert Dropped(cursors("9b")[0], 2) in second
