"""The code in the documents runs as it stands there."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    "README.md",
    "docs/aggregates.md",
    "docs/guides/notifications.md",
    "docs/operations.md",
    "docs/side-effects.md",
    "docs/simulator.md",
    "docs/spark.md",
    "docs/streams.md",
    "docs/structured-streaming.md",
    "docs/targets/clickhouse.md",
]
WITHOUT_SPARK = [
    "docs/cookbook.md",
    "docs/evolve.md",
    "docs/guides/adding.md",
    "docs/guides/cursor-management.md",
    "docs/guides/fork-handling.md",
    "docs/guides/sql-reorg-handling.md",
    "docs/monitoring.md",
    "docs/nodes.md",
    "docs/notebooks.md",
    "docs/lake.md",
    "docs/substreams-outputs.md",
    "docs/substreams.md",
    "docs/tutorial.md",
]
"""Pages whose code never treats rows as a DataFrame: no session is started for them."""


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


@pytest.mark.usefixtures("spark")  # examples that need Spark find this session, as a user's would
@pytest.mark.parametrize(
    ("page", "index"), [(page, i) for page in PAGES for i in range(len(examples(page)))]
)
def test_an_example_runs_and_prints_what_the_page_says(
    page: str,
    index: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run_example(page, index, capsys)


@pytest.mark.parametrize("page", WITHOUT_SPARK)
def test_the_examples_of_a_page_run_one_after_the_other(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for index in range(len(examples(page))):
        run_example(page, index, capsys)


def run_example(page: str, index: int, capsys: pytest.CaptureFixture[str]) -> None:
    program = compile(examples(page)[index], f"{page}, example {index + 1}", "exec")
    exec(program, {"__name__": "__main__"})
    gc.collect()  # what it left open would warn now, and a warning is an error
    said = " ".join((ROOT / page).read_text("utf-8").split())
    for line in capsys.readouterr().out.splitlines():
        assert line in said, f"the page does not mention {line!r}"


def test_a_first_program_needs_no_session_of_its_own(tmp_path: Path) -> None:
    """The README's, in a process of its own, where nothing is prepared."""
    ran = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", examples("README.md")[0]],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={key: one for key, one in os.environ.items() if key != "PYSPARK_PYTHON"},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
