"""Run Headwater on every version of Spark and of Python that people use.

`make compat` runs it (VERSIONS="4.1 python3.13" chooses): each version has an environment of its
own under `build/compat`, from the lock, with another pyspark or made by another Python; it is kept.
What was seen goes to `docs/results/compat.json`, of which `check_docs.py` makes the tables of
docs/compatibility.md. What cannot be installed is said; a Python that is not on PATH is left out.
Connectors of lake formats are tried where `HEADWATER_LAKE_JARS` names a folder with their jars.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "compat"
RESULTS = ROOT / "docs" / "results" / "compat.json"
SPARKS = ("4.0", "4.1", "4.2", "4.3")
PYTHONS = ("python3.12", "python3.13", "python3.14")
SPARK_AREAS: dict[str, tuple[str, ...]] = {
    "data source": ("spark/test_datasource.py",),
    "pipeline": ("spark/test_stream_on_spark.py", "spark/test_spans.py"),
    "lake": ("spark/test_lake_on_spark.py",),
    "Spark's own connectors": ("spark/test_lake_connectors.py",),
    "what versions lack": ("spark/test_versions.py",),
}
PYTHON_AREAS: dict[str, tuple[str, ...]] = {
    "unit": ("unit",),
    "property": ("property",),
    "wire": ("wire",),
    "data source": ("spark/test_datasource.py",),
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
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--junitxml={report}"]
    subprocess.run(
        [str(python), "-m", "pytest", *options, *quiet]
        + [str(folder / name) for names in areas.values() for name in names],
        cwd=ROOT,
        check=False,
        env={
            "HEADWATER_WALK": "all",  # no test is left to another day
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


def main() -> int:
    """Run all versions that are asked for; 1 if a test has failed or nothing could be run."""
    failed = False
    for version in sys.argv[1:] or (*SPARKS, *PYTHONS):
        is_spark = version in SPARKS
        interpreter = sys.executable if is_spark else shutil.which(version)
        if interpreter is None:
            print(f"{version} is not on PATH")
            continue
        try:
            python = environment(version, interpreter)
        except subprocess.CalledProcessError as error:
            said = (error.stderr or "").strip().splitlines()
            print(f"{version} cannot be installed: {said[-1] if said else error}")
            failed = True
            continue
        asked = "import platform, pyspark; print(pyspark.__version__, platform.python_version())"
        spark, exact = run([str(python), "-c", asked]).split()
        print(f"== Spark {spark}, Python {exact}", flush=True)
        areas = run_tests(python, version, SPARK_AREAS if is_spark else PYTHON_AREAS)
        failed = failed or any("failed" in found for found in areas.values())
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[version] = {"pyspark": spark, "python": exact, "areas": areas}
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
