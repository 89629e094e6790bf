"""The demo, run as a newcomer would run it, and its parts where a whole run cannot show them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from headwater.cli.demo_run import (
    DEEPEST,
    INTERVAL_S,
    STREAM_ID,
    Undone,
    Watcher,
    compare,
    draw,
    make_room,
    plan_forks,
    run_on_portal,
    run_simulated,
)
from headwater.core import BlockCursor
from headwater.errors import DuckDBPathError, InvalidOptionError, PortalUrlError
from headwater.pipeline import Committed
from headwater.pipeline import Event as Happened
from headwater.targets import duckdb_target
from headwater.testing import ChainSim, simulated_portal
from headwater.testing.chain.content import contents
from headwater.testing.chain.content.evm_scenes import APPROVAL, TRANSFER

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCKS, SECONDS, SEED = 300, 3, 3


def headwater(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from headwater.cli import main; main()", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def chain_of_the_demo() -> ChainSim:
    """The chain that a run with these settings ends with: it follows from the seed."""
    chain = ChainSim(SEED)
    chain.grow(BLOCKS - 1)
    steps = round(SECONDS / INTERVAL_S)
    plan = plan_forks(SEED, steps)
    for step in range(steps):
        chain.fork(plan[step]) if step in plan else chain.grow(1)
    return chain


# --- a whole run ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "new" / "folder"


@pytest.fixture(scope="session")
def ran(folder: Path) -> subprocess.CompletedProcess[str]:
    settings = {"--blocks": BLOCKS, "--seconds": SECONDS, "--seed": SEED, "--out": folder}
    return headwater(*(str(part) for pair in settings.items() for part in pair), FORCE_COLOR="1")


def test_a_run_ends_well_and_tells_what_it_does(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "a simulated chain of 300 blocks is served at http://127.0.0.1:" in ran.stderr
    assert re.search(
        r"headwater-demo: stopped at block [\d,]+, [\d,]+ rows in this run", ran.stderr
    )
    assert re.search(r"^[\d,]+ rows in 2 tables equal the chain up to \d+#0x", ran.stdout)
    assert len(re.findall(r"0x\w{40}  [\d,]+ transfers by [\d,]+ senders", ran.stdout)) == 5
    assert "try next: headwater simulate" in ran.stdout


def test_every_planned_fork_was_met_and_undone(ran: subprocess.CompletedProcess[str]) -> None:
    """The block that it goes back to is the newest below the fork that has rows."""
    chain = chain_of_the_demo()
    told = re.findall(
        r"^fork \d+: from block (\d+) back to (\d+), (\d+) rows? undone$", ran.stderr, re.M
    )
    met = [tuple(map(int, one)) for one in told]
    assert len(met) == len(chain.forks) == len(plan_forks(SEED, round(SECONDS / INTERVAL_S))) >= 3
    for (newest, safe, _), fork in zip(met, chain.forks, strict=True):
        assert newest == chain.block(fork.orphaned_hashes[-1]).number
        assert newest - DEEPEST - 5 < safe <= fork.ancestor.number
    assert f"{len(met)} forks, {sum(rows for _, _, rows in met)} rows undone" in ran.stdout


def test_output_that_goes_elsewhere_than_a_terminal_is_plain(
    ran: subprocess.CompletedProcess[str],
) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", ran.stdout + ran.stderr)


def test_a_second_run_takes_the_place_of_the_first(
    ran: subprocess.CompletedProcess[str], folder: Path, tmp_path: Path
) -> None:
    for name in ("chain.duckdb", "forks.png"):
        shutil.copy(folder / name, tmp_path / name)
    make_room(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_picture_is_a_png_to_look_at(
    ran: subprocess.CompletedProcess[str], folder: Path
) -> None:
    data = (folder / "forks.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    assert 1000 <= width <= 4000
    assert 400 <= height <= 4000
    assert 20_000 < len(data) < 2_000_000


def test_the_tables_hold_what_a_count_of_the_chain_gives(
    ran: subprocess.CompletedProcess[str], folder: Path
) -> None:
    counted = {"transfers": 0, "approvals": 0}
    chain = chain_of_the_demo()
    for block in chain.canonical():
        for log in contents(chain, block)["logs"]:
            topics = log["topics"]
            if len(topics) == 3 and topics[0] == TRANSFER and topics[1] != topics[2]:
                counted["transfers"] += 1
            counted["approvals"] += len(topics) == 3 and topics[0] == APPROVAL
    with duckdb.connect(str(folder / "chain.duckdb"), read_only=True) as file:
        for name, rows in counted.items():
            assert file.execute(f"SELECT count(*) FROM {name}").fetchone() == (rows,)
            assert rows > 50
        newest = file.execute(
            "SELECT current_hash FROM sync ORDER BY current_number DESC"
        ).fetchone()
    assert newest == (chain.head.hash,)


# --- the check ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE transfers SET value = '1' WHERE log_index = (SELECT min(log_index) FROM transfers)",
        "DELETE FROM approvals WHERE block_number = (SELECT max(block_number) FROM approvals)",
        "INSERT INTO transfers SELECT * FROM transfers LIMIT 1",
        "UPDATE transfers SET block_hash = '0xother'",
        "UPDATE approvals SET block_number = block_number + 1",
        "UPDATE transfers SET timestamp = timestamp + INTERVAL 1 SECOND",
    ],
)
def test_a_row_that_is_changed_missing_doubled_or_orphaned_is_noticed(
    ran: subprocess.CompletedProcess[str], folder: Path, tmp_path: Path, tampering: str
) -> None:
    shutil.copy(folder / "chain.duckdb", tmp_path)
    chain = chain_of_the_demo()
    target = duckdb_target(tmp_path / "chain.duckdb")
    target.bind(STREAM_ID)
    state = target.recover()
    assert compare(target, chain, state) is None
    target.close()
    with duckdb.connect(str(tmp_path / "chain.duckdb")) as file:
        file.execute(tampering)
    told = compare(duckdb_target(tmp_path / "chain.duckdb"), chain, state)
    assert told is not None
    assert told.startswith("FAILED: the ")


@pytest.mark.usefixtures("spark")
def test_the_demo_fails_if_the_tables_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of the comparison: here the chain is misread on purpose."""
    monkeypatch.setattr("headwater.cli.demo_run._is_wanted", lambda log: False)
    assert not run_simulated(tmp_path, blocks=60, seconds=1, seed=1, port=0)
    assert "FAILED: the tables are not what the chain says" in capsys.readouterr().out


@pytest.mark.usefixtures("spark")
def test_a_stop_between_a_commit_and_its_event_is_checked_by_what_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(watcher: Watcher, event: object) -> None:
        if isinstance(event, Committed):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Watcher, "__call__", stop)
    assert run_simulated(tmp_path, blocks=60, seconds=1, seed=1, port=0)
    told = capsys.readouterr()
    assert re.search(r"^[1-9][\d,]* rows in 2 tables equal the chain up to \d+#0x", told.out)
    assert "stopping after this batch" in told.err


# --- a real portal --------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark")
def test_against_a_portal_it_follows_the_head_and_its_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chain moves when the stream has read all of it: any machine is fast enough."""
    seen = Watcher.__call__
    make_room(tmp_path)
    with simulated_portal(seed=5, blocks=100) as portal:

        def move(watcher: Watcher, event: Happened) -> None:
            seen(watcher, event)
            if event.state.cursor != portal.chain.head.cursor:
                return
            if any(fork.rows for fork in watcher.forks):
                signal.raise_signal(signal.SIGINT)
            portal.fork(2) if portal.chain.head.number % 5 == 4 else portal.extend(1)

        monkeypatch.setattr(Watcher, "__call__", move)
        tokens = portal.chain.population.tokens
        assert run_on_portal(
            tmp_path, portal.url, events=["erc20.Transfer"], contracts=tokens, seconds=600
        )
    shown = capsys.readouterr().out
    assert re.search(r"^[1-9]\d* forks?, [1-9]\d* rows undone$", shown, re.M)
    assert (tmp_path / "forks.png").read_bytes().startswith(b"\x89PNG")
    rows = duckdb_target(tmp_path / "chain.duckdb").query(
        "SELECT min(block_number) AS first FROM transfers"
    )
    assert rows.column("first")[0].as_py() >= 99


def test_nothing_is_started_for_an_address_or_events_that_cannot_serve(tmp_path: Path) -> None:
    token = "0x" + "11" * 20
    with pytest.raises(PortalUrlError):
        run_on_portal(tmp_path, "nowhere", events=["erc20.Transfer"], contracts=[token], seconds=1)
    with pytest.raises(InvalidOptionError, match="share a table"):
        run_on_portal(
            tmp_path,
            "http://127.0.0.1:9/datasets/none",
            events=["erc20.Transfer", "erc721.Transfer"],
            contracts=[token],
            seconds=1,
        )


@pytest.mark.usefixtures("spark")
def test_a_portal_that_does_not_answer_is_not_a_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/datasets/none"
        assert not run_on_portal(
            tmp_path,
            url,
            events=["erc20.Transfer"],
            contracts=["0x" + "11" * 20],
            seconds=1,
        )
    assert "no block arrived in this time" in capsys.readouterr().out


# --- its parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [6, 7, 10, 40, 200])
@pytest.mark.parametrize("seed", range(5))
def test_forks_are_planned_by_the_seed_and_differ_in_depth(seed: int, steps: int) -> None:
    plan = plan_forks(seed, steps)
    assert plan == plan_forks(seed, steps)
    assert len(plan) >= 3
    assert len(set(plan.values())) == len(plan)
    assert all(0 <= step < steps for step in plan)
    assert all(1 <= depth <= DEEPEST for depth in plan.values())


def test_branches_that_cross_are_drawn_on_lanes_of_their_own(tmp_path: Path) -> None:
    """The second fork is deeper than what came after the first, so it orphans its ancestor too."""
    chain = ChainSim(2)
    chain.grow(30)
    chain.fork(2)
    chain.grow(1)
    chain.fork(7)
    forks = [
        Undone(fork.ancestor.cursor, [chain.block(one).cursor for one in fork.orphaned_hashes], 3)
        for fork in chain.forks
    ]
    canonical = [block.cursor for block in chain.canonical(15)]
    draw(tmp_path / "a.png", canonical, forks, 18)
    draw(tmp_path / "b.png", canonical, [], None)
    draw(tmp_path / "c.png", [], [], None)
    sizes = [(tmp_path / f"{name}.png").stat().st_size for name in "abc"]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] > 5000


def test_the_label_of_a_fork_is_not_cut_off_at_either_edge(tmp_path: Path) -> None:
    chain = [BlockCursor(number, hex(number)) for number in range(2, 44)]
    forks = [
        Undone(BlockCursor(safe, hex(safe)), [BlockCursor(safe + 1, f"0x{safe}b")], 26)
        for safe in (2, 20, 24, 42)
    ]
    figure = draw(tmp_path / "a.png", chain, forks, None)
    (axes,) = figure.axes
    labels = [text for text in axes.texts if text.get_text().startswith("fork ")]
    assert [text.get_text() for text in labels] == [
        f"fork {n}: 26 rows undone" for n in range(1, 5)
    ]
    for text in labels:
        assert axes.bbox.x0 <= text.get_window_extent().x0
        assert text.get_window_extent().x1 <= axes.bbox.x1


# --- what can go wrong ----------------------------------------------------------------------------


def test_the_file_of_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_room(out)
    target = duckdb_target(out / "chain.duckdb")
    target.bind(STREAM_ID)
    target.recover()
    target.close()
    make_room(out)
    assert not (out / "chain.duckdb").exists()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "chain.duckdb")) as file:
        file.sql("CREATE TABLE precious AS SELECT 1 AS one")
    with pytest.raises(InvalidOptionError, match="did not make"):
        make_room(tmp_path)
    target = duckdb_target(tmp_path / "chain.duckdb")  # not even if a demo once ran in it
    target.bind(STREAM_ID)
    target.recover()
    target.close()
    with pytest.raises(InvalidOptionError, match="did not make"):
        make_room(tmp_path)
    (tmp_path / "chain.duckdb").write_text("a letter")
    with pytest.raises(DuckDBPathError):
        make_room(tmp_path)
    assert (tmp_path / "chain.duckdb").read_text() == "a letter"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOptionError, match="--out must be a directory"):
        make_room(tmp_path / "file")


def test_a_port_that_is_taken_is_refused_before_spark_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidOptionError, match="port must be free"):
            run_simulated(tmp_path, blocks=50, seconds=1, seed=1, port=port)


def test_without_java_the_demo_says_what_to_install(tmp_path: Path) -> None:
    ran = headwater("--out", str(tmp_path / "out"), JAVA_HOME="/nonexistent")
    assert ran.returncode == 1
    assert ran.stderr.startswith("[E5001] ")
    assert "Traceback" not in ran.stderr


# --- the page -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark")
def test_the_program_of_the_quickstart_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 16
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second run resumes, and finds nothing left to read
        exec(compile(program, "docs/quickstart.md", "exec"), {"__name__": "__main__"})
        assert f"It prints `{capsys.readouterr().out.strip()}`." in page
