"""What an undo buffer holds: blocks that are neither final nor deep, and what a fork leaves."""

from __future__ import annotations

from headwater.core import BlockCursor, BlockHeader, Blocks, Head, HeldBlock, Holding, PipeState
from headwater.core.undo_buffer import newest_number


def header(text: str) -> BlockHeader:
    return BlockHeader(int(text.rstrip("bc")), f"h{text}")


def cursors(text: str) -> tuple[BlockCursor, ...]:
    return tuple(header(one).cursor for one in text.split())


def blocks(text: str, final: str | None = None) -> Blocks:
    headers = tuple(map(header, text.split()))
    head = Head(None if final is None else header(final).cursor)
    return Blocks(headers, tuple(one.encode() for one in text.split()), head)


def after(chain: str, final: str) -> Holding:
    held = cursors(chain)
    return Holding(held[-1], PipeState(held[-1], header(final).cursor, held))


def names(held: tuple[HeldBlock, ...]) -> str:
    return " ".join(str(block.header.hash)[1:] for block in held)


def test_blocks_are_held_and_the_state_runs_ahead_of_what_was_handed_out() -> None:
    holding = after("5", "5").add(blocks("6 7 8", "5"), watched=False)
    assert holding.given == header("5").cursor
    assert holding.ahead == PipeState(header("8").cursor, header("5").cursor, cursors("5 6 7 8"))
    assert names(holding.held) == "6 7 8"
    assert holding.wanted == 3


def test_a_block_goes_when_so_many_numbers_lie_above_it() -> None:
    holding = after("5", "5").add(blocks("6 7 9", "5"), watched=False)
    left, gone = holding.release(9, 3)
    assert (names(gone), names(left.held)) == ("6", "7 9")
    assert left.given == header("6").cursor
    left, gone = left.release(12, 3)
    assert (names(gone), names(left.held)) == ("7 9", "")


def test_a_final_block_goes_at_once() -> None:
    holding = after("5", "5").add(blocks("6 7 8", "7"), watched=False)
    left, gone = holding.release(8, 100)
    assert (names(gone), names(left.held)) == ("6 7", "8")


def test_nothing_goes_before_its_time() -> None:
    holding = after("5", "5").add(blocks("6 7", "5"), watched=False)
    assert holding.release(7, 10) == (holding, ())


def test_blocks_that_are_only_watched_make_others_old_and_are_never_handed_out() -> None:
    holding = after("5", "5").add(blocks("6", "5"), watched=False)
    holding = holding.add(blocks("7 8 9", "5"), watched=True)
    assert holding.wanted == 1
    left, gone = holding.release(9, 2)
    assert (names(gone), names(left.held)) == ("6", "8 9")
    assert left.given == header("6").cursor
    assert left.wanted == 0


def test_a_fork_among_held_blocks_leaves_those_below_it() -> None:
    holding = after("5", "5").add(blocks("6 7 8", "5"), watched=False)
    left = holding.landing(cursors("6 7b"))
    assert left is not None
    assert names(left.held) == "6"
    assert left.ahead.cursor == header("6").cursor
    all_gone = holding.landing(cursors("5 6b"))
    assert all_gone is not None
    assert all_gone.held == ()
    assert all_gone.ahead.cursor == header("5").cursor


def test_a_fork_below_held_blocks_is_for_others_to_settle() -> None:
    holding = after("3 4 5", "3").add(blocks("6 7", "3"), watched=False)
    assert holding.landing(cursors("4 5b")) is None


def test_a_fork_that_nothing_here_explains_is_for_others_to_settle() -> None:
    holding = after("5", "5").add(blocks("6", "5"), watched=False)
    assert holding.landing(()) is None
    assert holding.landing(cursors("5b")) is None


def test_before_anything_was_handed_out_every_fork_is_among_the_held() -> None:
    first = BlockHeader(6, "h6", "h5", 5)
    start = Holding(None, PipeState())
    holding = start.add(Blocks((first,), (b"6",), Head()), watched=False)
    left = holding.landing(cursors("4 5b"))
    assert left is None or left.held == ()
    left = holding.landing(cursors("5 6b"))
    assert left is not None
    assert left.held == ()


def test_the_head_that_is_reported_counts_only_above_the_last_block() -> None:
    assert newest_number(header("7"), Head()) == 7
    assert newest_number(header("7"), Head(None, header("9").cursor)) == 9
    assert newest_number(header("7"), Head(None, header("5").cursor)) == 7


def test_an_undo_signal_leaves_the_held_blocks_up_to_it_and_says_nothing_twice() -> None:
    holding = after("5", "5").add(blocks("6 7 8", "5"), watched=False)
    left = holding.undo(header("6").cursor)
    assert left is not None
    assert names(left.held) == "6"
    assert left.ahead.cursor == header("6").cursor
    assert left.undo(header("6").cursor) == left, "nothing above it is held"


def test_an_undo_signal_below_what_was_handed_out_is_not_for_the_buffer() -> None:
    holding = after("5 6", "5").add(blocks("7", "5"), watched=False)
    assert holding.undo(header("5").cursor) is None
