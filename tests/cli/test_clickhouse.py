"""The operator's commands on ClickHouse, as an operator types them."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headwater.errors import (
    ClickHouseConnectionError,
    ClickHouseServerError,
    CursorMoveError,
    InvalidOptionError,
)
from headwater.targets.clickhouse import ClickHouseClient
from tests.cli.test_cursor import run
from tests.targets.clickhouse_places import database
from tests.targets.test_clickhouse_admin import fill, started

TOML = """
[tables.own]
key = ["log_index"]
columns = { block_number = "int64", log_index = "int64", value = "int64" }
"""


def test_a_stream_is_prepared_shown_moved_and_forgotten(tmp_path: Path) -> None:
    url = database()
    path = tmp_path / "tables.toml"
    path.write_text(TOML, "utf-8")
    assert "No stream has stored anything here." in run("cursor", "show", url)
    created = run("setup", url, "--schema", str(path), "--outbox", "alerts")
    for name in ("sync, sync__attempts", "headwater_outbox_alerts", "own, own_live"):
        assert name in created
    assert "Everything was there already." in run("setup", url, "--schema", str(path))
    fill(started(url))
    shown = run("cursor", "show", url)
    for part in ("4#h4", "2#h2", "own (collapsing)", "both (collapsing)"):
        assert part in shown
    back = run("cursor", "set", url, "--id", "one", "--block", "3", answer="y\n")
    for part in ("from 4#h4 to 3#h3", "own: what blocks above 3 did is undone.", "now stands at"):
        assert part in back
    assert "0 dead letters" in run("outbox", "show", url, "--id", "one")
    assert "0 messages" in run("outbox", "replay", url, "--id", "one")
    views = ClickHouseClient(url).rows("SHOW TABLES LIKE '%_live'")
    assert [one["name"] for one in views] == ["both_live", "own_live"]
    with pytest.raises(CursorMoveError, match="gives up final data"):
        run("cursor", "reset", url, "--id", "one", "--yes")
    said = run("cursor", "reset", url, "--id", "one", "--yes", "--force")
    assert "own: is emptied." in said
    assert "one begins anew." in said
    assert json.loads(run("cursor", "show", url, "--json")[2:]) == []


def test_a_stream_that_has_committed_nothing_is_shown_and_can_be_forgotten() -> None:
    """Such as one whose reset was interrupted: its tables are known, but it has no cursor."""
    url = database()
    started(url)
    assert "one" in run("cursor", "show", url)
    with pytest.raises(CursorMoveError, match="nothing is committed yet"):
        run("cursor", "set", url, "--id", "one", "--block", "3", "--yes")
    assert "which has committed nothing" in run("cursor", "reset", url, "--id", "one", "--yes")
    assert "No stream has stored anything here." in run("cursor", "show", url)


def test_bad_input_is_said_at_once_without_secrets() -> None:
    url = database()
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    missing = parts._replace(path="/no_such_database").geturl()
    for address, error, message in (
        ("http://me:secret@127.0.0.1:1/x", ClickHouseConnectionError, "cannot be reached"),
        (f"http://me:secret@{place}/x", ClickHouseServerError, "Authentication failed"),
        (missing, ClickHouseServerError, "does not exist"),
        ("http://me:secret/word@host/x", InvalidOptionError, "%2F"),
        ("http://", InvalidOptionError, "reached by HTTP"),
    ):
        for command in (("cursor", "show"), ("outbox", "show", "--id", "one")):
            with pytest.raises(error, match=message) as said:
                run(*command, address)
            assert "secret" not in str(said.value)
    for command in (("cursor", "reset"), ("outbox", "show"), ("outbox", "replay")):
        with pytest.raises(CursorMoveError, match="no such stream is stored here"):
            run(*command, url, "--id", "two")
    with pytest.raises(InvalidOptionError, match="CREATE USER") as refused:
        run("setup", url, "--read-only-user", "grafana")
    assert "nothing was created" in str(refused.value)
    assert "No stream" in run("cursor", "show", url)
