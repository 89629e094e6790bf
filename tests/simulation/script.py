"""What a seed stands for: a list of steps, each a name and a number.

What a step does in detail follows from its number and from how things stand. So any part of a
script can be played, and a script that fails can be cut down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from random import Random

from tests.simulation.process import Call
from tests.simulation.situations import Fault, Feature
from tests.simulation.themes import Theme, free_theme, theme_of


class Do(StrEnum):
    """What a step does."""

    GROW = "grow"
    FORK = "fork"
    TAKE_BACK = "take back"
    FINALIZE = "finalize"
    REPLICA = "replica"
    LAG = "a replica stays behind"
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
    REWIND = "move a stream's cursor back"
    FORGET = "the portal forgets its oldest blocks, or has them again"


_WEIGHTS = {
    Do.GROW: 12, Do.FORK: 9, Do.TAKE_BACK: 2, Do.FINALIZE: 6, Do.REPLICA: 5, Do.STRAND: 2,
    Do.FAULT: 4, Do.LOSE: 8, Do.RELEASE: 3, Do.RUN: 32, Do.KILL: 1, Do.STOP: 1, Do.INTERRUPT: 13,
    Do.TAKE_OVER: 8, Do.WAKE: 4, Do.CLOCK: 2, Do.LOOK: 4,
}  # fmt: skip


_FOCUS = (Call.ROLL_BACK, Call.COMMIT, Call.RECOVER, Call.BETWEEN)
FOCUS = tuple(product(_FOCUS, (True, False)))
_OF_FAULTS = {  # what makes it likely that a stream meets a fault
    Fault.FORK: (Do.RUN, Do.FORK, Do.RUN),
    Fault.KILLED: (Do.RUN, Do.KILL, Do.RUN),
    Fault.PAUSED: (Do.INTERRUPT, Do.WAKE),
    Fault.CUT: (Do.LOSE, Do.GROW, Do.RUN),
    Fault.ANSWER: (Do.RUN, Do.FAULT, Do.GROW, Do.RUN),
    Fault.REPLICA: (Do.RUN, Do.LAG, Do.RUN, Do.RUN),
    Fault.CLOCK: (Do.RUN, Do.CLOCK, Do.RUN),
}


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
    theme: Theme

    @classmethod
    def draw(cls, seed: int, *, free: bool = False) -> Script:
        """Draw a script; if it is `free`, of a world that is about nothing."""
        dice = Random(f"system {seed}")
        kinds = dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=dice.choice([10, 16, 24]))
        kinds.insert(len(kinds) // 3, Do.FOCUS)
        steps = [Step(kind, dice.randrange(1 << 32)) for kind in kinds]
        for kind in (Do.MAINTAIN, Do.INTRUDE, Do.EVOLVE):
            at = dice.randrange(len(steps) // 3, len(steps))
            steps.insert(at, Step(kind, dice.randrange(1 << 32)))
        theme = free_theme(seed) if free else theme_of(seed)
        more: list[tuple[Do, ...]] = [(Do.FORGET,)] * 3 if theme.has_window else []
        if theme.feature is Feature.REWOUND:
            more += [(Do.RUN, Do.REWIND)] * 3
        times = 3 if len(theme.faults) == 1 else 2
        for fault in theme.faults:
            more += [_OF_FAULTS[fault]] * times
        for several in more:
            at = dice.randrange(len(steps) // 3, len(steps))
            steps[at:at] = [Step(kind, dice.randrange(1 << 32)) for kind in several]
        return cls(seed, tuple(steps), theme)

    def only(self, kept: Sequence[int]) -> Script:
        """Return the script with some of its steps, by their places."""
        return replace(self, steps=tuple(self.steps[one] for one in kept))
