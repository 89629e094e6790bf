"""The walkthrough of the seed: blocks 100 to 102, then undone to 100, every table at every step."""

import pytest

from headwater.changes import Changes
from tests.targets.change_log.places import Place

TRANSFER = (
    'CREATE TABLE transfer (id varchar PRIMARY KEY, "from" varchar, "to" varchar, value bigint)'
)
HISTORY = """
CREATE TABLE substreams_history (
    id           SERIAL PRIMARY KEY,
    op           char,           -- Operation type: 'I' (Insert), 'U' (Update), 'D' (Delete)
    table_name   text,           -- Full table name including schema
    pk           text,           -- Primary key as JSON object
    prev_value   text,           -- Previous row data as JSON (for updates/deletes)
    block_num    bigint          -- Block number when operation occurred
);
"""
KEY = '{"id":"tx1"}'
ROW_1000 = '{"id":"tx1","from":"alice","to":"bob","value":1000}'
ROW_1500 = '{"id":"tx1","from":"alice","to":"bob","value":1500}'


def transfer(value: int) -> dict[str, object]:
    return {"id": "tx1", "from": "alice", "to": "bob", "value": value}


def make_sinks_history(place: Place) -> None:
    """Run the seed's statement as it is written; to DuckDB the type SERIAL is told first."""
    place.sql(HISTORY if place.kind == "postgres" else f"CREATE TYPE serial AS INTEGER; {HISTORY}")


@pytest.mark.guarantee("CHANGE-1")
@pytest.mark.parametrize("history", ["ours", "the sink's"])
def test_the_walkthrough_step_by_step(place: Place, history: str) -> None:
    place.sql(TRANSFER)
    if history == "the sink's":
        make_sinks_history(place)
    stream = place.stream("transfer")
    name = f"{place.schema}.transfer"
    inserted = ("I", name, KEY, None, 100)
    updated = ("U", name, KEY, ROW_1000, 101)
    deleted = ("D", name, KEY, ROW_1500, 102)

    def transfers() -> object:
        return stream.rows("SELECT * FROM transfer")

    def cursor() -> object:
        return stream.rows("SELECT id, block_num, block_id FROM cursors")

    assert (transfers(), stream.change_log(), cursor()) == ([], [], [])

    fields = {"from": "alice", "to": "bob", "value": 1000}
    stream.block(100, Changes(block=100).insert("transfer", "tx1", **fields), final=99)
    assert transfers() == [transfer(1000)]
    assert stream.change_log() == [inserted]
    assert cursor() == [{"id": "stream", "block_num": 100, "block_id": "a100"}]

    stream.block(101, Changes(block=101).update("transfer", "tx1", value=1500), final=99)
    assert transfers() == [transfer(1500)]
    assert stream.change_log() == [inserted, updated]
    assert cursor() == [{"id": "stream", "block_num": 101, "block_id": "a101"}]

    stream.block(102, Changes(block=102).delete("transfer", "tx1"), final=99)
    assert transfers() == []
    assert stream.change_log() == [inserted, updated, deleted]
    assert cursor() == [{"id": "stream", "block_num": 102, "block_id": "a102"}]

    stream.fork(100)
    assert transfers() == [transfer(1000)]
    assert stream.change_log() == [inserted]
    assert cursor() == [{"id": "stream", "block_num": 100, "block_id": "a100"}]

    stream.block(101, None, final=100, branch="b")
    assert transfers() == [transfer(1000)]
    assert stream.change_log() == [], "block 100 is final: its history is no longer needed"


def test_final_blocks_leave_no_history(place: Place) -> None:
    """Backfilling historical segments keeps nothing."""
    place.sql(TRANSFER)
    stream = place.stream("transfer")
    for number in range(1, 4):
        changes = Changes(block=number).upsert("transfer", "tx1", value=number)
        stream.block(number, changes, final=number)
        assert stream.change_log() == []
    assert [row["value"] for row in stream.rows("SELECT value FROM transfer")] == [3]


@pytest.mark.parametrize("there", [True, False])
def test_an_upsert_is_kept_as_what_it_was(place: Place, there: bool) -> None:
    """As an update if the row was there, as an insert if not."""
    place.sql(TRANSFER)
    stream = place.stream("transfer")
    first = Changes(block=1)
    stream.block(1, first.insert("transfer", "tx1", value=1) if there else first, final=1)
    stream.block(2, Changes(block=2).upsert("transfer", "tx1", value=2), final=1)
    before = '{"id":"tx1","from":null,"to":null,"value":1}' if there else None
    assert stream.change_log() == [
        ("U" if there else "I", f"{place.schema}.transfer", KEY, before, 2)
    ]
    stream.fork(1)
    assert [row["value"] for row in stream.rows("SELECT value FROM transfer")] == [1] * there


def test_finality_alone_prunes_the_history(place: Place) -> None:
    place.sql(TRANSFER)
    stream = place.stream("transfer")
    for number in range(1, 5):
        stream.block(number, Changes(block=number).upsert("transfer", "tx1", value=number), final=1)
    assert [row[-1] for row in stream.change_log()] == [2, 3, 4]
    stream.settle(3)
    assert [row[-1] for row in stream.change_log()] == [4]
    stream.fork(3)
    assert stream.change_log() == []
    assert [row["value"] for row in stream.rows("SELECT value FROM transfer")] == [3]


def test_the_names_of_its_own_tables_are_yours(place: Place) -> None:
    """Two sinks can share a schema."""
    place.sql(TRANSFER)
    stream = place.stream("transfer", history_table="My History", cursors_table="my.cursors")
    stream.block(1, Changes(block=1).insert("transfer", "tx1", value=1), final=0)
    assert len(stream.rows('SELECT * FROM "My History"')) == 1
    assert len(stream.rows('SELECT * FROM "my.cursors"')) == 1


def test_a_history_of_the_sink_gets_wide_ids_and_keeps_its_rows(place: Place) -> None:
    """The sink can go on writing it; rows of no stream are neither undone nor forgotten."""
    place.sql(TRANSFER)
    make_sinks_history(place)
    row = "('I', 'public.transfer', '{\"id\":\"theirs\"}', 5)"
    insert = "INSERT INTO substreams_history (op, table_name, pk, block_num) VALUES"
    own = "INSERT INTO substreams_history (id, op, table_name, pk, block_num) VALUES (1,"
    place.sql(f"{insert} {row}" if place.kind == "postgres" else f"{own} {row[1:]}")
    stream = place.stream("transfer", id="one")
    stream.block(1, Changes(block=1).insert("transfer", "tx1", value=1), final=0)
    stream.block(2, Changes(block=2).update("transfer", "tx1", value=2), final=0)
    stream.fork(1)
    query = "SELECT block_num, stream_id FROM substreams_history ORDER BY id"
    theirs, ours = {"block_num": 5, "stream_id": ""}, {"block_num": 1, "stream_id": "one"}
    assert stream.rows(query) == [theirs, ours]
    stream.target.close()
    if place.kind == "postgres":
        place.sql(f"SELECT setval('substreams_history_id_seq', {2**31}); {insert} {row}")
    stream = place.stream("transfer", id="one")
    stream.block(2, Changes(block=2).update("transfer", "tx1", value=3), final=2)
    assert [one["stream_id"] for one in stream.rows(query) if one["stream_id"]] == []
    assert len(stream.rows(query)) == (2 if place.kind == "postgres" else 1)
    assert [one["value"] for one in stream.rows("SELECT value FROM transfer")] == [3]
