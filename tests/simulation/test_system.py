"""Whole-system worlds: real databases, cuts, pauses, kills. `make soak` plays many more."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from headwater.testing.system.places import Engines
from headwater.testing.system.script import Do, Script, Step
from headwater.testing.system.situations import Met, Tally
from headwater.testing.system.soak import Outcome, play, play_seeds, report, shrink
from headwater.testing.system.world import World
from tests.targets import clickhouse_places, postgres_places

RARE = [240]  # a statement that waits for a lock of a paused writer


@pytest.fixture
def engines() -> Engines:
    return Engines(postgres_places.server, clickhouse_places.server)


@pytest.mark.guarantee("SYSTEM-1")
@pytest.mark.guarantee("FENCE-1")
@pytest.mark.guarantee("STATE-2")
def test_worlds_agree_with_their_chains_and_meet_every_rare_situation(engines: Engines) -> None:
    outcome = play_seeds([*range(1, 201), *RARE], engines)
    assert outcome.failures == {}
    assert outcome.tally.never_met() == []


@pytest.mark.guarantee("SIM-1")
@pytest.mark.parametrize("seed", [5, 6])
def test_a_world_is_the_same_for_the_same_seed(engines: Engines, seed: int) -> None:
    first, second = (World(Script.draw(seed), engines, Tally()) for _ in range(2))
    first.play()
    second.play()
    assert first.log == second.log


def test_any_part_of_a_script_can_be_played(engines: Engines) -> None:
    script = Script.draw(8)
    for kept in ([], [0], list(range(0, len(script.steps), 3))):
        assert play(script.only(kept), engines, Tally())[1] is None


def test_a_failing_script_is_cut_down_to_the_steps_that_it_needs() -> None:
    script = Script(1, tuple(Step(Do.GROW, number) for number in range(40)))

    def fails(part: Script) -> bool:
        return {7, 31} <= {step.seed for step in part.steps}

    assert shrink(script, fails) == [7, 31]


def test_the_report_names_failures_with_the_command_that_replays_them() -> None:
    console = Console(width=120, record=True, file=StringIO())
    outcome = Outcome(worlds=2, failures={77: ("wrong", [3, 9])})
    outcome.tally.meet(Met.DEEP_FORK)
    assert report(outcome, 1.0, console) == 1
    text = console.export_text()
    assert "make soak SEED=77 KEEP=3,9" in text
    assert "never occurred: rollback of one block" in text
    assert "never occurred: rollback of 8 blocks" not in text
