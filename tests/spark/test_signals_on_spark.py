"""Signals while Spark starts and while executors read, with a session of ours and of the user's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.testing import PortalServer, simulated_portal
from headwater.testing.faults import StallBeforeHeaders
from tests.shared import HANG_S
from tests.spark.test_startup import fake_java
from tests.stream.test_signals import STOPPING, Program, is_whole, run

__all__ = ["run"]

PROGRAM = """
import signal, sys
from headwater import SpanLimits, duckdb_target, evm, portal_stream

url, path, session = sys.argv[1:4]
spark = None
if session == "own":
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master("local[2,4]")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
if session == "ours":
    from headwater.spark import local_session
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    handler = signal.getsignal(signal.SIGINT)
    local_session()
    print("handler is", "left" if signal.getsignal(signal.SIGINT) is handler else "replaced")
    signal.signal(signal.SIGINT, before)

def on_event(event):
    print(type(event).__name__, flush=True)

stream = portal_stream(
    id="transfers", portal=url, outputs={"transfers": evm.events("erc20.Transfer")},
    spark=spark, far=1, first_span=100, spans=SpanLimits(blocks=100))
print("begins", flush=True)
stream.pipe_to(duckdb_target(path), on_event=on_event)
"""


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=900, finality_depth=15) as server:
        yield server


def descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that they have started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def wait_until_gone(processes: set[int]) -> None:
    """Wait until none of the processes is left."""
    end = time.monotonic() + HANG_S
    while left := [one for one in processes if Path(f"/proc/{one}/fd").exists()]:
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.05)


def test_a_signal_while_spark_starts_ends_the_program(run: Callable[..., Program]) -> None:
    program = run("none", program=PROGRAM)
    program.wait_for("begins")
    program.wait_idle_for(lambda: bool(descendants(program.process.pid)))  # the JVM is there
    processes = descendants(program.process.pid)
    os.killpg(program.process.pid, signal.SIGINT)
    assert program.end() == 130
    wait_until_gone(processes)


WAITS = """
import sys
from headwater import duckdb_target, evm, portal_stream

url, path, java = sys.argv[1:4]

def wait_for_spark(data):
    print("waits", flush=True)
    return {"transfers": data["transfers"].limit(1)}

portal_stream(
    id="transfers", portal=url, outputs={"transfers": evm.events("erc20.Transfer")},
).pipe(wait_for_spark).pipe_to(duckdb_target(path))
"""


@pytest.mark.guarantee("STOP-1")
def test_a_stop_does_not_wait_for_a_spark_that_does_not_come_up(
    run: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transform asks for a DataFrame, and the JVM never listens."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", "exec sleep 1000")))
    program = run(program=WAITS)
    program.wait_for("waits")
    program.wait_idle_for(lambda: bool(descendants(program.process.pid)))
    processes = descendants(program.process.pid)
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == 143
    text = "".join(program.err)
    assert STOPPING in text
    assert "the batch in hand is dropped" in text
    wait_until_gone(processes)


@pytest.mark.guarantee("STOP-2")
@pytest.mark.parametrize(
    ("session", "number", "code"), [("ours", signal.SIGTERM, 143), ("own", signal.SIGINT, 130)]
)
def test_a_signal_to_all_processes_while_executors_read_ends_the_program(
    session: str, number: signal.Signals, code: int, run: Callable[..., Program],
    portal: PortalServer, tmp_path: Path,
) -> None:  # fmt: skip
    """The JVM and Python workers get the signal as well; no row is lost or doubled.

    A session of ours leaves a handler of signals that the program has set: Spark puts its own in
    place, and Ctrl-C in a backfill ended in a trace.
    """
    program = run(session, program=PROGRAM)
    program.wait_for("Committed")
    program.wait_idle_for(lambda: any("finalized-stream" in one.route for one in portal.ledger))
    processes = descendants(program.process.pid)
    os.killpg(program.process.pid, number)
    assert program.end() == code
    assert STOPPING in "".join(program.err)
    assert [one.strip() for one in program.out if "handler" in one] == (
        ["handler is left"] if session == "ours" else []
    )
    wait_until_gone(processes)
    assert is_whole(portal, tmp_path / "a.duckdb")


@pytest.mark.guarantee("STOP-1")
def test_a_stop_does_not_wait_for_executors_whose_portal_is_silent(
    run: Callable[..., Program], portal: PortalServer, tmp_path: Path
) -> None:
    """One signal, to the driver alone: jobs are cancelled, and so is the planning of what follows.

    The thread that plans has to end as well: what outlives the interpreter is listed by DuckDB.
    """
    stall = StallBeforeHeaders()
    portal.sim.faults.add(stall, times=None, from_block=(200, 200))  # what a task asks for
    portal.sim.faults.add(stall, times=None, from_block=(300, None))  # what is planned meanwhile
    program = run("ours", program=PROGRAM)

    def both_wait() -> bool:
        return len({one.from_block for one in portal.ledger if one.fault}) > 1

    program.wait_idle_for(both_wait)
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 130
    text = "".join(program.err)
    assert STOPPING in text
    assert "the batch in hand is dropped" in text
    assert is_whole(portal, tmp_path / "a.duckdb")
