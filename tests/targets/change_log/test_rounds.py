"""Several hot blocks in one commit leave what they leave one by one, whatever binds their rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headwater.changes import Changes, add, check, fold, max_
from headwater.targets.sql.changes import Column, Rounds, Shape
from tests.targets.change_log.places import Place, Stream
from tests.targets.change_log.test_cases import TRANSFER, change

Blocks = list[tuple[int, Changes]]


def mixed() -> Blocks:
    """Keys that come back after one block, after several, and never."""
    return [
        (2, change(2).insert("transfer", "b", value=1).update("transfer", "a", value=add(1))),
        (3, change(3).upsert("transfer", "c", value=add(3)).delete("transfer", "b")),
        (4, change(4).insert("transfer", "b", value=4).upsert("transfer", "a", value=max_(50))),
        (5, change(5).delete("transfer", "a").upsert("transfer", "c", note="five", value=add(5))),
        (6, change(6).upsert("transfer", "a", value=add(6)).insert("transfer", "d", value=6)),
    ]


def outcome(stream: Stream) -> tuple[Any, ...]:
    rows = stream.rows("SELECT id, value, note FROM transfer ORDER BY id")
    return rows, stream.change_log()


def test_blocks_together_leave_the_rows_and_the_history_of_blocks_alone(place: Place) -> None:
    stream = place.stream(TRANSFER)
    stream.block(1, change(1).insert("transfer", "a", value=9), final=1)
    for one in mixed():
        stream.flush([one], final=1)
    alone = outcome(stream)
    stream.fork(1)
    stream.flush(mixed(), final=1, branch="b")
    assert outcome(stream) == alone
    stream.fork(4)
    assert [row["id"] for row in stream.rows("SELECT id FROM transfer ORDER BY id")] == list("abc")


@pytest.mark.parametrize("index", [True, False])
def test_unique_values_change_hands_in_the_order_of_blocks(place: Place, index: bool) -> None:
    column = "name varchar" if index else "name varchar UNIQUE"
    place.sql(f"CREATE TABLE t (id varchar PRIMARY KEY, {column})")
    if index:
        place.sql("CREATE UNIQUE INDEX names ON t (name)")
    stream = place.stream("t")
    blocks = [
        (2, change(2).insert("t", "a", name="x")),
        (3, change(3).update("t", "a", name="y")),
        (4, change(4).insert("t", "b", name="x")),
    ]
    stream.block(1, final=1)
    stream.flush(blocks, final=1)
    rows = stream.rows("SELECT * FROM t ORDER BY id")
    assert rows == [{"id": "a", "name": "y"}, {"id": "b", "name": "x"}]


def test_a_row_refers_to_one_that_came_back_in_an_earlier_block(place: Place) -> None:
    place.sql(
        "CREATE TABLE parent (id varchar PRIMARY KEY, v bigint); "
        "CREATE TABLE child (id varchar PRIMARY KEY, parent varchar REFERENCES parent (id))"
    )
    stream = place.stream("parent", "child")
    stream.block(1, change(1).insert("parent", "q", v=1), final=1)
    blocks = [
        (2, change(2).update("parent", "p", v=2)),
        (3, change(3).insert("parent", "p", v=3)),
        (4, change(4).insert("child", "c", parent="p")),
    ]
    stream.flush(blocks, final=1)
    assert stream.rows("SELECT * FROM child") == [{"id": "c", "parent": "p"}]


def test_rounds_by_key_are_as_many_as_the_most_changes_of_a_key() -> None:
    columns = {"id": Column("id", "VARCHAR", "text"), "v": Column("v", "BIGNUM", "integer")}
    shape = Shape("t", "main.t", ("id",), columns)
    made = Rounds({"t": shape})
    blocks = [
        change(1).upsert("t", "a", v="1").upsert("t", "b", v="1"),
        change(2).upsert("t", "b", v="2"),
        change(3).upsert("t", "b", v="3").upsert("t", "c", v="3"),
    ]
    given = pa.concat_tables([one.toArrow() for one in blocks])
    table = fold(check(given, [shape.schema()]), finalized=0)
    rounds = [changes.frame.to_pydict() for (changes,) in made.by_key(table)]
    assert [one["key_0"] for one in rounds] == [["a", "b", "c"], ["b"], ["b"]]
    assert [one["block"] for one in rounds] == [[1, 1, 3], [2], [3]]
    assert [one["place"] for one in rounds] == [[0, 1, 4], [2], [3]]
    assert len(list(made.by_block(table, 0))) == 3
