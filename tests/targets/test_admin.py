"""Moving cursors, forgetting streams and preparing a place, on DuckDB and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import BlockCursor, PipeState
from headwater.errors import (
    CursorMoveError,
    HeadwaterError,
    InvalidOptionError,
    PostgresLockError,
    PostgresStatementError,
    SchemaFileError,
    StreamInUseError,
)
from headwater.targets import duckdb_target, history_target, postgres_target
from headwater.targets import table as declare
from headwater.targets.admin import (
    MoveKind,
    StreamStatus,
    TableStatus,
    explain_move,
    explain_reset,
    kind_of,
    open_admin,
    plan_move,
)
from headwater.targets.schema_file import SchemaFile, TableSchema, tables_of
from headwater.testing.conformance.model import Rig, balance, log, upsert
from tests.targets.places import Place, make_place


@pytest.fixture(params=["duckdb", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, tmp_path)


def fill(rig: Rig, last: int = 8, final: int = 4) -> Rig:
    """Commit blocks 1 to `last`, which all write both tables."""
    name = id(rig)
    for number in range(1, last + 1):
        rig.block(number, log(number, number), upsert(balance(f"{name}", "t", number)), final=final)
    rig.target.close()
    return rig


def test_streams_are_shown_with_where_they_can_go_back_to(place: Place) -> None:
    fill(place.rig())
    (status,) = open_admin(place.address).streams()
    assert status.id == "one"
    assert status.state.cursor == BlockCursor(8, "a8")
    assert [one.number for one in status.state.landing_points()] == [4, 5, 6, 7, 8]
    assert {(one.name, one.undo, one.shared) for one in status.tables} == {
        ("log", "append_only", False),
        ("balances", "keyed", False),
    }


@pytest.mark.guarantee("OPERATE-1")
def test_a_move_within_reach_undoes_the_data_exactly(place: Place) -> None:
    rig = fill(place.rig())
    move = open_admin(place.address).move("one", 6)
    assert move.kind is MoveKind.UNDO
    rig.target = place.target()
    state = rig.target.recover()
    assert state == move.state
    rig.model.roll_back(state)
    rig.check()
    rig.block(7, log(7, "new"), branch="b", final=4)
    rig.check()
    rig.target.close()


@pytest.mark.guarantee("OPERATE-1")
def test_below_finality_nothing_is_touched_without_force(place: Place) -> None:
    rig = fill(place.rig())
    with pytest.raises(CursorMoveError, match=r"E0013.*below what can be undone.*wanted=2.*oldest"):
        open_admin(place.address).move("one", 2)
    with pytest.raises(CursorMoveError, match=r"E0013.*gives up final data"):
        open_admin(place.address).reset("one")
    rig.target = place.target()
    assert rig.target.recover() == rig.state
    rig.check()
    rig.target.close()


def test_with_force_rows_go_by_their_block(place: Place) -> None:
    rig = Rig(place.target(only="log"), place.rows, ["log"])
    rig.target.recover()
    for number in range(1, 9):
        rig.block(number, log(number, number), final=4)
    rig.target.close()
    move = open_admin(place.address).move("one", 2, block_hash="a2", force=True)
    assert move.kind is MoveKind.BELOW
    assert sorted(row["block_number"] for row in place.rows("log")) == [1, 2]
    rig.target = place.target(only="log")
    assert rig.target.recover() == PipeState(BlockCursor(2, "a2"), None, (BlockCursor(2, "a2"),))
    rig.target.close()


@pytest.mark.guarantee("OPERATE-1")
def test_final_blocks_are_not_taken_from_tables_whose_rows_do_not_say_theirs(place: Place) -> None:
    rig = fill(place.rig())
    refused = r"E0013.*would count twice.*wanted=2.*oldest=4#a4, tables=balances\)"
    with pytest.raises(CursorMoveError, match=refused):
        open_admin(place.address).move("one", 2, force=True)
    rig.target = place.target()
    assert rig.target.recover() == rig.state
    rig.check()
    rig.target.close()


def test_forward_needs_force_and_leaves_out_blocks(place: Place) -> None:
    fill(place.rig())
    with pytest.raises(CursorMoveError, match=r"leave out blocks"):
        open_admin(place.address).move("one", 100)
    move = open_admin(place.address).move("one", 100, force=True)
    assert move.kind is MoveKind.AHEAD
    target = place.target()
    state = target.recover()
    assert (state.cursor, state.finalized) == (BlockCursor(100), BlockCursor(4, "a4"))
    assert len(place.rows("log")) == 8
    target.close()


@pytest.mark.guarantee("OPERATE-1")
def test_a_reset_forgets_a_stream_and_empties_what_is_its_own(place: Place) -> None:
    fill(place.rig())
    open_admin(place.address).reset("one", force=True)
    assert open_admin(place.address).streams() == []
    assert place.rows("log") == place.rows("balances") == []
    assert place.query("SELECT * FROM balances__snapshots") == []
    assert place.query("SELECT * FROM sync__tables") == []
    fill(place.rig()).check()


def test_a_reset_leaves_tables_that_others_write_and_all_if_told_so(place: Place) -> None:
    fill(place.rig())
    other = place.target("two", only="balances")
    other.recover()
    other_rig = Rig(other, place.rows, ["balances"])
    for number in (1, 2):
        other_rig.block(number, upsert(balance("two", "t", number)), final=1)
    other.close()
    open_admin(place.address).reset("one", force=True)
    assert sorted(row["owner"] for row in place.rows("balances"))[-1] == "two"
    assert len(place.rows("balances")) == 2
    assert place.rows("log") == []
    open_admin(place.address).reset("two", force=True, keep_data=True)
    assert len(place.rows("balances")) == 2
    assert open_admin(place.address).streams() == []


@pytest.mark.guarantee("OPERATE-2")
def test_nothing_is_moved_while_a_stream_is_written(place: Place) -> None:
    fill(place.rig())
    writer = place.target()
    writer.recover()
    for change in (
        lambda: open_admin(place.address).move("one", 6),
        lambda: open_admin(place.address).reset("one", force=True),
    ):
        with pytest.raises((PostgresLockError, StreamInUseError)):
            change()
    assert [one.id for one in open_admin(place.address).streams()] == ["one"], "looking is free"
    writer.close()
    open_admin(place.address).move("one", 6)


def test_a_stream_that_is_not_there_is_named_with_those_that_are(place: Place) -> None:
    fill(place.rig())
    with pytest.raises(CursorMoveError, match=r"no such stream.*stream=two, known=one"):
        open_admin(place.address).move("two", 6)


def test_a_failure_halfway_leaves_everything(place: Place) -> None:
    rig = fill(place.rig())
    with pytest.raises(CursorMoveError, match="another block is stored there"):
        open_admin(place.address).move("one", 6, block_hash="b6")
    rig.check()


# --- setup ----------------------------------------------------------------------------------------

TABLES = SchemaFile(
    (
        TableSchema(
            "log",
            pa.schema(
                [("block_number", pa.int64()), ("log_index", pa.int64()), ("value", "string")]
            ),
        ),
        TableSchema(
            "balances",
            pa.schema([(name, pa.string()) for name in ("owner", "token", "value", "note")]),
            ("owner", "token"),
        ),
    )
)


def test_setup_creates_what_a_stream_then_uses_and_may_be_repeated(place: Place) -> None:
    created = open_admin(place.address).setup(TABLES)
    assert {"sync", "sync__tables", "headwater_config", "log", "balances"} == set(created)
    assert open_admin(place.address).setup(TABLES) == []
    fill(place.rig()).check()


def test_setup_runs_sql_whole_or_not_at_all(place: Place) -> None:
    sql = "CREATE TABLE a (x INTEGER PRIMARY KEY); CREATE TABLE b (y TEXT); -- done\n"
    assert "a" in open_admin(place.address).setup(SchemaFile(sql=sql))
    with pytest.raises(SchemaFileError, match=r"E0014.*a statement failed"):
        open_admin(place.address).setup(SchemaFile(sql="CREATE TABLE c (x INT); CREATE TABLE b ()"))
    with pytest.raises(
        (SchemaFileError, PostgresStatementError), match="COMMIT is not allowed in a schema file"
    ):
        open_admin(place.address).setup(SchemaFile(sql="CREATE TABLE c (x INT); COMMIT;"))
    with pytest.raises(HeadwaterError):
        open_admin(place.address).setup(SchemaFile((TableSchema("c", pa.schema([]), ("x",)),)))
    names = place.query("SELECT table_name FROM information_schema.tables")
    assert "c" not in {row["table_name"] for row in names}


def test_setup_takes_the_schema_of_anything_that_has_one(place: Place) -> None:
    table = pa.table({"block_number": pa.array([], pa.int64()), "value": pa.array([], "string")})
    assert "transfers" in open_admin(place.address).setup(tables_of(transfers=table))
    assert place.rows("transfers") == []


def test_tables_that_others_refer_to_cannot_be_emptied(tmp_path: Path) -> None:
    place = make_place("postgres", tmp_path)
    rig = fill(place.rig())
    sql = (
        "CREATE TABLE mine (owner text, token text, FOREIGN KEY (owner, token) REFERENCES balances)"
    )
    open_admin(place.address).setup(SchemaFile(sql=sql))
    with pytest.raises(CursorMoveError, match=r"cannot be emptied.*mine"):
        open_admin(place.address).reset("one", force=True)
    rig.check()


# --- deciding -------------------------------------------------------------------------------------


def test_between_two_stored_blocks_the_lower_one_is_meant() -> None:
    chain = tuple(BlockCursor(number, f"h{number}") for number in (4, 6, 9))
    state = PipeState(chain[-1], chain[0], chain)
    stream = StreamStatus("one", state, (TableStatus("log", "append_only"),))
    assert plan_move(stream, 8).number == 6
    assert plan_move(stream, 9).state == state
    with pytest.raises(CursorMoveError, match="nothing is committed yet"):
        plan_move(StreamStatus("one", PipeState()), 5)


def test_data_that_would_not_follow_is_left_behind_only_by_force(tmp_path: Path) -> None:
    """Untracked tables are not known here."""
    path = str(tmp_path / "a.duckdb")
    free = declare("free", untracked=True)
    target = duckdb_target(path, tables=[free], on_data=lambda tx, data: None)
    target.bind("one")
    rig = Rig(target, lambda table: [], [])
    target.recover()
    for number in range(1, 5):
        rig.block(number, final=1)
    target.close()
    with pytest.raises(CursorMoveError, match=r"E0013.*no table of the stream is known"):
        open_admin(path).move("one", 2)
    (stream,) = open_admin(path).streams()
    assert "No table of the stream is known" in " ".join(explain_reset(stream, keep_data=False))
    move = open_admin(path).move("one", 2, force=True)
    assert "No table of the stream is known" in " ".join(explain_move(move, stream))


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("postgresql://localhost/chain", "postgres"),
        ("postgres://u:p@host/db", "postgres"),
        ("host=localhost dbname=chain", "postgres"),
        ("host=localhost options=a://b", "postgres"),
        ("http://u:p@localhost:8123/chain?insert_quorum=2", "clickhouse"),
        ("HTTPS://host", "clickhouse"),
        ("chain.duckdb", "duckdb"),
        ("/tmp/some where/chain.db", "duckdb"),
        ("lake/day=2024-01-01/host=a/chain.duckdb", "duckdb"),
    ],
)
def test_a_database_is_told_from_a_file(address: str, kind: str) -> None:
    assert kind_of(address) == kind


@pytest.mark.parametrize(
    ("make", "address"),
    [
        (history_target, "http://me:secret@host/x"),
        (history_target, "mysql://me:secret@host/x"),
        (duckdb_target, "http://me:secret@host/x.duckdb"),
        (duckdb_target, "postgresql://me:secret@host/x"),
        (postgres_target, "http://me:secret@host/x"),
        (postgres_target, "mysql://me:secret@host/x"),
    ],
)
def test_a_target_refuses_the_address_of_something_else_when_it_is_made(
    make: Callable[..., Any], address: str
) -> None:
    with pytest.raises(InvalidOptionError, match=r"E0007.*this target takes") as refused:
        make(address, tables=["a"], **({} if make is history_target else {"on_data": print}))
    assert "secret" not in str(refused.value)


def test_an_address_of_something_else_is_refused_without_its_password() -> None:
    for address in ("clickhouse://me:secret@host/x", "mysql://me:secret@host/x?a=b"):
        with pytest.raises(InvalidOptionError, match=r"E0007.*begins with.*http://") as refused:
            open_admin(address)
        assert "secret" not in str(refused.value)
