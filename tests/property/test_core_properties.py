"""The core against naive models, over random chains, samples and reports."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core import (
    BlockCursor,
    BlockHeader,
    BlockRange,
    FinalizedWatermark,
    ForkRule,
    Head,
    PipeState,
    clip_ranges,
    cut_batches,
    find_rollback_index,
    merge_ranges,
    resolve_fork,
    segment_ranges,
)
from headwater.core.codec import SyncRow, dump_state, fold_rows, load_state, sync_row
from headwater.errors import ForkCursorMissingError

numbers = st.integers(min_value=0, max_value=60)


def block(number: int, branch: str = "a") -> BlockCursor:
    return BlockCursor(number, f"{branch}{number}")


@dataclass(frozen=True)
class Situation:
    """A local history, and the chain that the portal holds: they part above `ancestor`."""

    state: PipeState
    ancestor: int
    top: int

    def portal(self, number: int) -> BlockCursor:
        return block(number, "a" if number <= self.ancestor else "b")

    def is_canonical(self, cursor: BlockCursor) -> bool:
        return cursor == self.portal(cursor.number)


@st.composite
def situations(draw: st.DrawFn, *, finality: bool | None = None) -> Situation:
    """A legal fork: our cursor is orphaned, no final block is. Our history has gaps."""
    held = sorted(draw(st.sets(numbers, min_size=2, max_size=20)))
    cursor = held[-1]
    known = draw(st.booleans()) if finality is None else finality
    mark = draw(st.integers(held[0], cursor - 1)) if known else None
    floor = held[0] if mark is None else mark
    ancestor = draw(st.integers(floor, cursor - 1))
    top = draw(st.integers(ancestor + 1, cursor + 10))
    finalized = None if mark is None else block(mark)
    chain = [number for number in held if mark is None or number >= mark]
    return Situation(PipeState(block(cursor), finalized, tuple(map(block, chain))), ancestor, top)


@st.composite
def samples(draw: st.DrawFn, situation: Situation) -> list[BlockCursor]:
    """Any part of the portal's chain, in any order."""
    picked = draw(st.sets(st.integers(0, situation.top), min_size=1, max_size=12))
    return [situation.portal(number) for number in draw(st.permutations(sorted(picked)))]


@pytest.mark.guarantee("FORK-1")
@given(st.data())
def test_the_highest_common_ancestor_in_the_sample_is_found(data: st.DataObject) -> None:
    """Whatever shape and order the sample has, the highest block we hold of it wins."""
    situation = data.draw(situations(finality=True))
    sample = data.draw(samples(situation))
    state = situation.state
    common = [
        held
        for held in state.landing_points()
        if held in sample and held.number < state.cursor.number  # type: ignore[union-attr]
    ]
    resolution = resolve_fork(state, sample, patient=False)
    if common:
        assert resolution.safe_cursor == max(common, key=lambda held: held.number)
        assert resolution.rule is ForkRule.MATCH
    assert resolve_fork(state, list(reversed(sample)), patient=False) == resolution


@pytest.mark.guarantee("FORK-2")
@pytest.mark.guarantee("FORK-3")
@given(st.data())
def test_consecutive_samples_converge_strictly_and_never_below_finality(
    data: st.DataObject,
) -> None:
    """Each 409 sends us strictly lower; we end on a canonical block, never below the mark."""
    situation = data.draw(situations())
    state = situation.state
    best = max(
        (held.number for held in state.landing_points() if situation.is_canonical(held)),
        default=None,
    )
    while state.cursor is not None and not situation.is_canonical(state.cursor):
        before = state.cursor.number
        try:
            resolution = resolve_fork(state, data.draw(samples(situation)), patient=False)
        except ForkCursorMissingError:
            assert state.finalized is None, "with finality known every legal fork is recoverable"
            return
        state = state.rewind(resolution.safe_cursor)
        assert resolution.safe_cursor.number < before
        if state.finalized is not None:
            assert resolution.safe_cursor.number >= state.finalized.number
    assert best is not None
    assert state.cursor is not None
    assert state.cursor.number <= best
    assert state.rollback_chain[-1] == state.cursor


@given(st.data())
def test_a_dense_sample_around_the_ancestor_lands_on_the_best_block_at_once(
    data: st.DataObject,
) -> None:
    situation = data.draw(situations())
    state = situation.state
    best = max(
        (held for held in state.landing_points() if situation.is_canonical(held)),
        key=lambda held: held.number,
    )
    low = data.draw(st.integers(0, best.number))
    sample = [situation.portal(number) for number in range(low, situation.top + 1)]
    assert resolve_fork(state, sample).safe_cursor == best


@given(st.data())
def test_a_lagging_replica_of_our_own_chain_never_costs_data(data: st.DataObject) -> None:
    """A sample that is our own chain, cut short at a block we hold, makes us wait."""
    state = data.draw(situations(finality=True)).state
    held = state.landing_points()
    top = data.draw(st.integers(0, len(held) - 1))
    extra = data.draw(st.sets(st.integers(0, held[0].number), max_size=5))
    sample = [*held[: top + 1], *map(block, extra)]
    assert resolve_fork(state, sample).rule is ForkRule.WAIT


@given(st.lists(st.tuples(numbers, st.booleans()), max_size=20), st.data())
def test_find_rollback_index_equals_the_naive_search(
    flags: list[tuple[int, bool]], data: st.DataObject
) -> None:
    chosen = sorted({number for number, _ in flags})
    split = data.draw(numbers)
    chain_a = [block(number) for number in chosen]
    chain_b = [
        block(number, "a" if number <= split else "b")
        for number in sorted(data.draw(st.sets(numbers, max_size=20)))
    ]
    naive = [index for index, ours in enumerate(chain_a) if ours in chain_b]
    assert find_rollback_index(chain_a, chain_b) == (naive[-1] if naive else -1)


@pytest.mark.guarantee("FINAL-1")
@given(st.lists(st.none() | st.builds(block, numbers), max_size=30))
def test_the_high_water_mark_is_the_running_maximum(
    reports: list[BlockCursor | None],
) -> None:
    mark = FinalizedWatermark()
    highest = -1
    for report in reports:
        mark = mark.observe(report)
        highest = max(highest, -1 if report is None else report.number)
        assert (-1 if mark.cursor is None else mark.cursor.number) == highest


@st.composite
def deliveries(draw: st.DrawFn) -> list[tuple[list[BlockHeader], Head]]:
    """Answers of one branch: ascending blocks with gaps; finality that jumps about or is absent."""
    answers: list[tuple[list[BlockHeader], Head]] = []
    number = 0
    for _ in range(draw(st.integers(1, 8))):
        arriving = []
        for _ in range(draw(st.integers(1, 5))):
            number += draw(st.integers(1, 3))
            parent = draw(st.sampled_from([None, f"a{number - 1}"]))
            arriving.append(BlockHeader(number, f"a{number}", parent))
        reported = draw(st.none() | st.integers(0, number + 5))
        latest = draw(st.none() | st.integers(number, number + 20))
        answers.append(
            (
                arriving,
                Head(
                    None if reported is None else block(reported),
                    None if latest is None else BlockCursor(latest),
                ),
            )
        )
    return answers


@pytest.mark.guarantee("FINAL-4")
@given(deliveries(), st.integers(2, 12))
def test_whatever_arrives_the_state_stays_sound(
    answers: list[tuple[list[BlockHeader], Head]], cap: int
) -> None:
    """Chain ascending, bounded, ending in the cursor; every hot block within the cap is held."""
    state = PipeState()
    rows: list[SyncRow] = []
    highest = -1
    hot: list[BlockCursor] = []
    for arriving, head in answers:
        for part in cut_batches(state, arriving, head, cap=cap):
            before, state = state, state.advance(arriving[part], head, cap=cap)
            hot.append(arriving[part][-1].cursor)
            rows.append(sync_row(state, before))
        reported = -1 if head.finalized is None else head.finalized.number
        highest = max(highest, reported)
        assert state.finalized is None or state.finalized.number <= highest
        ours = [cursor for cursor in hot if cursor.number <= reported]
        assert not ours or len(hot) > cap or state.is_final(ours[-1].number)
        held = [cursor.number for cursor in state.rollback_chain]
        assert held == sorted(set(held))
        assert len(held) <= cap
        assert state.rollback_chain[-1] == state.cursor
        reachable = [cursor for cursor in hot if not state.is_final(cursor.number)]
        assert set(reachable[-(cap - 1) :]) <= set(state.rollback_chain)
    assert fold_rows(rows).capped(cap).cursor == state.cursor
    assert set(state.landing_points()) <= set(fold_rows(rows).landing_points())
    assert load_state(dump_state(state)) == state


ranges = st.builds(
    lambda start, length: BlockRange(start, None if length is None else start + length),
    numbers,
    st.none() | st.integers(0, 20),
)


def covered(block_ranges: object) -> set[int]:
    assert isinstance(block_ranges, list | tuple)
    return {number for number in range(100) for one in block_ranges if number in one}


@pytest.mark.guarantee("RANGE-1")
@given(st.lists(ranges, max_size=6), st.none() | numbers)
def test_merged_and_clipped_ranges_hold_exactly_the_blocks_asked_for(
    asked: list[BlockRange], resume: int | None
) -> None:
    merged = merge_ranges(asked)
    assert covered(merged) == covered(asked)
    for left, right in pairwise(merged):
        assert left.to_block is not None
        assert left.to_block + 1 < right.from_block
    left_over = clip_ranges(merged, None if resume is None else block(resume))
    assert covered(left_over) == {n for n in covered(asked) if resume is None or n > resume}


@pytest.mark.guarantee("RANGE-1")
@given(st.lists(ranges, max_size=6))
def test_segments_name_exactly_those_who_asked(asked: list[BlockRange]) -> None:
    segments = segment_ranges(list(zip(asked, range(len(asked)), strict=True)))
    for number in range(100):
        wanted = {index for index, one in enumerate(asked) if number in one}
        found = [set(items) for segment, items in segments if number in segment]
        assert found == ([wanted] if wanted else [])
