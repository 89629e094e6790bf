"""Which points of a long walk a run visits.

A walk has points that differ in their place alone: a kill or a pause at every statement, a cut
after every byte, seeds of random scenarios, examples of a property. `make test` visits the first,
the last and every k-th of them, the same ones on every day and machine; `make walks` visits all.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from headwater.testing.conformance.crash import WHOLE, Sample

VARIABLE = "HEADWATER_WALK"
BEYOND = 1 << 30  # a point that no walk has


def is_whole() -> bool:
    """Tell whether this run visits all points of all walks."""
    return os.environ.get(VARIABLE) == "all"


def every(k: int) -> Sample:
    """Return the sample of every k-th point that this run takes."""
    return WHOLE if is_whole() else Sample(k)


def visit(k: int, stop_at: Callable[[int], int | None], *, ends: bool = True) -> list[int]:
    """Walk to every k-th point; return those that were visited.

    `stop_at` does everything with a stop at one point, counted from 0, and returns None; where
    there is no such point, it returns how many there are. Without `ends` a sample leaves the last
    point to another walk.
    """
    count = stop_at(BEYOND)
    assert count is not None
    points = every(k).of(range(count)) if ends else every(k).seeds(range(count))
    return [point for point in points if stop_at(point) is None]


def examples(count: int, *, part: int = 4) -> int:
    """Return how many random examples a property is given: all of these, or a part of them."""
    return count if is_whole() else -(-count // part)


def header() -> str:
    """Say which points this run visits, and how to visit the others."""
    if is_whole():
        return "walks: every point"
    return f"walks: a fixed sample of their points ({VARIABLE}=all visits every one)"
