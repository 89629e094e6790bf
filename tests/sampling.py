"""Which points of a long walk, and which slow tests, a run of the tests takes.

`make walks` takes all. `make test` visits the first, the last and every k-th point of a walk, and
runs a part of the slow tests; other days take others. The day is printed with the header of the
run: HEADWATER_WALK=<day> repeats it, HEADWATER_WALK=all leaves nothing out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
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
SHOWING, OTHERS = 3, 6  # a run takes every third slow test that shows a guarantee, else the sixth
# workers of pytest-xdist inherit it: they agree at midnight, too
os.environ.setdefault(VARIABLE, str(datetime.now(UTC).toordinal()))


def is_whole() -> bool:
    """Tell whether this run visits all points of all walks."""
    return os.environ[VARIABLE] == "all"


def start() -> int:
    """Return where the walks of this run begin, and which variants of a test have their turn.

    It moves on by one every day, and by 101 in six days. No walk has a multiple of 101 points, so
    a test that runs every third or sixth day gets to all of them, too.
    """
    day = int(os.environ[VARIABLE])
    return day + day // OTHERS * (101 - OTHERS)


def every(k: int) -> Sample:
    """Return the sample of every k-th point that this run takes."""
    return WHOLE if is_whole() else Sample(k, start())


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
    return [kinds[(crc32(test.encode()) + start()) % len(kinds)]]


def left_to_other_days(members: str, names: Sequence[str], count: int) -> set[str]:
    """Return which tests, of some that take turns, are left to other days.

    A run takes `count` of them; days in a row take one after the other. `members` says what they
    are: all that take turns do not begin with the first on the same day.
    """
    if is_whole():
        return set()
    first = (crc32(members.encode()) + start()) * count
    ordered = sorted(names)
    return set(ordered) - {ordered[(first + at) % len(ordered)] for at in range(count)}


def slow_tests() -> frozenset[str]:
    """Return the names, without variants, of the tests that `slow.txt` lists."""
    lines = SLOW.read_text("utf-8").splitlines()
    return frozenset(one for one in lines if one and not one.startswith("#"))


def slow_left_to_other_days(shown: Mapping[str, Collection[str]]) -> set[str]:
    """Return which slow tests are left to other days; `shown` says which guarantees each shows."""
    if is_whole():
        return set()
    day = int(os.environ[VARIABLE])
    showing = sorted(name for name, guarantees in shown.items() if guarantees)
    others = sorted(name for name, guarantees in shown.items() if not guarantees)
    return set(shown) - {*showing[day % SHOWING :: SHOWING], *others[day % OTHERS :: OTHERS]}


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
