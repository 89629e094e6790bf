"""State and tables of the Pipes SDK are resumed, forked across, and kept in their form.

The fixtures are built from the documented format: one row of `sync` per batch with the sign 1, the
newest by `timestamp` counts, without FINAL; rows are cancelled by their negative; tables are of
engine CollapsingMergeTree with a column `sign`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
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
from tests.sampling import every
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

    def landing(self) -> set[tuple[int, str]]:
        """The blocks that a fork can go back to: those of the chains, and the final one."""
        found = self.client.rows(
            f"SELECT finalized, rollback_chain FROM {self.sync} FINAL WHERE id = {{id:String}}",
            {"id": self.id},
        )
        blocks = [one for row in found for one in json.loads(row["rollback_chain"])]
        blocks += [json.loads(row["finalized"]) for row in found if row["finalized"]]
        return {(one["number"], one["hash"]) for one in blocks}

    def remove_above(self, number: int) -> None:
        """Undo rows as at each start and each fork: what they come to is cancelled."""
        names = ", ".join(
            row["name"]
            for row in self.client.rows(
                "SELECT name FROM system.columns WHERE database = currentDatabase() "
                "AND table = 'transfers' AND name <> 'sign' "
                "AND default_kind NOT IN ('ALIAS', 'MATERIALIZED', 'EPHEMERAL')"
            )
        )
        self.client.run(
            f"INSERT INTO transfers ({names}, sign) SELECT {names}, -1 FROM transfers "
            f"WHERE block_number > {number} GROUP BY {names} HAVING sum(sign) > 0",
            settings={"optimize_on_insert": "0", "insert_deduplicate": "0"},
        )

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


@pytest.mark.guarantee("STATE-1")
@pytest.mark.parametrize("seed", every(4).seeds(range(12)))
def test_both_take_turns_and_undo_each_others_blocks(
    url: str, targets: list[ClickHouseTarget], seed: int
) -> None:
    """The forms of alpha.19 and of the beta are the same here; blocks 1 and 2 are final.

    The Pipes SDK stores nothing when a fork is done: it may end with rows that are gone and a
    cursor that is not, and whoever comes next meets the fork once more.
    """
    random, theirs = Random(seed), Theirs(url)
    theirs.batch(1, final=None)
    theirs.batch(2)
    chain = {number: ("h", [str(10**70 + number + i) for i in (0, 1)]) for number in (1, 2)}
    forks, met, pending = 0, Counter[str](), None
    for turn in range(10):
        ours = turn % 2 == 1 if seed % 2 else random.random() < 0.5
        s = resume(url, targets) if ours else None
        newest, branch = max(chain), chain[max(chain)][0]
        if s is not None:
            assert pending is not None or s.state.cursor == cursor(newest, branch)
        else:
            theirs.remove_above(theirs.resumes_at()["current"]["number"])
        safe = pending
        if safe is None and newest > 2 and random.random() < 0.7:
            possible = [
                number
                for number, (name, _) in chain.items()
                if 2 <= number < newest
                and (ours or (number, f"{name}{number}") in theirs.landing())
            ]
            safe = random.choice(possible)
        if safe is not None:
            met[f"{'ours' if ours else 'theirs'}{'' if pending is None else ', met again'}"] += 1
            forks, pending = forks + 1, None
            if s is not None:
                s.fork(safe)
            else:
                theirs.remove_above(safe)
            chain = {number: one for number, one in chain.items() if number <= safe}
            if s is None and random.random() < 0.4:
                pending = safe
        for _ in range(0 if pending is not None else random.randint(1, 3)):
            number, name = max(chain) + 1, f"b{forks}x" if forks else "h"
            if s is not None:
                s.block(number, rows(number, number, name), final=2, branch=name)
                chain[number] = (name, [str(number)])
            else:
                theirs.batch(number, branch=name)
                chain[number] = (name, [str(10**70 + number + i) for i in (0, 1)])
        found = theirs.client.rows(
            "SELECT block_number AS b, value AS v, sum(sign) AS n FROM transfers "
            "GROUP BY ALL HAVING n <> 0 ORDER BY b, v"
        )
        assert [(row["b"], str(row["v"]), row["n"]) for row in found] == [
            (number, value, 1) for number, (_, values) in chain.items() for value in values
        ], (turn, met)
        if s is not None:
            s.target.close()
    assert met
