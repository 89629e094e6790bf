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
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from headwater.errors import HeadwaterError
from headwater.testing.oracle import DisagreementError
from tests.simulation.outcome import Outcome, report
from tests.simulation.scenarios.recogniser import never_met
from tests.simulation.scenarios.scenario import Scenario
from tests.simulation.situations import Situation, Tally

CHUNK = 25


def run_scenarios(seeds: Iterable[int]) -> Outcome:
    """Run some scenarios in this process; failures are collected with their seeds."""
    outcome, began = Outcome(), time.process_time()
    for seed in seeds:
        scenario = Scenario(seed, outcome.tally)
        try:
            scenario.run()
        except (DisagreementError, HeadwaterError) as error:
            text = f"{type(error).__name__}: {error}"
            outcome.failures[seed] = (text, f"make sim SEED={seed}")
        outcome.runs += 1
        outcome.steps += scenario.steps
        outcome.requests += len(scenario.portal.ledger)
    outcome.cpu_s = time.process_time() - began
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
    seconds = time.monotonic() - started
    return report(outcome, "scenarios", list(Situation), never_met, seconds, console)


if __name__ == "__main__":
    raise SystemExit(main())
