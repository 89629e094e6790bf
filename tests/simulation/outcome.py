"""What some worlds, or some scenarios, came to; and how it is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from tests.simulation.situations import Tally


@dataclass(slots=True)
class Outcome:
    """What runs came to. `failures` holds what was wrong, by seeds, and what replays it; `mended`
    are seeds that were wrong, and no longer are.
    """

    runs: int = 0
    steps: int = 0
    requests: int = 0
    cpu_s: float = 0.0
    tally: Tally = field(default_factory=Tally)
    failures: dict[int, tuple[str, str]] = field(default_factory=dict)
    mended: list[int] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Add the figures of other runs."""
        self.runs += other.runs
        self.steps += other.steps
        self.requests += other.requests
        self.cpu_s += other.cpu_s
        self.tally.add(other.tally)
        self.failures |= other.failures
        self.mended += other.mended


def report(
    outcome: Outcome,
    what: str,
    expected: Sequence[str],
    never_met: Callable[[Tally], list[str]],
    seconds: float,
    console: Console,
) -> int:
    """Print what occurred; return the exit code. `what` names the runs: "worlds"."""
    table = Table("situation", "times", title=f"What the {what} met", title_justify="left")
    for name in expected:
        table.add_row(name, f"{outcome.tally.met[name]:,}")
    table.add_section()
    for name, count in sorted(outcome.tally.faults.items()):
        table.add_row(f"fault: {name}", f"{count:,}")
    table.add_section()
    for code, count in sorted(outcome.tally.errors.items()):
        table.add_row(f"ended with {code}", f"{count:,}")
    console.print(table)
    print_failures(outcome, console)
    never = never_met(outcome.tally) if outcome.runs > 1 else []
    for name in never:
        console.print(f"[red]never occurred:[/red] {name}", highlight=False)
    console.print(
        f"{outcome.runs:,} {what}, {outcome.steps:,} steps, {outcome.requests:,} requests, "
        f"{len(outcome.failures)} differences, {seconds:.0f} s, {outcome.cpu_s:.0f} s of CPU",
        highlight=False,
    )
    return 1 if outcome.failures or never else 0


def print_failures(outcome: Outcome, console: Console) -> None:
    """Print what was wrong, and the commands that replay it."""
    for seed, (text, replay) in sorted(outcome.failures.items()):
        console.print(f"[red]SEED={seed}[/red] {text}", highlight=False)
        console.print(f"  replay: {replay}", highlight=False)
