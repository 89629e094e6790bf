"""The bill of materials says what the lock says, and the security page names tests that exist."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from scripts.sbom import ROOT, bill, read_lock, wanted_names

import headwater

PARTS = ["Changed, breaking", "Added", "Changed", "Fixed"]
LOCK = (ROOT / "requirements.lock").read_text()


def test_the_bill_lists_every_locked_package_with_its_hashes() -> None:
    packages = read_lock(LOCK)
    made = bill(packages, "1.0", ["pyarrow", "pyspark"])
    assert [one["name"] for one in made["components"]] == re.findall(r"^([\w.-]+)==", LOCK, re.M)
    found = {(one["name"], each["content"]) for one in made["components"] for each in one["hashes"]}
    assert len(found) == LOCK.count("--hash=sha256:")
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    refs = [one["bom-ref"] for one in made["components"]]
    assert len(set(refs)) == len(refs), "references are unique"
    (product,) = made["dependencies"]
    assert [one.split("/")[1].split("@")[0] for one in product["dependsOn"]] == [
        "pyarrow",
        "pyspark",
    ]
    assert made == bill(packages, "1.0", ["pyarrow", "pyspark"]), "the same lock, the same bill"
    assert made["serialNumber"] != bill(packages[1:], "1.0", [])["serialNumber"]


def test_every_dependency_has_both_bounds_and_the_lock_lies_between_them() -> None:
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = read["project"], read["dependency-groups"]
    lists = [project["dependencies"], read["build-system"]["requires"]]
    lists += [*project["optional-dependencies"].values(), *groups.values()]
    asked = [one for each in lists for one in each]
    locked = dict(re.findall(r"^([\w-]+)==([^ ;]+)", LOCK, re.M))
    assert len(asked) > 40
    for one in map(Requirement, asked):
        assert {each.operator for each in one.specifier} == {">=", "<"}, one
        if one.name in locked:  # the site of `make docs` is not
            assert one.specifier.contains(locked[one.name]), one


def test_version_changelog_and_notes_name_the_same_release() -> None:
    minor = headwater.__version__.rpartition(".")[0]
    notes = ROOT / "docs" / "releases" / f"{minor}.md"
    assert notes.read_text().startswith(f"# Headwater {minor}\n")
    assert len(notes.read_text().splitlines()) <= 70, "one page"
    changes = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d[^\]]*)\] - \d{4}-\d\d-\d\d$", changes, re.M)
    assert released[0] == headwater.__version__
    assert f"[Notes of one page](docs/releases/{minor}.md)" in changes
    assert f"releases/{minor}.md" in (ROOT / "mkdocs.yml").read_text()


def test_the_changelog_speaks_to_users_and_says_first_what_breaks() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    for_developers = r"`make |\bCI\b|`uv`|\bwith uv\b|mypy|ruff|pytest"
    assert not re.findall(f"^.*(?:{for_developers}).*$", changes, re.M)
    for release in changes.split("\n## ")[1:]:
        parts = re.findall(r"^### (.*)$", release, re.M)
        assert parts == [one for one in PARTS if one in parts], release.splitlines()[0]


def test_a_package_without_a_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="loose has no hash"):
        read_lock("fine==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\nloose==2.0\n    # via fine\n")


def test_what_the_package_needs_is_read_without_versions_and_extras() -> None:
    project = {
        "project": {
            "dependencies": ["urllib3[zstd]>=2.6", "Rich>=14"],
            "optional-dependencies": {"a": ["duckdb>=2"], "b": []},
        }
    }
    assert wanted_names(project) == ["duckdb", "rich", "urllib3"]


@pytest.mark.parametrize(
    ("said", "status", "expected"),
    [
        ("No known vulnerabilities found\\npyspark  could not be audited", 0, 2),
        ("Found 1 known vulnerability in 1 package", 1, 1),
        ("ConnectionError: no route", 1, 2),
        ("No known vulnerabilities found", 0, 0),
    ],
)
def test_an_audit_that_looked_nothing_up_does_not_pass(
    tmp_path: Path, said: str, status: int, expected: int
) -> None:
    """pip-audit ends with 0 where it has skipped every package."""
    tool = tmp_path / "build" / "audit" / "bin" / "pip-audit"
    tool.parent.mkdir(parents=True)
    tool.write_text(f"#!/bin/sh\nprintf '{said}\\n'\nexit {status}\n")
    tool.chmod(0o755)
    script = str(ROOT / "scripts" / "audit.sh")
    ran = subprocess.run(["bash", script, "python"], cwd=tmp_path, capture_output=True, check=False)
    assert ran.returncode == expected
    assert ran.stdout.count(b"\n") == 1


def test_the_security_page_names_tests_that_exist() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page))
    assert len(named) >= 12
    for path, test in named:
        source = Path(ROOT, path).read_text()
        assert not test or f"def {test}(" in source, f"{path}::{test}"
