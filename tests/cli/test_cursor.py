"""`headwater cursor`, as an operator types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli import app, main
from headwater.errors import (
    CursorMoveError,
    NothingStoredError,
    PostgresConnectionError,
    PostgresLockError,
)
from tests.targets.places import Place, make_place
from tests.targets.test_admin import fill

WIDE = {"COLUMNS": "200", "TERM": "dumb"}


@pytest.fixture(params=["duckdb", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place = make_place(request.param, tmp_path)
    fill(place.rig())
    return place


def run(*arguments: str, answer: str = "") -> str:
    """Run a command; an error that it raises on purpose is raised here."""
    result = CliRunner(env=WIDE).invoke(app, [*arguments], input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return f"{result.exit_code} {result.output}"


def test_show_is_a_table_for_people_and_json_for_machines(place: Place) -> None:
    shown = run("cursor", "show", place.address)
    for part in ("one", "8#a8", "4#a4", "log (append_only)", "balances (keyed)"):
        assert part in shown
    (stream,) = json.loads(run("cursor", "show", place.address, "--id", "one", "--json")[2:])
    assert stream["cursor"] == {"number": 8, "hash": "a8", "timestamp": 1008}
    assert [one["number"] for one in stream["can_go_back_to"]] == [4, 5, 6, 7, 8]
    with pytest.raises(CursorMoveError, match="no such stream"):
        run("cursor", "show", place.address, "--id", "two")


def test_set_says_what_it_does_and_asks_first(place: Place) -> None:
    command = ("cursor", "set", place.address, "--id", "one", "--block", "6")
    shown = run(*command, answer="n\n")
    assert shown.startswith("1 ")
    for part in ("from 8#a8 to 6#a6", "goes on with block 7", "log: what blocks above 6 did"):
        assert part in shown
    assert "8#a8" in run("cursor", "show", place.address), "nothing was moved"
    assert "now stands at 6#a6" in run(*command, answer="y\n")
    assert len(place.rows("log")) == 6
    assert "now stands at 5#a5" in run(*command[:-1], "5", "--yes")


def test_set_below_finality_needs_force_and_rows_that_say_their_block(place: Place) -> None:
    command = ("cursor", "set", place.address, "--id", "one", "--block", "2", "--yes")
    with pytest.raises(CursorMoveError, match=r"E0013.*--force"):
        run(*command)
    with pytest.raises(CursorMoveError, match=r"E0013.*count twice.*tables=balances"):
        run(*command, "--force")
    ahead = run("cursor", "set", place.address, "--id", "one", "--block", "50", "--force", "-y")
    assert "Blocks 9 to 50 are never read" in ahead


def test_rewind_goes_back_and_never_forward(place: Place) -> None:
    command = ("rewind", place.address, "--id", "one", "--to")
    with pytest.raises(CursorMoveError, match=r"only goes back.*wanted=9, cursor=8#a8"):
        run(*command, "9", "--force", "--yes")
    assert "from 8#a8 to 6#a6" in run(*command, "6", answer="n\n")
    assert len(place.rows("log")) == 8, "nothing was moved"
    assert "now stands at 6#a6" in run(*command, "6", "--yes")
    assert len(place.rows("log")) == 6
    with pytest.raises(CursorMoveError, match=r"below what can be undone"):
        run(*command, "2", "--yes")


def test_reset_says_what_it_does_and_asks_first(place: Place) -> None:
    command = ("cursor", "reset", place.address, "--id", "one")
    with pytest.raises(CursorMoveError, match="gives up final data"):
        run(*command, "--yes")
    shown = run(*command, "--force", answer="n\n")
    assert shown.startswith("1 ")
    assert "log: is emptied." in shown
    assert "keeps its rows, and the stream adds them once more" in run(
        *command, "--force", "--keep-data", answer="n\n"
    )
    assert len(place.rows("log")) == 8
    assert "one begins anew." in run(*command, "--force", "--yes")
    assert place.rows("log") == []
    assert "No stream has stored anything here." in run("cursor", "show", place.address)


def test_a_running_stream_is_left_alone(tmp_path: Path) -> None:
    place = make_place("postgres", tmp_path)
    fill(place.rig())
    writer = place.target()
    writer.recover()
    with pytest.raises(PostgresLockError, match="another writer holds the stream"):
        run("cursor", "set", place.address, "--id", "one", "--block", "6", "--yes")
    writer.close()


def test_bad_input_is_said_in_one_line_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NothingStoredError, match=r"E0035.*no such file.*check the path"):
        run("cursor", "show", str(tmp_path / "none.duckdb"))
    assert not (tmp_path / "none.duckdb").exists()
    with pytest.raises(PostgresConnectionError):
        run("cursor", "show", "postgresql://me:secret@127.0.0.1:1/x")
    address = "postgresql://me:secret@127.0.0.1:1/x"
    monkeypatch.setattr("sys.argv", ["headwater", "cursor", "show", address])
    with pytest.raises(SystemExit, match="1"):
        main()
    said = capsys.readouterr().err
    assert said.startswith("[E2119]")
    assert "secret" not in said


@pytest.mark.parametrize(
    "command", ["cursor show", "cursor set", "cursor reset", "rewind", "verify", "status", "doctor"]
)
def test_help_teaches_with_an_example(command: str) -> None:
    shown = run(*command.split(), "--help")
    assert f"headwater {command} " in shown
    assert "postgresql://" in shown
