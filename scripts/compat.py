"""Run Headwater on every version of Spark that people use, each in an environment of its own.

`make compat` runs it (VERSIONS="4.1 4.2" chooses): environments are made under `build/compat`, from
the lock with another pyspark, and kept. What was seen goes to `docs/results/compat.json`, of which
`check_docs.py` makes the table of docs/compatibility.md. What cannot be installed is said.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "compat"
RESULTS = ROOT / "docs" / "results" / "compat.json"
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
AREAS = {
    "data source": ("test_datasource.py",),
    "pipeline": ("test_stream_on_spark.py", "test_spans.py"),
    "lake": ("test_lake_on_spark.py",),
    "what versions lack": ("test_versions.py",),
}
# old versions warn of what newer Pythons and libraries have deprecated
QUIET = ("ResourceWarning", "DeprecationWarning", "FutureWarning", "UserWarning")
QUIET_TOO = "pytest.PytestUnraisableExceptionWarning"


def environment(version: str) -> Path:
    """Return the Python of an environment with this Spark; make it if it does not exist.

    Raises:
        subprocess.CalledProcessError: something cannot be installed.
    """
    place = PLACE / version
    python, ready = place / "bin" / "python", place / ".ready"
    if not ready.exists():
        place.mkdir(parents=True, exist_ok=True)
        venv.create(place, with_pip=True, clear=True)
        lock = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
        others = [one for one in lock if not one.startswith(("pyspark==", "py4j=="))]
        (place / "lock.txt").write_text("\n".join(others))
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        for what in (
            ["--require-hashes", "--no-deps", "--requirement", str(place / "lock.txt")],
            [f"pyspark~={version}.0"],
            ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)],
        ):
            subprocess.run([*pip, *what], check=True, capture_output=True, text=True)
        ready.touch()
    return python


def run_tests(python: Path, version: str) -> dict[str, dict[str, int]]:
    """Run the tests of all areas; return how many passed, failed and were skipped in each."""
    folder = ROOT / "tests" / "spark"
    files = [str(folder / name) for names in AREAS.values() for name in names]
    report = PLACE / version / "report.xml"
    report.unlink(missing_ok=True)
    quiet = [f"-Wignore::{name}" for name in (*QUIET, QUIET_TOO)]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--junitxml={report}"]
    subprocess.run(
        [str(python), "-m", "pytest", *options, *quiet, *files],
        cwd=ROOT,
        check=False,
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
    )
    counted: dict[str, Counter[str]] = {name: Counter() for name in AREAS}
    for case in ET.parse(report).iter("testcase"):
        name = (case.get("classname") or "").removeprefix("tests.spark.").replace(".", "/") + ".py"
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        outcome = "skipped" if "skipped" in kinds else outcome
        for area, names in AREAS.items():
            counted[area][outcome] += name in names
    return {area: {k: v for k, v in found.items() if v} for area, found in counted.items()}


def main() -> int:
    """Run all versions that are asked for; 1 if a test has failed or nothing could be run."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = False
    for version in sys.argv[1:] or VERSIONS:
        try:
            python = environment(version)
        except subprocess.CalledProcessError as error:
            said = (error.stderr or "").strip().splitlines()
            print(f"Spark {version} cannot be installed: {said[-1] if said else error}")
            failed = True
            continue
        asked = "import pyspark; print(pyspark.__version__)"
        exact = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
        print(f"== Spark {exact.stdout.strip()}", flush=True)
        areas = run_tests(python, version)
        results[version] = {"pyspark": exact.stdout.strip(), "areas": areas}
        failed = failed or any("failed" in found for found in areas.values())
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
