"""State and tables of the Pipes SDK are resumed, forked across, and kept in their form.

The fixtures are built from the documented format: one row of `sync` per batch with the sign 1, the
newest by `timestamp` counts, without FINAL; rows are cancelled by their negative; tables are of
engine CollapsingMergeTree with a column `sign`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import BlockCursor, PipeState, resolve_fork
from headwater.targets.clickhouse import (
    ClickHouseClient,
    ClickHouseSettings,
    ClickHouseTarget,
    clickhouse_target,
)
from tests.targets.clickhouse_places import Stream, database

SYNC = """
CREATE TABLE IF NOT EXISTS "{database}"."{table}" (
    id String, current String, finalized String, rollback_chain String, timestamp DateTime(3),
    sign Int8
) ENGINE = CollapsingMergeTree(sign) ORDER BY (timestamp, id)
"""
TABLE = """
CREATE TABLE IF NOT EXISTS transfers (
    block_number UInt32, transaction_hash FixedString(66), log_index UInt16, value UInt256,
    sign Int8 DEFAULT 1
) ENGINE = CollapsingMergeTree(sign) ORDER BY (block_number, transaction_hash, log_index)
"""


class Theirs:
    """Does to the server what the Pipes SDK does, by its documented format alone."""

    def __init__(self, url: str, id: str = "pipe", table: str = "sync") -> None:
        self.client = ClickHouseClient(url)
        self.id = id
        self.sync = f'"{self.client.database}"."{table}"'
        self.client.run(SYNC.format(database=self.client.database, table=table))
        self.client.run(TABLE)

    def batch(self, number: int, *, branch: str = "h", final: int | None = 2) -> None:
        """Write a batch of one block: the data, then the cursor, by the wall clock."""
        self.data(number, branch)
        cursor = {"number": number, "hash": f"{branch}{number}", "timestamp": number}
        finalized = {"number": final, "hash": f"h{final}"} if final is not None else None
        hot = final is not None and number > final
        self.client.run(
            f"INSERT INTO {self.sync} SELECT {{id:String}}, {{current:String}}, "
            "{finalized:String}, {chain:String}, fromUnixTimestamp64Milli({at:Int64}), 1",
            {
                "id": self.id,
                "current": json.dumps(cursor),
                "finalized": json.dumps(finalized) if finalized else "",
                "chain": json.dumps([cursor] if hot else []),
                "at": int(time.time() * 1000),
            },
        )
        wait_for_the_next_millisecond()

    def data(self, number: int, branch: str = "h") -> None:
        self.client.run(
            f"INSERT INTO transfers SELECT {number}, '0x{branch:0<64}', number, "
            f"toUInt256('{10**70 + number}') + number, 1 FROM numbers(2)"
        )

    def resumes_at(self) -> dict[str, Any]:
        found = self.client.rows(
            f"SELECT current, finalized, rollback_chain FROM {self.sync} "
            "WHERE id = {id:String} ORDER BY timestamp DESC LIMIT 1",
            {"id": self.id},
        )
        return {name: json.loads(text) if text else None for name, text in found[0].items()}

    def records(self) -> list[list[int]]:
        """The rollback chains that a fork would be resolved with, newest first."""
        found = self.client.rows(
            f"SELECT rollback_chain FROM {self.sync} FINAL WHERE id = {{id:String}} "
            "ORDER BY timestamp DESC",
            {"id": self.id},
        )
        return [[one["number"] for one in json.loads(row["rollback_chain"])] for row in found]

    def clean_up(self, max_rows: int) -> None:
        self.client.run(
            f"INSERT INTO {self.sync} SELECT id, current, finalized, rollback_chain, timestamp, -1 "
            f"FROM {self.sync} FINAL WHERE id = {{id:String}} ORDER BY timestamp DESC "
            "LIMIT 1000 OFFSET {kept:UInt32}",
            {"id": self.id, "kept": max_rows},
        )


def wait_for_the_next_millisecond() -> None:
    now = int(time.time() * 1000)
    while int(time.time() * 1000) == now:
        pass


@pytest.fixture
def url() -> str:
    return database()


@pytest.fixture
def targets() -> Iterator[list[ClickHouseTarget]]:
    made: list[ClickHouseTarget] = []
    yield made
    for one in made:
        one.close()


def resume(
    url: str, targets: list[ClickHouseTarget], bind: str = "pipe", **settings: Any
) -> Stream:
    target = clickhouse_target(
        url,
        tables=["transfers"],
        on_data=lambda store, data: [store.insert(name, one) for name, one in data.items()],
        settings=ClickHouseSettings(**settings),
    )
    target.bind(bind)
    targets.append(target)
    return Stream(target, url)


def cursor(number: int, branch: str = "h") -> BlockCursor:
    return BlockCursor(number, f"{branch}{number}", number)


def rows(number: int, value: int, branch: str = "h") -> dict[str, pa.Table]:
    made = {
        "block_number": pa.array([number], pa.int64()),
        "transaction_hash": [f"0x{branch:0<64}"],
        "log_index": pa.array([0], pa.int32()),
        "value": [str(value)],
    }
    return {"transfers": pa.table(made)}


def held(s: Stream) -> list[tuple[int, str]]:
    found = s.rows("SELECT block_number AS b, value AS v FROM transfers_live ORDER BY b, log_index")
    return [(row["b"], row["v"]) for row in found]


def expected(*numbers: int) -> list[tuple[int, str]]:
    return [(one, str(10**70 + one + i)) for one in numbers for i in (0, 1)]


@pytest.mark.guarantee("STATE-1")
def test_a_pipeline_of_the_pipes_sdk_goes_on_here_and_forks_across_the_seam(
    url: str, targets: list[ClickHouseTarget]
) -> None:
    theirs = Theirs(url)
    for number in range(1, 6):
        theirs.batch(number, final=2 if number > 1 else None)
    theirs.data(6)  # it died after the data and before the cursor
    s = resume(url, targets)
    assert s.state == PipeState(cursor(5), cursor(2), tuple(map(cursor, (2, 3, 4, 5))))
    assert held(s) == expected(1, 2, 3, 4, 5)
    s.block(6, rows(6, 2**256 - 1), final=2)
    s.block(7, rows(7, 7), final=2)
    assert held(s) == [*expected(1, 2, 3, 4, 5), (6, str(2**256 - 1)), (7, "7")]
    found = resolve_fork(s.state, [BlockCursor(3, "h3"), BlockCursor(4, "x4")], patient=False)
    s.fork(found.safe_cursor.number)
    assert held(s) == expected(1, 2, 3)
    s.block(4, rows(4, 4, "x"), final=2, branch="x")
    assert s.target.recover() == s.state


@pytest.mark.guarantee("STATE-1")
def test_what_is_written_here_is_resumed_there_and_back_again(
    url: str, targets: list[ClickHouseTarget]
) -> None:
    theirs = Theirs(url)
    theirs.batch(1, final=None)
    s = resume(url, targets)
    for number in (2, 3, 4, 5):
        s.block(number, rows(number, number), final=2)
    s.fork(3)
    s.target.close()
    assert theirs.resumes_at() == {
        "current": {"number": 3, "hash": "h3", "timestamp": 3},
        "finalized": {"number": 2, "hash": "h2", "timestamp": 2},
        "rollback_chain": [{"number": 2, "hash": "h2", "timestamp": 2},
                           {"number": 3, "hash": "h3", "timestamp": 3}],
    }  # fmt: skip
    s = resume(url, targets)
    s.block(4, rows(4, 40, "x"), final=2, branch="x")
    s.block(5, rows(5, 50, "x"), final=2, branch="x")
    s.target.close()
    assert theirs.resumes_at()["current"] == {"number": 5, "hash": "x5", "timestamp": 5}
    assert theirs.records()[:3] == [[5], [4], [2, 3]]
    theirs.batch(6, branch="x")
    theirs.clean_up(4)
    assert theirs.resumes_at()["current"]["number"] == 6
    s = resume(url, targets)
    assert s.state.cursor == cursor(6, "x")
    assert s.state.landing_points() == (
        cursor(2), cursor(3), cursor(4, "x"), cursor(5, "x"), cursor(6, "x"),
    )  # fmt: skip
    s.fork(3)
    assert held(s) == [*expected(1), (2, "2"), (3, "3")]


def test_the_old_key_is_adopted_once(url: str, targets: list[ClickHouseTarget]) -> None:
    theirs = Theirs(url, id="stream")
    for number in (3, 4):
        theirs.batch(number)
    theirs.client.run("DROP TABLE transfers")
    assert resume(url, targets, id="named").state == PipeState()
    s = resume(url, targets, bind="mine")
    assert s.state.cursor == cursor(4)
    assert s.rows("SELECT DISTINCT id FROM sync FINAL") == [{"id": "mine"}]
    s.target.close()
    assert resume(url, targets, bind="later").state == PipeState()
    assert resume(url, targets, bind="mine").state.cursor == cursor(4)


def test_state_may_be_kept_elsewhere_and_without_finality(
    url: str, targets: list[ClickHouseTarget]
) -> None:
    """CASE-12."""
    theirs = Theirs(url, table="pipes sync")
    theirs.batch(7, final=None)
    s = resume(url, targets, table="pipes sync")
    assert s.state == PipeState(cursor(7), None, (cursor(7),))
    elsewhere = f"{s.client.database}_other"
    s.sql(f"CREATE DATABASE {elsewhere}")
    with_state = resume(url, targets, bind="new", database=elsewhere)
    assert with_state.state == PipeState()
    assert s.rows(f"SELECT count() AS n FROM {elsewhere}.sync") == [{"n": 0}]
    s.sql(f"DROP DATABASE {elsewhere}")
