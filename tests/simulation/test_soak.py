"""What a soak says of a failing world: the steps that it needs, and the command that replays it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from io import StringIO

from rich.console import Console

from tests.simulation.kinds import never_met
from tests.simulation.outcome import Outcome, report
from tests.simulation.script import Do, Script, Step
from tests.simulation.situations import Met, expected
from tests.simulation.soak import never_occurred, seeds_of_rare_cells, shrink
from tests.simulation.themes import theme_of


def test_a_failing_script_is_cut_down_to_the_steps_that_it_needs() -> None:
    script = replace(Script.draw(1), steps=tuple(Step(Do.GROW, number) for number in range(40)))

    def fails(part: Script) -> bool:
        return {7, 31} <= {step.seed for step in part.steps}

    assert shrink(script, fails) == [7, 31]


def test_the_report_names_failures_with_the_command_that_replays_them() -> None:
    console = Console(width=120, record=True, file=StringIO())
    outcome = Outcome(runs=2, failures={77: ("wrong", "make soak SEED=77 KEEP=3,9")})
    outcome.tally.meet(Met.DEEP_FORK)
    never = partial(never_occurred, 2)
    assert report(outcome, "worlds", expected(), never, 1.0, console) == 1
    text = console.export_text()
    assert "make soak SEED=77 KEEP=3,9" in text
    assert "never occurred: rollback of one block" in text
    assert "never occurred: rollback of 8 blocks" not in text


def test_seeds_of_rare_cells_are_those_whose_worlds_are_about_one() -> None:
    cells: Counter[str] = Counter()
    seeds = seeds_of_rare_cells(1, cells)
    for least in (1, 2):
        for _ in never_met({}):
            (about,) = theme_of(next(seeds)).cells
            cells[about] += 1
        assert set(cells.values()) == {least}
        assert never_met(cells) == []
