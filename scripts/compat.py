"""Run Headwater on other versions than the locked ones: of Spark, of Python, of all it depends on.

`make compat` runs them all, VERSIONS="lowest newest" chooses. `lowest` and `newest` are the ends of
what `pyproject.toml` allows for every dependency, resolved by uv; they run the tests of `SMOKE`,
which touch every target, decoding and Spark. A version of Spark is the lock with another pyspark, a
Python is the lock under another interpreter. Each has an environment of its own under
`build/compat`, which is kept. What was seen goes to `docs/results/compat.json`, of which
`check_docs.py` makes the tables of docs/compatibility.md. What cannot be installed is said; a
Python that is not on PATH is left out. Connectors of lake formats are tried where
`HEADWATER_LAKE_JARS` names a folder with their jars.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "compat"
RESULTS = ROOT / "docs" / "results" / "compat.json"
SPARKS = ("4.0", "4.1", "4.2", "4.3")
PYTHONS = ("python3.12", "python3.13", "python3.14")
BOUNDS = {"lowest": "lowest-direct", "newest": "highest"}  # as uv calls them
LOWEST_PYTHON = "3.11"
NOT_FOR_TESTS = ("mypy", "pyspark", "ruff")  # of the group `dev`; pyspark is what is resolved
SPARK_AREAS: dict[str, tuple[str, ...]] = {
    "data source": ("spark/test_datasource.py",),
    "pipeline": (
        "spark/test_stream_on_spark.py",
        "spark/test_spans.py",
        "spark/test_plans.py",
    ),
    "lake": ("spark/test_lake_on_spark.py",),
    "Spark's own connectors": ("spark/test_lake_connectors.py", "spark/test_spark_table.py"),
    "writers": ("spark/streaming/test_writers.py",),
    "what versions lack": ("spark/test_versions.py",),
}
PYTHON_AREAS: dict[str, tuple[str, ...]] = {
    "unit": ("unit",),
    "property": ("property",),
    "wire": ("wire",),
    "data source": ("spark/test_datasource.py",),
}
SMOKE: dict[str, tuple[str, ...]] = {
    "decode": ("unit/decode",),
    "portal": ("wire/test_client_over_http.py",),
    "DuckDB": ("targets/test_duckdb.py",),
    "PostgreSQL": ("targets/test_postgres.py",),
    "ClickHouse": ("targets/test_clickhouse.py",),
    "Iceberg": ("targets/test_iceberg.py",),
    "Delta": ("targets/test_delta.py",),
    "Parquet": ("targets/test_parquet.py",),
    "memory": ("targets/test_memory.py",),
    "Substreams": ("substreams/test_source.py",),
    "Kafka": ("effects/test_kafka.py",),
    "commands": ("cli/test_status.py", "demo"),
    "Spark": ("spark/test_datasource.py", "spark/test_lake_on_spark.py"),
}
# old versions warn of what newer Pythons and libraries have deprecated
QUIET = ("ResourceWarning", "DeprecationWarning", "FutureWarning", "UserWarning")
QUIET_TOO = "pytest.PytestUnraisableExceptionWarning"


def environment(version: str, interpreter: str) -> Path:
    """Return the Python of an environment with this Spark or Python; make it if it is not there.

    Raises:
        subprocess.CalledProcessError: something cannot be installed.
    """
    place = PLACE / version
    python, ready = place / "bin" / "python", place / ".ready"
    if ready.exists():
        return python
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    locked, others = (
        place / "lock.txt",
        re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text()),
    )
    run([interpreter, "-m", "venv", "--clear", str(place)])
    if version in SPARKS:
        others = [one for one in others if not one.startswith(("pyspark==", "py4j=="))]
    locked.write_text("\n".join(others))
    run([*pip, "--require-hashes", "--no-deps", "--requirement", str(locked)])
    if version in SPARKS:
        run([*pip, f"pyspark~={version}.0"])
    run([*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])
    ready.touch()
    return python


def bound_environment(which: str) -> Path:
    """Return the Python of an environment with the lowest or newest versions that are allowed.

    Tools of the tests have their locked versions.

    Raises:
        subprocess.CalledProcessError: the index does not serve them, or they exclude each other.
    """
    place, uv = PLACE / which, str(Path(sys.executable).parent / "uv")
    python, installed = place / "bin" / "python", place / "installed.txt"
    pins, tools = PLACE / f"{which}.txt", PLACE / "tools.in"
    PLACE.mkdir(parents=True, exist_ok=True)
    tools.write_text("\n".join(test_tools()))
    run([uv, "pip", "compile", "--quiet", "--upgrade", "--resolution", BOUNDS[which],
         "--python-version", LOWEST_PYTHON, "--all-extras", "--no-header", "--no-annotate",
         str(ROOT / "pyproject.toml"), str(tools), "--output-file", str(pins)])  # fmt: skip
    if installed.exists() and installed.read_text() == pins.read_text():
        return python
    run([uv, "venv", "--quiet", "--clear", "--python", LOWEST_PYTHON, str(place)])
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    run([*install, "--requirement", str(pins)])
    run([*install, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])
    installed.write_text(pins.read_text())
    return python


def test_tools() -> list[str]:
    """Return what tests need beside the package, as the lock has it."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    locked = dict(
        re.findall(r"^([\w-]+)==([^ ;]+)", (ROOT / "requirements.lock").read_text(), re.M)
    )
    wanted = [re.split(r"[<>=]", one)[0] for one in groups["dev"]]
    named = [(one, re.split(r"\[", one)[0]) for one in wanted]
    return [f"{one}=={locked[name]}" for one, name in named if name not in NOT_FOR_TESTS]


def direct_versions(which: str) -> dict[str, str]:
    """Return the versions of what the package itself depends on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = [*project["dependencies"], *(one for extra in extras for one in extra)]
    names = sorted({re.split(r"[\[<>=]", one)[0] for one in asked})
    found = dict(re.findall(r"^([\w-]+)==(\S+)", (PLACE / f"{which}.txt").read_text(), re.M))
    return {one: found[one] for one in names}


def run(command: list[str]) -> str:
    """Run a command to its end; return what it said."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run_tests(
    python: Path, version: str, areas: dict[str, tuple[str, ...]]
) -> dict[str, dict[str, int]]:
    """Run the tests of all areas; return how many passed, failed and were skipped in each."""
    folder = ROOT / "tests"
    report = PLACE / version / "report.xml"
    report.unlink(missing_ok=True)
    quiet = [f"-Wignore::{name}" for name in (*QUIET, QUIET_TOO)]
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run(
        [str(python), "-m", "pytest", *options, *quiet]
        + [str(folder / name) for names in areas.values() for name in names],
        cwd=ROOT,
        check=False,
        env={
            **os.environ,
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        },
    )
    counted: dict[str, Counter[str]] = {name: Counter() for name in areas}
    if not report.exists():
        return {area: {"failed": 1} for area in areas}  # pytest itself was killed
    for case in ET.parse(report).iter("testcase"):
        place = (case.get("classname") or "").removeprefix("tests.").replace(".", "/") + ".py"
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        outcome = "skipped" if "skipped" in kinds else outcome
        for area, names in areas.items():
            counted[area][outcome] += place.startswith(names)
    return {area: {k: v for k, v in found.items() if v} for area, found in counted.items()}


def ran_on() -> dict[str, str]:
    """Return the day and the commit."""
    commit = run(["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"])
    return {"date": datetime.now(UTC).date().isoformat(), "commit": commit}


def main() -> int:
    """Run all versions that are asked for; 1 if a test has failed or nothing could be run."""
    failed = False
    for version in sys.argv[1:] or (*BOUNDS, *SPARKS, *PYTHONS):
        interpreter = shutil.which(version) if version.startswith("python") else sys.executable
        if interpreter is None:
            print(f"{version} is not on PATH")
            continue
        try:
            bounded = version in BOUNDS
            python = bound_environment(version) if bounded else environment(version, interpreter)
        except subprocess.CalledProcessError as error:
            said = (error.stderr or "").strip().splitlines()
            print(f"{version} cannot be installed: {said[-1] if said else error}")
            failed = True
            continue
        asked = "import platform, pyspark; print(pyspark.__version__, platform.python_version())"
        spark, exact = run([str(python), "-c", asked]).split()
        print(f"== Spark {spark}, Python {exact}", flush=True)
        tests = SMOKE if bounded else SPARK_AREAS if version in SPARKS else PYTHON_AREAS
        areas = run_tests(python, version, tests)
        failed = failed or any("failed" in found for found in areas.values())
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[version] = {"pyspark": spark, "python": exact, "areas": areas, **ran_on()}
        if bounded:
            results[version]["packages"] = direct_versions(version)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
