"""Thousands of random scenarios, each compared with the oracle after every step.

    python -m tests.simulation.scenarios.campaign --runs 2000           # make sim
    python -m tests.simulation.scenarios.campaign --seed 1234           # replay one

A campaign fails if a scenario disagrees with the oracle (its seed is printed), or if one of the
rare situations never occurred: then it would prove nothing about it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headwater.errors import HeadwaterError
from headwater.testing.oracle import DisagreementError
from tests.simulation.scenarios.scenario import Scenario
from tests.simulation.scenarios.situations import Situation, Tally

CHUNK = 25


@dataclass(slots=True)
class Outcome:
    """What some scenarios came to."""

    runs: int = 0
    steps: int = 0
    requests: int = 0
    situations: Counter[Situation] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Add the figures of other scenarios."""
        self.runs += other.runs
        self.steps += other.steps
        self.requests += other.requests
        self.situations += other.situations
        self.faults += other.faults
        self.errors += other.errors
        self.failures |= other.failures

    def never_met(self) -> list[str]:
        """Name every situation, fault and error that should have occurred and did not."""
        tally = Tally()
        tally.situations, tally.faults, tally.errors = self.situations, self.faults, self.errors
        return tally.never_met()


def run_scenarios(seeds: Iterable[int]) -> Outcome:
    """Run some scenarios in this process; failures are collected with their seeds."""
    outcome, tally = Outcome(), Tally()
    for seed in seeds:
        scenario = Scenario(seed, tally)
        try:
            scenario.run()
        except (DisagreementError, HeadwaterError) as error:
            outcome.failures[seed] = f"{type(error).__name__}: {error}"
        outcome.runs += 1
        outcome.steps += scenario.steps
        outcome.requests += len(scenario.portal.ledger)
    outcome.situations, outcome.faults, outcome.errors = (
        tally.situations,
        tally.faults,
        tally.errors,
    )
    return outcome


def run_campaign(first_seed: int, runs: int, console: Console) -> Outcome:
    """Run scenarios on all cores, with a progress bar."""
    total = Outcome()
    seeds = range(first_seed, first_seed + runs)
    chunks = [seeds[start : start + CHUNK] for start in range(0, runs, CHUNK)]
    with Progress(console=console) as progress, ProcessPoolExecutor(os.cpu_count()) as pool:
        task = progress.add_task(f"scenarios {seeds[0]} to {seeds[-1]}", total=runs)
        for outcome in pool.map(run_scenarios, chunks):
            total.add(outcome)
            progress.advance(task, outcome.runs)
    return total


def report(outcome: Outcome, seconds: float, console: Console) -> int:
    """Print what occurred; return the exit code."""
    table = Table("situation", "times", title="What the scenarios met", title_justify="left")
    for situation in Situation:
        table.add_row(situation.value, f"{outcome.situations[situation]:,}")
    table.add_section()
    for name, count in sorted(outcome.faults.items()):
        table.add_row(f"fault: {name}", f"{count:,}")
    table.add_section()
    for code, count in sorted(outcome.errors.items()):
        table.add_row(f"coded error {code}, state untouched", f"{count:,}")
    console.print(table)
    for seed, text in sorted(outcome.failures.items()):
        console.print(f"[red]SEED={seed}[/red] {text}", highlight=False)
        console.print(f"  replay: make sim SEED={seed}", highlight=False)
    never = outcome.never_met() if outcome.runs > 1 else []
    for name in never:
        console.print(f"[red]never occurred:[/red] {name}", highlight=False)
    console.print(
        f"{outcome.runs:,} scenarios, {outcome.steps:,} steps compared with the oracle, "
        f"{outcome.requests:,} requests, {len(outcome.failures)} disagreements, {seconds:.0f} s",
        highlight=False,
    )
    return 1 if outcome.failures or never else 0


def save(outcome: Outcome, path: Path) -> None:
    """Write the figures to a file, for `docs/reliability.md`."""
    figures = {
        "date": datetime.now(UTC).date().isoformat(),
        "runs": outcome.runs,
        "steps": outcome.steps,
        "requests": outcome.requests,
        "differences": len(outcome.failures),
    }
    path.write_text(json.dumps(figures, indent=1) + "\n")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=2000, help="how many scenarios")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one and stop at its first error")
    parser.add_argument("--results", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    console = Console()
    started = time.monotonic()
    if options.seed is not None:
        tally = Tally()
        scenario = Scenario(options.seed, tally)
        try:
            scenario.run()
        finally:
            console.print(str(scenario.portal.ledger), highlight=False, markup=False)
            console.print(f"state: {scenario.state}", highlight=False, markup=False)
        return 0
    outcome = run_campaign(options.first, options.runs, console)
    if options.results is not None:
        save(outcome, options.results)
    return report(outcome, time.monotonic() - started, console)


if __name__ == "__main__":
    raise SystemExit(main())
