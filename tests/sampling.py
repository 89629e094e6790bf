"""Which points of a long walk a run of the tests visits.

`make walks` visits all. `make test` visits the first, the last and every k-th point between; where
it begins moves on by one every day, so that k days visit all. The start is printed with the header
of the run: HEADWATER_WALK=<start> repeats it, HEADWATER_WALK=all is the whole walk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from headwater.testing.conformance.sample import WHOLE, Sample

Kind = TypeVar("Kind")
Suite = TypeVar("Suite", bound=type)
VARIABLE = "HEADWATER_WALK"
SLOW = Path(__file__).with_name("slow.txt")
BEYOND = 1 << 30  # a point that no walk has
# workers of pytest-xdist inherit it: they agree at midnight, too
os.environ.setdefault(VARIABLE, str(datetime.now(UTC).toordinal()))


def is_whole() -> bool:
    """Tell whether this run visits all points of all walks."""
    return os.environ[VARIABLE] == "all"


def every(k: int) -> Sample:
    """Return the sample of every k-th point that this run takes."""
    return WHOLE if is_whole() else Sample(k, int(os.environ[VARIABLE]))


def visit(k: int, stop_at: Callable[[int], int | None], *, ends: bool = True) -> list[int]:
    """Walk to every k-th point; return those that were visited.

    `stop_at` does everything with a stop at one point, counted from 0, and returns None; where
    there is no such point, it returns how many there are. Without `ends` a sample leaves the first
    and the last point to another walk.
    """
    count = stop_at(BEYOND)
    assert count is not None
    points = every(k).of(range(count)) if ends else every(k).seeds(range(count))
    return [point for point in points if stop_at(point) is None]


def turn(kinds: Sequence[Kind], test: str) -> list[Kind]:
    """Return the kinds that a test is given: all of them, or one; tests differ, and so do days."""
    if is_whole():
        return list(kinds)
    return [kinds[(crc32(test.encode()) + int(os.environ[VARIABLE])) % len(kinds)]]


def left_to_other_days(members: str, names: Sequence[str], count: int) -> set[str]:
    """Return which tests, of some that take turns, are left to other days.

    A run takes `count` of them; days in a row take one after the other. `members` says what they
    are: all that take turns do not begin with the first on the same day.
    """
    if is_whole():
        return set()
    first = (crc32(members.encode()) + int(os.environ[VARIABLE])) * count
    ordered = sorted(names)
    return set(ordered) - {ordered[(first + at) % len(ordered)] for at in range(count)}


def slow_tests() -> frozenset[str]:
    """Return the names, without variants, of tests that took more than a second (`slow.txt`)."""
    lines = SLOW.read_text("utf-8").splitlines()
    return frozenset(one for one in lines if one and not one.startswith("#"))


def left_to_other_thirds(names: Sequence[str]) -> set[str]:
    """Return which slow tests are left to other days: a run takes every third of them."""
    if is_whole():
        return set()
    return set(names) - set(sorted(names)[int(os.environ[VARIABLE]) % 3 :: 3])


def every_test(k: int, *always: str, shift: int = 0) -> Callable[[Suite], Suite]:
    """Have a class that varies another one run every k-th of its tests, and those named.

    Classes whose `shift` differs by less than k run different ones on one day.
    """

    def choose(suite: Suite) -> Suite:
        names = [name for name in dir(suite) if name.startswith("test_") and getattr(suite, name)]
        unknown = set(always) - set(names)
        assert not unknown, f"there are no such tests: {unknown}"
        for at, name in enumerate(names):
            chosen = name in always or (at - every(k).offset - shift) % every(k).every == 0
            if not chosen:
                setattr(suite, name, None)
        return suite

    return choose


def examples(count: int, *, part: int = 4) -> int:
    """Return how many random examples a property is given: all of these, or a part of them."""
    return count if is_whole() else -(-count // part)


def header() -> str:
    """Say which points this run visits, and how to visit them again."""
    if is_whole():
        return "walks: every point"
    return f"walks: a sample of their points; {VARIABLE}={os.environ[VARIABLE]} repeats it"
