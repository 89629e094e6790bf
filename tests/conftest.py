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
from tests.shared import skip_without, starting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile(
    "default",
    max_examples=sampling.examples(100),
    derandomize=not sampling.is_whole(),  # `make test` gives a property the same examples each time
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", settings.get_profile("default"), max_examples=5_000, derandomize=False
)
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
    with starting("Spark"):
        session = local_session("tests", **{"spark.master": "local[2,4]"}, **interpreted)
    yield session
    session.stop()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Report once that Spark does not start: pytest would repeat the error for every test."""
    if "spark" in getattr(item, "fixturenames", ()):
        skip_without("Spark")


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
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest first, so that no worker waits for another at the end."""
    items.sort(key=_turn)


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
