"""Cases in which sinks of changes have lost or invented data, one test each, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headwater.changes import Changes, TableSchema, add, max_, min_, set_if_null, sub
from headwater.errors import (
    DuplicateInsertError,
    PostgresLockError,
    RewindError,
    StreamInUseError,
    TableMismatchError,
)
from headwater.targets import Delivery, SideTable
from tests.targets.change_log.places import Place, Stream
from tests.targets.postgres_proxy import Proxy

LARGEST = 2**256 - 1
TRANSFER = TableSchema(
    "transfer", key=["id"], columns={"id": "text", "value": "integer", "note": "text"}
)


def values(stream: Stream) -> dict[str, Any]:
    rows = stream.rows("SELECT id, value FROM transfer")
    return {row["id"]: None if row["value"] is None else int(row["value"]) for row in rows}


def change(number: int) -> Changes:
    return Changes(block=number)


@pytest.mark.guarantee("CASE-1")
@pytest.mark.sink_defect(1)
def test_writes_of_several_hot_blocks_in_one_commit_are_undone_one_by_one(place: Place) -> None:
    stream = place.stream(TRANSFER)
    stream.block(9, change(9).insert("transfer", "a", value=9), final=9)
    stream.flush(
        [
            (10, change(10).update("transfer", "a", value=10)),
            (11, change(11).update("transfer", "a", value=add(1)).insert("transfer", "b", value=1)),
            (12, change(12).delete("transfer", "a")),
        ],
        final=9,
    )
    assert [row[-1] for row in stream.change_log()] == [10, 11, 11, 12]
    seen = []
    for number in (12, 11, 10, 9):
        stream.fork(number)
        seen.append(values(stream))
    assert seen == [{"b": 1}, {"a": 11, "b": 1}, {"a": 10}, {"a": 9}]


@pytest.mark.guarantee("CASE-2")
@pytest.mark.sink_defect(2)
def test_what_is_prepared_when_a_fork_arrives_leaves_no_trace(place: Place) -> None:
    stream = place.stream(TRANSFER)
    for number in (1, 2):
        stream.block(number, change(number).upsert("transfer", "a", value=number), final=1)
    orphan = change(3).insert("transfer", "phantom", value=3).toArrow()
    stream.target.prepare_batch(stream.batch(3, orphan, stream.state, final=1, branch="a"))
    stream.fork(1)
    stream.block(2, change(2).insert("transfer", "phantom", value=2), final=1, branch="b")
    assert values(stream) == {"a": 1, "phantom": 2}


@pytest.mark.guarantee("CASE-3")
@pytest.mark.sink_defect(3)
def test_insert_and_delete_in_one_commit_with_a_fork_between_and_the_other_way_round(
    place: Place,
) -> None:
    stream = place.stream(TRANSFER)
    stream.block(9, change(9).insert("transfer", "old", value=9, note="kept"), final=9)
    again = change(11).delete("transfer", "new").delete("transfer", "old")
    stream.flush(
        [
            (10, change(10).insert("transfer", "new", value=10)),
            (11, again.insert("transfer", "old", value=11)),
        ],
        final=9,
    )
    assert stream.rows("SELECT * FROM transfer") == [{"id": "old", "value": "11", "note": None}], (
        "a row that is made anew has nothing of the old one"
    )
    stream.fork(10)
    assert values(stream) == {"old": 9, "new": 10}
    stream.fork(9)
    assert stream.rows("SELECT * FROM transfer") == [{"id": "old", "value": "9", "note": "kept"}]


@pytest.mark.guarantee("CASE-4")
def test_the_final_version_of_a_row_returns(place: Place) -> None:
    stream = place.stream(TRANSFER)
    stream.block(1, change(1).insert("transfer", "a", value=LARGEST), final=1)
    stream.block(2, change(2).update("transfer", "a", value=2), final=1)
    stream.settle(2)
    stream.block(3, change(3).update("transfer", "a", value=3), final=2)
    stream.fork(2)
    assert values(stream) == {"a": 2}


@pytest.mark.guarantee("CASE-5")
@pytest.mark.guarantee("CASE-6")
def test_only_blocks_that_can_be_undone_are_kept(place: Place) -> None:
    """Also while finality is unknown, and when it is block 0."""
    stream = place.stream(TRANSFER)
    stream.block(0, change(0).upsert("transfer", "a", value=0))
    stream.block(1, change(1).upsert("transfer", "a", value=1))
    assert [row[-1] for row in stream.change_log()] == [1], "nothing is below the first block"
    stream.block(2, change(2).upsert("transfer", "a", value=2), final=0)
    assert [row[-1] for row in stream.change_log()] == [1, 2]
    stream.block(3, change(3).upsert("transfer", "a", value=3), final=2)
    assert [row[-1] for row in stream.change_log()] == [3]
    stream.block(4, change(4).upsert("transfer", "a", value=4), final=1)  # a lagging replica
    assert [row[-1] for row in stream.change_log()] == [3, 4]
    stream.fork(2)
    assert values(stream) == {"a": 2}


@pytest.mark.guarantee("CASE-7")
def test_set_delete_set_goes_back_to_the_delete(place: Place) -> None:
    stream = place.stream(TRANSFER)
    stream.block(1, None, final=1)
    stream.block(2, change(2).upsert("transfer", "a", value=2), final=1)
    stream.block(3, change(3).delete("transfer", "a"), final=1)
    stream.block(4, change(4).upsert("transfer", "a", value=4), final=1)
    stream.fork(3)
    assert values(stream) == {}
    stream.fork(2)
    assert values(stream) == {"a": 2}


@pytest.mark.guarantee("CASE-8")
def test_forks_in_a_row_converge_and_can_be_repeated(place: Place) -> None:
    stream = place.stream(TRANSFER)
    for number in range(1, 6):
        stream.block(number, change(number).upsert("transfer", "a", value=number), final=1)
    for number in (4, 2, 2):
        stream.fork(number)
        stream.target.roll_back(stream.state)
        assert values(stream) == {"a": number}
    stream.target.close()
    assert stream.target.recover() == stream.state


@pytest.mark.guarantee("CASE-10")
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.sink_defect(7)
def test_a_lost_answer_to_commit_does_not_add_twice(place: Place, forward: bool) -> None:
    """DuckDB runs in the process: there is no answer that could get lost."""
    stream = place.stream(TRANSFER)
    if place.kind == "postgres":
        stream.target.close()
        proxy = Proxy(place.address)
        place.address = proxy.dsn
        stream = place.stream(TRANSFER)
        stream.block(1, change(1).insert("transfer", "a", value=1), final=1)
        proxy.forward, proxy.cut_at = forward, b"COMMIT"
    else:
        proxy = None
        stream.block(1, change(1).insert("transfer", "a", value=1), final=1)
    stream.block(2, change(2).update("transfer", "a", value=add(10)), final=1)
    assert values(stream) == {"a": 11}
    assert [row[-1] for row in stream.change_log()] == [2]
    stream.fork(1)
    assert values(stream) == {"a": 1}
    if proxy is not None:
        assert proxy.cuts == 1
        stream.target.close()
        proxy.close()


@pytest.mark.sink_defect(10)
def test_a_second_writer_of_a_stream_is_refused_and_changes_nothing(place: Place) -> None:
    stream = place.stream(TRANSFER, id="one")
    stream.block(1, change(1).insert("transfer", "a", value=1), final=0)
    with pytest.raises((PostgresLockError, StreamInUseError)):
        place.stream(TRANSFER, id="one")
    stream.block(2, change(2).update("transfer", "a", value=add(1)), final=0)
    assert values(stream) == {"a": 2}


@pytest.mark.guarantee("CASE-18")
def test_a_fork_deeper_than_what_is_kept_is_an_error(place: Place) -> None:
    stream = place.stream(TRANSFER)
    for number in range(1, 6):
        stream.block(number, change(number).upsert("transfer", "a", value=number), final=1)
    early = stream.state.rewind(stream.state.landing_points()[0])
    stream.settle(4)
    with pytest.raises(RewindError):
        stream.target.roll_back(early)
    assert values(stream) == {"a": 5}
    assert stream.target.recover() == stream.state


@pytest.mark.guarantee("CASE-22")
@pytest.mark.sink_defect(12)
def test_names_keys_and_types_of_every_kind_go_through_history_and_back(place: Place) -> None:
    """Names that need quotes, keys with separators, and what a column can hold."""
    lists = "integer[]"
    document = "jsonb" if place.kind == "postgres" else "JSON"
    binary = "bytea" if place.kind == "postgres" else "BLOB"
    place.sql(
        f'CREATE TABLE "Select ""x""" ("Key/1" varchar, "key.2" varchar, "from" {binary}, '
        f'"Order" {document}, "is" boolean, "at" timestamp with time zone, "on" date, '
        f'"f" double precision, "d" decimal(38,10), "n" decimal(38,0), "l" {lists}, '
        '"{curly}" varchar, "it\'s" varchar, PRIMARY KEY ("Key/1", "key.2"))'
    )
    name = '"Select ""x"""'
    stream = place.stream(name)
    keys = [{"Key/1": one, "key.2": two} for one, two in (("a/b", "c"), ("a", "b/c"), ("", '"'))]
    first = change(1)
    for key in keys:
        first.insert(
            name,
            key,
            **{
                "from": b"\x00\xab",
                "Order": '{"a": [1, 2.50, null]}',
                "is": True,
                "at": datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
                "on": "2024-05-06",
                "f": "0.1",
                "d": "-1234567890123456789012345678.0123456789",
                "n": "-99999999999999999999999999999999999999",
                "{curly}": "{}",
                "it's": "it's \\ \n é🙂",
            },
        )
    stream.block(1, first, final=1)
    select = f"SELECT * FROM {name} ORDER BY 1, 2"
    before = stream.rows(select)
    assert len(before) == 3
    assert before[0]["from"] == b"\x00\xab"
    second = change(2).delete(name, keys[0])
    nothing: dict[str, Any] = dict.fromkeys(("from", "Order", "is", "at", "on", "f", "d"))
    second.update(name, keys[1], **nothing, **{"{curly}": None, "it's": "x", "n": "5"})
    stream.block(2, second, final=1)
    assert len(stream.rows(select)) == 2
    stream.fork(1)
    assert stream.rows(select) == before


@pytest.mark.guarantee("CASE-23")
@pytest.mark.sink_defect(6)
def test_null_is_no_zero_and_78_digits_are_exact(place: Place) -> None:
    table = TableSchema(
        "t",
        key=["id"],
        columns={"id": "text", **dict.fromkeys(("low", "high", "sum", "first"), "integer")},
    )
    stream = place.stream(table)
    stream.block(1, change(1).insert("t", "a"), final=1)
    fields = {"low": min_(5), "high": max_(-5), "sum": sub(LARGEST), "first": set_if_null(LARGEST)}
    for key in ("a", "new"):
        stream.block(
            2 if key == "a" else 3,
            change(2 if key == "a" else 3).upsert("t", key, **fields),
            final=1,
        )
    expected = {"low": "5", "high": "-5", "sum": str(-LARGEST), "first": str(LARGEST)}
    rows = stream.rows("SELECT * FROM t ORDER BY id")
    assert rows == [{"id": key, **expected} for key in ("a", "new")]
    again = {"low": min_(7), "high": max_(-7), "sum": add(1), "first": set_if_null(0)}
    stream.block(4, change(4).upsert("t", "a", **again), final=1)
    assert stream.rows("SELECT * FROM t WHERE id = 'a'") == [
        {"id": "a", **expected, "sum": str(1 - LARGEST)}
    ]


@pytest.mark.guarantee("CASE-11")
@pytest.mark.guarantee("CASE-24")
def test_streams_share_tables_and_history(place: Place) -> None:
    one, two = place.stream(TRANSFER, id="one"), place.stream(TRANSFER, id="two")
    for number in (1, 2, 3):
        one.block(number, change(number).upsert("transfer", "one", value=number), final=1)
        two.block(number, change(number).upsert("transfer", "two", value=number), final=1)
    one.fork(1)
    assert values(one) == {"one": 1, "two": 3}
    two.fork(2)
    assert values(two) == {"one": 1, "two": 2}
    rows = one.rows("SELECT stream_id, block_num FROM substreams_history")
    assert rows == [{"stream_id": "two", "block_num": 2}]


@pytest.mark.guarantee("CASE-27")
def test_history_is_bounded_and_holds_what_a_legal_fork_needs(place: Place) -> None:
    stream = place.stream(TRANSFER)
    for number in range(1, 30):
        changes = change(number).upsert("transfer", "a", value=number)
        stream.block(number, changes, final=number - 3)
        assert len(stream.change_log()) <= 3
    stream.fork(26)
    assert values(stream) == {"a": 26}


@pytest.mark.guarantee("SIDE-1")
def test_rows_that_the_stream_keeps_for_itself_go_with_their_batch(place: Place) -> None:
    schema = pa.schema(
        [("block_number", pa.int64()), ("ordinal", pa.int64()), ("note", pa.string())]
    )
    target = place.target(TRANSFER)
    stored, config = target.capabilities.side_tables, target.capabilities.config
    assert stored is not None
    assert config is not None
    stored.open_side_tables([SideTable("notes", schema)])
    stream = Stream(target)
    for number in (1, 2):
        batch = stream.batch(number, change(number).toArrow(), stream.state, final=1, branch="a")
        row = {"block_number": number, "ordinal": 0, "note": "n"}
        side = {"notes": pa.Table.from_pylist([row], schema=schema)}
        delivery = Delivery(batch.data.data, None, side)
        target.commit([target.prepare_batch(batch.with_data(delivery))], batch.state)
        stream.state = batch.state
    assert stored.read_side_table("notes").num_rows == 2
    stream.fork(1)
    assert stored.read_side_table("notes")["block_number"].to_pylist() == [1]
    stored.settle_side_rows("notes", (1, 0), {})
    assert stored.read_side_table("notes").num_rows == 0
    config.stored_config().write("told")
    assert config.stored_config().read() == "told"


@pytest.mark.guarantee("CASE-29")
@pytest.mark.sink_defect(4)
def test_updates_before_an_upsert_do_not_make_half_a_row(place: Place) -> None:
    """Where no row is, the update has no effect and the upsert makes one, with its key."""
    stream = place.stream(TRANSFER)
    stream.block(1, change(1).insert("transfer", "there", value=1), final=1)
    both = change(2)
    for key in ("there", "new"):
        both.update("transfer", key, value=add(10)).upsert("transfer", key, note="n")
    stream.block(2, both, final=1)
    assert stream.rows("SELECT * FROM transfer ORDER BY id") == [
        {"id": "new", "value": None, "note": "n"},
        {"id": "there", "value": "11", "note": "n"},
    ]
    assert [row[0] for row in stream.change_log()] == ["U", "I"]
    stream.fork(1)
    assert values(stream) == {"there": 1}


@pytest.mark.guarantee("CASE-30")
@pytest.mark.sink_defect(5)
def test_any_chain_of_field_operations_has_its_effect(place: Place) -> None:
    """None is dropped because it cannot be joined with the one before."""
    stream = place.stream(TRANSFER)
    stream.block(1, change(1).insert("transfer", "a", value=100), final=1)
    chain = change(2)
    for step in (max_(150), add(-20), min_(120), sub(5), max_(118), add(LARGEST)):
        chain.update("transfer", "a", value=step)
    stream.block(2, chain, final=1)
    assert values(stream) == {"a": 118 + LARGEST}


@pytest.mark.guarantee("CASE-31")
@pytest.mark.sink_defect(8)
def test_a_rollback_that_fails_changes_nothing(place: Place) -> None:
    stream = place.stream(TRANSFER)
    for number in (1, 2):
        stream.block(number, change(number).upsert("transfer", "a", value=number), final=1)
    held = stream.change_log()
    stream.target.close()
    place.sql("ALTER TABLE transfer RENAME TO elsewhere")
    place.sql("CREATE TABLE transfer (id varchar, value bigint)")
    other = TableSchema("other", key=["id"], columns={"id": "text"})
    again = place.stream(other, id="stream")
    with pytest.raises(TableMismatchError, match="E6011"):
        again.fork(1)
    assert again.change_log() == held
    assert again.target.recover() == stream.state
    again.target.close()
    place.sql("DROP TABLE transfer")
    place.sql("ALTER TABLE elsewhere RENAME TO transfer")
    again = place.stream(other, id="stream")
    again.fork(1)
    assert values(again) == {"a": 1}, "a table that is no longer declared is restored too"


@pytest.mark.guarantee("CASE-32")
def test_two_inserts_of_a_key_are_refused_however_they_are_committed(place: Place) -> None:
    stream = place.stream(TRANSFER)
    one, two = change(1).insert("transfer", "a"), change(2).insert("transfer", "a")
    with pytest.raises(DuplicateInsertError, match="E6005"):
        stream.flush([(1, one), (2, two)])
    with pytest.raises(DuplicateInsertError, match="E6005"):
        stream.block(1, change(1).insert("transfer", "a").insert("transfer", "a"))
    assert values(stream) == {}


@pytest.mark.guarantee("CASE-33")
@pytest.mark.sink_defect(11)
def test_ids_have_64_bits_and_blocks_an_index(place: Place) -> None:
    stream = place.stream(TRANSFER)
    stream.target.close()
    huge = 2**31 + 7
    if place.kind == "postgres":
        place.sql(f"ALTER SEQUENCE substreams_history_id_seq RESTART WITH {huge}")
    else:
        place.sql(
            f"INSERT INTO substreams_history VALUES ({huge - 1}, 'I', 't', '', '', 9, 'other')"
        )
    stream = place.stream(TRANSFER)
    stream.block(1, change(1).insert("transfer", "a"), final=0)
    newest = "SELECT max(id) AS id FROM substreams_history"
    assert stream.rows(newest) == [{"id": huge}]
    catalog = "pg_indexes" if place.kind == "postgres" else "duckdb_indexes()"
    text = "indexdef" if place.kind == "postgres" else "sql"
    found = stream.rows(f"SELECT {text} AS sql FROM {catalog} WHERE {text} LIKE '%block_num%'")
    assert len(found) == 1


@pytest.mark.guarantee("CASE-34")
@pytest.mark.sink_defect(13)
def test_rows_that_refer_to_each_other_come_and_go_in_any_order(place: Place) -> None:
    """DuckDB cannot remove a row and what refers to it in one transaction; it can add both."""
    place.sql(
        "CREATE TABLE parent (id varchar PRIMARY KEY, v bigint); "
        "CREATE TABLE child (id varchar PRIMARY KEY, parent varchar REFERENCES parent (id))"
    )
    stream = place.stream("parent", "child")
    stream.block(1, change(1).insert("parent", "p").insert("child", "c", parent="p"), final=1)
    if place.kind == "duckdb":
        stream.block(2, change(2).update("child", "c", parent=None), final=1)
        stream.fork(1)
    else:
        swapped = change(2).delete("parent", "p").delete("child", "c")
        swapped.insert("child", "d", parent="q").insert("parent", "q")
        stream.block(2, swapped, final=1)
        assert stream.rows("SELECT * FROM child") == [{"id": "d", "parent": "q"}]
        stream.fork(1)
    assert stream.rows("SELECT id FROM parent") == [{"id": "p"}]
    assert stream.rows("SELECT * FROM child") == [{"id": "c", "parent": "p"}]


@pytest.mark.guarantee("CASE-35")
@pytest.mark.sink_defect(14)
def test_columns_that_came_since_or_are_computed_do_not_break_an_undo(place: Place) -> None:
    virtual = "STORED" if place.kind == "postgres" else ""
    identity = "GENERATED ALWAYS AS IDENTITY" if place.kind == "postgres" else ""
    place.sql(
        f"CREATE TABLE t (id varchar PRIMARY KEY, v bigint DEFAULT 7, n bigint {identity}, "
        f"twice bigint GENERATED ALWAYS AS (v * 2) {virtual})"
    )
    stream = place.stream("t")
    stream.block(1, change(1).insert("t", "a", v=1).insert("t", "b"), final=1)
    before = stream.rows("SELECT id, v, n, twice FROM t ORDER BY id")
    assert [row["twice"] for row in before] == [2, 14], "a default where nothing was said"
    stream.block(2, change(2).update("t", "a", v=2).delete("t", "b"), final=1)
    state = stream.state
    stream.target.close()
    place.sql("ALTER TABLE t ADD COLUMN later varchar DEFAULT 'new'")
    stream = place.stream("t")
    assert stream.state == state
    stream.block(3, change(3).upsert("t", "a", later="said"), final=1)
    stream.fork(2)
    assert stream.rows("SELECT id, later FROM t") == [{"id": "a", "later": "new"}]
    stream.block(3, change(3).upsert("t", "a", later="said"), final=1, branch="b")
    stream.fork(1)
    assert stream.rows("SELECT id, v, n, twice FROM t ORDER BY id") == before


@pytest.mark.guarantee("CASE-36")
def test_unique_values_that_changed_hands_go_back(place: Place) -> None:
    place.sql("CREATE TABLE t (id varchar PRIMARY KEY, name varchar UNIQUE)")
    stream = place.stream("t")
    stream.block(1, change(1).insert("t", "a", name="x").insert("t", "b", name="y"), final=1)
    stream.block(2, change(2).delete("t", "a").insert("t", "c", name="x"), final=1)
    stream.block(3, change(3).delete("t", "b").update("t", "c", name="y"), final=1)
    stream.fork(1)
    rows = stream.rows("SELECT * FROM t ORDER BY id")
    assert rows == [{"id": "a", "name": "x"}, {"id": "b", "name": "y"}]


@pytest.mark.parametrize("block", [1, 2])
def test_columns_called_like_those_of_the_log_and_keys_of_numbers_go_back(
    place: Place, block: int
) -> None:
    place.sql(
        'CREATE TABLE "Log" (id BIGINT, op VARCHAR, block_num BIGINT, pk NUMERIC(38,0), n BIGINT, '
        "PRIMARY KEY (id, pk))"
    )
    stream = place.stream("Log")
    key = {"id": "7", "pk": str(10**37)}
    first = Changes(block=1).insert("Log", key, op="a", block_num=9, n=1)
    stream.block(1, first, final=0)
    stream.block(2, Changes(block=2).update("Log", key, op="b", n=2), final=0)
    stream.block(3, Changes(block=3).delete("Log", key), final=0)
    names = {(row[1], row[2]) for row in stream.change_log()}
    assert names == {(f'"{place.schema}"."Log"', f'{{"id":"7","pk":"{10**37}"}}')}
    stream.fork(block)
    assert stream.rows('SELECT op, block_num, n FROM "Log"') == [
        {"op": "ab"[block - 1], "block_num": 9, "n": block}
    ]
