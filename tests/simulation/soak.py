"""Many worlds, one after the other, by the minute: `make soak`.

    python -m tests.simulation.soak --minutes 5                  # make soak MINUTES=5
    python -m tests.simulation.soak --seed 1234                  # make soak SEED=1234
    python -m tests.simulation.soak --seed 1234 --keep 3,7,8     # some of its steps
    python -m tests.simulation.soak --results FILE --go-on       # more seeds, added to FILE
    python -m tests.simulation.soak --results FILE --go-on --rare  # those about rare cells alone

With `--go-on` worlds that differed are played again first; those that are right now are named.
With `--rare` a later seed is played only if the cell of docs/guarantees.md that it is about has
been met by no world yet; once all have been, if only one has met it, and so on. `FILE` keeps a line
for each run: its day, its commit and its seeds.

A soak fails if a world differs from its chain, or if one of the rare situations never occurred:
then it would prove nothing about it. A seed that fails is cut down to the steps that it needs, and
the command that replays them is printed.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from pathlib import Path
from random import Random
from subprocess import run

from rich.console import Console

from tests.simulation.kinds import NAMES, meets, never_met, offers
from tests.simulation.outcome import Outcome, print_failures, report
from tests.simulation.places import MEMORY, Engines
from tests.simulation.script import Script
from tests.simulation.situations import Fault, Feature, Tally, cell, expected
from tests.simulation.themes import theme_of
from tests.simulation.world import World

CHUNK = 4
SHRINK_S = 60.0
STANDS_S = 240.0  # for a chunk: long enough on a busy machine
SAY_EVERY_S = 5.0
MANY = 20_000  # worlds, after which every fault must have met every feature of every target


@dataclass(slots=True)
class Run:
    """What one call has played: worlds of the seeds from `first` on, or `rare` ones among them."""

    date: str
    commit: str
    first: int
    worlds: int = 0
    seconds: int = 0
    rare: bool = False


def play(script: Script, engines: Engines, tally: Tally) -> tuple[World, str | None]:
    """Play a script; return its world, and what was wrong with it, if anything."""
    world = World(script, engines, tally)
    try:
        world.play()
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed has failed
        return world, f"{type(error).__name__}: {error}"
    return world, None


def play_seeds(seeds: Iterable[int], engines: Engines, *, free: bool = False) -> Outcome:
    """Play some seeds in this process; those that fail are cut down."""
    outcome, began = Outcome(), time.process_time()
    for seed in seeds:
        script = Script.draw(seed, free=free)
        world, wrong = play(script, engines, outcome.tally)
        outcome.runs += 1
        outcome.steps += world.steps
        outcome.requests += len(world.portal.ledger)
        if wrong is not None:
            kept = shrink(script, lambda one: play(one, engines, Tally())[1] is not None)
            steps = ",".join(map(str, kept)) or "none"
            said = f"make soak SEED={seed} KEEP={steps}{' FREE=1' if free else ''}"
            outcome.failures[seed] = (wrong, said)
    outcome.cpu_s = time.process_time() - began
    return outcome


def shrink(script: Script, fails: Callable[[Script], bool]) -> list[int]:
    """Return the places of the steps that a failure needs: larger and smaller pieces are left out.

    What is left may still hold steps that could go; time is bounded.
    """
    kept, piece = list(range(len(script.steps))), max(1, len(script.steps) // 2)
    deadline = time.monotonic() + SHRINK_S
    while piece and time.monotonic() < deadline:
        start, shrunk = 0, False
        while start < len(kept) and time.monotonic() < deadline:
            fewer = kept[:start] + kept[start + piece :]
            if fails(script.only(fewer)):
                kept, shrunk = fewer, True
            else:
                start += piece
        piece = piece if shrunk and piece > 1 else piece // 2
    return kept


_ENGINES: list[Engines] = []


def _in_worker(seeds: Sequence[int]) -> Outcome:
    """Play seeds in a process of the pool, on servers that live as long as it does."""
    if not _ENGINES:
        logging.getLogger("headwater").setLevel(logging.CRITICAL)
        _ENGINES.append(Engines())
    faulthandler.dump_traceback_later(STANDS_S, repeat=True)  # says where it stands
    try:
        return play_seeds(seeds, _ENGINES[0])
    finally:
        faulthandler.cancel_dump_traceback_later()


def soak(
    seeds: Iterator[int],
    seconds: float,
    jobs: int,
    console: Console,
    total: Outcome,
    on_progress: Callable[[float], object] = lambda seconds: None,
) -> None:
    """Play seeds until there are no more, or the time is up; add what they come to to `total`.

    `on_progress` is told every few seconds how long it has taken.
    """
    began, said = time.monotonic(), 0.0
    with ProcessPoolExecutor(jobs) as pool:
        waiting: set[Future[Outcome]] = set()
        while True:
            while len(waiting) < jobs and time.monotonic() - began < seconds:
                chunk = tuple(islice(seeds, CHUNK))
                if not chunk:
                    break
                waiting.add(pool.submit(_in_worker, chunk))
            if not waiting:
                return
            done, waiting = wait(waiting, SAY_EVERY_S, FIRST_COMPLETED)
            for one in done:
                outcome = one.result()
                total.add(outcome)
                print_failures(outcome, console)
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                on_progress(said - began)
                console.print(
                    f"{said - began:6.0f} s  {total.runs:,} worlds  {total.steps:,} steps  "
                    f"{len(total.failures)} differences",
                    highlight=False,
                )


def seeds_of_rare_cells(first: int, cells: Mapping[str, int]) -> Iterator[int]:
    """Yield the seeds whose worlds are about a cell that none has met by then; then few, and so on.

    Of so many seeds some are about each cell. A cell that they do not meet waits for its next turn.
    """
    for least in count(1):
        for seed in range(first, first + MANY):
            if any(cells.get(one, 0) < least for one in theme_of(seed).cells):
                yield seed
        first += MANY


def commit() -> str:
    """Return the commit whose worlds are played."""
    found = run(["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip()


def never_occurred(worlds: int, tally: Tally) -> list[str]:
    """Name every situation, and after many worlds every cell of the table, that did not occur."""
    cells = never_met(tally.cells) if worlds >= MANY else []
    return [*tally.lacks(expected()), *cells]


def save(outcome: Outcome, runs: Sequence[Run], path: Path) -> None:
    """Write the figures to a file, for `docs/reliability.md`."""
    tally = outcome.tally
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {
                "runs": [asdict(one) for one in runs],
                "worlds": outcome.runs,
                "steps": outcome.steps,
                "requests": outcome.requests,
                "differences": len(outcome.failures),
                "failures": {str(seed): wrong for seed, wrong in outcome.failures.items()},
                "mended": sorted(set(outcome.mended)),
                "met": {name: tally.met[name] for name in expected()},
                "faults": dict(sorted(tally.faults.items())),
                "errors": dict(sorted(tally.errors.items())),
                "points": dict(sorted(tally.points.items())),
                "different": dict(sorted(tally.different.items())),
                "columns": list(map(str, Fault)),
                "rows": [(kind, one) for kind in NAMES for one in Feature if offers(kind, one)],
                "cells": dict(sorted(tally.cells.items())),
                "without": [
                    cell(kind, one, fault)
                    for kind in NAMES
                    for one in Feature
                    for fault in Fault
                    if offers(kind, one) and not meets(kind, one, fault)
                ],
            },
            indent=1,
        )
        + "\n"
    )


def load(path: Path) -> tuple[Outcome, list[Run]]:
    """Return what a file says of earlier soaks: their figures, and each run."""
    found = json.loads(path.read_text())
    tally = Tally()
    for name in ("met", "faults", "errors", "points", "different", "cells"):
        getattr(tally, name).update(found.get(name, {}))
    figures = (found["worlds"], found["steps"], found["requests"])
    outcome = Outcome(*figures, tally=tally)
    outcome.mended = list(found.get("mended", []))
    outcome.failures = {int(seed): tuple(one) for seed, one in found.get("failures", {}).items()}
    return outcome, [Run(**one) for one in found["runs"]]


def play_again(earlier: Outcome) -> None:
    """Play what differed: a world that is right now is no difference any more, and is named so."""
    seeds = sorted(earlier.failures)
    if not seeds:
        return
    with ProcessPoolExecutor(1) as pool:
        outcome = pool.submit(_in_worker, seeds).result()
    earlier.tally.add(outcome.tally)
    earlier.mended += [one for one in seeds if one not in outcome.failures]
    earlier.failures = outcome.failures


def replay(seed: int, keep: str | None, console: Console, *, free: bool) -> int:
    """Play one seed, or some of its steps, and show all that happened."""
    script = Script.draw(seed, free=free)
    if keep is not None:
        script = script.only([int(one) for one in keep.split(",") if one.isdecimal()])
    with Engines() as engines:
        world, wrong = play(script, engines, Tally())
    for line in world.log:
        console.print(line, highlight=False, markup=False)
    console.print(wrong or f"seed {seed}: no difference", highlight=False, markup=False)
    return 1 if wrong else 0


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long")
    parser.add_argument("--worlds", type=int, help="so many instead, however long it takes")
    parser.add_argument("--first", type=int, help="the first seed; drawn if it is not given")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--keep", help="replay only these steps of it: 3,7,8")
    parser.add_argument("--free", action="store_true", help="replay a world about nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--results", type=Path, help="write the figures to this file")
    parser.add_argument("--go-on", action="store_true", help="add to the figures that it holds")
    parser.add_argument("--rare", action="store_true", help="only worlds about rare cells")
    options = parser.parse_args()
    if os.access(MEMORY, os.W_OK):
        tempfile.tempdir = str(MEMORY)  # the servers' files, too
    console = Console()
    if options.seed is not None:
        return replay(options.seed, options.keep, console, free=options.free)
    total = Outcome()
    runs: list[Run] = []
    if options.go_on and options.results.exists():
        total, runs = load(options.results)
        play_again(total)
    seconds = options.minutes * 60 if options.worlds is None else float("inf")
    earlier = total.runs
    first = options.first or _after(runs) or Random().randrange(1, 1 << 30)
    console.print(f"seeds from {first}", highlight=False)
    now = Run(datetime.now(UTC).date().isoformat(), commit(), first, rare=options.rare)
    runs.append(now)
    seeds = seeds_of_rare_cells(first, total.tally.cells) if options.rare else count(first)

    def keep(took: float) -> None:
        now.worlds, now.seconds = total.runs - earlier, round(took)
        if options.results is not None:
            save(total, runs, options.results)

    began = time.monotonic()
    soak(islice(seeds, options.worlds), seconds, options.jobs, console, total, keep)
    keep(time.monotonic() - began)
    never = partial(never_occurred, total.runs)
    return report(total, "worlds", expected(), never, sum(one.seconds for one in runs), console)


def _after(runs: Sequence[Run]) -> int:
    """Return the seed behind those that were played one after the other; 0 if none was."""
    return max((one.first + one.worlds for one in runs if not one.rare), default=0)


if __name__ == "__main__":
    raise SystemExit(main())
