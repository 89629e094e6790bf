"""Style is a test, not a request."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import headwater

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MODULES = ["headwater", *(f"headwater.{m.name}" for m in pkgutil.iter_modules(headwater.__path__))]
BANNED_NAMES = {"utils.py", "helpers.py", "common.py", "manager.py", "misc.py"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_source_file_is_short_explained_and_well_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 500, "split it: a file holds one idea"
    assert ast.get_docstring(ast.parse(text)), "a module says why it exists"
    assert path.name not in BANNED_NAMES
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_declared_sorted_and_importable(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert sorted(set(exported), key=_isort_key) == list(exported)
    for one in exported:
        assert getattr(module, one) is not None


def test_every_target_of_the_makefile_is_explained_and_declared_phony() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", text, re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    assert sorted(phony[1].split()) == sorted(targets)
    for target in targets:
        assert re.search(rf"^{target}:.*## \w", text, re.MULTILINE), f"{target} is not explained"


def test_ci_runs_the_readme_test_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")


def _isort_key(name: str) -> tuple[int, str]:
    """Constants first, then classes, then the rest, as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)
