"""The archive of Spark's classes: whose it is, when it is used, and when it is not."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwater.errors import SparkStartError
from headwater.spark.jvm import SWITCH, Archive, JvmProcess, make_later
from headwater.spark.session import settings_of
from tests.shared import HANG_S


def java(folder: Path, script: str = "exit 3") -> Path:
    """Make a Java that does what a script says."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"JAVA_HOME": str(folder / "java"), "XDG_CACHE_HOME": str(folder / "cache"), **more}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """An archive that looks as if it had been made."""
    java(tmp_path / "java")
    found = Archive.find(environment(tmp_path))
    assert found is not None
    assert not found.exists
    found.folder.mkdir(parents=True)
    found.classes.write_bytes(b"classes")
    kept = {"options": ["--add-opens=some"], "bytes": 7}
    (found.folder / "start.json").write_text(json.dumps(kept))
    return found


def test_it_lies_in_the_cache_folder_and_belongs_to_one_java(tmp_path: Path) -> None:
    java(tmp_path / "java")
    java(tmp_path / "other", "exit 4  # another build")
    one = Archive.find(environment(tmp_path))
    two = Archive.find(environment(tmp_path, JAVA_HOME=str(tmp_path / "other")))
    assert one is not None
    assert two is not None
    assert one.folder.parent == two.folder.parent == tmp_path / "cache" / "headwater"
    assert one.folder != two.folder


def test_where_spark_is_set_up_in_its_own_way_only_its_script_starts_it(tmp_path: Path) -> None:
    java(tmp_path / "java")
    for name, value in ((SWITCH, "off"), ("SPARK_HOME", "/opt/spark"), ("SPARK_CONF_DIR", "/etc")):
        assert Archive.find(environment(tmp_path, **{name: value})) is None
    assert Archive.find({"PATH": str(tmp_path)}) is None


def test_spark_starts_from_it_with_the_settings_of_the_session(archive: Archive) -> None:
    settings = settings_of("app", {"spark.driver.memory": "3g"})
    command = archive.command(settings)
    assert command is not None
    assert command[0] == str(archive.java)
    assert f"-XX:SharedArchiveFile={archive.classes}" in command
    assert "--add-opens=some" in command
    assert "-Xmx3g" in command
    assert "spark.app.name=app" in command
    assert archive.command({**settings, "spark.driver.extraClassPath": "x.jar"}) is None


def test_one_that_is_not_whole_is_not_used(archive: Archive) -> None:
    """Java would end in the middle of a start: it maps the file into memory."""
    archive.classes.write_bytes(b"class")
    assert archive.exists
    assert archive.command(settings_of("app", {})) is None


def test_one_from_which_java_does_not_start_is_forgotten(archive: Archive) -> None:
    settings = settings_of("app", {})
    with pytest.raises(SparkStartError, match="E5007"):
        JvmProcess(settings, archive.command(settings)).connect()
    archive.forget()
    archive.forget()
    assert not archive.exists


def test_two_processes_do_not_make_it_at_once(archive: Archive) -> None:
    archive.forget()
    with (archive.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not archive.make()
    assert not archive.exists


MAKING = """
from headwater.spark.jvm import Archive, main
Archive._ask_options = lambda archive: []
main()
"""


def test_a_making_that_is_stopped_leaves_no_part(tmp_path: Path) -> None:
    """Java writes what it has when it ends; a part that a killed making has left goes as well."""
    begun = tmp_path / "begun"
    writes = (
        'for one in "$@"; do case $one in -XX:Archive*) part=${one#*=} ;; esac; done\n'
        "trap 'sleep 0.3; echo classes > $part; exit' TERM\n"
        f"touch {begun}\nwhile :; do sleep 0.05; done"
    )
    java(tmp_path / "java", writes)
    own = environment(tmp_path)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    making = subprocess.Popen([sys.executable, "-c", MAKING], env={**kept, **own})
    while not begun.exists():
        assert making.poll() is None
        time.sleep(0.01)
    (folder,) = (tmp_path / "cache" / "headwater").iterdir()
    (folder / "classes.123").write_bytes(b"of a process that was killed")
    making.terminate()
    assert making.wait(HANG_S) == 143
    assert [one.name for one in folder.iterdir()] == ["lock"]


def test_a_cache_folder_that_cannot_be_had_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    make_later()
