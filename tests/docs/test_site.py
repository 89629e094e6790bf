"""What is made with the site: text for programs that read, and the twelve tasks."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.site_links import readable

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"


def test_programs_that_read_are_given_every_page() -> None:
    made = readable(ROOT / "mkdocs.yml")
    entries = re.findall(r"^- \[(.+)\]\((.+)\.html\): (\S.*)$", made["llms.txt"], re.MULTILINE)
    listed = {f"{path}.md" for _, path, _ in entries}
    in_menu = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == in_menu
    assert len(entries) == len(listed), "each page once"
    assert all("](" not in sentence for _, _, sentence in entries)
    for path in listed - {"index.md"}:
        assert (DOCS / path).read_text("utf-8").strip() in made["llms-full.txt"]


def test_each_of_the_twelve_tasks_has_a_page_and_a_program() -> None:
    page = (DOCS / "tasks.md").read_text("utf-8")
    tasks = re.findall(
        r"^\| .+ \| \[.+\]\(([\w/.-]+)(?:#[\w-]+)?\) \| \[(\w+\.py)\]\(\.\./examples/\2\) \|$",
        page,
        re.MULTILINE,
    )
    assert len(tasks) == 12
    assert len({program for _, program in tasks}) == 12
    for guide, program in tasks:
        assert (DOCS / guide).is_file()
        assert (ROOT / "examples" / program).is_file()
