"""Cuts of a range: no block lost, none twice, none idle, and even work."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core import (
    BLOCK_COST,
    BYTES_PER_ROW,
    BYTES_PER_SECOND,
    BlockRange,
    Density,
    SpanLimits,
    SpanSize,
    block_count,
    even_partitions,
    up_to,
)
from headwater.errors import InvalidOptionError, InvalidRangeError
from headwater.spark.parts import partition_count

BYTES = st.one_of(st.just(0.0), st.floats(0, 1e9, allow_subnormal=False))


@st.composite
def densities(draw: st.DrawFn) -> list[Density]:
    start = draw(st.integers(0, 2**40))
    made = []
    for size, density in draw(
        st.lists(st.tuples(st.integers(1, 5_000), BYTES), min_size=1, max_size=12)
    ):
        made.append(Density(BlockRange(start, start + size - 1), density))
        start += size
    return made


def weight(parts: list[Density], blocks: BlockRange) -> float:
    """The estimated work of some blocks, counted the slow way."""
    assert blocks.to_block is not None
    total = 0.0
    for part in parts:
        assert part.blocks.to_block is not None
        low = max(part.blocks.from_block, blocks.from_block)
        high = min(part.blocks.to_block, blocks.to_block)
        total += max(0, high - low + 1) * max(part.bytes_per_block, BLOCK_COST)
    return total


@given(densities(), st.integers(1, 300))
def test_parts_are_the_range_without_gaps_and_overlaps(parts: list[Density], count: int) -> None:
    cut = even_partitions(parts, count)
    assert cut[0].from_block == parts[0].blocks.from_block
    assert cut[-1].to_block == parts[-1].blocks.to_block
    for lower, upper in pairwise(cut):
        assert lower.to_block is not None
        assert lower.to_block + 1 == upper.from_block
    assert all(block_count(one) >= 1 for one in cut)
    assert len(cut) == min(count, sum(block_count(one.blocks) for one in parts))


@given(densities(), st.integers(1, 300))
def test_no_part_exceeds_its_share_by_more_than_a_block(parts: list[Density], count: int) -> None:
    cut = even_partitions(parts, count)
    share = sum(weight(parts, one.blocks) for one in parts) / len(cut)
    largest = max(max(one.bytes_per_block, BLOCK_COST) for one in parts)
    for one in cut:
        assert weight(parts, one) <= (share + largest) * (1 + 1e-9)


@given(densities(), st.integers(1, 64))
def test_the_number_of_parts_is_bounded_by_need(parts: list[Density], cores: int) -> None:
    count = partition_count(parts, cores)
    total = sum(one.total for one in parts)
    assert 1 <= count <= max(4 * cores, total / (64 << 20) + 1)
    assert total / count <= 64 << 20


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 200))
def test_equal_blocks_are_cut_by_number(start: int, size: int, count: int) -> None:
    cut = even_partitions([Density(BlockRange(start, start + size - 1), 100.0)], count)
    sizes = {block_count(one) for one in cut}
    assert max(sizes) - min(sizes) <= 1


def test_a_dense_end_gets_most_of_the_parts() -> None:
    sparse = Density(BlockRange(0, 999_999), 20.0)
    dense = Density(BlockRange(1_000_000, 1_009_999), 100_000.0)
    cut = even_partitions([sparse, dense], 100)
    assert sum(one.from_block >= 1_000_000 for one in cut) >= 97


@pytest.mark.parametrize("count", [0, -1])
def test_less_than_one_part_is_refused(count: int) -> None:
    with pytest.raises(InvalidOptionError, match="at least 1"):
        even_partitions([Density(BlockRange(0, 9), 1.0)], count)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [Density(BlockRange(0), 1.0)],
        [Density(BlockRange(0, 9), 1.0), Density(BlockRange(11, 19), 1.0)],
        [Density(BlockRange(0, 9), 1.0), Density(BlockRange(9, 19), 1.0)],
    ],
)
def test_densities_that_do_not_follow_each_other_are_refused(parts: list[Density]) -> None:
    with pytest.raises(InvalidRangeError):
        even_partitions(parts, 2)


@given(densities(), st.integers(1, 10**9), st.integers(1, 10**7), st.floats(0.1, 10))
def test_a_span_keeps_within_its_limits_unless_it_is_one_block(
    parts: list[Density], size: int, rows: int, factor: float
) -> None:
    """By the estimate, corrected by what the last span held: bytes by a factor, a row per 100."""
    limits = SpanLimits(bytes=size, rows=rows)
    span = SpanSize(100, limits)
    span.held(1_000.0, int(1_000 * factor), int(10 * factor))
    parts = [Density(one.blocks, max(BLOCK_COST, one.bytes_per_block)) for one in parts]
    first = parts[0].blocks.from_block
    blocks = span.fitting(parts)
    assert 1 <= blocks <= sum(block_count(one.blocks) for one in parts)
    held = up_to(parts, first + blocks - 1)
    assert sum(block_count(one.blocks) for one in held) == blocks
    estimate = sum(one.total for one in held) * int(1_000 * factor) / 1_000
    if blocks > 1:
        assert estimate <= size * 1.001
        assert estimate * int(10 * factor) / int(1_000 * factor) <= rows * 1.001


LIMITS = st.builds(
    SpanLimits,
    blocks=st.integers(1, 10**6),
    bytes=st.integers(1, 10**10),
    rows=st.integers(1, 10**8),
    seconds=st.floats(1e-3, 1e9),
)


@given(densities(), LIMITS)
def test_a_first_span_holds_what_is_read_in_time_and_keeps_within_its_limits(
    parts: list[Density], limits: SpanLimits
) -> None:
    """Its length is that of its beginning, which may be sparse; what is measured then cuts it."""
    parts = [Density(one.blocks, max(BLOCK_COST, one.bytes_per_block)) for one in parts]
    span = SpanSize(None, limits)
    span.begin(parts[0].bytes_per_block)
    room = min(limits.bytes, limits.rows * BYTES_PER_ROW, limits.seconds * BYTES_PER_SECOND)
    wanted = min(limits.blocks, room / parts[0].bytes_per_block)
    assert 1 <= span.blocks <= limits.blocks
    assert span.blocks == 1 or wanted / 2 <= span.blocks <= wanted
    first = parts[0].blocks.from_block
    held = up_to(parts, first + span.fitting(parts) - 1)
    if sum(block_count(one.blocks) for one in held) > 1:
        assert sum(one.total for one in held) <= room * 1.001


@given(LIMITS, st.floats(0, 1e6), st.integers(1, 10**6), st.none() | st.integers(1, 10**6))
def test_what_was_timed_sizes_the_next_span(
    limits: SpanLimits, seconds: float, blocks: int, first: int | None
) -> None:
    """A second or more tells the rate; less lets spans grow fourfold at most."""
    span = SpanSize(first, limits)
    span.begin(1000.0)
    span.took(1.0, 1)  # the first one is past
    before = span.blocks
    span.took(seconds, blocks)
    if not seconds:
        assert span.blocks == before
        return
    in_time = blocks * limits.seconds / seconds
    most = in_time if seconds >= 1 else min(in_time, 4 * blocks)
    assert 1 <= span.blocks <= max(1, min(most, limits.blocks))
    assert span.blocks > min(most, limits.blocks) - 1


@given(LIMITS, st.floats(1e-3, 1e6), st.integers(1, 10**6))
def test_what_the_driver_read_for_a_second_or_more_sizes_the_first_span(
    limits: SpanLimits, seconds: float, blocks: int
) -> None:
    span = SpanSize(None, limits)
    span.read_before(seconds, blocks)
    if seconds < 1:
        assert span.blocks == 0, "then its bytes do"
    else:
        most = min(blocks * limits.seconds / seconds, limits.blocks)
        assert max(1, most - 1) <= span.blocks <= max(1, most)
