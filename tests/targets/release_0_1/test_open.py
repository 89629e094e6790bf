"""A database that the first release has written is opened as it is, and forks reach into it.

The files hold what commit 8f2dd5d left: five blocks, of which two are final, of a stream of rows
and of a stream of changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest

from headwater.changes import Changes, TableSchema
from headwater.core import Batch, BlockHeader, Head
from headwater.targets import Delivery, duckdb_target, history_target, postgres_target, table
from headwater.targets.admin import open_admin
from tests.targets.postgres_places import database

HERE = Path(__file__).parent
OWNER = TableSchema("owner", ["id"], {"id": "text", "n": "integer", "note": "text"})
AT_2 = [("a", "7", "x"), ("b", "2", "y")]
AT_3 = [("a", "8", 'it\'s "quoted"'), ("b", "2", "y"), ("c", str(10**30), None)]


@pytest.fixture(params=["duckdb", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a database as the first release has left it."""
    sql = (HERE / f"{request.param}.sql").read_text("utf-8")
    if request.param == "duckdb":
        path = str(tmp_path / "old.duckdb")
        with duckdb.connect(path) as connection:
            connection.execute(sql)
        return path
    made = database()
    with psycopg.connect(made, autocommit=True) as connection:
        connection.execute(sql.encode())
    return made


class Opened:
    """A target on an old database, under the id that the old stream had."""

    def __init__(self, target: Any, stream_id: str) -> None:
        target.bind(stream_id)
        self.target = target
        self.state = target.recover()

    def fork(self, number: int) -> None:
        safe = next(one for one in self.state.landing_points() if one.number == number)
        self.state = self.state.rewind(safe)
        self.target.roll_back(self.state)

    def block(self, number: int, data: dict[str, Any]) -> None:
        parent = self.state.cursor
        header = BlockHeader(number, f"n{number}", parent.hash, number - 1, 1000 + number)
        head = Head(self.state.finalized)
        state = self.state.advance([header], head)
        batch = Batch((header,), head, state, (), Delivery(data))
        prepare = self.target.capabilities.prepare_batch
        self.target.commit([batch if prepare is None else prepare(batch)], state)
        self.state = state

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.target.query(sql).to_pylist()]

    def owners(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT id, n::varchar, note FROM owner ORDER BY id")


def write(tx: Any, data: Any) -> None:
    tx.insert("log", data["log"])
    tx.upsert("balance", data["balance"])


def rows_of(address: str) -> Opened:
    tables = [table("log", append_only=True), table("balance", key=["who"])]
    if address.endswith(".duckdb"):
        target: Any = duckdb_target(address, tables=[*tables, "plain"], on_data=write)
    else:
        target = postgres_target(address, tables=tables, on_data=write)
    return Opened(target, "rows")


def test_a_fork_undoes_rows_that_the_first_release_wrote(address: str) -> None:
    old = rows_of(address)
    assert old.state.number == 5
    log = pa.table({"block_number": [6], "v": ["v6"]})
    old.block(6, {"log": log, "balance": pa.table({"who": ["a", "b1"], "value": [6, 66]})})
    old.fork(4)
    balances = "SELECT who, value FROM balance ORDER BY who"
    assert old.rows(balances) == [("a", 4), ("b1", 10), ("b3", 30), ("b4", 40)]
    old.fork(3)
    assert old.rows(balances) == [("a", 3), ("b1", 10), ("b2", 20), ("b3", 30)]
    assert old.rows("SELECT block_number, v FROM log ORDER BY 1") == [
        (1, "v1"),
        (2, "v2"),
        (3, "v3"),
    ]
    if address.endswith(".duckdb"):
        assert old.rows("SELECT v FROM plain ORDER BY v") == [(1,), (1,), (2,), (2,), (3,), (3,)]
    old.target.close()


def test_a_fork_undoes_changes_that_the_first_release_made(address: str) -> None:
    old = Opened(history_target(address, tables=[OWNER]), "changes")
    assert old.state.number == 5
    changes = Changes(block=6).update("owner", "c", n=6).insert("owner", "a", n=0)
    old.block(6, {"changes": changes.toArrow()})
    old.fork(3)
    assert old.owners() == AT_3
    assert old.rows("SELECT block_num FROM cursors") == [(3,)]
    old.fork(2)
    assert old.owners() == AT_2
    assert old.rows("SELECT count(*) FROM substreams_history") == [(0,)]
    old.target.close()


def test_a_fork_undoes_a_table_that_is_no_longer_declared(address: str) -> None:
    other = TableSchema("other", ["id"], {"id": "text"})
    old = Opened(history_target(address, tables=[other]), "changes")
    old.fork(3)
    assert old.owners() == AT_3
    old.target.close()


def test_a_stream_is_forgotten_with_changes_of_tables_that_are_no_longer_declared(
    address: str,
) -> None:
    other = TableSchema("other", ["id"], {"id": "text"})
    Opened(history_target(address, tables=[other]), "changes").target.close()
    open_admin(address).reset("changes", force=True)
    again = Opened(history_target(address, tables=[other]), "changes")
    assert again.rows("SELECT count(*) FROM substreams_history") == [(0,)]
    assert again.rows("SELECT * FROM cursors") == []
    again.target.close()


def test_a_cursor_goes_back_before_the_stream_was_started_again(address: str) -> None:
    streams = {one.id: one for one in open_admin(address).streams()}
    assert [(one.name, one.undo) for one in streams["changes"].tables] == [("owner", "change_log")]
    open_admin(address).move("changes", 3)
    open_admin(address).move("rows", 3)
    old = Opened(history_target(address, tables=[OWNER]), "changes")
    assert (old.state.number, old.owners()) == (3, AT_3)
    assert old.rows("SELECT block_num FROM cursors") == [(3,)]
    old.target.close()
    rows = rows_of(address)
    assert rows.rows("SELECT who, value FROM balance ORDER BY who")[0] == ("a", 3)
    rows.target.close()
