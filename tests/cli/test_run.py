"""`headwater run`, `dashboard`, `--version`: as a person types them, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from headwater import __version__
from headwater.cli import app
from headwater.testing import PortalServer, simulated_portal
from headwater.testing.faults import Status
from tests.cli.test_cursor import WIDE
from tests.shared import HANG_S
from tests.stream.truth import transfers

MAIN = "from headwater.cli import main; main()"
FILE = """
from headwater import duckdb_target, evm, portal_stream

stream = portal_stream(
    id="{id}", portal="{portal}", poll_interval_s=0.02, far=10**9,
    outputs={{"transfers": evm.events("erc20.Transfer", range={range})}})
target = duckdb_target("{id}.duckdb")
if __name__ == "__main__":
    raise SystemExit("not when headwater runs it")
"""
BLOCKED = """
import time

def on_data(tx, data, ctx):
    print("busy", flush=True)
    time.sleep(600)

target = duckdb_target("slow.duckdb", on_data=on_data, tables=["transfers"])
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=60, finality_depth=15) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = []

    def begin(*words: str, program: str = MAIN) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *words], cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "200"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def write(
    folder: Path, portal: PortalServer, name: str, block_range: str = "(0, 59)", **more: str
) -> str:
    text = FILE.format(id=name, portal=portal.url, range=block_range, **more)
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return f"{name}.py"


def count(path: Path) -> int:
    with duckdb.connect(str(path), read_only=True) as connection:
        found = connection.execute("SELECT count(*) FROM transfers").fetchone()
    assert found is not None
    return int(found[0])


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def port_of(process: subprocess.Popen[str]) -> int:
    """Read the line that tells where the page is."""
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("dashboard: "))
    return int(line.rsplit(":", 1)[1].strip().strip("/"))


def test_several_files_run_to_their_ends(
    portal: PortalServer, start: Start, tmp_path: Path
) -> None:
    first, second = write(tmp_path, portal, "one"), write(tmp_path, portal, "two", "(0, 30)")
    process = start("run", first, second)
    shown, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, shown
    chain = portal.chain
    assert count(tmp_path / "one.duckdb") == len(transfers(chain, chain.canonical()))
    short = [block for block in chain.canonical() if block.number <= 30]
    rows = count(tmp_path / "two.duckdb")
    assert rows == len(transfers(chain, short))
    assert f"two: done at block 30, {rows} rows in this run, no forks\n" in shown


def test_ctrl_c_stops_all_of_them_and_the_page_shows_all_of_them(
    portal: PortalServer, start: Start, tmp_path: Path
) -> None:
    files = [write(tmp_path, portal, name, "0") for name in ("one", "two")]
    process = start("run", *files, "--port", "0")
    port = port_of(process)

    def all_follow() -> bool:
        shown = json.loads(get(port, "/api/streams")[1])
        return [one["status"] for one in shown] == ["following", "following"]

    eventually(all_follow)
    asked = CliRunner(env=WIDE).invoke(app, ["status", str(tmp_path / "one.duckdb"), "--json"])
    told = {one["id"]: one["head"] for one in json.loads(asked.output)}
    assert told == {"one": 59}, "the file is in use, so its process is asked"
    watching = start("dashboard", f"localhost:{port}", "127.0.0.1:1", "--port", "0")
    both = json.loads(get(port_of(watching), "/api/streams")[1])
    assert [one["id"] for one in both] == [
        f"one @ localhost:{port}", f"two @ localhost:{port}", "? @ 127.0.0.1:1",
    ]  # fmt: skip
    assert both[2]["status"] == "failed"
    assert "does not answer" in both[2]["error"]
    watching.send_signal(signal.SIGINT)
    assert watching.wait(HANG_S) == 0
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "Traceback" not in shown
    assert not list(tmp_path.glob("*.headwater.json"))
    assert count(tmp_path / "one.duckdb") == count(tmp_path / "two.duckdb") > 0


def test_a_second_ctrl_c_does_not_wait_for_the_batch(
    portal: PortalServer, start: Start, tmp_path: Path
) -> None:
    write(tmp_path, portal, "slow")
    with (tmp_path / "slow.py").open("a", encoding="utf-8") as file:
        file.write(BLOCKED)
    process = start("run", "slow.py", "--no-progress")
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n"
    process.send_signal(signal.SIGINT)
    assert "press again to stop now" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, shown
    assert "Traceback" not in shown
    assert "the next start recovers" in shown


def test_a_pipeline_that_fails_is_started_again_and_others_go_on(
    portal: PortalServer, start: Start, tmp_path: Path
) -> None:
    text = write(tmp_path, portal, "one")
    broken = (tmp_path / text).read_text(encoding="utf-8").replace('"one"', '"flaky"')
    broken += (
        "\nfrom pathlib import Path\nfrom headwater.errors import PortalUnreachableError\n"
        "def once(tx, data):\n    mark = Path('failed')\n    if not mark.exists():\n"
        "        mark.touch()\n        raise PortalUnreachableError('away')\n"
        "    tx.insert('transfers', data['transfers'])\n"
        "target = duckdb_target('flaky.duckdb', tables=['transfers'], on_data=once)\n"
    )
    (tmp_path / "flaky.py").write_text(broken, encoding="utf-8")
    process = start("run", "one.py", "flaky.py")
    shown, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, shown
    assert "flaky: [E3002] away" in shown
    assert "starting again in 1 s (1 of 5)" in shown
    assert count(tmp_path / "flaky.duckdb") == count(tmp_path / "one.duckdb")


def test_an_error_that_no_retry_mends_ends_with_1_after_the_others(
    portal: PortalServer, start: Start, tmp_path: Path
) -> None:
    portal.sim.faults.add(Status(400), route="stream")
    process = start("run", write(tmp_path, portal, "one"), "--json-logs", "--no-progress")
    shown, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert "one: [E3" in shown
    lines = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    failed = next(line for line in lines if line.get("event") == "stream.failed")
    assert (failed["level"], failed["id"]) == ("ERROR", "one")


RUNS_ITSELF = """
from headwater import duckdb_target, evm, portal_stream
stream = portal_stream(id="own", portal="http://127.0.0.1:9/datasets/x",
                       outputs={"transfers": evm.events("erc20.Transfer", range=0)})
"""


REFUSED = [
    ("x = 1", "[E0031] the file defines no pipeline"),
    ("pipelines = [1]", "[E0031] the file defines no pipeline"),
    ("\n1 / 0", "[E0031] the file cannot be run"),
    ("\n1 / 0", "line=2, reason=ZeroDivisionError"),
    ("from headwater import portal_stream\nportal_stream(id='', portal='', outputs={})",
     "[E0001]"),
    (f"{RUNS_ITSELF}stream.pipe_to(duckdb_target('own.duckdb'))",
     "[E0031] the file runs its stream by itself: nothing was run"),
    (f"{RUNS_ITSELF}stream.start(duckdb_target('own.duckdb'))",
     "[E0031] the file runs its stream by itself: nothing was run"),
]  # fmt: skip
EACH = """
import sys
from headwater.cli import main

files = sys.argv[1:]
for file in files:
    sys.argv[1:] = ["run", file]
    try:
        main()
    except SystemExit as ended:
        print("ended with", ended.code, flush=True)
"""


def test_a_file_without_a_pipeline_is_refused(start: Start, tmp_path: Path) -> None:
    """One process runs one after the other: imports cost more than most of them do."""
    files = [f"bad_{number}.py" for number in range(len(REFUSED))]
    for file, (text, _) in zip(files, REFUSED, strict=True):
        (tmp_path / file).write_text(text, encoding="utf-8")
    shown, _ = start(*files, program=EACH).communicate(timeout=HANG_S)
    *answers, rest = shown.split("ended with 1\n")
    assert rest == ""
    for answer, (_, says) in zip(answers, REFUSED, strict=True):
        assert says in answer
    assert "Traceback" not in shown
    assert not (tmp_path / "own.duckdb").exists()


def test_two_pipelines_of_one_id_are_refused(
    portal: PortalServer, start: Start, tmp_path: Path
) -> None:
    file = write(tmp_path, portal, "one")
    shown, _ = (process := start("run", file, file)).communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert "two pipelines have the same id" in shown


def test_the_version_is_shown(start: Start) -> None:
    shown, _ = start("--version").communicate(timeout=HANG_S)
    assert shown.strip() == f"headwater {__version__}"
