"""The gate is the same set of tests on every day and machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import shared
from tests.affected import affected

ROOT = Path(__file__).resolve().parent.parent
_COLLECT = """
import os, sys, time
import deltalake, duckdb, hypothesis, pyarrow, pyiceberg, pyspark.sql, pytest, time_machine

for index, (moment, zone) in enumerate(zip(sys.argv[2::2], sys.argv[3::2])):
    if os.fork() == 0:  # what is imported above is imported once
        os.environ["TZ"] = zone
        time.tzset()
        sys.stdout = open(f"{sys.argv[1]}/{index}", "w")
        time_machine.travel(moment).start()
        options = ["--collect-only", "-q", "-Wignore", "-p", "no:cacheprovider", "-p", "no:xdist"]
        code = pytest.main(options)
        sys.stdout.flush()
        os._exit(code)
    assert os.wait()[1] == 0
"""


def test_the_same_tests_are_collected_on_every_day_and_in_every_time_zone(tmp_path: Path) -> None:
    days = [
        ("2026-11-19T12:00:00+00:00", "UTC"),
        ("2027-02-28T23:59:59+00:00", "Pacific/Kiritimati"),
        ("2031-07-06T03:00:00+00:00", "America/St_Johns"),
    ]
    given = [text for day in days for text in day]
    plain = {**os.environ, "PYTEST_ADDOPTS": ""}  # options change the form of the list
    collect = [sys.executable, "-c", _COLLECT, str(tmp_path), *given]
    subprocess.run(collect, cwd=ROOT, env=plain, check=True)
    first, *others = [_tests((tmp_path / str(index)).read_text()) for index in range(len(days))]
    assert len(first) > 5000
    assert all(other == first for other in others)


def _tests(collected: str) -> list[str]:
    """Return the names that pytest has listed, in the order in which it would run them."""
    return [line for line in collected.splitlines() if "::" in line]


@pytest.mark.parametrize(
    ("changed", "reached", "not_reached"),
    [
        (
            "src/headwater/core/fork.py",
            "property/test_core_properties.py",
            "targets/test_tokens.py",
        ),
        ("src/headwater/targets/iceberg/tables.py", "cli/test_maintain.py", "wire/test_relay.py"),
        ("src/headwater/cli/verify.py", "cli/test_verify.py", "unit/test_pipeline.py"),
        (
            "src/headwater/core/ranges.py",
            "spark/test_signals_on_spark.py",
            "targets/test_tokens.py",
        ),
        ("tests/stream/truth.py", "stream/test_stream.py", "stream/test_callbacks.py"),
        ("docs/streams.md", "docs/test_examples.py", "stream/test_stream.py"),
        ("CHANGELOG.md", "unit/test_supply_chain.py", "stream/test_stream.py"),
        ("scripts/names.py", "docs/test_names.py", "stream/test_stream.py"),
        ("scripts/sbom.py", "unit/test_supply_chain.py", "stream/test_stream.py"),
        ("docs/results/compat.json", "docs/test_names.py", "stream/test_stream.py"),
        ("tests/simulation/notable_seeds.txt", "simulation/test_campaign.py", "wire/test_relay.py"),
        ("tests/fuzz/kept/abi_data/x", "fuzz/test_kept.py", "wire/test_relay.py"),
        (
            "tests/targets/release_0_1/duckdb.sql",
            "targets/release_0_1/test_open.py",
            "wire/test_relay.py",
        ),
        ("src/headwater/dashboard/page.html", "dashboard/test_page.py", "wire/test_relay.py"),
        (
            "src/headwater/cli/templates/README.md.template",
            "cli/test_init.py",
            "wire/test_relay.py",
        ),
        ("src/pyspark_headwater/__init__.py", "spark/test_datasource.py", "wire/test_relay.py"),
        ("monitoring/alerts.yml", "dashboard/test_server.py", "wire/test_relay.py"),
    ],
)
def test_a_change_reaches_the_tests_of_what_imports_it(
    changed: str, reached: str, not_reached: str
) -> None:
    files = affected([changed])
    assert f"tests/{reached}" in files
    assert (ROOT / "tests" / not_reached).exists()
    assert f"tests/{not_reached}" not in files


def test_what_configures_the_tests_reaches_all_of_them() -> None:
    files = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py"))
    for changed in ("pyproject.toml", "requirements.lock", "tests/conftest.py"):
        assert affected([changed]) == files


def test_a_server_that_does_not_start_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "_FAILED", set[str]())
    with pytest.raises(RuntimeError, match="port in use"), shared.starting("a server"):
        raise RuntimeError("port in use")
    with pytest.raises(pytest.skip.Exception, match="the first test"), shared.starting("a server"):
        raise AssertionError("it was started again")
    with shared.starting("another server"):
        pass


def test_a_session_that_does_not_start_is_reported_once(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-pno:cacheprovider", "tests/spark/test_numbers.py"],
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert 1 <= ran.stdout.count("JavaMissingError: [E5001]") <= 2  # the summary repeats it
    assert re.search(r"\b1 error\b", ran.stdout)
    assert re.search(r"SKIPPED \[\d+\].*: Spark did not start", ran.stdout)
