"""No cursor is stored: that is believed only if nothing else of the stream is, on either database.

Beginning anew would remove what the stream keeps for itself and add its rows a second time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest

from headwater.changes import Changes
from headwater.changes import TableSchema as ChangeTable
from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.errors import StateMissingError
from headwater.targets import Delivery, SideTable, duckdb_target, postgres_target
from headwater.targets.admin import open_admin
from headwater.testing.conformance.model import balance, log, upsert
from tests.targets.change_log.places import Place as ChangePlace
from tests.targets.places import Place, make_place

NOTES = SideTable(
    "notes",
    pa.schema([("block_number", pa.int64()), ("ordinal", pa.int64()), ("text", pa.string())]),
)


@pytest.fixture(params=["duckdb", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, tmp_path)


def lose_state(place: Any) -> None:
    """Remove the stream's rows from the table of the state, behind the target's back."""
    if place.kind == "postgres":
        with psycopg.connect(place.address) as server:
            server.execute("DELETE FROM sync")
        return
    file = duckdb.connect(place.address)
    file.execute("DELETE FROM sync")
    file.close()


def commit_final(target: Any, number: int, notes: pa.Table | None) -> None:
    """Commit a final block, of which only side rows are kept."""
    header = BlockHeader(number, f"a{number}", f"a{number - 1}", number - 1, number)
    head = Head(BlockCursor(number, f"a{number}"))
    state = PipeState().advance([header], head)
    side = {} if notes is None else {"notes": notes}
    target.commit([Batch((header,), head, state, (), Delivery({}, [], side))], state)


@pytest.mark.guarantee("STATE-4")
def test_undo_data_without_a_cursor_is_refused_and_can_be_forgotten(place: Place) -> None:
    rig = place.rig()
    for number in (1, 2, 3):
        rig.block(number, log(number, number), upsert(balance("a", "t", number)), final=1)
    rig.target.close()
    before = place.rows("balances"), place.rows("balances__snapshots"), place.rows("log")
    lose_state(place)
    target = place.target()
    with pytest.raises(StateMissingError, match=r"E0017.*balances__snapshots"):
        target.recover()
    target.close()
    assert (
        place.rows("balances"),
        place.rows("balances__snapshots"),
        place.rows("log"),
    ) == before
    open_admin(place.address).reset("one")
    target = place.target()
    assert target.recover() == PipeState()
    target.close()
    assert place.rows("balances") == []


@pytest.mark.guarantee("STATE-4")
def test_side_rows_without_a_cursor_are_refused_and_kept(place: Place) -> None:
    target = place.target()
    target.open_side_tables([NOTES])
    target.recover()
    rows = pa.table({"block_number": [5], "ordinal": [0], "text": ["undelivered"]})
    commit_final(target, 5, rows.cast(NOTES.columns))
    target.close()
    lose_state(place)
    target = place.target()
    target.open_side_tables([NOTES])
    with pytest.raises(StateMissingError, match=r"E0017.*headwater_notes"):
        target.recover()
    target.close()
    assert [row["text"] for row in place.rows("headwater_notes")] == ["undelivered"]


def test_a_stream_that_has_committed_nothing_yet_may_start_again(place: Place) -> None:
    for _ in range(2):
        target = place.target()
        target.open_side_tables([NOTES])
        assert target.recover() == PipeState()
        target.stored_config().write("{}")
        target.close()


def test_the_rows_of_another_stream_are_no_sign(place: Place) -> None:
    rig = place.rig()
    for number in (1, 2):
        rig.block(number, upsert(balance("a", "t", number)), final=0)
    rig.target.close()
    target = place.target("two", only="balances")
    assert target.recover() == PipeState()
    target.close()


@pytest.mark.guarantee("STATE-4")
@pytest.mark.parametrize("kind", ["duckdb", "postgres"])
def test_a_change_log_without_a_cursor_is_refused(kind: str, tmp_path: Path) -> None:
    place = ChangePlace(kind, tmp_path)
    stream = place.stream(ChangeTable("t", ["id"], {"id": "text", "v": "integer"}))
    stream.block(1, Changes(block=1).insert("t", "a", v=1), final=0)
    stream.target.close()
    lose_state(place)
    with pytest.raises(StateMissingError, match=r"E0017.*substreams_history"):
        place.stream("t")
    place.targets[-1].close()
    place.sql("DELETE FROM substreams_history")
    assert place.stream("t").state == PipeState()
    place.targets[-1].close()


@pytest.mark.guarantee("STATE-4")
def test_rows_of_final_blocks_without_a_cursor_are_not_written_a_second_time(place: Place) -> None:
    """A table that was not declared is claimed by the commit that writes it first."""
    make: Any = duckdb_target if place.kind == "duckdb" else postgres_target

    def opened(stream_id: str = "one") -> Any:
        target = make(place.address)
        target.bind(stream_id)
        return target

    target = opened()
    target.recover()
    header = BlockHeader(5, "a5", "a4", 4, 5)
    head = Head(BlockCursor(5, "a5"))
    state = PipeState().advance([header], head)
    rows = pa.table({"block_number": pa.array([5], pa.int64()), "v": ["final"]})
    target.commit([Batch((header,), head, state, (), Delivery({"found": rows}))], state)
    target.close()
    lose_state(place)
    with pytest.raises(StateMissingError, match=r"E0017.*found"):
        (target := opened()).recover()
    target.close()
    assert [row["v"] for row in place.rows("found")] == ["final"]
    open_admin(place.address).reset("one", keep_data=True)
    target = opened()
    assert target.recover() == PipeState()
    target.close()
