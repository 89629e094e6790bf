"""The examples of docs/changes.md, one after the other, run and print what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.shared import HANG_S

PAGE = Path(__file__).resolve().parents[3] / "docs" / "changes.md"


def test_the_example_prints_what_the_page_says() -> None:
    text = PAGE.read_text("utf-8")
    example = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    ran = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert f"```\n{ran.stdout}```" in text
