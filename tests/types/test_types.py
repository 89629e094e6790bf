"""What mypy and pyright say of programs: the README's, right ones, wrong ones.

Editors speak with the voice of pyright. It is basedpyright in the mode `standard`, which is
pyright's own: the wheel brings the node that it runs on.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import HANG_S

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
SETTINGS = {
    "typeCheckingMode": "standard",
    "pythonVersion": f"{sys.version_info[0]}.{sys.version_info[1]}",
    "reportMissingImports": "error",
    "extraPaths": [str(ROOT / "src")],
}


def pyright(files: list[Path], folder: Path) -> dict[str, set[int]]:
    """Return the lines that pyright refuses, by file."""
    settings = folder / "pyrightconfig.json"
    settings.write_text(json.dumps({**SETTINGS, "include": [str(file) for file in files]}))
    ran = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(settings),
         "--pythonpath", sys.executable],
        capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    said = json.loads(ran.stdout)
    assert said["summary"]["filesAnalyzed"] == len(files), ran.stdout + ran.stderr
    refused: dict[str, set[int]] = {file.name: set() for file in files}
    for problem in said["generalDiagnostics"]:
        if problem["severity"] == "error":
            name, line = Path(problem["file"]).name, problem["range"]["start"]["line"] + 1
            refused[name].add(line)
    return refused


def mypy(files: list[Path], folder: Path) -> dict[str, set[int]]:
    """Return the lines that mypy refuses, by file; strict, as the project itself is checked."""
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"),
         "--cache-dir", str(ROOT / ".mypy_cache"), "--no-error-summary", "--no-pretty",
         "--show-absolute-path", *map(str, files)],
        capture_output=True, text=True, check=False, timeout=HANG_S, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    refused: dict[str, set[int]] = {file.name: set() for file in files}
    for path, line in re.findall(r"^(.+?):(\d+): error:", ran.stdout, re.MULTILINE):
        refused[Path(path).name].add(int(line))
    return refused


@pytest.mark.parametrize("check", [mypy, pyright], ids=["mypy", "pyright"])
def test_a_type_checker_accepts_what_is_right_and_refuses_what_is_wrong(
    check: object, tmp_path: Path
) -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    # its own function has no annotations, which strict programs would have
    program = program.replace("def large(data):", "def large(data: Any) -> Any:")
    readme = tmp_path / "readme.py"
    readme.write_text(f"from typing import Any\n\n{program}", "utf-8")
    files = [readme, FOLDER / "right.py", FOLDER / "wrong.py"]
    assert callable(check)
    refused = check(files, tmp_path)
    wrong = (FOLDER / "wrong.py").read_text("utf-8").splitlines()
    expected = {at for at, line in enumerate(wrong, 1) if line.endswith("# wrong")}
    assert refused == {"readme.py": set(), "right.py": set(), "wrong.py": expected}
    assert len(expected) > 20
