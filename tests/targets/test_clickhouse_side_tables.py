"""Rows that a stream keeps for itself: committed, undone, read and moved."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headwater.targets.clickhouse import ClickHouseSettings, clickhouse_target
from headwater.targets.contract import SideTable
from tests.targets.clickhouse_places import Stream, database

COLUMNS = pa.schema(
    [("block_number", pa.int64()), ("ordinal", pa.int64()), ("payload", pa.string())]
)
TABLES = [SideTable("outbox", COLUMNS), SideTable("sent", COLUMNS)]


def rows(*keys: tuple[int, int]) -> pa.Table:
    made = [{"block_number": b, "ordinal": o, "payload": f"{b}/{o}"} for b, o in keys]
    return pa.Table.from_pylist(made, schema=COLUMNS)


def started(url: str, id: str = "s", **options: Any) -> Stream:
    target = clickhouse_target(url, settings=ClickHouseSettings(id=id), **options)
    assert target.capabilities.side_tables is target
    target.open_side_tables(TABLES)
    return Stream(target, url)


def keys(s: Stream, name: str = "outbox", **where: Any) -> list[str]:
    return [str(one) for one in s.target.read_side_table(name, **where)["payload"].to_pylist()]


@pytest.mark.parametrize("owner", ["target", "user"])
def test_side_rows_live_and_die_with_their_batch(owner: str) -> None:
    options: dict[str, Any] = {}
    if owner == "user":
        options = {"on_data": lambda store, data: None, "on_rollback": lambda type: None}
    url = database()
    s, other = started(url, **options), started(url, "other", **options)
    for number in (1, 2, 3):
        s.block(number, side={"outbox": rows((number, 1), (number, 0))})
        other.block(number, side={"outbox": rows((number, 7))})
    assert keys(s) == ["1/0", "1/1", "2/0", "2/1", "3/0", "3/1"]
    assert keys(s, after=(1, 0), up_to_block=2) == ["1/1", "2/0", "2/1"]
    assert keys(s, after=(1, 1), limit=1) == ["2/0"]
    assert s.target.read_side_table("sent").schema == COLUMNS
    s.fork(2)
    assert keys(s) == ["1/0", "1/1", "2/0", "2/1"]
    assert keys(other) == ["1/7", "2/7", "3/7"]
    s.target.close()
    s = started(url, **options)
    assert keys(s) == ["1/0", "1/1", "2/0", "2/1"]
    s.target.close()
    other.target.close()


def test_side_rows_of_earlier_blocks_come_with_a_later_batch() -> None:
    """A factory that was added: its first batch brings what was created before."""
    url = database()
    s = started(url)
    for number in (1, 2, 3):
        s.block(number)
    s.block(4, side={"outbox": rows((1, 0), (3, 0), (4, 0))})
    assert keys(s) == ["1/0", "3/0", "4/0"]
    s.fork(3)
    assert keys(s) == ["1/0", "3/0"]
    s.block(4, branch="f", side={"outbox": rows((1, 0), (3, 0))})  # again, as after a crash
    assert keys(s) == ["1/0", "3/0"]
    s.target.close()


def test_what_a_stream_asked_for_is_kept_by_its_id() -> None:
    url = database()
    s, other = started(url), started(url, "other")
    assert s.target.capabilities.config is s.target
    assert s.target.stored_config().read() is None
    for text in ('{"a": "it\'s\\n"}', "second", "third"):
        s.target.stored_config().write(text)
        assert s.target.stored_config().read() == text
    assert other.target.stored_config().read() is None
    s.target.close()
    other.target.close()


def test_settled_rows_move_once_however_often_it_is_done() -> None:
    s = started(database())
    for number in (1, 2):
        s.block(number, side={"outbox": rows((number, 0), (number, 1))})
    for _ in range(3):
        s.target.settle_side_rows("outbox", (2, 0), {"sent": rows((1, 0), (1, 1), (2, 0))})
        assert keys(s) == ["2/1"]
        assert keys(s, "sent") == ["1/0", "1/1", "2/0"]
    assert s.rows("SELECT sum(sign) AS n FROM headwater_sent") == [{"n": 3}]
    s.target.settle_side_rows("outbox", (9, 9), {})
    assert keys(s) == []
    s.target.close()
