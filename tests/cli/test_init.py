"""`headwater init`: every template makes a project whose own test passes and which runs at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.cli.init import ProjectTemplate, init
from headwater.errors import ProjectFolderError
from headwater.testing import Network, live_portal
from tests.shared import HANG_S

ROOT = Path(__file__).resolve().parents[2]
FILES = {"pipeline.py", "test_pipeline.py", "README.md", "requirements.txt"}


def environment() -> dict[str, str]:
    """Return the environment of a person: no portal is named."""
    return {key: value for key, value in os.environ.items() if key not in ("PORTAL", "FROM")}


def test_the_test_of_every_template_passes_and_its_code_is_tidy(tmp_path: Path) -> None:
    """All in one process: importing everything is most of what each costs."""
    for template in ProjectTemplate:
        init(tmp_path / template, template)
        assert {one.name for one in (tmp_path / template).iterdir()} == FILES
        for name in FILES:
            assert "$" not in (tmp_path / template / name).read_text(encoding="utf-8")
    for words in (("check", "--select", "E,F,I,UP,B"), ("format", "--check")):
        tidy = [sys.executable, "-m", "ruff", words[0], "--isolated", "--line-length", "100"]
        subprocess.run([*tidy, *words[1:], "--no-cache", str(tmp_path)], check=True)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:randomly",
         "-p", "no:cacheprovider", "-W", "error", "."],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
        timeout=HANG_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert f"{len(ProjectTemplate)} passed" in ran.stdout


def test_a_project_runs_at_once_and_shows_rows_when_it_is_stopped(tmp_path: Path) -> None:
    init(tmp_path / "project")
    process = subprocess.Popen(
        [sys.executable, "pipeline.py"], cwd=tmp_path / "project", env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert next(line for line in process.stderr if "head" in line)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert shown.startswith("most used tokens")
    assert shown.count("0x") == 5
    assert (tmp_path / "project" / "simulated" / "transfers.duckdb").is_file()


def test_a_project_that_is_stopped_before_its_first_commit_leaves_no_trace(tmp_path: Path) -> None:
    """The portal is away, so there is no table to show rows of."""
    init(tmp_path / "project")
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}/datasets/x"
    process = subprocess.Popen(
        [sys.executable, "pipeline.py"], cwd=tmp_path / "project", text=True,
        env=environment() | {"PORTAL": nobody}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert next(line for line in process.stderr if "asking again" in line)
        process.send_signal(signal.SIGINT)
        shown, said = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert shown == ""


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ProjectFolderError, match=r"E0032.*not empty"):
        init(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_made_is_a_coded_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ProjectFolderError, match="cannot be written"):
        init(tmp_path / "notes.txt" / "project")


def test_a_pipeline_file_that_is_run_again_finds_the_chain_it_has_read() -> None:
    portal = live_portal(seed=99, blocks=30, interval=60)
    try:
        assert live_portal(seed=99) is portal
        other = live_portal(seed=99, network=Network.SOLANA, blocks=30, interval=60)
        other.stop()
        assert other.url != portal.url
    finally:
        portal.stop()


def test_from_an_empty_folder_to_a_pipeline_of_ones_own_by_the_built_wheel() -> None:
    """In an environment that has the wheel and, in place of a download, our dependencies."""
    ran = subprocess.run(
        ["bash", "scripts/try_wheel.sh", sys.executable, "--installed"], cwd=ROOT,
        env=environment(), capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
    assert "at the head" in ran.stdout
    assert "works: from an empty folder to a pipeline of one's own" in ran.stdout
