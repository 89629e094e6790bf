"""The code in the documents runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    "README.md",
    "docs/aggregates.md",
    "docs/operations.md",
    "docs/side-effects.md",
    "docs/simulator.md",
    "docs/spark.md",
    "docs/streams.md",
    "docs/targets/clickhouse.md",
]


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "index"), [(page, i) for page in PAGES for i in range(len(examples(page)))]
)
def test_an_example_runs_and_prints_what_the_page_says(
    page: str, index: int, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", examples(page)[index]],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    said = " ".join((ROOT / page).read_text("utf-8").split())
    for line in ran.stdout.splitlines():
        assert line in said, f"the page does not mention {line!r}"
