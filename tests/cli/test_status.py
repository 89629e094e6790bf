"""`headwater status`, of databases and of running pipelines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from headwater.cli import app
from headwater.core import BlockCursor, Head, PipeState
from headwater.core.messages import Recovered
from headwater.dashboard import Dashboard
from headwater.dashboard.server import SUFFIX, read_note
from headwater.errors import CursorMoveError, PipelineSilentError, PortalUnreachableError
from headwater.metrics import StreamRecord
from headwater.testing import simulated_portal
from tests.cli.test_cursor import run
from tests.targets.clickhouse_places import database as clickhouse
from tests.targets.places import Place, make_place
from tests.targets.test_admin import fill
from tests.targets.test_clickhouse_admin import fill as fill_clickhouse
from tests.targets.test_clickhouse_admin import started

HOLD = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print(flush=True); input()"


@pytest.fixture(params=["duckdb", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place = make_place(request.param, tmp_path)
    fill(place.rig())
    return place


def test_a_database_tells_where_its_streams_stand(place: Place) -> None:
    with simulated_portal(blocks=21) as portal:
        (one,) = json.loads(run("status", place.address, "--portal", portal.url, "--json")[2:])
    assert (one["id"], one["cursor"]["number"], one["finalized"]["number"]) == ("one", 8, 4)
    assert (one["head"], one["lag_blocks"]) == (20, 12)
    assert one["lag_seconds"] > 10**9, "of block times as in 1970"
    assert one["undo_rows"] == len(place.query("SELECT * FROM balances__snapshots")) == 4
    assert one["outboxes"] == {}
    shown = run("status", place.address, "--id", "one")
    assert all(part in shown for part in ("one", "undo rows", " 8 ", " 4 "))
    assert "blocks/s" not in shown, "a column that says nothing"
    with pytest.raises(CursorMoveError, match=r"no such stream.*known=one"):
        run("status", place.address, "--id", "two")


def test_clickhouse_needs_no_undo_rows() -> None:
    url = clickhouse()
    assert "No stream has stored anything here." in run("status", url)
    fill_clickhouse(started(url))
    (one,) = json.loads(run("status", url, "--json")[2:])
    assert (one["cursor"]["number"], one["undo_rows"]) == (4, None)


def test_a_running_pipeline_is_asked_at_its_address() -> None:
    record = StreamRecord("usdc", registry=CollectorRegistry())
    record.head = Head(BlockCursor(90, "f"), BlockCursor(120, "h"))
    record.happened(Recovered(PipeState(BlockCursor(100, "c", 1_000), BlockCursor(90, "f"))))
    with Dashboard(0, streams=lambda: {"usdc": record}, registry=record.registry) as page:
        (one,) = json.loads(run("status", f"localhost:{page.port}", "--json")[2:])
        shown = run("status", f"127.0.0.1:{page.port}")
    assert (one["head"], one["lag_blocks"], one["forks"]) == (120, 20, 0)
    assert "20 blocks" in shown
    with pytest.raises(PipelineSilentError, match=r"E0034.*no pipeline answers there"):
        run("status", f"localhost:{page.port}")


def test_a_watch_looks_again_until_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make_place("duckdb", tmp_path)
    fill(place.rig())
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    clock = SimpleNamespace(sleep=pause, time=time.time)
    monkeypatch.setattr(import_module("headwater.cli.status"), "time", clock)
    shown = run("status", place.address, "--watch", "--every", "7", "--json")
    assert shown.startswith("0 ")
    assert looks == [7, 7, 7]
    assert [json.loads(line)[0]["id"] for line in shown[2:].splitlines()] == ["one"] * 3


def test_a_file_in_use_without_a_dashboard_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "a.duckdb"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            with pytest.raises(PipelineSilentError, match=r"holds the file.*dashboard=9090"):
                run("status", str(file))
        finally:
            holder.communicate(b"\n")


def test_a_file_in_use_is_asked_of_its_process_for_its_own_streams(tmp_path: Path) -> None:
    """Names and numbers are whole, however narrow the terminal is."""
    file, made = tmp_path / "a.duckdb", {}
    for name, place in (("swaps-of-all-pools", file), ("balances", tmp_path / "b.duckdb")):
        record = made[name] = StreamRecord(name, registry=CollectorRegistry())
        record.file = str(place.resolve())
        record.head = Head(None, BlockCursor(21_000_120, "h"))
        final = BlockCursor(21_000_090, "f")
        record.happened(Recovered(PipeState(BlockCursor(21_000_100, "c", 1_000), final)))
    with Dashboard(0, streams=lambda: made) as page, subprocess.Popen(
        [sys.executable, "-c", HOLD, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            note = {"pid": os.getpid(), "address": f"localhost:{page.port}"}
            (tmp_path / f"a.duckdb{SUFFIX}").write_text(json.dumps(note), encoding="utf-8")
            narrow = CliRunner(env={"COLUMNS": "60"})
            shown = narrow.invoke(app, ["status", str(file)]).output
        finally:
            holder.communicate(b"\n")
    for text in ("swaps-of-all-pools: status starting", "21,000,100", "21,000,090", "20 blocks"):
        assert text in shown
    assert "balances" not in shown


def test_a_note_of_a_process_that_is_gone_is_not_believed(tmp_path: Path) -> None:
    note = tmp_path / f"a.duckdb{SUFFIX}"
    for text in ("{}", "no", '{"pid": 4194305, "address": "localhost:1"}'):
        note.write_text(text, encoding="utf-8")
        assert read_note(tmp_path / "a.duckdb") is None
    note.write_text(json.dumps({"pid": os.getpid(), "address": "localhost:1"}), encoding="utf-8")
    assert read_note(tmp_path / "a.duckdb") == "localhost:1"


def test_a_portal_that_is_away_is_said(tmp_path: Path) -> None:
    place = make_place("duckdb", tmp_path)
    fill(place.rig())
    with pytest.raises(PortalUnreachableError):
        run("status", place.address, "--portal", "http://127.0.0.1:1/datasets/x")
