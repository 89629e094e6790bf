"""Settings shared by all tests: hypothesis profiles, and one worker for all that needs Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from headwater.testing.servers.clickhouse import VARIABLE
from headwater.testing.servers.postgres import postgres_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and disk_usage(MEMORY).free > 4 * 2**30:
    # files of tests in memory: most of what DuckDB's tests wait for is a disk that syncs
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

SPARK_FOLDERS = {"spark", "demo", "docs"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of this process; streams that are given none use it, too."""
    from headwater.spark import local_session  # where no test asks for it, Spark is not imported

    session = local_session("tests", **{"spark.master": "local[2,4]"})
    yield session
    session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that start a JVM on one worker: two at a time would only slow each other down."""
    for item in items:
        if SPARK_FOLDERS & set(Path(item.path).parts):
            item.add_marker(pytest.mark.xdist_group("spark"))


def pytest_report_header() -> str:
    """Say which engines the tests of targets run on."""
    clickhouse = os.environ.get(VARIABLE) and "a server of your own"
    clickhouse = clickhouse or f"from chdb-core {version('chdb-core')}"
    postgres = ", ".join(map(str, postgres_versions()))
    return f"engines: ClickHouse {clickhouse}; PostgreSQL {postgres}; DuckDB {version('duckdb')}"
