"""Random scenarios against the oracle. `make sim` runs thousands; here are enough to notice."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.sampling import every
from tests.simulation.outcome import Outcome, report
from tests.simulation.scenarios.campaign import run_scenarios
from tests.simulation.scenarios.recogniser import never_met
from tests.simulation.scenarios.scenario import Scenario
from tests.simulation.situations import Situation, Tally

NOTABLE = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "notable_seeds.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
RARE = [
    1,
    6,
    16,
    20,
    29,
    38,
    42,
    46,
    51,
    52,
    63,
    67,
    72,
]  # together they meet everything that is counted


@pytest.mark.guarantee("ORACLE-1")
@pytest.mark.guarantee("ORACLE-2")
@pytest.mark.guarantee("STATE-2")
@pytest.mark.guarantee("FORK-5")
def test_random_scenarios_agree_with_the_oracle_and_meet_every_rare_situation() -> None:
    """Every step is compared; forks, crashes, faults and lagging replicas all did occur."""
    rare = run_scenarios(RARE)
    others = run_scenarios(set(every(10).seeds(range(1, 151))) - set(RARE))
    assert {**rare.failures, **others.failures} == {}
    assert never_met(rare.tally) == []


@pytest.mark.parametrize("seed", NOTABLE)
def test_a_seed_that_once_found_something_stays_quiet(seed: int) -> None:
    assert run_scenarios([seed]).failures == {}


@pytest.mark.guarantee("SIM-1")
@pytest.mark.parametrize("seed", [3, 4])
def test_a_scenario_is_the_same_for_the_same_seed(seed: int) -> None:
    first, second = Scenario(seed, Tally()), Scenario(seed, Tally())
    first.run()
    second.run()
    assert list(first.portal.ledger) == list(second.portal.ledger)
    assert first.state == second.state
    assert first.chain.head == second.chain.head


def test_the_report_names_failures_with_their_seed_and_what_never_occurred() -> None:
    console = Console(width=120, record=True, file=StringIO())
    outcome = Outcome(runs=2, failures={77: ("wrong", "make sim SEED=77")})
    outcome.tally.met[Situation.DEEP_FORK] = 3
    assert report(outcome, "scenarios", list(Situation), never_met, 1.0, console) == 1
    text = console.export_text()
    assert "make sim SEED=77" in text
    assert "never occurred: fork of one block" in text
    assert "never occurred: deep fork" not in text
