"""Ctrl-C and SIGTERM, as a person or a supervisor sends them: to a real process, at any moment."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import duckdb
import pytest

from headwater.testing import PortalServer, simulated_portal
from headwater.testing.faults import StallBeforeHeaders, Status
from tests.shared import HANG_S
from tests.stream.truth import COLUMNS, transfers

STOPPING = "stopping after this batch; press again to stop now"

PROGRAM = """
import sys, time
from headwater import duckdb_target, evm, portal_stream

url, path, block = sys.argv[1:4]

def on_data(tx, data, ctx):
    tx.insert("transfers", data["transfers"])
    if block == "python":
        print("busy", flush=True)
        time.sleep(600)
    if block == "c":
        print("busy", flush=True)
        tx.query("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b")

stream = portal_stream(
    id="transfers", portal=url, outputs={"transfers": evm.events("erc20.Transfer")},
    far=10**9, poll_interval_s=0.02)
hook = {"on_data": on_data, "tables": ["transfers"]} if block != "none" else {}

def on_event(event):
    print(type(event).__name__, flush=True)

stream.pipe_to(duckdb_target(path, **hook), on_event=on_event)
print("after", flush=True)
"""


@dataclass
class Program:
    """A program of a user's that runs as a process, in a group of its own."""

    process: subprocess.Popen[bytes]
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    readers: list[Thread] = field(default_factory=list)

    def wait_for(self, text: str) -> None:
        """Wait until it has printed a text."""
        self._until(lambda: any(text in line for line in (*self.out, *self.err)), text)

    def wait_idle_for(self, condition: Callable[[], bool]) -> None:
        self._until(condition, "a condition")

    def end(self) -> int:
        """Wait for the end; return its exit code. Nothing may look like a crash."""
        code = self.process.wait(HANG_S)
        self._until(lambda: not any(one.is_alive() for one in self.readers), "its last words")
        text = "".join(self.err)
        assert "Traceback" not in text, text
        assert "KeyboardInterrupt" not in text, text
        assert "nanobind" not in text, f"a thread has outlived the interpreter: {text}"
        return code

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + HANG_S
        while not condition():
            said = f"waited for {what}: {self.out} {self.err}"
            assert time.monotonic() < end, said
            over = self.process.poll() is not None and not any(r.is_alive() for r in self.readers)
            assert not over or condition(), said
            time.sleep(0.01)


def read_lines(file: int, into: list[str]) -> None:
    try:
        with open(file, encoding="utf-8", errors="replace", newline="") as lines:
            into.extend(iter(lines.readline, ""))
    except OSError:  # a terminal whose program is gone
        pass


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=60, finality_depth=15) as server:
        yield server


@pytest.fixture
def run(portal: PortalServer, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def begin(block: str = "none", *, terminal: bool = False, program: str = PROGRAM) -> Program:
        ours, theirs = pty.openpty() if terminal else os.pipe()
        printed, prints = os.pipe()
        command = [sys.executable, "-c", program, portal.url, str(tmp_path / "a.duckdb"), block]
        process = subprocess.Popen(
            command, stdout=prints, stderr=theirs, start_new_session=True,
            env={**os.environ, "TERM": "xterm", "PYSPARK_PYTHON": sys.executable},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        os.close(theirs)
        os.close(prints)
        found = Program(process)
        for file, into in ((printed, found.out), (ours, found.err)):
            reader = Thread(target=read_lines, args=(file, into), daemon=True)
            reader.start()
            found.readers.append(reader)
        started.append(found)
        return found

    yield begin
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


def held(path: Path) -> list[tuple[object, ...]]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(f"SELECT {COLUMNS} FROM transfers ORDER BY ALL").fetchall()


def is_whole(portal: PortalServer, path: Path) -> bool:
    """Tell whether the table is what the chain says up to the stored cursor."""
    with duckdb.connect(str(path), read_only=True) as connection:
        state = connection.execute("SELECT max(current_number) FROM sync").fetchone()
    assert state is not None
    chain = portal.chain
    blocks = [one for one in chain.canonical() if one.number <= (state[0] or -1)]
    return held(path) == sorted(transfers(chain, blocks))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_at_the_head_ends_the_program(
    number: signal.Signals, code: int, run: Callable[..., Program], portal: PortalServer,
    tmp_path: Path,
) -> None:  # fmt: skip
    program = run()
    program.wait_for("Settled")
    os.killpg(program.process.pid, number)
    assert program.end() == code
    assert STOPPING in "".join(program.err)
    assert "after\n" not in program.out
    assert held(tmp_path / "a.duckdb") == sorted(transfers(portal.chain, portal.chain.canonical()))


def test_ctrl_c_on_a_terminal_is_answered_at_once(
    run: Callable[..., Program], portal: PortalServer, tmp_path: Path
) -> None:
    program = run(terminal=True)
    program.wait_for("at the head")  # the view is drawn
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 130
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", "".join(program.err))
    assert STOPPING in shown
    assert re.search(r"transfers: stopped at block 59, \d+ rows in this run, no forks", shown)
    assert is_whole(portal, tmp_path / "a.duckdb")


@pytest.mark.parametrize("fault", [Status(503), StallBeforeHeaders()], ids=["refuses", "silent"])
def test_a_signal_while_the_portal_is_away_ends_the_program(
    fault: Status | StallBeforeHeaders, run: Callable[..., Program], portal: PortalServer,
    tmp_path: Path,
) -> None:  # fmt: skip
    program = run()
    program.wait_for("Settled")
    portal.sim.faults.add(fault, times=None)
    program.wait_idle_for(lambda: bool(portal.ledger.faults()))
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == 143
    assert is_whole(portal, tmp_path / "a.duckdb")


@pytest.mark.guarantee("STOP-1")
@pytest.mark.parametrize("block", ["python", "c"])
def test_a_second_signal_does_not_wait_for_the_batch(
    block: str, run: Callable[..., Program], portal: PortalServer, tmp_path: Path
) -> None:
    """Also while the main thread is inside the database, where no handler can run."""
    program = run(block)
    program.wait_for("busy")
    program.process.send_signal(signal.SIGINT)
    program.wait_for(STOPPING)
    assert program.process.poll() is None, "the first signal waits for the batch"
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 130
    again = run()  # what was broken off left nothing behind
    again.wait_for("Settled")
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == 143
    assert held(tmp_path / "a.duckdb") == sorted(transfers(portal.chain, portal.chain.canonical()))


def test_a_plain_line_now_and_then_says_how_far_a_stream_is(run: Callable[..., Program]) -> None:
    program = run()
    program.wait_for("transfers: block 59, at the head")
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == 143
    assert not any("\x1b" in line for line in program.err)


STARTED = """
import sys
from threading import Event
from headwater import Settled, duckdb_target, evm, portal_stream

url, path, mode = sys.argv[1:4]
stream = portal_stream(
    id="transfers", portal=url, outputs={"transfers": evm.events("erc20.Transfer")},
    far=10**9, poll_interval_s=0.02)
reached = Event()
handle = stream.start(
    duckdb_target(path), on_event=lambda event: isinstance(event, Settled) and reached.set())
reached.wait()
print("Settled", flush=True)
if mode == "waits":
    try:
        handle.await_termination()
    except KeyboardInterrupt:
        print(handle.is_active, flush=True)
        handle.stop()
        print(handle.is_active, flush=True)
"""


@pytest.mark.parametrize("mode", ["waits", "leaves"])
def test_a_program_that_started_its_stream_ends_quietly(
    mode: str, run: Callable[..., Program], portal: PortalServer, tmp_path: Path
) -> None:
    """Whether it waits, hears Ctrl-C and stops its stream, or ends without a word to it."""
    program = run(mode, program=STARTED)
    program.wait_for("Settled")
    if mode == "waits":
        program.process.send_signal(signal.SIGINT)
    assert program.end() == 0
    assert program.out[1:] == (["True\n", "False\n"] if mode == "waits" else [])
    assert held(tmp_path / "a.duckdb") == sorted(transfers(portal.chain, portal.chain.canonical()))
