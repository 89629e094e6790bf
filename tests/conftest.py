"""Settings shared by all tests: hypothesis profiles, cheap JVMs, and the order of tests."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from headwater.testing.servers.clickhouse import VARIABLE
from headwater.testing.servers.postgres import postgres_versions
from tests import jvm, sampling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile(
    "default",
    max_examples=sampling.examples(100),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and disk_usage(MEMORY).free > 4 * 2**30:
    # files of tests and servers in memory: most of what they wait for is a disk that syncs.
    # A plugin has asked for the folder before; what `tmp_path` is made in is set here, too.
    tempfile.tempdir = os.environ.setdefault("TMPDIR", str(MEMORY))

jvm.set_options()

ROOT = Path(__file__).parent
LONG = (
    "system/test_worlds.py",
    "simulation/test_campaign.py",
    "spark/test_cluster.py",
    "spark/streaming/*",
    "docs/*",
    "demo/*",
)
SHORT = ("unit", "property", "wire", "fuzz", "simulation", "test_tidy.py")
TOGETHER = (  # one worker runs all of such a file: its tests share an expensive run
    "tests/dashboard/test_page.py",
    "tests/spark/streaming/test_connect.py",
    "tests/spark/test_executor_python.py",
)


@cache
def _uses_spark(file: str) -> bool:
    """Tell whether tests of a file share the session of their process."""
    text = (ROOT.parent / file).read_text("utf-8")
    return "spark: SparkSession" in text or 'usefixtures("spark")' in text


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of this process; streams that are given none use it, too.

    It interprets plans: to compile them for a few rows took a fifth of the time of its tests.
    Programs that tests start in processes of their own compile them, as Spark does by itself.
    """
    from headwater.spark import local_session  # where no test asks for it, Spark is not imported

    interpreted = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    session = local_session("tests", **{"spark.master": "local[2,4]"}, **interpreted)
    yield session
    session.stop()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Hand out tests one by one, in their order; those that share an expensive run, together.

    All that use the session of their process go to one worker: it is started and warmed up once.
    The marker `xdist_group` says so too, but pytest-xdist 3.8 sets names of tests for it that
    pytest 9.2 no longer reads.
    """
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    scheduler: Any = LoadScopeScheduling(config, log)
    scheduler._split_scope = _unit
    return scheduler


def _unit(nodeid: str) -> str:
    """Return the name of what a worker runs in one go.

    Short tests go by files: to be sent one by one took a fifth of their time.
    """
    file = nodeid.split("::")[0]
    if file.startswith(TOGETHER) or _folder(nodeid) in SHORT:
        return file
    return "spark" if _uses_spark(file) else nodeid


def pytest_collection_finish() -> None:
    """Keep what was collected out of every later search for garbage: it stays to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_unconfigure() -> None:
    """Let it go in the end: libraries name objects that outlive the interpreter."""
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the longest first, so that no worker waits for another at the end.

    What is left to `make walks` or to other days is taken out.
    """
    left: set[pytest.Item] = set()
    if not sampling.is_whole():
        left = {*_walks(items), *_other_turns(items)}
        left |= _slow(config, [one for one in items if one not in left])
    if left:
        items[:] = [one for one in items if one not in left]
        config.hook.pytest_deselected(items=list(left))
    items.sort(key=_turn)


def _walks(items: list[pytest.Item]) -> list[pytest.Item]:
    return [one for one in items if one.get_closest_marker("walk")]


def _other_turns(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the variants of tests, and the tests of groups, whose turn it is not."""
    turns: dict[str, dict[str, pytest.Item]] = {}
    counts = {}
    for item in items:
        marker = item.get_closest_marker("turns")
        if marker is None or item.get_closest_marker("walk"):
            continue
        members = marker.kwargs.get("group") or item.nodeid.split("[")[0]
        turns.setdefault(members, {})[item.nodeid] = item
        counts[members] = marker.args[0] if marker.args else 1
    return [
        tests[name]
        for members, tests in turns.items()
        for name in sampling.left_to_other_days(members, list(tests), counts[members])
    ]


def _slow(config: pytest.Config, items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the slow tests that another day runs; each guarantee keeps a test in this run.

    All tests of a file that was named on the command line run, and groups take turns by themselves.
    """
    slow = sampling.slow_tests()
    named = {
        Path(config.invocation_params.dir, file).resolve()
        for file in (one.split("::")[0] for one in config.args)
        if file.endswith(".py")
    }
    found = {
        item.nodeid: item
        for item in items
        if item.nodeid.split("[")[0] in slow and item.path not in named and not _in_group(item)
    }
    shown = {name: _shown(item) for name, item in found.items()}
    left = sampling.slow_left_to_other_days(shown)
    kept = {one for item in items if item.nodeid not in left for one in _shown(item)}
    for name in sorted(left):
        if shown[name] - kept:
            left.remove(name)
            kept |= shown[name]
    return {found[name] for name in left}


def _in_group(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("turns")
    return marker is not None and "group" in marker.kwargs


def _shown(item: pytest.Item) -> set[str]:
    """Return the guarantees that a test shows, and the defects of the sink that are none here."""
    marks = [*item.iter_markers("guarantee"), *item.iter_markers("sink_defect")]
    return {f"{mark.name} {one}" for mark in marks for one in mark.args}


def _turn(item: pytest.Item) -> int:
    """Return when a test runs: long ones in this order, then others, short ones at the end."""
    for turn, pattern in enumerate(LONG):
        if item.path.match(f"tests/{pattern}"):
            return turn
    return len(LONG) + (_folder(item.nodeid) in SHORT)


def _folder(nodeid: str) -> str:
    """Return the folder of a test in `tests`, or its file if it lies there."""
    return nodeid.removeprefix("tests/").split("/")[0].split("::")[0]


def pytest_report_header() -> list[str]:
    """Say which engines the tests of targets run on, and which points of walks are visited."""
    clickhouse = os.environ.get(VARIABLE) and "a server of your own"
    clickhouse = clickhouse or f"from chdb-core {version('chdb-core')}"
    postgres = ", ".join(map(str, postgres_versions()))
    engines = f"ClickHouse {clickhouse}; PostgreSQL {postgres}; DuckDB {version('duckdb')}"
    return [f"engines: {engines}", sampling.header()]
