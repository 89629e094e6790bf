"""Sources of a list are switched again and again, under forks, faults, crashes and outages."""

import pytest

from tests.sampling import every, is_whole
from tests.simulation.scenarios.sources import ManySources
from tests.simulation.situations import Situation, Tally

SEEDS = range(240)
SWITCHES = 10_000  # in all of them


@pytest.mark.guarantee("SOURCE-1")
def test_whatever_source_is_read_the_rows_are_those_of_the_chain() -> None:
    tally, switches = Tally(), 0
    for seed in every(30).seeds(SEEDS):
        scenario = ManySources(seed, tally)
        scenario.run()
        switches += scenario.switches
    assert switches > (SWITCHES if is_whole() else SWITCHES // 50)
    assert tally.met[Situation.DEEP_FORK] + tally.met[Situation.FORK_OF_ONE] > 0
    assert "E3010" not in tally.errors, "another source still has the blocks"
