"""Cursors are values; the high-water mark only rises."""

import pickle

import pytest

from headwater.core import (
    BlockCursor,
    BlockHeader,
    FinalizedWatermark,
    PipeState,
    find_rollback_index,
    resolve_fork,
)
from headwater.core.codec import load_cursor
from headwater.core.cursor import short_hash


def test_cursors_are_equal_by_number_and_hash_not_by_timestamp() -> None:
    assert BlockCursor(5, "a", 100) == BlockCursor(5, "a", None)
    assert BlockCursor(5, "a") != BlockCursor(5, "b")
    assert BlockCursor(5, "a") != BlockCursor(6, "a")


def test_a_header_gives_the_cursor_of_its_block() -> None:
    cursor = BlockHeader(7, "h", parent_hash="g", timestamp=99).cursor
    assert (cursor.number, cursor.hash, cursor.timestamp) == (7, "h", 99)


def test_cursors_pickle() -> None:
    cursor = BlockCursor(5, "a", 100)
    copy = pickle.loads(pickle.dumps(cursor))
    assert copy == cursor
    assert copy.timestamp == 100


@pytest.mark.parametrize(
    ("block_hash", "shown"),
    [(None, "?"), ("0x5", "0x5"), ("0x" + "ab" * 32, "0xababab…")],
)
def test_hashes_are_shown_short(block_hash: str | None, shown: str) -> None:
    assert short_hash(block_hash) == shown
    assert str(BlockCursor(5, block_hash)) == f"5#{shown}"


@pytest.mark.guarantee("FINAL-1")
def test_the_mark_rises_but_never_falls() -> None:
    mark = FinalizedWatermark().observe(BlockCursor(10, "a"))
    assert mark.observe(BlockCursor(9, "x")) == mark
    assert mark.observe(None) == mark
    assert mark.observe(BlockCursor(11, "b")).cursor == BlockCursor(11, "b")


def test_a_tie_keeps_the_first_hash() -> None:
    mark = FinalizedWatermark(BlockCursor(10, "a"))
    assert mark.observe(BlockCursor(10, "b")).cursor == BlockCursor(10, "a")


def test_finality_without_a_hash_cannot_be_an_anchor_and_is_ignored() -> None:
    assert FinalizedWatermark().observe(BlockCursor(10)).cursor is None


def test_block_zero_can_be_final_and_unknown_finality_covers_nothing() -> None:
    assert FinalizedWatermark(BlockCursor(0, "genesis")).covers(0)
    assert not FinalizedWatermark().covers(0)


# --- one spelling per hash ------------------------------------------------------------------------

HEX = "0x" + "aB12" * 16
BARE = "00000000" + "Ab" * 28  # as Bitcoin writes it
BASE58 = "4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi"  # as Solana writes it: case tells


@pytest.mark.parametrize("text", [HEX, HEX.upper(), BARE, BARE.upper()])
def test_hex_hashes_are_compared_without_regard_to_case(text: str) -> None:
    assert BlockCursor(5, text) == BlockCursor(5, text.lower())
    assert hash(BlockCursor(5, text)) == hash(BlockCursor(5, text.lower()))
    assert BlockHeader(5, text, text) == BlockHeader(5, text.lower(), text.lower())
    assert BlockHeader(5, text).cursor == BlockCursor(5, text.lower())


def test_the_case_of_other_hashes_tells_blocks_apart() -> None:
    assert BlockCursor(5, BASE58) != BlockCursor(5, BASE58.lower())
    assert BlockCursor(5, BASE58).hash == BASE58
    assert BlockHeader(5, BASE58, BASE58) != BlockHeader(5, BASE58, BASE58.lower())


def test_a_fork_sample_in_another_case_holds_our_blocks() -> None:
    ours = [BlockCursor(number, f"0x{number}abc") for number in (5, 6, 7)]
    theirs = [BlockCursor(5, "0x5ABC"), BlockCursor(6, "0X6ABC"), BlockCursor(7, "0x7FFF")]
    assert find_rollback_index(ours, theirs) == 1
    state = PipeState(ours[-1], ours[0], tuple(ours))
    assert resolve_fork(state, theirs).safe_cursor == ours[1]


def test_stored_cursors_are_read_in_one_spelling() -> None:
    assert load_cursor('{"number":5,"hash":"0x5ABC"}') == BlockCursor(5, "0x5abc")
