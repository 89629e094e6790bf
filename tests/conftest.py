"""Settings shared by all tests: hypothesis profiles, and one worker for all that needs Spark."""

import os
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from headwater.testing.servers.clickhouse import VARIABLE
from headwater.testing.servers.postgres import postgres_versions

settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

SPARK_FOLDERS = {"spark", "demo", "docs"}


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
