"""Which points of a long walk a run of the tests visits.

`make walks` visits all. `make test` visits the first, the last and every k-th point between; where
it begins moves on by one every day, so that k days visit all. The start is printed with the header
of the run: HEADWATER_WALK=<start> repeats it, HEADWATER_WALK=all is the whole walk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime

from headwater.testing.conformance.sample import WHOLE, Sample

VARIABLE = "HEADWATER_WALK"
BEYOND = 1 << 30  # a point that no walk has
# workers of pytest-xdist inherit it: they agree at midnight, too
os.environ.setdefault(VARIABLE, str(datetime.now(UTC).toordinal()))


def is_whole() -> bool:
    """Tell whether this run visits all points of all walks."""
    return os.environ[VARIABLE] == "all"


def every(k: int) -> Sample:
    """Return the sample of every k-th point that this run takes."""
    return WHOLE if is_whole() else Sample(k, int(os.environ[VARIABLE]))


def visit(k: int, stop_at: Callable[[int], int | None]) -> list[int]:
    """Walk to every k-th point; return those that were visited.

    `stop_at` does everything with a stop at one point, counted from 0, and returns None; where
    there is no such point, it returns how many there are.
    """
    count = stop_at(BEYOND)
    assert count is not None
    return [point for point in every(k).of(range(count)) if stop_at(point) is None]


def examples(count: int) -> int:
    """Return how many random examples a property is given: all of these, or a third of them."""
    return count if is_whole() else -(-count // 3)


def header() -> str:
    """Say which points this run visits, and how to visit them again."""
    if is_whole():
        return "walks: every point"
    return f"walks: a sample of their points; {VARIABLE}={os.environ[VARIABLE]} repeats it"
