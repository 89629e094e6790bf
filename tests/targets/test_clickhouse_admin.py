"""Moving cursors, forgetting streams and preparing a database, on a real ClickHouse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import BlockCursor, PipeState
from headwater.errors import (
    ClickHouseSharedTableError,
    ClickHouseTableError,
    ClickHouseWriterError,
    CursorMoveError,
    SchemaFileError,
)
from headwater.targets.admin import Admin, MoveKind, explain_move, explain_reset, open_admin
from headwater.targets.clickhouse import ClickHouseSettings, clickhouse_target, table
from headwater.targets.clickhouse.admin import ClickHouseAdmin
from headwater.targets.contract import SideTable
from headwater.targets.schema_file import SchemaFile, TableSchema
from headwater.targets.sql.tokens import CLICKHOUSE
from tests.sampling import every
from tests.targets.clickhouse_places import Stream, admin, database

NOTES = SideTable("notes", pa.schema([("block_number", pa.int64()), ("ordinal", pa.int64())]))
TABLES = [table("own"), table("both", stream_column="stream")]
VIEW = (
    "CREATE MATERIALIZED VIEW total ENGINE = SummingMergeTree ORDER BY one AS "
    "SELECT 1 AS one, sum(value * sign) AS total FROM own GROUP BY one"
)


class CrashError(Exception):
    """Stands for a process that is gone."""


def rows(number: int) -> pa.Table:
    return pa.table({"block_number": [number], "log_index": [0], "value": [number]})


def notes(number: int) -> pa.Table:
    return pa.table({"block_number": [number], "ordinal": [0]})


def started(url: str, stream_id: str = "one", **options: Any) -> Stream:
    options.setdefault("tables", TABLES)
    options.setdefault("on_data", insert)
    target = clickhouse_target(url, settings=ClickHouseSettings(id=stream_id), **options)
    target.open_side_tables([NOTES])
    return Stream(target, url)


def insert(store: Any, data: Any) -> None:
    for name, frame in data.items():
        store.insert(name, frame)


def fill(
    s: Stream, last: int = 4, final: int = 2, tables: tuple[str, ...] = ("own", "both")
) -> Stream:
    """Commit the blocks up to `last` that are missing; each writes all tables."""
    for number in range(s.state.number + 1 or 1, last + 1):
        side = {"notes": notes(number)}
        s.block(number, {name: rows(number) for name in tables}, final=final, side=side)
    return s


def held(s: Stream, name: str, stream_id: str = "one") -> list[int]:
    column = {"both": "stream", "headwater_notes": "stream_id"}.get(name)
    which = f"WHERE {column} = '{stream_id}'" if column else ""
    found = s.rows(f"SELECT block_number AS n FROM {name} FINAL {which} ORDER BY n")
    return [one["n"] for one in found]


def everywhere(s: Stream, stream_id: str = "one") -> list[int]:
    """Return the blocks whose rows are there: the same ones in all tables."""
    own = held(s, "own")
    assert own == held(s, "both", stream_id) == held(s, "headwater_notes", stream_id)
    return own


# --- moving ---------------------------------------------------------------------------------------


@pytest.mark.guarantee("OPERATE-1")
def test_a_move_within_reach_does_what_a_fork_does() -> None:
    url = database()
    s = started(url)
    s.block(1, {"own": rows(1), "both": rows(1)}, side={"notes": notes(1)})
    s.sql(VIEW)
    fill(s)
    other = started(url, "two", tables=[TABLES[1]])
    fill(other, 2, tables=("both",))
    (one, two) = open_admin(url).streams()
    assert (one.id, two.id) == ("one", "two")
    assert {(t.name, t.undo, t.shared, t.own_rows) for t in one.tables} == {
        ("own", "collapsing", False, False),
        ("both", "collapsing", True, True),
    }
    move = open_admin(url).move("one", 3)
    assert move.kind is MoveKind.UNDO
    assert everywhere(s) == [1, 2, 3]
    assert s.rows("SELECT sum(total) AS n FROM total") == [{"n": sum(range(2, 4))}]
    assert held(s, "both", "two") == [1, 2]
    again = started(url)
    assert again.state == move.state == s.state.rewind(BlockCursor(3, "h3", 3))
    again.block(4, {"own": rows(4)}, final=2, branch="b")
    assert held(s, "own") == [1, 2, 3, 4]


@pytest.mark.guarantee("OPERATE-1")
def test_without_force_nothing_final_is_touched_and_nobody_is_stopped() -> None:
    url = database()
    s = fill(started(url))
    for refused in (
        lambda: open_admin(url).move("one", 1),
        lambda: open_admin(url).move("one", 20),
        lambda: open_admin(url).move("one", 3, block_hash="other"),
        lambda: open_admin(url).reset("one"),
        lambda: open_admin(url).move("two", 3),
    ):
        with pytest.raises(CursorMoveError, match=r"E0013|E0035"):
            refused()
    fill(s, 5)
    assert everywhere(s) == list(range(1, 6))


@pytest.mark.guarantee("OPERATE-1")
def test_with_force_rows_go_back_however_far_and_finality_is_forgotten() -> None:
    url = database()
    s = fill(started(url))
    move = open_admin(url).move("one", 1, block_hash="h1", force=True)
    assert move.kind is MoveKind.BELOW
    assert everywhere(s) == [1]
    again = started(url)
    assert again.state == PipeState(BlockCursor(1, "h1"), None, (BlockCursor(1, "h1"),))
    assert everywhere(fill(again)) == list(range(1, 5))


def test_a_move_ahead_does_not_make_rows_of_a_crash_count() -> None:
    url = database()
    s = fill(started(url))
    s.sql("INSERT INTO own (block_number, log_index, value) VALUES (5, 0, 5)")
    move = open_admin(url).move("one", 100, force=True)
    assert move.kind is MoveKind.AHEAD
    state = started(url).state
    assert (state.cursor, state.finalized) == (BlockCursor(100), BlockCursor(2, "h2", 2))
    assert everywhere(s) == list(range(1, 5))


@pytest.mark.guarantee("OPERATE-1")
@pytest.mark.parametrize(("what", "kept"), [("move", 3), ("reset", -1)])
def test_a_crash_anywhere_is_repaired_by_a_start_or_by_the_same_command(
    what: str, kept: int
) -> None:
    def change(place: Admin) -> None:
        if what == "reset":
            place.reset("one", force=True)
        else:
            place.move("one", kept)

    url = database()
    s = fill(started(url))
    sample = every(3)
    crashes, done = 0, False
    while not done:
        place = open_admin(url)
        assert isinstance(place, ClickHouseAdmin)
        place.on_statement = crash_at(crashes)
        try:
            change(place)
            done = True
        except CrashError:
            crashes += sample.every
        now = stored(url)
        moved = now.get("one", -1) == kept
        if crashes % 2 and not done and "one" in now:
            change(open_admin(url))
            moved = True
        s = started(url)
        assert s.state.number == (kept if moved else 4)
        assert everywhere(s) == list(range(1, s.state.number + 1))
        fill(s)
    assert crashes >= {"move": 5, "reset": 6}[what]


def crash_at(nth: int) -> Callable[[str], None]:
    """Return a watcher that lets `nth` changes happen."""
    seen: list[str] = []

    def watch(sql: str) -> None:
        if sql.startswith(("INSERT", "DELETE", "TRUNCATE")):
            seen.append(sql)
            if len(seen) > nth:
                raise CrashError(sql)

    return watch


def stored(url: str) -> dict[str, int]:
    return {one.id: one.state.number for one in open_admin(url).streams()}


# --- beside a writer ------------------------------------------------------------------------------


@pytest.mark.guarantee("OPERATE-2")
@pytest.mark.parametrize("change", ["move", "reset"])
def test_a_running_writer_stops_and_overwrites_nothing(change: str) -> None:
    """Between two batches, and in the middle of one, whose rows the next start removes."""
    url, during = database(), [False]

    def operate() -> None:
        if change == "move":
            open_admin(url).move("one", 3)
        else:
            open_admin(url).reset("one", force=True)

    def on_data(store: Any, data: dict[str, pa.Table]) -> None:
        insert(store, data)
        if during[0]:
            during[0] = False
            operate()

    s = fill(started(url, on_data=on_data))
    during[0] = True
    with pytest.raises(ClickHouseWriterError, match=r"E2016.*moved"):
        fill(s, 5)
    assert stored(url).get("one") == (3 if change == "move" else None)
    again = started(url, on_data=on_data)
    assert again.state.number == (3 if change == "move" else -1)
    fill(again)
    operate()
    with pytest.raises(ClickHouseWriterError):
        fill(again, 5)


def test_a_writer_that_stores_its_state_at_that_very_moment_is_noticed() -> None:
    url = database()
    s = fill(started(url))
    place = open_admin(url)
    assert isinstance(place, ClickHouseAdmin)

    def watch(sql: str) -> None:
        if "_headwater_net" in sql and sql.startswith(
            "INSERT"
        ):  # rows are being removed: the new state is stored
            s.sql(
                "INSERT INTO sync SELECT id, current, finalized, rollback_chain, "
                "timestamp + INTERVAL 1 DAY, 1 FROM sync ORDER BY timestamp DESC LIMIT 1"
            )

    place.on_statement = watch
    with pytest.raises(ClickHouseWriterError, match="newer state"):
        place.move("one", 3)


# --- forgetting -----------------------------------------------------------------------------------


@pytest.mark.guarantee("OPERATE-1")
def test_a_reset_forgets_a_stream_and_removes_what_is_its_own() -> None:
    url = database()
    s = fill(started(url))
    s.target.stored_config().write("{}")
    other = fill(started(url, "two", tables=[TABLES[1]]), 2, tables=("both",))
    (status, _) = open_admin(url).streams()
    said = " ".join(explain_reset(status, keep_data=False))
    assert "own: is emptied." in said
    assert "both: loses the rows of this stream, and keeps those of others." in said
    open_admin(url).reset("one", force=True)
    assert everywhere(s) == []
    assert held(s, "both", "two") == held(s, "headwater_notes", "two") == [1, 2]
    assert s.target.stored_config().read() is None
    assert list(stored(url)) == ["two"]
    fill(other, 3, tables=("both",))
    assert everywhere(fill(started(url))) == list(range(1, 5))


def test_data_that_was_kept_is_never_there_twice() -> None:
    url = database()
    s = fill(started(url))
    (status,) = open_admin(url).streams()
    said = " ".join(explain_reset(status, keep_data=True))
    assert "both: keeps its rows; when the stream starts on it again, they are removed." in said
    assert "own: keeps its rows; when the stream starts on it again, it is refused (E2015)." in said
    open_admin(url).reset("one", force=True, keep_data=True)
    assert held(s, "own") == held(s, "both") == list(range(1, 5))
    assert held(s, "headwater_notes") == []
    assert stored(url) == {}
    with pytest.raises(ClickHouseSharedTableError, match=r"E2015.*holds rows"):
        started(url)


def test_a_crash_never_loses_data_that_is_to_be_kept() -> None:
    url = database()
    s = fill(started(url))
    crashes = 0
    while "one" in stored(url):
        place = open_admin(url)
        assert isinstance(place, ClickHouseAdmin)
        place.on_statement = crash_at(crashes)
        try:
            place.reset("one", force=True, keep_data=True)
        except CrashError:
            crashes += 1
        with suppress(ClickHouseSharedTableError):
            started(url)
        assert held(s, "own") == held(s, "both") == [1, 2, 3, 4]
    assert crashes >= 4


# --- what is known of streams and tables ----------------------------------------------------------


def test_state_of_the_pipes_sdk_is_moved_before_it_is_adopted() -> None:
    """It has one table, and the key `stream`; the user's hook removes rows at the next start."""
    url = database()
    s = started(url, "made")
    for name in ("sync__tables", "sync__epochs"):
        s.sql(f"DROP TABLE {name}")
    for number in (1, 2, 3):
        block = f'{{"number":{number},"hash":"h{number}"}}'
        final = '{"number":1,"hash":"h1"}'
        s.sql(
            f"INSERT INTO sync SELECT 'stream', '{block}', '{final}', '[{block}]', "
            f"now64(3) - 10 + {number}, 1"
        )
    assert stored(url) == {"stream": 3}
    with pytest.raises(CursorMoveError, match=r"no such stream.*known=stream"):
        open_admin(url).move("usdc", 2)
    with pytest.raises(CursorMoveError, match="no table of the stream is known"):
        open_admin(url).move("stream", 2)
    open_admin(url).move("stream", 2, force=True)
    told: list[int] = []
    target = clickhouse_target(
        url,
        on_data=insert,
        on_rollback=lambda safe_cursor: told.append(safe_cursor.number),
    )
    target.bind("usdc")
    assert target.recover().cursor == BlockCursor(2, "h2")
    assert told == [2]
    assert stored(url) == {"usdc": 2}
    open_admin(url).reset("usdc", force=True)
    assert stored(url) == {}


def test_every_engine_is_named_and_undone_in_its_own_way() -> None:
    url = database()
    mine = [table("newer", engine="ReplacingMergeTree"), table("plain", engine="MergeTree")]
    names = ("newer", "plain")
    s = fill(started(url, tables=mine), tables=names)
    s.sql("CREATE TABLE gone (block_number Int64) ENGINE = MergeTree ORDER BY block_number")
    s.sql("INSERT INTO sync__tables VALUES ('one', currentDatabase(), 'gone', 'block_number', '')")
    s.sql("DROP TABLE gone")
    (status,) = open_admin(url).streams()
    assert [(one.name, one.undo) for one in status.tables] == [
        ("newer", "replacing"),
        ("plain", "deletion"),
    ]
    move = open_admin(url).move("one", 1, force=True)
    assert "materialized views on it keep theirs" in " ".join(explain_move(move, status))
    assert held(s, "newer") == [1]
    assert s.rows("SELECT count() AS n FROM plain") == [{"n": 1}]
    s.sql("DROP TABLE plain")
    s.sql("CREATE VIEW plain AS SELECT 1 AS block_number")
    assert "impossible" in [one.undo for one in open_admin(url).streams()[0].tables]
    with pytest.raises(ClickHouseTableError, match="cannot take rows back"):
        open_admin(url).move("one", 0, force=True)
    assert stored(url) == {"one": 1}


def test_the_state_may_be_kept_elsewhere() -> None:
    url = database()
    where = url.split("/")[-1].split("?")[0] + "_state"
    admin(f"CREATE DATABASE {where}")
    settings = ClickHouseSettings(id="one", database=where, table="mine")
    s = Stream(
        clickhouse_target(url, tables=[table("own")], on_data=insert, settings=settings), url
    )
    for number in (1, 2, 3):
        s.block(number, {"own": rows(number)})
    assert open_admin(url).streams() == []
    place = open_admin(url, schema=where, table="mine")
    place.move("one", 2)
    assert [one.state.number for one in place.streams()] == [2]
    assert place.streams()[0].tables[0].name == "own"
    s.sql(f"DROP DATABASE {where}")


# --- setup ----------------------------------------------------------------------------------------

ASKED = SchemaFile(
    (
        TableSchema(
            "own",
            pa.schema(
                [("block_number", pa.int64()), ("log_index", pa.int64()), ("value", pa.int64())]
            ),
            ("log_index",),
            {"value": "Int128"},
        ),
    )
)
STATE = ["headwater_config", "sync"]
STATE += [f"sync__{one}" for one in ("attempts", "epochs", "settlements", "tables")]


def test_setup_creates_what_a_stream_then_uses_and_may_be_repeated() -> None:
    url = database()
    created = open_admin(url).setup(ASKED, [NOTES])
    assert set(created) == {*STATE, "headwater_notes", "own", "own_live"}
    assert open_admin(url).setup(ASKED, [NOTES]) == []
    assert open_admin(url).streams() == []
    s = fill(started(url), 3)
    assert everywhere(s) == [1, 2, 3]
    kinds = s.rows("SELECT type FROM system.columns WHERE table = 'own' AND name = 'value' "
                   "AND database = currentDatabase()")  # fmt: skip
    assert kinds == [{"type": "Int128"}]


def test_setup_runs_sql_statement_by_statement() -> None:
    url = database()
    sql = (
        "-- two; tables\nSET max_block_size = 33;\n"
        "CREATE TABLE a (x Int64 DEFAULT getSetting('max_block_size'), y String DEFAULT ';') "
        "ENGINE = MergeTree ORDER BY x;\nINSERT INTO a (y) VALUES ('it''s; \\'it\\''); -- done\n"
    )
    assert open_admin(url).setup(SchemaFile(sql=sql)) == ["a", *STATE]
    found = started(url).rows("SELECT x, y FROM a")
    assert found == [{"x": 33, "y": "it's; 'it'"}]
    with pytest.raises(SchemaFileError, match=r"E0014.*statement 2 cannot be read; nothing was"):
        open_admin(url).setup(SchemaFile(sql="CREATE TABLE b (x Int64) ENGINE = Memory; CRATE c"))
    with pytest.raises(SchemaFileError, match=r"statement 2 failed; what was created before it"):
        open_admin(url).setup(
            SchemaFile(sql="CREATE TABLE c (x Int64) ENGINE = Memory; DROP TABLE b")
        )
    bad = SchemaFile((TableSchema("d", pa.schema([("x", pa.int64())]), ("nope",)),))
    with pytest.raises(SchemaFileError, match=r"d.* cannot be created.*nope"):
        open_admin(url).setup(bad)


def test_statements_end_where_the_server_thinks_so() -> None:
    sql = "A ';' \";\" `;` /* ; */ # ;\n$x$ ; $x$ $$;$$;; B -- ;\n;\n-- only; this\n"
    assert len(CLICKHOUSE.split(sql)) == 2
    assert CLICKHOUSE.split(sql)[1].startswith("B")
    assert CLICKHOUSE.split(" \n-- nothing") == []
