"""Where tests have killed and paused writers, and whether the tables were right afterwards.

    python -m tests.targets.points docs/results/walks.json [targets/test_zombies …]

runs the tests that kill and pause a writer at every statement, all or those of some files, and
writes what they did; a point counts as right if its test has passed. `scripts/reliability.py` makes
a table of it. Without names, every other test of which `make test` takes a sample follows, whole.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headwater.testing.conformance import Crash
from tests.sampling import VARIABLE
from tests.simulation.world import statement_kind

TESTS_FOLDER = Path(__file__).parent.parent

TESTS = (
    "targets/test_duckdb_conformance",
    "targets/test_postgres_conformance",
    "targets/test_clickhouse_conformance",
    "targets/change_log/test_conformance",
    "targets/test_iceberg_conformance",
    "targets/test_delta_conformance",
    "targets/test_parquet_conformance",
    "targets/test_fanout",
    "targets/test_clickhouse_zombies",
    "targets/test_zombies",
    "substreams/test_kills",
)
CALLS = {
    "recover": "recover",
    "roll_back": "roll back",
    "settle_side_rows": "between batches",
    "open_side_tables": "between batches",
}
_noted: list[str] = []  # by the test that runs


def note(kind: str, how: str, statement: str) -> None:
    """Note that a writer of this kind of target is killed or paused here, before a statement."""
    _noted.append(f"{kind}|{_call()}|{how}|{statement_kind(statement)}")


def watch(kind: str, target: Any, hook: Callable[[], None], counts: Callable[[str], bool]) -> None:
    """Have `hook` called before each statement that counts; note the one at which it kills."""
    target.on_statement = watching(kind, hook, counts)


def watching(
    kind: str, hook: Callable[[], None], counts: Callable[[str], bool] = lambda step: True
) -> Callable[[str], None]:
    """Return what is called with each step: it calls `hook`, and notes where that kills."""
    dead = False

    def on_statement(sql: str) -> None:
        nonlocal dead
        if not counts(sql):
            return
        try:
            hook()
        except Crash:
            if not dead:
                note(kind, "killed", sql)
            dead = True
            raise

    return on_statement


def _call() -> str:
    """Return which call of the target is under way, by the stack."""
    frame: FrameType | None = sys._getframe(1)
    found = "between batches"
    while frame is not None:
        name = frame.f_code.co_name
        if name == "commit" and "batches" in frame.f_locals:
            found = "commit" if frame.f_locals["batches"] else "settle"
        found = CALLS.get(name, found)
        frame = frame.f_back
    return found


class Recorder:
    """A pytest plugin that adds up what passed and failed tests of a file have noted."""

    def __init__(self) -> None:
        self.points: dict[str, Counter[str]] = {"points": Counter(), "different": Counter()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a test has noted."""
        if report.when == "call":
            self.points["points" if report.passed else "different"].update(_noted)
            _noted.clear()


def main() -> int:
    """Run from the command line."""
    os.environ[VARIABLE] = "all"
    path, names = Path(sys.argv[1]), sys.argv[2:] or TESTS
    found = json.loads(path.read_text()) if path.exists() else {}
    failed = 0
    for name in names:
        recorder = Recorder()
        options = ["-q", "-p", "no:xdist", f"{TESTS_FOLDER}/{name}.py"]
        failed += bool(pytest.main(options, plugins=[recorder]))
        found["date"] = datetime.now(UTC).date().isoformat()
        found[name] = {key: dict(sorted(one.items())) for key, one in recorder.points.items()}
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if names is TESTS:
        failed += bool(pytest.main(["-q", "--numprocesses", "2", *map(str, _other_tests())]))
    return failed


def _other_tests() -> list[Path]:
    """Return the other files whose tests take samples; this run gives properties more examples."""
    noted = {TESTS_FOLDER / f"{name}.py" for name in TESTS}
    return [
        path
        for path in sorted(TESTS_FOLDER.rglob("test_*.py"))
        if path not in noted
        and (path.parent.name == "property" or "from tests.sampling import" in path.read_text())
    ]


if __name__ == "__main__":
    from tests.targets import points  # the same module that tests note in

    sys.exit(points.main())
