"""Signals while Spark starts and while executors read, with a session of ours and of the user's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.testing import PortalServer, simulated_portal
from tests.stream.test_signals import STOPPING, Program, is_whole, run

__all__ = ["run"]

PROGRAM = """
import sys
from headwater import duckdb_target, evm, portal_stream

url, path, session = sys.argv[1:4]
spark = None
if session == "own":
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master("local[2,4]")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

def on_event(event):
    print(type(event).__name__, flush=True)

stream = portal_stream(
    id="transfers", portal=url, outputs={"transfers": evm.events("erc20.Transfer")},
    spark=spark, far=1, first_span=100, largest_span=100)
print("begins", flush=True)
stream.pipe_to(duckdb_target(path), on_event=on_event)
"""


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=900, finality_depth=15) as server:
        yield server


def children(pid: int) -> list[int]:
    """Return the processes of a group that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def gone(program: Program) -> bool:
    """Wait until no process of the program's group is left."""
    end = time.monotonic() + 60
    while children(program.process.pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_a_signal_while_spark_starts_ends_the_program(run: Callable[..., Program]) -> None:
    program = run("ours", program=PROGRAM)
    program.wait_for("begins")
    program.wait_idle_for(lambda: len(children(program.process.pid)) > 1)  # the JVM is there
    os.killpg(program.process.pid, signal.SIGINT)
    assert program.end() == 130
    assert gone(program)


@pytest.mark.guarantee("STOP-2")
@pytest.mark.parametrize(
    ("session", "number", "code"), [("ours", signal.SIGTERM, 143), ("own", signal.SIGINT, 130)]
)
def test_a_signal_to_all_processes_while_executors_read_ends_the_program(
    session: str, number: signal.Signals, code: int, run: Callable[..., Program],
    portal: PortalServer, tmp_path: Path,
) -> None:  # fmt: skip
    """The JVM and Python workers get the signal as well; no row is lost or doubled."""
    program = run(session, program=PROGRAM)
    program.wait_for("Committed")
    os.killpg(program.process.pid, number)
    assert program.end() == code
    assert STOPPING in "".join(program.err)
    assert gone(program)
    assert is_whole(portal, tmp_path / "a.duckdb")
