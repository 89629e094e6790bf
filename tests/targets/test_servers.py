"""The servers that tests run on: what is left of them when a test run is killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared import HANG_S

STARTS = {
    "postgres": "from headwater.testing.servers import postgres_server as server",
    "clickhouse": "from headwater.testing.servers import clickhouse_server as server",
}
STAYS = """
import os, sys
os.environ.pop("HEADWATER_CLICKHOUSE_URL", None)
with server() as address:
    print(address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that PostgreSQL's user may enter, which one of pytest's is not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
@pytest.mark.parametrize("kind", STARTS)
def test_a_server_ends_with_the_process_that_started_it(
    kind: str, end: signal.Signals, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(place))
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS[kind] + STAYS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    address = starter.stdout.readline()
    assert re.search(r"127\.0\.0\.1:\d+", address), "it did not start"
    assert len(left_in(place)) >= 2, "a process and a folder"
    starter.send_signal(end)
    starter.communicate()
    deadline = time.monotonic() + HANG_S
    while left_in(place) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_in(place) == []


def left_in(folder: Path) -> list[str]:
    """Return the processes whose command names a folder, and what is in it."""
    command = ["ps", "-wweo", "pid=,args="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    processes = [line for line in listed.splitlines() if str(folder) in line]
    return [*processes, *map(str, folder.iterdir())]
