"""Tables with a change log are moved, forgotten and prepared like any other; aggregates too."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headwater.changes import Changes, TableSchema
from headwater.core import PipeState
from headwater.errors import ChangeFormError
from headwater.targets import aggregate
from headwater.targets.admin import MoveKind, open_admin
from headwater.targets.contract import Delivery
from headwater.targets.schema_file import SchemaFile
from tests.targets.change_log.places import Place, Stream

OWNER = TableSchema("owner", ["id"], {"id": "text", "n": "integer"})


def filled(place: Place, **given: Any) -> Stream:
    """Commit five blocks, of which the first two are final; each changes the same row."""
    stream = place.stream(OWNER, **given)
    stream.block(1, Changes(block=1).insert("owner", "a", n=1), final=1)
    for number in range(2, 6):
        changes = Changes(block=number).update("owner", "a", n=number)
        stream.block(number, changes.insert("owner", f"b{number}", n=number), final=2)
    return stream


def owners(stream: Stream) -> list[tuple[str, str]]:
    rows = stream.rows("SELECT id, n::varchar AS n FROM owner ORDER BY id")
    return [(row["id"], row["n"]) for row in rows]


def test_a_cursor_goes_back_and_the_tables_follow(place: Place) -> None:
    filled(place, id="one").target.close()
    (status,) = open_admin(place.address).streams()
    assert [(one.name, one.undo) for one in status.tables] == [("owner", "change_log")]
    move = open_admin(place.address).move("one", 3)
    assert (move.kind, move.number) == (MoveKind.UNDO, 3)
    stream = place.stream(OWNER, id="one")
    assert stream.state.number == 3
    assert owners(stream) == [("a", "3"), ("b2", "2"), ("b3", "3")]
    assert {row[-1] for row in stream.change_log()} == {3}
    assert stream.rows("SELECT block_num FROM cursors") == [{"block_num": 3}]
    stream.block(4, Changes(block=4).delete("owner", "a"), final=2, branch="b")
    stream.fork(2)
    assert owners(stream) == [("a", "2"), ("b2", "2")]


def test_a_stream_is_forgotten_with_its_changes_and_its_shown_cursor(place: Place) -> None:
    filled(place, id="one").target.close()
    open_admin(place.address).reset("one", force=True)
    assert open_admin(place.address).streams() == []
    stream = place.stream(OWNER, id="one")
    assert stream.state == PipeState()
    assert (owners(stream), stream.change_log()) == ([], [])
    assert stream.rows("SELECT * FROM cursors") == []


def test_setup_creates_what_a_change_log_needs_once(place: Place) -> None:
    admin = open_admin(place.address)
    created = admin.setup(SchemaFile(), change_log=True)
    assert {"substreams_history", "cursors"} <= set(created)
    assert admin.setup(SchemaFile(), change_log=True) == []
    assert owners(filled(place))[0] == ("a", "5")


def batch_of(stream: Stream, number: int, data: dict[str, Any], state: PipeState) -> Any:
    made = stream.batch(number, None, state, final=1, branch="a")
    return made.with_data(Delivery(data))


def test_aggregates_are_exact_through_forks_beside_changes(place: Place) -> None:
    total = aggregate("total", source="sums", keys=["who"], add=["value"])
    stream = place.stream(OWNER, aggregates=[total])
    for number in range(1, 5):
        changes = Changes(block=number).upsert("owner", "a", n=number).toArrow()
        sums = pa.table({"who": ["x", f"y{number}"], "value": [number, 1]})
        batch = batch_of(stream, number, {"changes": changes, "sums": sums}, stream.state)
        stream.target.commit([stream.target.prepare_batch(batch)], batch.state)
        stream.state = batch.state
    query = "SELECT who, value::varchar AS value FROM total ORDER BY who"
    assert stream.rows(query)[0] == {"who": "x", "value": "10"}
    assert len(stream.rows(query)) == 5
    stream.fork(2)
    assert stream.rows(query) == [
        {"who": "x", "value": "3"},
        {"who": "y1", "value": "1"},
        {"who": "y2", "value": "1"},
    ]
    assert owners(stream) == [("a", "2")]
    with pytest.raises(ChangeFormError, match="E6"):
        stream.target.prepare_batch(batch_of(stream, 3, {"other": sums}, stream.state))
