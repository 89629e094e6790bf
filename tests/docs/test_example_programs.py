"""The programs of examples/ run as they stand, and are what its README lists."""

import gc
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import HANG_S

ROOT = Path(__file__).resolve().parent.parent.parent / "examples"
PROGRAMS = sorted(ROOT.glob("*.py"))
ON_SPARK = [one for one in PROGRAMS if "local_session" in one.read_text("utf-8")]
MOST_LINES = 60
RUNNER = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
"""


def test_the_readme_lists_every_program_with_its_purpose() -> None:
    listed = re.findall(
        r"^\| \[(\w+\.py)\]\(\1\) \| \S", (ROOT / "README.md").read_text("utf-8"), re.M
    )
    assert sorted(listed) == [one.name for one in PROGRAMS]
    assert len(listed) >= 10


def test_every_program_is_short_and_runs(tmp_path: Path) -> None:
    """One process runs them one after the other: imports cost more than most programs do.

    Those that ask for a session of Spark's run in the session of the tests.
    """
    for path in PROGRAMS:
        assert len(path.read_text("utf-8").splitlines()) <= MOST_LINES, path.name
    ran = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", RUNNER,
         *(str(one) for one in PROGRAMS if one not in ON_SPARK)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    for said in ("all of them are canonical", "all balances together: 0", "went back to block",
                 "headwater_cursor_block", "active: False", "fork was ['Discarded']"):  # fmt: skip
        assert said in ran.stdout


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("program", ON_SPARK, ids=lambda program: str(program.name))
def test_a_program_on_spark_runs(
    program: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(program), run_name="__main__")
    gc.collect()
    assert "equal the chain after" in capsys.readouterr().out
