"""Writes the list of slow tests anew, by the times of some runs: `tests/slow.txt`.

    HEADWATER_WALK=all .venv/bin/pytest --numprocesses 2 --junitxml build/times-1.xml
    .venv/bin/python -m tests.slow build/times-*.xml

A test is slow if it was in every run that had it: the first that uses a server starts it, and the
order of tests is random. `make test` runs a part of the slow tests, other ones the next day
(`tests/sampling.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from xml.etree import ElementTree

from tests.sampling import SLOW

LIMIT_S = 0.3  # with two workers on two cores
DAILY = (
    "tests/dashboard/",  # one run serves all tests of a file
    "tests/demo/",
    "tests/spark/test_backfill_path.py",  # history never passes through the driver
    "tests/spark/test_stream_on_spark.py",
    "tests/system/",
    "tests/test_tidy.py",
)
"""Files whose tests run every day, however long they take."""

CENTRAL = ("::test_random_scenarios_agree_with", "::test_a_crash_at_any_step_of_io_leaves")
"""Tests that run on every target every day: random scenarios, and walks of crashes."""

HEAD = """\
# Tests that took more than 0.3 s; `python -m tests.slow` writes this list. A run of `make test`
# takes every third that shows a guarantee, and every sixth of the others; `make walks` takes all.
"""


def slow_tests(reports: Sequence[Path]) -> list[str]:
    """Return the names of tests with a variant that took long, as pytest spells them."""
    times: dict[tuple[str, str], float] = {}
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            test = case.attrib["classname"], case.attrib["name"]
            times[test] = min(float(case.attrib["time"]), times.get(test, inf))
    slow = {_node(*test) for test, seconds in times.items() if seconds >= LIMIT_S}
    every_day = {
        one for one in slow if one.startswith(DAILY) or any(part in one for part in CENTRAL)
    }
    return sorted(slow - every_day)


def _node(classname: str, test: str) -> str:
    """Return `tests/a/test_b.py::TestC::test_d` for `tests.a.test_b.TestC` and `test_d[e]`."""
    module, _, suite = classname.partition(".Test")
    parts = [module.replace(".", "/") + ".py", f"Test{suite}" if suite else "", test.split("[")[0]]
    return "::".join(filter(None, parts))


if __name__ == "__main__":
    names = slow_tests([Path(one) for one in sys.argv[1:]])
    SLOW.write_text(HEAD + "".join(f"{one}\n" for one in names), "utf-8")
