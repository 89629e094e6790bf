"""Samples of long walks: the same points in every run."""

import pytest

from headwater.testing.conformance import Crash
from headwater.testing.conformance.crash import WHOLE, Clock, Sample, crash_everywhere

CALLS = [(3, 3), (7, 4), (1, 1), (5, 2)]
"""Calls of a script: how many steps of I/O each has, and behind which of them it is committed."""


@pytest.mark.parametrize("count", [0, 1, 2, 7, 30])
@pytest.mark.parametrize("every", [1, 2, 5, 40])
def test_a_sample_has_both_ends_and_every_kth_point(count: int, every: int) -> None:
    points = list(range(100, 100 + count))
    taken = Sample(every).of(points)
    assert taken == sorted({*points[::every], *points[-1:]})
    assert WHOLE.of(points) == points


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("every", [1, 3, 40])
def test_a_sample_of_seeds_has_the_first_and_is_never_empty(count: int, every: int) -> None:
    seeds = range(5, 5 + count)
    assert Sample(every).seeds(seeds) == list(seeds)[::every]
    assert Sample(every).seeds(seeds)[0] == 5
    assert WHOLE.seeds(seeds) == list(seeds)


@pytest.mark.parametrize("sample", [WHOLE, Sample(2), Sample(4), Sample(5)])
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
