"""The guide to targets of one's own: its programs run, and the suite catches broken targets."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater.targets import Capabilities
from headwater.testing.conformance import OwnedTargetConformance, TargetConformance

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "custom-targets.md").read_text("utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.guarantee("STATE-2")
def test_the_programs_of_the_guide_run_and_pass_the_suites(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    tests = [name for name in FILES if name.startswith("test_")]
    assert len(FILES) == PAGE.count("```python")
    for command in (["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], ["run_it.py"]):
        ran = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", *command],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "skipped" not in ran.stdout
    assert ran.stdout.strip() in PAGE


def test_the_guide_says_what_every_capability_is() -> None:
    table = PAGE.split("### What a target can do beyond that")[1].split("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \| \S.+ \|$", table, re.MULTILINE)
    assert named == [field.name for field in dataclasses.fields(Capabilities)]


def test_the_guide_says_of_every_check_what_it_proves() -> None:
    rows = re.findall(r"^\| `(test_\w+)` \| .+ \| (.+) \|$", PAGE, re.MULTILINE)
    tests = [one for suite in (TargetConformance, OwnedTargetConformance) for one in dir(suite)]
    assert sorted(name for name, _ in rows) == sorted(t for t in tests if t.startswith("test_"))
    guarantees = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    for _, ids in rows:
        for one in ids.split(", "):
            assert f"| **{one}** |" in guarantees, one


BROKEN = {
    "rows above the cursor stay": (
        "block_number > ?", "block_number > ? + 1",
        "test_a_stream_can_lose_its_first_block", r"table 'log' .* should not be there",
    ),
    "the state is not stored with a rollback": (
        "            self._store(state)\n\n    def close", "\n    def close",
        "test_a_rollback_undoes_several_batches_and_can_be_repeated", r"a restart recover\(\)",
    ),
    "the state is committed before the rows": (
        "            for batch in batches:",
        "            self._store(state)\n            self._run('COMMIT')\n            "
        "self._run('BEGIN IMMEDIATE')\n            for batch in batches:",
        "test_a_crash_at_any_step_of_io_leaves_a_committed_state", "rows missing",
    ),
    "batches after the first are forgotten": (
        "for batch in batches:", "for batch in batches[:1]:",
        "test_the_batches_of_one_commit_are_undone_one_by_one", "rows missing",
    ),
    "finality without data is forgotten": (
        "        with self._transaction():\n            for batch",
        "        if not batches:\n            return\n        with self._transaction():\n"
        "            for batch",
        "test_a_settled_state_is_stored_without_data", r"a restart recover\(\)",
    ),
    "a frame is read twice": (
        "else frame.toArrow())", "else [frame.toArrow(), frame.toArrow()][0])",
        "test_a_frame_is_read_once_unless_the_target_rereads", r"rereads=True",
    ),
    "capabilities that are none": (
        "capabilities = Capabilities()", "capabilities = None",
        "test_the_target_has_the_contract_and_declares_what_it_can_do", "capabilities is None",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_the_suite_catches_a_broken_target_and_says_what_is_wrong(
    what: str, tmp_path: Path
) -> None:
    old, new, check, message = BROKEN[what]
    source = FILES["sqlite_target.py"]
    assert old in source
    with pytest.raises(AssertionError, match=message):
        run(tmp_path, source.replace(old, new, 1), check)
    run(tmp_path, source, check)


WRONG_FORKS = {
    "rows of orphaned blocks stay": (
        'if row["block_number"] <= safe.number', "",
        "test_fork_returns_a_block_of_the_chain_and_leaves_no_row_above_it", "rows above",
    ),
    "a fork goes below finality": (
        "safe = self.chain[index]", "safe = self.chain[index := 0]",
        "test_fork_returns_a_block_of_the_chain_and_leaves_no_row_above_it", "below the finalized",
    ),
    "a fork guesses": (
        "            return None", "            index = 0",
        "test_fork_finds_no_cursor_in_a_chain_that_it_does_not_know", "yet fork named",
    ),
    "a restart begins anew": (
        "read(self.chain[-1] if self.chain else None)", "read(None)",
        "test_a_restart_goes_on_and_undoes_what_was_orphaned_meanwhile", "should not be there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_FORKS)
def test_the_suite_catches_a_fork_callback_that_is_wrong(what: str) -> None:
    old, new, check, message = WRONG_FORKS[what]
    source = FILES["test_own_target.py"]
    assert old in source
    with pytest.raises(AssertionError, match=message):
        getattr(load(source.replace(old, new, 1))["TestOwnTarget"](), check)()


def load(source: str, **names: Any) -> dict[str, Any]:
    found: dict[str, Any] = {**names, "__name__": "guide"}
    exec(compile(source, "docs/custom-targets.md", "exec"), found)
    return found


def run(folder: Path, target: str, check: str) -> None:
    """Run one test of the guide's suite on a target, without pytest's own machinery."""
    test = FILES["test_sqlite_target.py"].replace("from sqlite_target import SQLiteTarget\n", "")
    suite = load(test, SQLiteTarget=load(target)["SQLiteTarget"])["TestSQLiteTarget"]()
    place = folder / str(len(list(folder.iterdir())))
    place.mkdir()
    suite.paths = (place / f"{number}.sqlite" for number in range(1000))
    getattr(suite, check)()
