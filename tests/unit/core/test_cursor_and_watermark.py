"""Cursors are values; the high-water mark only rises."""

import pickle

import pytest

from headwater.core import BlockCursor, BlockHeader, FinalizedWatermark
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
