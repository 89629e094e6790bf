"""`headwater setup`, as an operator types it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headwater.errors import (
    InvalidOptionError,
    PostgresStatementError,
    SchemaFileError,
)
from headwater.targets.postgres.read_only_user import add_read_only_user
from headwater.targets.schema_file import arrow_type, read_schema_file, read_tables, tables_of
from tests.cli.test_cursor import run
from tests.targets.places import Place, make_place
from tests.targets.test_admin import fill

TOML = """
[tables.log.columns]
block_number = "int64"
log_index = "int64"
value = "string"

[tables.balances]
key = ["owner", "token"]
columns = { owner = "string", token = "string", value = "string", note = "string" }
"""


@pytest.fixture(params=["duckdb", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, tmp_path)


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


def test_a_schema_file_becomes_tables_that_a_stream_fills(place: Place, tmp_path: Path) -> None:
    path = written(tmp_path, "tables.toml", TOML)
    shown = run("setup", place.address, "--schema", path, "--outbox", "alerts")
    own = [f"headwater_{name}" for name in ("config", "factory_children", "outbox_alerts")]
    for name in ("sync", "sync__tables", "headwater_dead_letters", *own, "log", "balances"):
        assert name in shown
    assert "Everything was there already." in run("setup", place.address, "--schema", path)
    fill(place.rig()).check()


def test_sql_and_json_are_schema_files_too(place: Place, tmp_path: Path) -> None:
    sql = written(tmp_path, "a.sql", "CREATE TABLE a (x integer PRIMARY KEY);")
    assert "Created: a, headwater_config" in run("setup", place.address, "--schema", sql)
    document = {"tables": {"b": {"columns": {"x": "int64"}, "key": ["x"]}}}
    run("setup", place.address, "--schema", written(tmp_path, "b.json", json.dumps(document)))
    assert place.rows("a") == place.rows("b") == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "tables:", "ends in .sql, .json or .toml"),
        ("a.json", "{", "cannot be read"),
        ("a.toml", "= 1", "cannot be read"),
        ("a.json", "{}", "the file holds"),
        ("a.json", '{"tables": {"a": {}}}', "a table is"),
        ("a.json", '{"tables": {"a": {"columns": {"x": 1}}}}', "a table is"),
        ("a.json", '{"tables": {"a": {"columns": {"x": "int64"}, "index": []}}}', "a table is"),
        ("a.json", '{"tables": {"a": {"columns": {"x": "int7"}}}}', "no such type.*int7.*int64"),
        ("a.json", '{"tables": {"a": {"columns": {"x": "decimal(99,0)"}}}}', "no such type"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_anything_is_created(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    place = make_place("duckdb", tmp_path)
    with pytest.raises(SchemaFileError, match=rf"E0014.*{message}"):
        run("setup", place.address, "--schema", written(tmp_path, name, text))
    assert not Path(place.address).exists()


def test_a_file_that_is_not_there_and_a_thing_without_a_schema_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaFileError, match="cannot be read"):
        read_schema_file(tmp_path / "none.sql")
    with pytest.raises(SchemaFileError, match="a schema comes from"):
        tables_of(a=3)
    with pytest.raises(SchemaFileError, match="the file holds"):
        read_tables([])


@pytest.mark.parametrize(
    "text",
    ["int64", "bool", "string", "date32", "timestamp[us, tz=UTC]", "timestamp[ms]", "list<string>"],
)
def test_types_are_those_of_arrow(text: str) -> None:
    assert str(arrow_type(text)).replace("item: ", "").replace("[day]", "") in (text, "date32")


def test_decimals_are_as_wide_as_they_need_to_be() -> None:
    assert str(arrow_type("decimal(38,0)")) == "decimal128(38, 0)"
    assert str(arrow_type("decimal(76, 2)")) == "decimal256(76, 2)"


# --- the read-only user ---------------------------------------------------------------------------


def read_as(place: Place, name: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(make_conninfo(place.address, user=name), autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


@pytest.mark.guarantee("OPERATE-3")
def test_a_read_only_user_reads_present_and_future_tables_and_changes_nothing(
    tmp_path: Path,
) -> None:
    place, user = make_place("postgres", tmp_path), 'Grafana "1"'
    path = written(tmp_path, "tables.toml", TOML)
    shown = run("setup", place.address, "--schema", path, "--read-only-user", user)
    assert "may now read all tables" in shown
    password = shown.split("shown only here: ")[1].split()[0]
    assert len(password) >= 24
    fill(place.rig())
    assert read_as(place, user, "SELECT count(*) FROM log") == [(8,)]
    run("setup", place.address, "--schema", written(tmp_path, "a.sql", "CREATE TABLE late (x int)"))
    assert read_as(place, user, "SELECT * FROM late") == []
    for sql in ("DELETE FROM log", "CREATE TABLE other (x int)"):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            read_as(place, user, sql)
    for sql in ("DELETE FROM log", "INSERT INTO sync (id) VALUES ('x')", "DROP TABLE log"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            read_as(place, user, f"SET transaction_read_only = off; SET "
                    f"default_transaction_read_only = off; BEGIN READ WRITE; {sql}")  # fmt: skip
    again = run("setup", place.address, "--read-only-user", user)
    assert "was there, and may read" in again
    assert "shown only here" not in again


def test_a_password_comes_from_the_environment_and_is_neither_shown_nor_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place = make_place("postgres", tmp_path)
    monkeypatch.setenv("HEADWATER_READER_PASSWORD", "correct horse")
    shown = run("setup", place.address, "--read-only-user", "viewer")
    assert "shown only here" not in shown
    assert "correct horse" not in shown + caplog.text
    with psycopg.connect(place.address) as connection:
        stored = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'viewer'")
        ((hashed,),) = stored.fetchall()
    assert str(hashed).startswith("SCRAM-SHA-256$")


def test_a_user_that_cannot_be_made_is_a_coded_error(tmp_path: Path) -> None:
    place = make_place("postgres", tmp_path)
    with pytest.raises(InvalidOptionError, match="a user's name has"):
        add_read_only_user(place.address, " ")
    with pytest.raises(PostgresStatementError, match=r"could not be created.*no_such_schema"):
        add_read_only_user(place.address, "nobody", schemas=["no_such_schema"])
    with pytest.raises(InvalidOptionError, match="DuckDB has no users"):
        run("setup", str(tmp_path / "b.duckdb"), "--read-only-user", "x")
    assert "secret" not in repr(add_read_only_user(place.address, "someone", password="secret"))
