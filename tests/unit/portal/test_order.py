import pytest

from headwater.core import BlockCursor, BlockHeader, BlockRange
from headwater.errors import BlockLinkError, BlockOrderError
from headwater.portal import BlockOrder


def block(number: int, parent_hash: str | None = None, parent: int | None = None) -> BlockHeader:
    return BlockHeader(number, f"h{number}", parent_hash, parent)


def after_five(*, complete: bool = False, block_hash: str | None = "h5") -> BlockOrder:
    return BlockOrder(BlockRange(6, 20), BlockCursor(5, block_hash), complete=complete)


def test_blocks_that_follow_are_taken_up_to_the_end_of_the_range() -> None:
    order = BlockOrder(BlockRange(6, 8), BlockCursor(5, "h5"))
    assert (order.next_block, order.finished) == (6, False)
    assert order.anchor == BlockCursor(5, "h5")
    for header in (block(6, "h5"), block(7, "h6"), block(8, "h7")):
        assert not order.finished
        order.accept(header)
    assert order.finished
    assert order.anchor == BlockCursor(8, "h8")


def test_a_range_without_an_end_is_never_finished() -> None:
    order = BlockOrder(BlockRange(0))
    order.accept(block(10))
    assert not order.finished
    assert order.remaining == BlockRange(11)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (7, "twice, after block 7"),
        (6, "out of order, after block 7"),
        (5, "out of order"),
        (21, "outside the requested range"),
    ],
)
def test_disorder_is_named_and_leaves_the_order_at_the_last_good_block(
    number: int, text: str
) -> None:
    """CASE-16."""
    order = after_five()
    order.accept(block(7))
    with pytest.raises(BlockOrderError, match=text) as caught:
        order.accept(block(number))
    assert caught.value.facts["block"] == number
    assert order.next_block == 8


def test_a_first_block_below_the_range_is_outside_it() -> None:
    with pytest.raises(BlockOrderError, match="outside"):
        BlockOrder(BlockRange(6)).accept(block(5))


def test_a_cursor_of_a_disjoint_range_is_no_anchor() -> None:
    order = BlockOrder(BlockRange(10, 20), BlockCursor(5, "h5"), complete=True)
    assert order.anchor is None
    order.accept(block(10, "h9"))


@pytest.mark.parametrize(
    "header",
    [
        block(6),
        block(6, "h5"),
        block(6, "h5", 5),
        block(6, None, 5),
        block(9),
        block(9, "h8"),
        block(9, "h8", 8),
        block(9, "h6", 6),
        block(9, "h5", 5),
        block(9, None, 5),
    ],
)
def test_children_and_later_descendants_are_legal_in_a_filtered_stream(header: BlockHeader) -> None:
    after_five().accept(header)


@pytest.mark.parametrize(
    "header",
    [
        block(6, "other"),  # the next number with another parent
        block(6, "other", 5),
        block(9, "other", 5),  # names our number, but another hash
        block(9, "h4", 4),  # its parent is older than our block, so ours is not on its chain
        block(6, "h4", 4),
        block(6, "h6", 6),  # its own parent
        block(6, "h9", 9),
    ],
)
@pytest.mark.parametrize("complete", [False, True])
def test_a_foreign_block_is_refused(header: BlockHeader, complete: bool) -> None:
    order = after_five(complete=complete)
    with pytest.raises(BlockLinkError, match=r"\[E3005\].*not a descendant of block 5"):
        order.accept(header)
    assert order.anchor == BlockCursor(5, "h5")


@pytest.mark.parametrize("header", [block(7), block(7, "h6"), block(9, "h8", 8), block(9, None, 6)])
def test_a_gap_is_refused_if_every_block_was_asked_for(header: BlockHeader) -> None:
    with pytest.raises(BlockLinkError, match="missing between 5 and"):
        after_five(complete=True).accept(header)


@pytest.mark.parametrize("header", [block(9, "h5", 5), block(9, None, 5), block(9, "h5")])
def test_skipped_slots_are_no_gap(header: BlockHeader) -> None:
    after_five(complete=True).accept(header)


def test_an_anchor_without_a_hash_is_checked_by_number_alone() -> None:
    after_five(block_hash=None).accept(block(6, "whatever"))
    with pytest.raises(BlockLinkError, match="missing"):
        after_five(block_hash=None, complete=True).accept(block(7, "whatever"))


def test_the_first_block_of_all_needs_no_parent() -> None:
    order = BlockOrder(BlockRange(0), None, complete=True)
    order.accept(block(0, "zero", 0))
    order.accept(block(1, "h0", 0))


def test_a_parent_hash_in_another_case_is_the_same_block() -> None:
    order = BlockOrder(BlockRange(6, 9), BlockCursor(5, "0xABCD"), complete=True)
    order.accept(BlockHeader(6, "0xEF01", parent_hash="0xabcd"))
    order.accept(BlockHeader(7, "0xef02", parent_hash="0xef01"))
    assert order.last is not None
    assert order.last.number == 7


@pytest.mark.parametrize("first", [block(7, "h6", 6), block(7, "h6"), block(7)])
def test_a_gap_before_the_first_block_is_refused_if_every_block_was_asked_for(
    first: BlockHeader,
) -> None:
    with pytest.raises(BlockLinkError, match="missing between 6 and 7"):
        BlockOrder(BlockRange(6), complete=True).accept(first)
    BlockOrder(BlockRange(6)).accept(first)


def test_skipped_slots_before_the_first_block_are_no_gap() -> None:
    BlockOrder(BlockRange(6), complete=True).accept(block(9, "h4", 4))
    BlockOrder(BlockRange(6), complete=True).accept(block(6, "h6", 6))
