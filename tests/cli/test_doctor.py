"""`headwater doctor`: what is well is said to be, and what is not comes with its fix."""

from __future__ import annotations

import json
import socket
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from typer.testing import CliRunner

from headwater.cli import app
from headwater.testing import simulated_portal
from tests.cli.test_cursor import WIDE
from tests.targets import clickhouse_places, postgres_places
from tests.targets.places import make_place
from tests.targets.test_admin import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Found = dict[str, list[tuple[str, str, str]]]


def examine(*arguments: str, quick: bool = True, **env: str) -> tuple[int, Found]:
    """Return the exit code, and the findings by name: level, text, fix."""
    words = ["doctor", "--json", "--port", "0", *["--quick"] * quick, *arguments]
    result = CliRunner(env={**WIDE, **env}).invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    found: Found = {}
    one: dict[str, Any]
    for one in json.loads(result.output):
        found.setdefault(one["name"], []).append((one["level"], one["says"], one["fix"]))
    return result.exit_code, found


def test_a_portal_and_a_file_that_are_well(tmp_path: Path) -> None:
    place = make_place("duckdb", tmp_path)
    fill(place.rig())
    with simulated_portal(blocks=40, finality_depth=10) as portal:
        code, found = examine("--target", place.address, "--portal", portal.url)
    assert code == 0, found
    assert found["portal"][0][1].startswith("head 39, answered in ")
    assert found["finality"][0][:2] == ("ok", "29, 10 blocks below the head")
    assert found["database"][0][1].endswith("1 streams")
    assert {name for name, several in found.items() if any(one[0] != "ok" for one in several)} <= {
        "disk"
    }


def test_what_is_missing_comes_with_its_fix(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, found = examine(
            "--portal", "http://127.0.0.1:1/datasets/x",
            "--target", str(tmp_path / "none" / "a.duckdb"),
            "--port", str(taken.getsockname()[1]),
            JAVA_HOME=str(tmp_path),
        )  # fmt: skip
    assert code == 1
    for name, level, says, fix in (
        ("Java", "fail", "[E5001]", "JAVA_HOME"),
        ("portal", "fail", "[E3", ""),
        ("database", "fail", "cannot be created", "create the folder"),
        ("port", "warn", "in use", "choose another"),
    ):
        (one,) = found[name]
        assert one[0] == level
        assert says in one[1]
        assert fix in one[2]
    assert not (tmp_path / "none").exists()
    shown = CliRunner(env={**WIDE, "JAVA_HOME": str(tmp_path)}).invoke(app, ["doctor", "--quick"])
    assert shown.exit_code == 1
    assert "1 of " in shown.output


def test_rights_in_postgres() -> None:
    address = postgres_places.database()
    code, found = examine("--target", address)
    assert (code, found["rights"][0][:2]) == (0, ("ok", "may create tables in public"))
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        connection.execute("DROP ROLE IF EXISTS headwater_reader")
        connection.execute("CREATE ROLE headwater_reader")
        try:
            limited = ("?" in address and f"{address}&") or f"{address}?"
            code, found = examine("--target", f"{limited}options=-c%20role%3Dheadwater_reader")
        finally:
            connection.execute("DROP ROLE headwater_reader")
    assert code == 1
    assert found["rights"][0][0] == "fail"
    assert "GRANT CREATE" in found["rights"][0][2]


def test_rights_on_clickhouse() -> None:
    code, found = examine("--target", clickhouse_places.database())
    assert (code, found["database"][0][0]) == (0, "ok")
    assert found["rights"][0][0] == "ok"


def test_a_worker_of_spark_imports_headwater(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, found = examine(quick=False)
    assert code == 0, found
    assert found["executors' Python"][0][0] == "ok"
    monkeypatch.setattr(import_module("headwater.cli.doctor"), "__version__", "another one")
    code, found = examine(quick=False)
    assert code == 1
    assert "PYSPARK_PYTHON" in found["executors' Python"][0][2]
