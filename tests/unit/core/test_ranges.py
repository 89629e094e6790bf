"""Ranges as people write them, and the algebra of the resolved ones."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from headwater.core import (
    BlockCursor,
    BlockRange,
    RangeSpec,
    anchor_for,
    clip_ranges,
    merge_ranges,
    parse_ranges,
    segment_ranges,
)
from headwater.core.ranges import At, Latest, Plus
from headwater.errors import InvalidRangeError

NEW_YEAR = 1_704_067_200  # 2024-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("written", "understood"),
    [
        (None, RangeSpec(0)),
        (0, RangeSpec(0)),
        (12_000_000, RangeSpec(12_000_000)),
        ("12,000,000", RangeSpec(12_000_000)),
        ("12_000_000", RangeSpec(12_000_000)),
        (" 12 ", RangeSpec(12)),
        ("latest", RangeSpec(Latest())),
        ("2024-01-01", RangeSpec(At(NEW_YEAR))),
        ("2024-01-01T01:00:00+01:00", RangeSpec(At(NEW_YEAR))),
        ("2024-01-01T00:00:00Z", RangeSpec(At(NEW_YEAR))),
        (date(2024, 1, 1), RangeSpec(At(NEW_YEAR))),
        (datetime(2024, 1, 1, tzinfo=UTC), RangeSpec(At(NEW_YEAR))),
        (datetime(2024, 1, 1), RangeSpec(At(NEW_YEAR))),  # noqa: DTZ001 - no zone means UTC
        (datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), RangeSpec(At(NEW_YEAR))),
        (datetime(2023, 12, 31, 23, 59, 59, 1, tzinfo=UTC), RangeSpec(At(NEW_YEAR))),
        ((5, 9), RangeSpec(5, 9)),
        ((5, 0 + 5), RangeSpec(5, 5)),
        ((0, 0), RangeSpec(0, 0)),
        (("1,000", "+99"), RangeSpec(1000, Plus(99))),
        ((None, 9), RangeSpec(0, 9)),
        ((5, None), RangeSpec(5)),
        (("latest", "+10"), RangeSpec(Latest(), Plus(10))),
        ((5, "latest"), RangeSpec(5, Latest())),
        (("2024-01-01", "2024-01-02"), RangeSpec(At(NEW_YEAR), At(NEW_YEAR + 86400))),
        ({"from": 5, "to": 9}, RangeSpec(5, 9)),
        ({"from": "latest"}, RangeSpec(Latest())),
        ({}, RangeSpec(0)),
        (BlockRange(3, 4), RangeSpec(3, 4)),
        (RangeSpec(3), RangeSpec(3)),
        (Latest(), RangeSpec(Latest())),
    ],
)
def test_what_people_write_is_understood(written: object, understood: RangeSpec) -> None:
    assert parse_ranges(written) == (understood,)


def test_a_list_names_several_ranges() -> None:
    assert parse_ranges([(1, 2), (9, None)]) == (RangeSpec(1, 2), RangeSpec(9))


@pytest.mark.parametrize("written", [[0, 30], ["2024-01-01", "2024-02-01"], [9], [(1, 2), 9]])
def test_a_list_is_never_taken_for_a_range(written: list[object]) -> None:
    with pytest.raises(InvalidRangeError, match=r"from a to b is the tuple \(a, b\)"):
        parse_ranges(written)


@pytest.mark.parametrize(
    "written",
    [
        -1,
        "-1",
        "",
        "soon",
        "12.5",
        ",1",
        1.5,
        True,
        "2024-13-01",
        "2024-01-01 at noon",
        "+5",
        ("+5", 9),
        (9, 5),
        (1, 2, 3),
        {"start": 1},
        [],
        object(),
        (5, "+"),
        (5, -1),
    ],
)
def test_what_cannot_be_understood_is_a_coded_error(written: object) -> None:
    with pytest.raises(InvalidRangeError, match="E0002"):
        parse_ranges(written)


@pytest.mark.parametrize(
    ("spec", "resolved"),
    [
        (RangeSpec(5), BlockRange(5)),
        (RangeSpec(0, 0), BlockRange(0, 0)),
        (RangeSpec(5, 9), BlockRange(5, 9)),
        (RangeSpec(5, Plus(3)), BlockRange(5, 8)),
        (RangeSpec(Latest()), BlockRange(100)),
        (RangeSpec(Latest(), Plus(3)), BlockRange(100, 103)),
        (RangeSpec(5, Latest()), BlockRange(5, 100)),
        (RangeSpec(At(10), At(20)), BlockRange(11, 21)),
    ],
)
def test_resolution_uses_the_head_and_the_look_ups_by_time(
    spec: RangeSpec, resolved: BlockRange
) -> None:
    assert spec.resolve(head=100, blocks_at={10: 11, 20: 22}) == resolved


def test_a_spec_says_which_look_ups_it_needs() -> None:
    assert RangeSpec(At(10), At(20)).instants == {10, 20}
    assert RangeSpec(5, 9).instants == frozenset()
    assert RangeSpec(Latest()).needs_head
    assert RangeSpec(1, Latest()).needs_head
    assert not RangeSpec(1, 2).needs_head


@pytest.mark.parametrize("spec", [RangeSpec(At(10)), RangeSpec(Latest(), 5)])
def test_resolution_that_cannot_work_is_a_coded_error(spec: RangeSpec) -> None:
    with pytest.raises(InvalidRangeError, match="E0002"):
        spec.resolve(head=100)


@pytest.mark.parametrize(("start", "end"), [(-1, None), (5, 4)])
def test_an_impossible_range_cannot_be_built(start: int, end: int | None) -> None:
    with pytest.raises(InvalidRangeError, match="E0002"):
        BlockRange(start, end)


def test_ranges_are_inclusive_at_both_ends_and_print_so() -> None:
    assert 5 in BlockRange(5, 9)
    assert 9 in BlockRange(5, 9)
    assert 10 not in BlockRange(5, 9)
    assert 10**9 in BlockRange(5)
    assert str(BlockRange(5, 9)) == "5..9"
    assert str(BlockRange(5)) == "5.."


def test_merging_joins_what_touches_and_keeps_gaps() -> None:
    merged = merge_ranges([BlockRange(8, 9), BlockRange(1, 3), BlockRange(4, 5), BlockRange(20)])
    assert merged == (BlockRange(1, 5), BlockRange(8, 9), BlockRange(20))


def test_segments_say_who_asked_for_them() -> None:
    assert segment_ranges([(BlockRange(0, 100), "a"), (BlockRange(50, 150), "b")]) == [
        (BlockRange(0, 49), ("a",)),
        (BlockRange(50, 100), ("a", "b")),
        (BlockRange(101, 150), ("b",)),
    ]


def test_nothing_asked_gives_no_segments() -> None:
    assert segment_ranges([]) == []


def test_clipping_starts_after_the_cursor_and_drops_what_is_done() -> None:
    ranges = (BlockRange(0, 10), BlockRange(20, 30), BlockRange(40))
    assert clip_ranges(ranges, BlockCursor(25, "h")) == (BlockRange(26, 30), BlockRange(40))
    assert clip_ranges(ranges, BlockCursor(30, "h")) == (BlockRange(40),)
    assert clip_ranges(ranges, None) == ranges


@pytest.mark.guarantee("WIRE-2")
@pytest.mark.parametrize(
    ("cursor", "anchored"),
    [
        (BlockCursor(19, "h"), True),
        (BlockCursor(18, "h"), False),
        (BlockCursor(19), False),
        (None, False),
    ],
)
def test_only_the_true_predecessor_is_an_anchor(cursor: BlockCursor | None, anchored: bool) -> None:
    assert anchor_for(BlockRange(20, 30), cursor) == (cursor if anchored else None)
