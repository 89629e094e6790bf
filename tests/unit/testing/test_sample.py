"""Samples of long walks: what a run leaves out, another one takes."""

import pytest

from headwater.testing.conformance.crash import Clock, crash_everywhere
from headwater.testing.conformance.sample import WHOLE, Sample
from headwater.testing.scenarios.crash import Crash

CALLS = [(3, 3), (7, 4), (1, 1), (5, 2)]
"""Calls of a script: how many steps of I/O each has, and behind which of them it is committed."""


@pytest.mark.parametrize("count", [0, 1, 2, 7, 30])
@pytest.mark.parametrize("every", [1, 2, 5, 40])
def test_samples_in_a_row_hold_every_point_and_each_has_both_ends(count: int, every: int) -> None:
    points = list(range(100, 100 + count))
    taken = [Sample(every, offset).of(points) for offset in range(739_000, 739_000 + every)]
    assert {point for one in taken for point in one} == set(points)
    for one in taken:
        assert one == sorted(set(one))
        assert one[:1] == points[:1]
        assert one[-1:] == points[-1:]
        assert len(one) <= 2 + -(-count // every)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("every", [1, 3, 40])
def test_seeds_are_taken_by_turns_and_never_none(count: int, every: int) -> None:
    seeds = range(5, 5 + count)
    taken = [Sample(every, offset).seeds(seeds) for offset in range(739_000, 739_000 + every)]
    assert {seed for one in taken for seed in one} == set(seeds)
    assert all(1 <= len(one) <= -(-count // min(every, count)) for one in taken)
    assert WHOLE.seeds(seeds) == list(seeds)


@pytest.mark.parametrize("sample", [WHOLE, *(Sample(4, offset) for offset in range(4))])
def test_a_process_dies_at_the_points_of_the_sample(sample: Sample) -> None:
    died: set[tuple[int, int]] = set()

    def run(clock: Clock) -> None:
        for steps, commit in CALLS:
            clock.begin_call()
            while True:
                done = 0
                try:
                    for _ in range(steps):
                        clock.tick()
                        done += 1
                except Crash:
                    clock.recovered(again=True)
                    if done < commit:
                        continue  # not committed: the call is tried again
                break
        died.update(clock.died)

    points = [(call, step + 1) for call, (steps, _) in enumerate(CALLS) for step in range(steps)]
    assert crash_everywhere(run, sample) == len(points)
    assert died == set(sample.of(points))
