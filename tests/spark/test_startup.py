"""Spark that starts while the driver reads: executors take over, and what nothing uses ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.spark.startup import SparkOfRun
from headwater.targets import duckdb_target
from headwater.testing import simulated_portal
from tests.spark.conftest import LAST
from tests.stream.truth import COLUMNS, transfers

PROGRAM = """
import json, os, signal, sys
from pyspark import SparkContext
from headwater import evm, portal_stream
from headwater.errors import HeadwaterError
from headwater.pipeline import Committed
from headwater.spark import startup
from headwater.targets import duckdb_target

url, path, last, wait = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "wait"
reached = []
before = signal.getsignal(signal.SIGINT)

def on_event(event):
    if isinstance(event, Committed):
        reached.append(event.state.cursor.number)
        if wait and len(reached) == 1:
            assert startup._Start.newest.ended.wait(300)

error = None
try:
    portal_stream(
        id="transfers", portal=url, far=20, first_span=100,
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, last))},
    ).pipe_to(duckdb_target(path), on_event=on_event)
except HeadwaterError as raised:
    error = raised.code
start = startup._Start.newest
if not wait:
    start._thread.join(300)
process = start._process
active = SparkContext._active_spark_context
print(json.dumps({
    "reached": reached, "error": error,
    "gone": process is None or process.process.poll() is not None,
    "options": active and active.getConf().get("spark.driver.extraJavaOptions"),
    "handler": signal.getsignal(signal.SIGINT) is before,
}), flush=True)
"""


def test_a_run_tells_that_it_waits_for_spark_once(spark: SparkSession) -> None:
    told: list[bool] = []
    ours = SparkOfRun(None, on_wait=told.append)
    assert ours.session is spark
    assert told == [True, False]
    assert ours.context is spark.sparkContext
    assert told == [True, False], "it is there since"
    ours.close()


def test_a_run_cancels_its_own_jobs_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    """Streams of one program share a session: what one of them does is not another's batch."""
    idle, busy = SparkOfRun(None), SparkOfRun(None)
    assert idle.context is spark.sparkContext
    begun = tmp_path / "begun"

    def stay(number: int) -> None:
        begun.touch()
        signal.pause()

    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(lambda: busy.context.parallelize([0], 1).foreach(stay))
        while not begun.exists():
            assert not job.done(), job.exception()
        assert not idle.cancel()
        assert not job.done()
        assert busy.cancel()
        assert "cancelled" in str(job.exception())
    assert not busy.cancel(), "it is over"
    idle.close()


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    found = duckdb_target(path).query(f"SELECT {COLUMNS} FROM transfers ORDER BY 1, 3")
    return [tuple(row.values()) for row in found.to_pylist()]


def run(
    path: Path, url: str, last: int, mode: str, java_home: Path | None = None
) -> dict[str, Any]:
    """Run a stream in a process that has no Spark yet; return what it says of itself."""
    environment = dict(os.environ)
    if java_home is not None:
        environment["JAVA_HOME"] = str(java_home)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, str(path), str(last), mode],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "incubator" not in done.stderr, "Java warns of a module that Spark's script adds"
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**told, "shown": done.stderr}


def fake_java(folder: Path, otherwise: str) -> Path:
    """Make a Java that knows its version and does something else when Spark is to run in it."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -version ]; then echo \'openjdk version "17.0.1"\' >&2; exit 0; fi\n'
        f"{otherwise}\n"
    )
    java.chmod(0o755)
    return folder


def test_the_driver_reads_until_executors_take_over_and_the_rows_are_those_of_the_chain(
    tmp_path: Path,
) -> None:
    with simulated_portal(seed=7, blocks=LAST + 21, blocks_per_answer=10) as portal:
        told = run(tmp_path / "a.duckdb", portal.url, LAST, "wait")
        assert told["error"] is None
        assert told["reached"][0] == 9  # read here
        assert told["reached"][1] == 109  # a span
        assert told["reached"][-1] == LAST
        assert told["handler"]
        assert "-XX:+UseSerialGC" in told["options"]  # rows of one output never enter the JVM
        truth = transfers(portal.chain, portal.chain.canonical(0, LAST))
        assert rows_of(tmp_path / "a.duckdb") == truth


def test_a_stream_that_ends_before_spark_is_up_waits_for_nothing_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    java = fake_java(tmp_path / "java", "exec sleep 1000")
    with simulated_portal(seed=7, blocks=80, blocks_per_answer=10) as portal:
        told = run(tmp_path / "a.duckdb", portal.url, 59, "end", java)
        assert told["error"] is None
        assert told["reached"] == [9, 19, 29, 39, 49, 59]
        assert told["gone"]
        truth = transfers(portal.chain, portal.chain.canonical(0, 59))
        assert rows_of(tmp_path / "a.duckdb") == truth


def test_a_program_that_ends_while_spark_starts_waits_for_the_thread_that_starts_it(
    tmp_path: Path,
) -> None:
    program = (
        "import atexit, threading\n"
        "names = lambda: [one.name for one in threading.enumerate()]\n"
        "atexit.register(lambda: print('in the end', names()))\n"
        "from headwater.spark.startup import SparkOfRun\n"
        "assert not SparkOfRun(None).is_ready()\n"
        "print('before', names())\n"
    )
    java = fake_java(tmp_path, "exec sleep 1000")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAVA_HOME": str(java)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    before, end = done.stdout.splitlines()
    assert "headwater-spark" in before
    assert end == "in the end ['MainThread']", done.stderr


@pytest.mark.parametrize(
    ("otherwise", "code"), [("echo no memory >&2; exit 3", "E5007"), (None, "E5001")]
)
def test_a_spark_that_does_not_start_is_named_and_what_was_committed_stays(
    otherwise: str | None, code: str, tmp_path: Path
) -> None:
    home = tmp_path / "java"
    if otherwise is not None:
        fake_java(home, otherwise)
    with simulated_portal(seed=7, blocks=80, blocks_per_answer=10) as portal:
        told = run(tmp_path / "a.duckdb", portal.url, 59, "wait", home)
        assert told["error"] == code
        assert told["reached"] == [9]
        assert told["gone"]
        assert otherwise is None or "no memory" in told["shown"], "what else Java says is handed on"
        truth = transfers(portal.chain, portal.chain.canonical(0, 9))
        assert rows_of(tmp_path / "a.duckdb") == truth
