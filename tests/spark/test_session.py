"""Sessions: ours suit small batches, others' are left alone, and a missing Java is explained."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.errors import JavaMissingError
from headwater.spark import active_session, find_java, local_session, warm_up
from headwater.spark.session import NARROW, settings_of


def test_a_session_of_ours_suits_small_batches(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.sparkContext.uiWebUrl is None
    warm_up(spark)


def test_an_existing_session_is_used_as_it_is(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    found = local_session("another", **{"spark.sql.shuffle.partitions": 77})
    assert found.sparkContext is spark.sparkContext
    assert found.conf.get("spark.sql.shuffle.partitions") == before
    assert active_session() is not None


def test_java_is_told_of_one_collector_of_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
        monkeypatch.delenv(name, raising=False)
    option = "spark.driver.extraJavaOptions"
    assert "-XX:+UseSerialGC" in settings_of("a", NARROW)[option]
    java = str(find_java().executable)
    for collector in ("G1", "Parallel"):
        monkeypatch.setenv("JDK_JAVA_OPTIONS", f"-XX:+Use{collector}GC")
        for conf in ({}, NARROW):
            options = settings_of("a", conf)[option]
            started = subprocess.run([java, *options.split(), "-version"], capture_output=True)
            assert started.returncode == 0, started.stderr


def test_workers_of_a_local_session_are_forked_with_all_that_tasks_import(
    spark: SparkSession,
) -> None:
    def command_of_parent(_: int) -> str:
        import os
        from pathlib import Path

        return Path(f"/proc/{os.getppid()}/cmdline").read_text()

    assert str(spark.sparkContext.master).startswith("local")
    (found,) = spark.sparkContext.parallelize([0], 1).map(command_of_parent).collect()
    assert "headwater.spark.daemon" in found


def test_java_is_found_where_spark_looks_for_it() -> None:
    assert find_java().version >= 17


def test_without_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaMissingError) as caught:
        find_java({"PATH": str(tmp_path)})
    text = str(caught.value)
    assert text.startswith("[E5001]")
    for words in ("none on the PATH", "apt install", "brew install", "dnf install"):
        assert words in text


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaMissingError, match=r"JAVA_HOME .* cannot be run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'openjdk version \"1.8.0_392\"' >&2", "is older"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is older"),
        ("echo 'Unable to locate a Java Runtime.' >&2; exit 1", "is not a Java runtime"),
    ],
)
def test_a_java_that_cannot_serve_is_refused(tmp_path: Path, script: str, words: str) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    with pytest.raises(JavaMissingError, match=words):
        find_java({"PATH": str(tmp_path)})


def test_a_new_java_is_accepted(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"25\" 2025-09-16' >&2\n")
    java.chmod(0o755)
    assert find_java({"PATH": str(tmp_path)}).version == 25
