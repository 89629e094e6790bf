"""Spark that starts while the driver reads: executors take over, and what nothing uses ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headwater.errors import StoppedSparkError
from headwater.portal import PortalBudget, PortalLimits
from headwater.spark import read_span
from headwater.spark.startup import SparkOfRun
from headwater.targets import duckdb_target
from headwater.testing import PortalServer, Status, simulated_portal
from tests import sampling
from tests.shared import HANG_S
from tests.spark.conftest import ALL, LAST, TRANSFER
from tests.stream.truth import COLUMNS, transfers

PROGRAM = (
    f"HANG_S = {HANG_S}"
    + """
import json, os, signal, sys
from pyspark import SparkContext
from headwater import evm, portal_stream
from headwater.errors import HeadwaterError
from headwater.pipeline import Committed
from headwater.spark.local_start import LocalStart
from headwater.targets import duckdb_target

url, path, last, wait = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "wait"
reached = []
before = signal.getsignal(signal.SIGINT)

def on_event(event):
    if isinstance(event, Committed):
        reached.append(event.state.cursor.number)
        if wait and len(reached) == 1:
            assert LocalStart.newest.ended.wait(HANG_S)

error = None
try:
    portal_stream(
        id="transfers", portal=url, far=20, first_span=100,
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, last))},
    ).pipe_to(duckdb_target(path), on_event=on_event)
except HeadwaterError as raised:
    error = raised.code
start = LocalStart.newest
if not wait:
    start._thread.join(HANG_S)
process = start._process
active = SparkContext._active_spark_context
print(json.dumps({
    "reached": reached, "error": error,
    "gone": process is None or process.process.poll() is not None,
    "options": active and active.getConf().get("spark.driver.extraJavaOptions"),
    "handler": signal.getsignal(signal.SIGINT) is before,
}), flush=True)
"""
)


AGAIN = """
import faulthandler, gc, json, os, signal, sys, threading, time
from pyspark import SparkContext
from pyspark.sql import SparkSession
from headwater import evm, portal_stream
from headwater.pipeline import Committed
from headwater.spark import local_session
from headwater.spark.local_start import LocalStart
from headwater.stream import StopRequested
from headwater.targets import duckdb_target

url, path, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
most_pauses = int(sys.argv[4])
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs lack
sys.ps1 = "> "  # as in a notebook: a signal ends the cell, and the program goes on
faulthandler.dump_traceback_later(400 + 20 * most_pauses, exit=True)

def wait_for(reached):
    while not reached():
        time.sleep(0.002)

def left():
    return [SparkContext._active_spark_context, SparkContext._gateway, SparkContext._jvm,
            SparkSession._instantiatedSession, SparkSession._activeSession,
            *(one for one in sys.path if "userFiles-" in one)]

def cell(moment, path=path):
    def on_event(event):
        if isinstance(event, Committed):
            moment()
    portal_stream(
        id="transfers", portal=url, far=20, first_span=100,
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, last))},
    ).pipe_to(duckdb_target(path), on_event=on_event, progress=False)

def stop_when(reached, how):
    def stop():
        wait_for(lambda: reached(LocalStart.newest))
        how()
        raise StopRequested
    return stop

interrupted = lambda: os.kill(os.getpid(), signal.SIGINT)
ended = lambda: None

# before Java listens the process is ended, later a start goes on and the next cell takes it
cell(stop_when(lambda start: start._process is not None, ended))
first = LocalStart.newest
cell(stop_when(lambda start: start is not first and start._process is not None, interrupted))
second = LocalStart.newest
wait_for(lambda: not first._thread.is_alive() and not second._thread.is_alive())
assert not any(left()), left()
cell(stop_when(lambda start: start._process is not None and start._process._listens, ended))
third = LocalStart.newest
assert third is not second
cell(stop_when(lambda start: SparkContext._gateway is not None, interrupted))
cell(stop_when(lambda start: SparkContext._active_spark_context is not None, ended))
assert LocalStart.newest is third, "one start for three cells"
wait_for(lambda: not third._thread.is_alive())
assert third._process.process.poll() is not None
assert not any(left()), left()

was_up = []
for tenth in range(most_pauses):
    def pause():
        time.sleep(tenth / 10)
        was_up.append(LocalStart.newest.came_up)
    cell(stop_when(lambda start: True, pause), f"{path}-{tenth}")
    wait_for(lambda: not LocalStart.newest._thread.is_alive())
    assert not any(left()), (tenth, left())
    print("stopped after", tenth / 10, type(LocalStart.newest._error), was_up[-1], flush=True)
    if was_up[-10:] == [True] * 10:
        break

# a cell that makes a session is interrupted, and run again
before = LocalStart.newest

def interrupt():
    wait_for(lambda: LocalStart.newest is not before and LocalStart.newest._process is not None)
    interrupted()

threading.Thread(target=interrupt).start()
try:
    local_session()
    raise AssertionError("it was interrupted")
except KeyboardInterrupt:
    pass
assert local_session().range(3).count() == 3

# a Java process that is killed is not used again
gc.collect()  # py4j tells Java of objects that are gone, in a thread that writes what it cannot
wait_for(lambda: not SparkContext._gateway._gateway_client.finalizer_deque)
Java = SparkContext._gateway.proc
Java.kill()
Java.wait()
cell(lambda: wait_for(lambda: LocalStart.newest.ended.is_set()))
assert SparkContext._gateway.proc.pid != Java.pid
assert SparkContext._active_spark_context is not None, "spans were read by executors"
print("rows", flush=True)
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


def test_tasks_have_a_port_to_ask_at_only_once_they_have_to(
    spark: SparkSession, portal: PortalServer
) -> None:
    outputs = {"transfers": TRANSFER}
    limited, unlimited = SparkOfRun(None), SparkOfRun(None)
    limited.limit(PortalBudget(PortalLimits(requests=1)))
    unlimited.limit(PortalBudget())
    assert limited.office is not None
    assert unlimited.office is None
    for refusals, opens in ((0, False), (1, True)):
        address, ranges = portal.url, {"transfers": (ALL,)}
        planned = read_span(
            unlimited, address, outputs, ranges, TRANSFER.query, ALL, partitions=1, samples=0
        )
        portal.sim.faults.add(Status(429), times=refusals)
        with planned as span:
            assert span.report().rows["transfers"] > 0
        assert (unlimited.office is not None) == opens
    limited.close()
    unlimited.close()


def test_a_stop_ends_the_wait_for_an_answer_of_the_jvm_and_the_jvm_goes_on(
    spark: SparkSession,
) -> None:
    """While it is cold it plans for long before there is a job that could be cancelled."""
    idle, busy = SparkOfRun(None), SparkOfRun(None)
    assert idle.context is spark.sparkContext
    asks = Event()

    def ask() -> None:
        jvm: Any = busy.context._jvm
        asks.set()
        jvm.java.lang.Thread.sleep(600_000)

    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask)
        assert asks.wait(HANG_S)
        assert not idle.cancel()
        cut = False
        while not wait([asking], timeout=0.1).done:  # what it asked before may be asked again
            cut = busy.cancel() or cut
        assert cut
        assert isinstance(asking.exception(), Py4JError)
    with pytest.raises(StoppedSparkError):
        busy.session  # noqa: B018 - it raises
    assert spark.range(3).count() == 3
    idle.close()
    busy.close()


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
        timeout=HANG_S,
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
        assert (
            "-XX:TieredStopAtLevel=1 -Xms128m" in told["options"]
        )  # rows of one output never enter the JVM
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
        timeout=HANG_S,
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


def test_what_is_stopped_while_spark_starts_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    """Streams one after the other in one process, as in a notebook, stopped at any moment."""
    pauses = 200 if sampling.is_whole() else 0  # of 100 ms more each
    with simulated_portal(seed=7, blocks=LAST + 21, blocks_per_answer=10) as portal:
        done = subprocess.run(
            [sys.executable, "-c", AGAIN, portal.url, str(tmp_path / "a"), str(LAST), str(pauses)],
            capture_output=True,
            text=True,
            timeout=HANG_S + 20 * pauses,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        truth = transfers(portal.chain, portal.chain.canonical(0, LAST))
        assert rows_of(tmp_path / "a") == truth


COLUMNS_FIRST = """
import sys
from pyspark.sql import functions as F
from headwater import evm, portal_stream
from headwater.targets import duckdb_target

calls = []

def late(data):
    calls.append("began")
    is_late = F.col("block_number") > 20  # a column, before a frame is used
    calls.append("made a column")
    return {"transfers": data["transfers"].where(is_late)}

url, path, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
portal_stream(
    id="transfers", portal=url, far=1000,
    outputs={"transfers": evm.events("erc20.Transfer", range=(0, last))},
).pipe_batches(late).pipe_to(duckdb_target(path))
assert calls[:4] == ["began", "began", "made a column", "began"], calls
assert calls[3:] == ["began", "made a column"] * (len(calls[3:]) // 2), calls
"""


def test_code_for_batches_may_begin_with_columns_before_spark_runs(tmp_path: Path) -> None:
    with simulated_portal(seed=7, blocks=60, blocks_per_answer=10) as portal:
        done = subprocess.run(
            [sys.executable, "-c", COLUMNS_FIRST, portal.url, str(tmp_path / "a"), "39"],
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("Spark is starting") <= 1, done.stderr
        assert rows_of(tmp_path / "a") == transfers(portal.chain, portal.chain.canonical(21, 39))


HALF_STOPPED = """
import sys
from threading import Thread
from pyspark import SparkContext
from headwater import evm, portal_stream
from headwater.spark import local_session
from headwater.targets import duckdb_target

url, path, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
context = local_session("other code").sparkContext
with SparkContext._lock:  # which Spark takes to forget a context that it has stopped
    stopping = Thread(target=context.stop)
    stopping.start()
    while context._jsc is not None:
        stopping.join(0.01)
    portal_stream(
        id="transfers", portal=url, far=20,
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, last))},
    ).pipe_to(duckdb_target(path))
stopping.join()
assert local_session("again").range(3).count() == 3
"""


def test_a_stream_may_begin_while_other_code_stops_spark(tmp_path: Path) -> None:
    with simulated_portal(seed=7, blocks=LAST + 21, blocks_per_answer=10) as portal:
        done = subprocess.run(
            [sys.executable, "-c", HALF_STOPPED, portal.url, str(tmp_path / "a"), str(LAST)],
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        assert done.returncode == 0, done.stderr
        truth = transfers(portal.chain, portal.chain.canonical(0, LAST))
        assert rows_of(tmp_path / "a") == truth
