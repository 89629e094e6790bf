"""A database of substreams-sink-sql, taken over where it stopped, and handed back; both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.changes import Changes
from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState, resolve_undo
from headwater.substreams.cursor_text import CursorText, final_block, write_cursor
from headwater.targets import history_target
from headwater.targets.contract import Delivery, SideTable, prepared
from headwater.testing.substreams import simulated_endpoint
from tests.substreams.scripted import TABLES, chain_of, expected, run, stop_at, stored, stream_of
from tests.targets import postgres_places
from tests.targets.change_log.places import Place, open_place

HASH = "6aca30692dfa835efe09fbf51b0a1735ea3b3155"
SIDE = SideTable(
    "substreams_cursors",
    pa.schema(
        [
            ("block_number", pa.int64()),
            ("ordinal", pa.int64()),
            ("block_hash", pa.string()),
            ("cursor", pa.string()),
        ]
    ),
)
SINK = """
CREATE TABLE transfer (id VARCHAR PRIMARY KEY, "from" VARCHAR, "to" VARCHAR, value BIGINT);
CREATE TABLE cursors (id TEXT NOT NULL PRIMARY KEY, cursor TEXT, block_num BIGINT, block_id TEXT);
CREATE TABLE substreams_history (id SERIAL PRIMARY KEY, op CHAR, table_name TEXT, pk TEXT,
    prev_value TEXT, block_num BIGINT);
"""


def cursor_of(number: int, final: int) -> str:
    block = BlockCursor(number, f"h{number}")
    return write_cursor(CursorText(1, block, block, BlockCursor(final, f"h{final}")))


@pytest.fixture
def address() -> str:
    """A database that the sink has left at block 102; 99 was final."""
    found = postgres_places.database()
    with psycopg.connect(found, autocommit=True) as sink:
        sink.execute(SINK)
        sink.execute(
            "INSERT INTO transfer VALUES ('tx1', 'alice', 'bob', 1500), ('tx2', 'bob', 'al', 5)"
        )
        sink.execute(
            "INSERT INTO substreams_history (op, table_name, pk, prev_value, block_num) VALUES "
            """('I', '"public"."transfer"', '{"id":"tx1"}', NULL, 100), """
            """('U', 'public.transfer', '{"id":"tx1"}', """
            """'{"id":"tx1","from":"alice","to":"bob","value":1000}', 101), """
            """('D', '"public"."transfer"', '{"id":"gone"}', """
            """'{"id":"gone","from":"x","to":"y","value":1}', 102), """
            """('I', '"public"."transfer"', '{"id":"tx2"}', NULL, 102)"""
        )
        sink.execute("INSERT INTO cursors VALUES (%s, %s, 102, 'h102')", [HASH, cursor_of(102, 99)])
    return found


def open_target(address: str) -> tuple[Any, PipeState]:
    target = history_target(address, tables=["transfer"], shared_with_sink=final_block)
    target.bind(HASH)
    target.capabilities.side_tables.open_side_tables([SIDE])  # type: ignore[union-attr]
    return target, target.recover()


def commit(target: Any, state: PipeState, number: int, changes: Changes) -> PipeState:
    header = BlockHeader(number, f"h{number}", f"h{number - 1}", number - 1, 1000 + number)
    head = Head(BlockCursor(99, "h99"))
    after = state.advance([header], head)
    row = {"block_number": number, "ordinal": 0, "block_hash": f"h{number}",
           "cursor": cursor_of(number, 99)}  # fmt: skip
    side = {"substreams_cursors": pa.Table.from_pylist([row], schema=SIDE.columns)}
    batch = Batch((header,), head, after, (header.cursor,),
                  Delivery({"changes": changes.toArrow()}, None, side))  # fmt: skip
    target.commit([prepared(target, batch)], after)
    return after


def rows(address: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address) as connection:
        return connection.execute(sql).fetchall()


TABLE = "SELECT id, value FROM transfer ORDER BY id"


def test_the_stream_goes_on_after_the_sinks_block(address: str) -> None:
    target, state = open_target(address)
    assert (state.cursor, state.finalized) == (BlockCursor(102, "h102"), BlockCursor(99, "h99"))
    found = target.capabilities.side_tables.read_side_table("substreams_cursors")
    assert found["cursor"].to_pylist() == [cursor_of(102, 99)]
    state = commit(target, state, 103, Changes(block=103).update("transfer", "tx1", value=7))
    assert rows(address, TABLE) == [("tx1", 7), ("tx2", 5)]
    target.roll_back(state.rewind(BlockCursor(99, "h99")))
    target.close()
    assert rows(address, TABLE) == [("gone", 1)]  # as the sink's own log says it was
    assert rows(address, "SELECT count(*) FROM substreams_history") == [(0,)]


def test_taking_over_twice_changes_nothing(address: str) -> None:
    first, state = open_target(address)
    first.close()
    second, again = open_target(address)
    second.close()
    assert again == state


def test_the_sink_can_go_on_and_come_back(address: str) -> None:
    target, state = open_target(address)
    commit(target, state, 103, Changes(block=103).insert("transfer", "tx3", value=9))
    target.close()
    assert rows(address, "SELECT id, cursor, block_num, block_id FROM cursors") == [
        (HASH, cursor_of(103, 99), 103, "h103")
    ]
    with psycopg.connect(address, autocommit=True) as sink:  # what the sink does for a block
        sink.execute(
            "INSERT INTO substreams_history (op, table_name, pk, prev_value, block_num) "
            """SELECT 'U', 'public.transfer', '{"id":"tx3"}', row_to_json(transfer), 104 """
            "FROM transfer WHERE id = 'tx3'"
        )
        sink.execute("UPDATE transfer SET value = 10 WHERE id = 'tx3'")
        sink.execute("DELETE FROM substreams_history WHERE block_num <= 100")
        done = sink.execute(
            "UPDATE cursors SET cursor = %s, block_num = 104, block_id = 'h104' WHERE id = %s",
            [cursor_of(104, 100), HASH],
        )
        assert done.rowcount == 1
    target, state = open_target(address)
    assert (state.cursor, state.finalized) == (BlockCursor(104, "h104"), BlockCursor(100, "h100"))
    target.roll_back(state.rewind(BlockCursor(100, "h100")))
    target.close()
    assert rows(address, TABLE) == [("gone", 1), ("tx1", 1000)]


def test_a_cursor_that_cannot_be_read_is_taken_over_without_finality(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as sink:
        sink.execute("UPDATE cursors SET cursor = 'unreadable'")
    target, state = open_target(address)
    target.close()
    assert (state.number, state.finalized) == (102, None)


def test_a_fork_goes_back_to_any_block_that_the_sinks_log_reaches(address: str) -> None:
    target, state = open_target(address)
    found = resolve_undo(state, BlockCursor(101, "h101"))
    assert found is not None
    assert found.safe_cursor == BlockCursor(101, "h101")
    target.roll_back(state.rewind(found.safe_cursor))
    target.close()
    assert rows(address, TABLE) == [("gone", 1), ("tx1", 1500)]
    again, state = open_target(address)
    again.close()
    assert state.cursor == BlockCursor(101, "h101")


@pytest.mark.parametrize("final", [99, 101, 102])
def test_what_the_sink_has_pruned_is_final_though_its_cursor_names_one_block_less(
    address: str, final: int
) -> None:
    with psycopg.connect(address, autocommit=True) as sink:
        sink.execute("DELETE FROM substreams_history WHERE block_num <= %s", [final])
        sink.execute("UPDATE cursors SET cursor = %s", [cursor_of(102, final - 1)])
    target, state = open_target(address)
    target.close()
    assert state.finalized is not None
    assert state.finalized.number == final
    assert [one.number for one in state.landing_points()] == list(range(final, 103))


@pytest.mark.guarantee("UNDO-1")
@pytest.mark.parametrize(("depth", "located"), [(1, True), (6, True), (9, True), (4, False)])
def test_the_last_blocks_of_the_sink_were_orphaned_before_the_stream_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int, located: bool
) -> None:
    """Every block after the one that stays is read again, and none that the sink has pruned."""
    chain = chain_of(30, 20)
    with open_place("postgres", tmp_path) as place, simulated_endpoint(chain=chain) as server:
        run(stream_of(server), shared(place), stop_at(29))
        for table in ("sync", "headwater_substreams_cursors", "headwater_config"):
            place.sql(f"DROP TABLE IF EXISTS {table} CASCADE")
        place.sql("UPDATE substreams_history SET stream_id = ''")
        chain.fork(depth, length=depth + 3)
        if not located:
            monkeypatch.setattr(chain, "find", lambda block_hash: None)
        run(stream_of(server), shared(place), stop_at(32))
        chain.fork(2, length=5)
        target = shared(place)
        run(stream_of(server), target, stop_at(35))
        assert stored(target.query) == expected(chain.canonical(0, 35))


# --- keys of every type, both ways ----------------------------------------------------------------

# columns of the key; values as a module writes them
KEYS: dict[str, tuple[str, dict[str, str]]] = {
    "text": ('"Name" VARCHAR', {"Name": 'a "b" <c> ä'}),
    "bigint": ("slot BIGINT", {"slot": "128879"}),
    "numeric": ("amount NUMERIC(78,0)", {"amount": str(10**77 + 1)}),
    "fraction": ("price NUMERIC", {"price": "1.50"}),
    "boolean": ("flag BOOLEAN", {"flag": "true"}),
    "date": ("day DATE", {"day": "2024-02-29"}),
    "time": ("at TIMESTAMPTZ", {"at": "2024-02-29 01:02:03.456+00"}),
    "uuid": ("ref UUID", {"ref": "6f9619ff-8b86-d011-b42d-00c04fc964ff"}),
    "two": ("zone INTEGER, area VARCHAR", {"zone": "7", "area": "x"}),
}


@pytest.fixture(params=KEYS)
def keyed(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """A database that the sink has left at block 102, which changed a row in 101, and the row."""
    columns, key = KEYS[request.param]
    found = postgres_places.database()
    names = ", ".join(f'"{name}"' for name in key)
    with psycopg.connect(found, autocommit=True) as sink:
        sink.execute(SINK.replace("transfer", "other"))
        sink.execute(f'CREATE TABLE "Held" ({columns}, n BIGINT, PRIMARY KEY ({names}))')
        values = ", ".join(["%s"] * len(key))
        sink.execute(f'INSERT INTO "Held" ({names}, n) VALUES ({values}, 1)', [*key.values()])
        sink_log(sink, "U", "Held", key, 101)
        sink.execute('UPDATE "Held" SET n = 2')
        sink.execute("INSERT INTO cursors VALUES (%s, %s, 102, 'h102')", [HASH, cursor_of(102, 99)])
    return found, key


def sink_log(sink: Any, op: str, table: str, key: dict[str, str], block: int) -> None:
    """Write a row of the sink's log: keys are texts, in the order of their names."""
    where = " AND ".join(f'"{name}" = %s' for name in key)
    image = "NULL" if op == "I" else f'(SELECT row_to_json(t) FROM "{table}" t WHERE {where})'
    sink.execute(
        "INSERT INTO substreams_history (op, table_name, pk, prev_value, block_num) "
        f"SELECT %s, %s, %s, {image}, %s",
        [
            op,
            f'"public"."{table}"',
            json.dumps(key, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
            *([] if op == "I" else key.values()),
            block,
        ],
    )


def sink_undo(sink: Any, last_valid: int) -> None:
    """Undo as the sink does: what the log calls a table stands in statements as it is."""
    rows = sink.execute(
        "SELECT op, table_name, pk, prev_value FROM substreams_history WHERE block_num > %s "
        "ORDER BY block_num DESC",
        [last_valid],
    ).fetchall()
    for op, table, pk, image in rows:
        key = json.loads(pk)
        assert all(isinstance(value, str) for value in key.values()), pk
        where = " AND ".join(f'"{name}" = %s' for name in key)
        if op == "I":
            sink.execute(f"DELETE FROM {table} WHERE {where}", [*key.values()])
            continue
        names = ", ".join(f'"{name}"' for name in json.loads(image))
        source = f"json_populate_record(NULL::{table}, %s)"
        if op == "D":
            sink.execute(f"INSERT INTO {table} SELECT * FROM {source}", [image])
        else:
            sink.execute(
                f"UPDATE {table} SET ({names}) = (SELECT {names} FROM {source}) WHERE {where}",
                [image, *key.values()],
            )
    sink.execute("DELETE FROM substreams_history WHERE block_num > %s", [last_valid])


def open_keyed(address: str) -> tuple[Any, PipeState]:
    target = history_target(address, tables=["Held"], shared_with_sink=final_block)
    target.bind(HASH)
    target.capabilities.side_tables.open_side_tables([SIDE])  # type: ignore[union-attr]
    return target, target.recover()


@pytest.mark.guarantee("UNDO-1")
def test_a_row_that_the_sink_changed_before_us_goes_back_to_what_it_was_before_both(
    keyed: tuple[str, dict[str, str]],
) -> None:
    address, key = keyed
    target, state = open_keyed(address)
    state = commit(target, state, 103, Changes(block=103).update("Held", key, n=3))
    state = commit(target, state, 104, Changes(block=104).delete("Held", key))
    target.roll_back(state.rewind(state.landing_points()[0]))
    target.close()
    assert rows(address, 'SELECT n FROM "Held"') == [(1,)]


@pytest.mark.guarantee("UNDO-1")
@pytest.mark.parametrize("last_valid", [100, 102, 103, 104])
def test_the_sink_goes_on_and_undoes_what_we_have_written(
    keyed: tuple[str, dict[str, str]], last_valid: int
) -> None:
    """Rows that were there, that we have made, and that we have removed; keys of every type."""
    address, key = keyed
    target, state = open_keyed(address)
    state = commit(target, state, 103, Changes(block=103).update("Held", key, n=3))
    state = commit(target, state, 104, Changes(block=104).delete("Held", key))
    commit(target, state, 105, Changes(block=105).insert("Held", key, n=5))
    target.close()
    with psycopg.connect(address, autocommit=True) as sink:
        sink_undo(sink, last_valid)
    expected = {100: [(1,)], 102: [(2,)], 103: [(3,)], 104: []}
    assert rows(address, 'SELECT n FROM "Held"') == expected[last_valid]


def shared(place: Place) -> Any:
    return place.target(*TABLES, shared_with_sink=final_block)


def test_an_empty_cursor_and_those_of_other_modules_are_left_alone(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as sink:
        sink.execute("UPDATE cursors SET id = 'other'")
        sink.execute("INSERT INTO cursors VALUES (%s, '', 0, '')", [HASH])
    target, state = open_target(address)
    target.close()
    assert state == PipeState()
    assert rows(address, "SELECT block_num FROM cursors WHERE id = 'other'") == [(102,)]
