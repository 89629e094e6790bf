"""Keep the documents true: tables are current, links and names lead somewhere, ids are tested.

`python scripts/check_docs.py` checks (part of `make check`); with `--write` it renews the tables.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from headwater.errors import REGISTRY
from headwater.metrics import Instruments
from headwater.spark.options import option_table

ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT))
from scripts.api_page import api_reference  # noqa: E402 - this file is run by its path
from scripts.names import name_problems  # noqa: E402 - this file is run by its path
from scripts.reliability import cell_table, figures, point_table, version_table  # noqa: E402 - this file is run by its path

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    ROOT / "benchmarks" / "RESULTS.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

PAST = ("CHANGELOG.md", "docs/releases/*.md")
OF_NETWORKS = ("docs/queries.md", "docs/schema.md")  # made by scripts, of names that networks have


def named_pages() -> list[Path]:
    """Return the pages whose names must exist: those that speak of the present, and of us."""
    return [page for page in PAGES if not any(map(page.match, (*PAST, *OF_NETWORKS)))]


def first_line(docstring: str | None) -> str:
    """Return the first line of a docstring without its full stop."""
    return (docstring or "").strip().split("\n", 1)[0].rstrip(".")


def module_table() -> str:
    """One line per module, from the module's own docstring."""
    rows = ["| module | what it is for |", "|---|---|"]
    package = ROOT / "src" / "headwater"
    for path in sorted(package.rglob("*.py"), key=lambda path: (path.parent.parts, path.name)):
        name = path.relative_to(package).as_posix()
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        rows.append(f"| `{name}` | {first_line(docstring)} |")
    return "\n".join(rows)


def error_table() -> str:
    """One section per code, from the error classes."""
    parts = []
    for code, cls in sorted(REGISTRY.items()):
        again = "a retry may succeed" if cls.retryable else "a retry cannot help"
        parts.append(
            f"### {code} {cls.__name__}\n\n{' '.join((cls.__doc__ or '').split())}\n\n"
            f"*Fix:* {cls.fix}. ({again.capitalize()}.)"
        )
    return "\n\n".join(parts)


def metric_table() -> str:
    """One line per metric, from the registry."""
    rows = ["| metric | labels | what it says |", "|---|---|---|"]
    registry = CollectorRegistry()
    for meter in vars(Instruments(registry)).values():
        if isinstance(meter, MetricWrapperBase):
            suffix = "_total" if meter._type == "counter" else ""
            labels = ", ".join(f"`{one}`" for one in meter._labelnames if one != "id")
            text = f"{meter._documentation} ({meter._type})"
            rows.append(f"| `{meter._name}{suffix}` | {labels} | {text} |")
    return "\n".join(rows)


def proof_table() -> str:
    """One line per guarantee: what it is about, and the tests that name it."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    files: dict[str, list[str]] = {}
    for folder in ("tests", "src/headwater/testing"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in set(re.findall(r'guarantee\("([A-Z]+-\d+)"\)', path.read_text("utf-8"))):
                files.setdefault(name, []).append(f"`{path.relative_to(ROOT).as_posix()}`")
    rows = ["| promise | tests |", "|---|---|"]
    for line in page.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif promise := re.match(r"\| \*\*([A-Z]+-\d+)\*\*", line):
            named = files.get(promise[1], [])
            more = f" and {len(named) - 4} more" if len(named) > 4 else ""
            rows.append(f"| {promise[1]}, {section} | {', '.join(named[:4])}{more} |")
    return "\n".join(rows)


GENERATED = (
    ("docs/api.md", "api", api_reference),
    ("docs/compatibility.md", "versions", version_table),
    ("docs/architecture.md", "modules", module_table),
    ("docs/errors.md", "errors", error_table),
    ("docs/guarantees.md", "cells", cell_table),
    ("docs/guarantees.md", "points", point_table),
    ("docs/how-we-know.md", "proofs", proof_table),
    ("docs/monitoring.md", "metrics", metric_table),
    ("docs/reliability.md", "figures", figures),
    ("docs/spark.md", "options", option_table),
)


def generated_problems(*, write: bool) -> list[str]:
    """Compare (or renew) the generated part of each page that has one."""
    problems = []
    for name, marker, make in GENERATED:
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        before, rest = text.split(f"<!-- {marker} -->\n", 1)
        after = rest.split(f"<!-- /{marker} -->", 1)[1]
        fresh = f"{before}<!-- {marker} -->\n{make()}\n<!-- /{marker} -->{after}"
        if fresh != text and write:
            page.write_text(fresh, encoding="utf-8")
        elif fresh != text:
            problems.append(f"{name} is out of date: run {Path(__file__).name} --write")
    return problems


def link_problems() -> list[str]:
    """Find relative links that lead nowhere, or to no heading of a page."""
    problems = []
    link = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]*))?\)")
    for page in PAGES:
        for target, heading in link.findall(page.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            if not (page.parent / target).exists():
                problems.append(f"{page.relative_to(ROOT)}: broken link {target}")
            elif (
                heading and target.endswith(".md") and heading not in headings(page.parent / target)
            ):
                problems.append(f"{page.relative_to(ROOT)}: no heading #{heading} in {target}")
    return problems


@cache
def headings(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\s-]", "", one).strip().lower().replace(" ", "-") for one in found}


def site_problems() -> list[str]:
    """Every page has a place in the site, except single decisions and releases."""
    places = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M))
    pages = {
        page.relative_to(ROOT / "docs").as_posix()
        for page in PAGES
        if page.is_relative_to(ROOT / "docs")
    }
    missing = {one for one in pages - places if not one.startswith(("decisions/0", "releases/"))}
    return [
        *(f"mkdocs.yml: docs/{one} is not in nav" for one in sorted(missing)),
        *(f"mkdocs.yml: no page {one}" for one in sorted(places - pages - {"index.md"})),
    ]


def guarantee_problems() -> list[str]:
    """Every guarantee and case is named by a test, and every test names an existing one."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    promised = set(re.findall(r"^\| \*\*([A-Z]+-\d+)\*\*", page, re.MULTILINE))
    named: set[str] = set()
    promised |= set(re.findall(r"^\| (CASE-\d+) \|", page, re.MULTILINE))
    for folder in ("tests", "src/headwater/testing"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            named |= set(re.findall(r'guarantee\("([A-Z]+-\d+)"\)', text))
            named |= set(re.findall(r"\bCASE-\d+", text))
    return [
        *(f"docs/guarantees.md: no test names {one}" for one in sorted(promised - named)),
        *(f"tests name {one}, which docs/guarantees.md lacks" for one in sorted(named - promised)),
    ]


def error_problems() -> list[str]:
    """Every error is raised somewhere in the package and named by a test."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    raised = {*re.findall(r"(?<!class )\b(\w+)\(", source), *re.findall(r"=\s*(\w+)\b", source)}
    problems = []
    for code, cls in sorted(REGISTRY.items()):
        if cls.__name__ not in raised:
            problems.append(f"{code} {cls.__name__} is never raised")
        if cls.__name__ not in tests and code not in tests:
            problems.append(f"{code} {cls.__name__} is named by no test")
    return problems


def main() -> int:
    """Print every problem; the exit code is 1 if there is one."""
    problems = [
        *generated_problems(write="--write" in sys.argv),
        *link_problems(),
        *site_problems(),
        *guarantee_problems(),
        *error_problems(),
        *name_problems(ROOT, named_pages()),
    ]
    for problem in problems:
        print(problem)
    print(f"docs: {len(PAGES)} pages, {len(REGISTRY)} errors, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
