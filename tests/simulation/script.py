"""What a seed stands for: a list of steps, each a name and a number.

What a step does in detail follows from its number and from how things stand. So any part of a
script can be played, and a script that fails can be cut down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from random import Random

from tests.simulation.process import Call


class Do(StrEnum):
    """What a step does."""

    GROW = "grow"
    FORK = "fork"
    TAKE_BACK = "take back"
    FINALIZE = "finalize"
    REPLICA = "replica"
    STRAND = "strand a replica"
    FAULT = "fault"
    LOSE = "lose connection"
    RELEASE = "release connection"
    RUN = "run"
    KILL = "kill"
    STOP = "stop"
    INTERRUPT = "interrupt"
    FOCUS = "interrupt as the seed says"
    TAKE_OVER = "take over"
    WAKE = "wake"
    CLOCK = "clock"
    LOOK = "look"
    MAINTAIN = "maintain from outside"
    INTRUDE = "start another stream on the same tables"
    EVOLVE = "give a stream another definition"


_WEIGHTS = {
    Do.GROW: 12, Do.FORK: 9, Do.TAKE_BACK: 2, Do.FINALIZE: 6, Do.REPLICA: 5, Do.STRAND: 2,
    Do.FAULT: 4, Do.LOSE: 8, Do.RELEASE: 3, Do.RUN: 32, Do.KILL: 1, Do.STOP: 1, Do.INTERRUPT: 13,
    Do.TAKE_OVER: 8, Do.WAKE: 4, Do.CLOCK: 2, Do.LOOK: 4,
}  # fmt: skip


# Real databases are costly: of 20 seeds in a row this is the kind of the first stream. Rare points
# are met by turns: a seed's block of 20 says in which call its focus is, and whether it is a pause.
KINDS = (
    ("PostgreSQL",) * 3
    + ("DuckDB", "ClickHouse", "DuckDB")
    + ("memory",) * 9
    + ("Parquet", "Delta", "Iceberg")
    + ("fan-out",) * 2
)
_FOCUS = (Call.ROLL_BACK, Call.COMMIT, Call.RECOVER, Call.BETWEEN)
FOCUS = tuple(product(_FOCUS, (True, False)))


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens. Everything else about it is drawn from `seed`."""

    do: Do
    seed: int


@dataclass(frozen=True, slots=True)
class Script:
    """What a seed stands for: the setting is drawn from `seed`, the steps are listed."""

    seed: int
    steps: tuple[Step, ...]

    @classmethod
    def draw(cls, seed: int) -> Script:
        """Draw a script."""
        dice = Random(f"system {seed}")
        kinds = dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=dice.choice([10, 16, 24]))
        kinds.insert(len(kinds) // 3, Do.FOCUS)
        steps = [Step(kind, dice.randrange(1 << 32)) for kind in kinds]
        for kind in (Do.MAINTAIN, Do.INTRUDE, Do.EVOLVE):
            at = dice.randrange(len(steps) // 3, len(steps))
            steps.insert(at, Step(kind, dice.randrange(1 << 32)))
        return cls(seed, tuple(steps))

    def only(self, kept: Sequence[int]) -> Script:
        """Return the script with some of its steps, by their places."""
        return Script(self.seed, tuple(self.steps[one] for one in kept))
