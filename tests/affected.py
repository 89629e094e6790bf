"""Which test files reach what has changed since a commit: the list that `make affected` runs.

    python -m tests.affected main

A file reaches the modules that it imports, those that they import, and so on; names that a package
imports when they are first used count as imported by who uses them. What pytest is configured by
(a conftest, pyproject.toml, the lock) concerns every test, and a test that starts programs reaches
everything. A changed document concerns the tests of documents. Any other file that is no module (a
page, a template, kept data) concerns the tests beside it, and the modules that name it or its
folder, with who imports them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

import headwater
import headwater.targets

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("headwater", "pyspark_headwater", "scripts", "tests")
LAZY: Mapping[str, Mapping[str, str]] = {
    "headwater": {name: f"headwater.{home}" for name, home in headwater._HOMES.items()},
    "headwater.targets": {
        name: f"headwater.targets.{home}" for name, home in headwater.targets._EXTRAS.items()
    },
}
FOLDERS_OF_CODE = {
    path.parent.name for top in ("src", "tests") for path in ROOT.glob(f"{top}/**/*.py")
}
EVERYTHING = re.compile(
    r"pyproject\.toml|requirements\.lock|Makefile|tests/(conftest|sampling|jvm)\.py"
)
STARTS_PROGRAMS = re.compile(r"^(import|from) (subprocess|multiprocessing)\b", re.MULTILINE)


def affected(changed: Iterable[str]) -> list[str]:
    """Return the test files that reach one of these files, by paths from the root."""
    changed = sorted(changed)
    tests = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py"))
    if any(EVERYTHING.fullmatch(path) for path in changed):
        return tests
    graph = _graph()
    touched = {_module(path) for path in changed if path.endswith(".py")} & graph.modules
    names = {name for path in changed if not path.endswith(".py") for name in _names(Path(path))}
    touched |= {module for module in graph.modules if _name_any(module, names)}
    beside = {str(Path(path).parent) for path in changed if not path.endswith(".py")}
    if any(path.startswith(("src/", "examples/", "benchmarks/")) for path in changed):
        touched |= {module for module in graph.modules if _starts_programs(module)}
    reaching = touched.union(*(graph.find_downstream_modules(module) for module in touched))
    in_documents = any(path.endswith(".md") for path in changed)
    return [
        path
        for path in tests
        if _module(path) in reaching
        or str(Path(path).parent) in beside
        or (in_documents and path.startswith(("tests/docs/", "tests/test_")))
        or any(other.startswith(f"{Path(path).parent}/conftest") for other in changed)
    ]


def _graph() -> grimp.ImportGraph:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    modules = graph.modules
    for module in sorted(modules - LAZY.keys()):
        for name in _imported_late(_path(module).read_text("utf-8")):
            package = name.removesuffix(".")
            imported = {other for other in modules if name[-1] == "." and other.startswith(name)}
            for other in sorted((imported | {package}) & modules - {module}):
                graph.add_import(importer=module, imported=other)
    return graph


def _names(path: Path) -> set[str]:
    """Return by what names code may speak of a file: its own, and those of folders of data."""
    folders = [folder.name for folder in path.parents if len(folder.parts) > 1]
    return {path.name, *(name for name in folders if name not in FOLDERS_OF_CODE)}


def _name_any(module: str, names: set[str]) -> bool:
    text = _path(module).read_text("utf-8") if names else ""
    return any(re.search(rf"[\"'/]{re.escape(name)}[\"'/]", text) for name in names)


def _starts_programs(module: str) -> bool:
    is_test = module.startswith("tests.")
    return is_test and bool(STARTS_PROGRAMS.search(_path(module).read_text("utf-8")))


def _imported_late(text: str) -> set[str]:
    """Return the modules that a module imports when a name is first used.

    A name that ends in a dot is that of a package any of whose modules may be the one.
    """
    late = set(re.findall(r'import_module\(\s*f?"(headwater[\w.]*)', text))
    late |= {f"headwater.targets.{name}" for name in re.findall(r'import_extra\(\s*"(\w+)', text)}
    if re.search(r'(?<!def )import_extra\(\s*[^"\s]', text):
        late.add("headwater.targets.")
    for package, homes in LAZY.items():
        if f"from {package} import" in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and node.module == package:
                    late |= {homes[alias.name] for alias in node.names if alias.name in homes}
    return late


def _path(module: str) -> Path:
    top = ROOT if module.split(".")[0] in ("scripts", "tests") else ROOT / "src"
    path = top.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _module(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _changed_since(commit: str) -> set[str]:
    """Return what git calls changed: committed since, not committed, or new."""
    commands = (
        ["git", "diff", "--name-only", commit],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    printed = [subprocess.check_output(command, cwd=ROOT, text=True) for command in commands]
    return {line for text in printed for line in text.splitlines()}


if __name__ == "__main__":
    print("\n".join(affected(_changed_since(sys.argv[1]))))  # noqa: T201 - it is the answer
