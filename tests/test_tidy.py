"""Style is a test, not a request."""

import ast
import importlib
import pkgutil
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import headwater

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MODULES = ["headwater", *(f"headwater.{m.name}" for m in pkgutil.iter_modules(headwater.__path__))]
MOST_LINES, FEWEST_LINES = 500, 80
JOINED = ("changes", "cli", "core", "decode", "effects", "portal", "query", "spark", "stream",
          "targets", "testing")  # fmt: skip
"""Folders of headwater in which a short module with one importer has joined that importer."""

BANNED_NAMES = {"utils.py", "helpers.py", "common.py", "manager.py", "misc.py"}


def test_source_files_are_short_explained_and_well_named() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    long = [path for path, text in texts.items() if len(text.splitlines()) > MOST_LINES]
    assert not long, "split it: a file holds one idea"
    silent = [path for path in texts if not ast.get_docstring(_parsed(path))]
    assert not silent, "a module says why it exists"
    assert not [path for path in texts if path.name in BANNED_NAMES]
    assert not [path for path, one in texts.items() if re.search(r"\b(TODO|FIXME|XXX)\b", one)]


def test_a_short_module_with_one_importer_joins_it() -> None:
    """Data tables (all capitals, no function), public modules and `__init__` are excepted."""
    importers, package = _importers(), ROOT / "src" / "headwater"
    found = [path for folder in JOINED for path in sorted((package / folder).rglob("*.py"))
             if path.name != "__init__.py" and len(importers[_module(path)]) == 1
             and len(path.read_text(encoding="utf-8").splitlines()) < FEWEST_LINES
             and not _stands_alone(path)]  # fmt: skip
    assert not found, "a module with one importer and few lines joins that importer"


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_declared_sorted_and_importable(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert sorted(set(exported), key=_isort_key) == list(exported)
    for one in exported:
        assert getattr(module, one) is not None


def test_every_target_of_the_makefile_is_declared_and_explained() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):", text, re.MULTILINE)
    declared = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert sorted(" ".join(declared).split()) == sorted(targets)
    for target in targets:
        assert re.search(rf"^{target}:.*## \w", text, re.MULTILINE), f"{target} is not explained"


def test_ci_runs_what_a_contributor_runs() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8").split("\n")
    assert [one for one in steps if one.startswith("make")] == ["make check", "make test"]
    hosted = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "make test" in (ROOT / page).read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"run: make ([a-z]+)", hosted):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert {"check", "test", "wheel"} <= set(re.findall(r"run: make ([a-z]+)", hosted))


def test_the_version_is_written_once_and_the_changelog_knows_it() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in pyproject["project"]
    assert pyproject["project"]["dynamic"] == ["version"]
    assert (ROOT / pyproject["tool"]["hatch"]["version"]["path"]).is_file()
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(headwater.__version__)}\] - \d{{4}}", changelog, re.M)
    minor = ".".join(headwater.__version__.split(".")[:2])
    assert (ROOT / "docs" / "releases" / f"{minor}.md").is_file()


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _importers() -> dict[str, set[str]]:
    """Return who imports each module of src, at whatever depth of its code."""
    found: dict[str, set[str]] = {_module(path): set() for path in SOURCES}
    for path in SOURCES:
        for node in ast.walk(_parsed(path)):
            names = []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
            for name in names:
                if name in found and name != _module(path):
                    found[name].add(_module(path))
    return found


def _stands_alone(path: Path) -> bool:
    """Whether a module is a table of data or says itself what it exports."""
    body = _parsed(path).body
    named = {target.id for node in body if isinstance(node, ast.Assign | ast.AnnAssign)
             for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
             if isinstance(target, ast.Name)}  # fmt: skip
    return "__all__" in named or not any(
        isinstance(n, ast.FunctionDef | ast.ClassDef) for n in body
    )


def _isort_key(name: str) -> tuple[int, str]:
    """Constants first, then classes, then the rest, as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_each_defect_of_the_sql_sink_has_a_test() -> None:
    """The list is in docs/migrate-from-substreams-sink-sql.md."""
    guide = (ROOT / "docs/migrate-from-substreams-sink-sql.md").read_text(encoding="utf-8")
    listed = {int(one) for one in re.findall(r"^\| (\d+) \|", guide, re.MULTILINE)}
    named = {
        int(one)
        for path in (ROOT / "tests").rglob("test_*.py")
        for one in re.findall(r"mark\.sink_defect\((\d+)\)", path.read_text(encoding="utf-8"))
    }
    assert listed == named == set(range(1, 15))


def test_each_fault_of_others_has_a_link_and_a_test_of_its_own() -> None:
    """That the tests exist is checked with all names in backticks, by `make check`."""
    page = (ROOT / "docs/faults-of-others.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .* \| `(tests/[\w/]+\.py::\w+)` \|$", page, re.MULTILINE)
    linked = re.findall(r"^\| \d+ \| .*\]\(https://github\.com/[\w./-]+/\d+\)", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len(linked) == len({test for _, test in rows}) == len(rows) >= 40
