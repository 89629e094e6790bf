"""Answers of ClickHouse that are cut: in their headers, after every byte, and in their body."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import ClickHouseConnectionError
from headwater.runtime import Runtime
from headwater.targets.clickhouse import (
    ClickHouseClient,
    ClickHouseSettings,
    clickhouse_target,
    table,
)
from tests.sampling import BEYOND, every, visit
from tests.targets.clickhouse_places import Stream, at_once, database
from tests.targets.clickhouse_proxy import CuttingProxy, headers_end

ENGINES = ["CollapsingMergeTree", "ReplacingMergeTree", "MergeTree"]


@pytest.fixture
def url() -> str:
    return database()


@pytest.fixture
def proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    monkeypatch.setattr("headwater.targets.database._FIRST_DELAY_S", 0.0)
    made = CuttingProxy(url)
    yield made
    made.stop()


def frame(block: int, *values: int) -> pa.Table:
    return pa.table(
        {
            "block_number": pa.array([block] * len(values), pa.int64()),
            "log_index": pa.array(range(len(values)), pa.int32()),
            "value": pa.array(values, pa.int64()),
        }
    )


def started(url: str, engine: str = ENGINES[0], **settings: Any) -> Stream:
    target = clickhouse_target(
        url,
        tables=[table("t", engine=engine)],
        on_data=lambda store, data: [store.insert(name, one) for name, one in data.items()],
        settings=ClickHouseSettings(id="s", **settings),
    )
    target.runtime = Runtime(wait=at_once)
    return Stream(target, url)


@pytest.mark.guarantee("WIRE-6")
@pytest.mark.parametrize(("ask", "k"), [("rows", 7), ("query", 17), ("run", 17)])
def test_an_answer_that_was_cut_after_any_byte_is_asked_for_again(
    proxy: CuttingProxy, ask: str, k: int
) -> None:
    """Python takes the end of the connection for the end of the headers: 200, and empty."""
    asked = ClickHouseClient(proxy.url, attempts=2)
    asked.wait = at_once
    waiting: list[int] = []
    length = 0

    def cut_first(statement: str, answer: bytes) -> int | None:
        nonlocal length
        if "KILL" in statement:
            return None
        length = len(answer) - len(b"0\r\n\r\n")
        return waiting.pop() if waiting else None

    def cut_at(at: int) -> int | None:
        cuts = proxy.cuts
        if at != BEYOND:
            waiting.append(at)
        if ask == "rows":
            assert asked.rows("SELECT 7 AS n") == [{"n": 7}]
        elif ask == "query":
            assert asked.query("SELECT 7 AS n").to_pylist() == [{"n": 7}]
        else:
            asked.run("SELECT 7 AS n")
        assert proxy.cuts - cuts == (at != BEYOND)
        return length if at == BEYOND else None

    proxy.cut = cut_first
    assert len(visit(k, cut_at)) > 10
    asked.close()


@pytest.mark.guarantee("WIRE-6")
@pytest.mark.guarantee("STATE-2")
@pytest.mark.parametrize("said", ["cut", "nothing"])
def test_an_empty_answer_to_the_question_for_the_state_removes_nothing(
    proxy: CuttingProxy, url: str, said: str
) -> None:
    """All rows were removed, also final ones, and the stream began anew."""
    s = started(url)
    for number in range(1, 6):
        s.block(number, {"t": frame(number, number)}, final=3)
    expected = s.state
    s.target.close()
    lengths = [1]

    def cut_state(statement: str, answer: bytes) -> int | bytes | None:
        if "rollback_chain" not in statement or "SELECT" not in statement:
            return None
        if said == "nothing":
            return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        lengths[0] = headers_end(answer)
        return at

    proxy.cut = cut_state
    at = 0
    with pytest.raises(ClickHouseConnectionError):
        started(proxy.url, attempts=1)
    for at in every(3).of(range(17, lengths[0], 17)):  # noqa: B007 - where `cut_state` cuts
        with pytest.raises(ClickHouseConnectionError):
            started(proxy.url, attempts=1)
    assert proxy.cuts
    s = started(url)
    assert s.state == expected
    assert s.rows("SELECT sum(value) AS v, count() AS n FROM t_live") == [{"v": 15, "n": 5}]
    s.target.close()


@pytest.mark.guarantee("WIRE-6")
@pytest.mark.guarantee("STATE-3")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", every(2).seeds(range(2)))
def test_every_statement_of_start_commit_and_rollback_survives_a_cut_answer(
    proxy: CuttingProxy, url: str, engine: str, seed: int
) -> None:
    """The first answer to each statement ends somewhere in its headers or its body."""
    seen: set[str] = set()

    def cut_first_of_each(statement: str, answer: bytes) -> int | None:
        found = re.search(r"query_id=(\S+?)&", statement)
        name = found[1] if found else statement
        if name in seen:
            return None
        seen.add(name)
        head = headers_end(answer)
        places = [head * step // 13 for step in range(14)] + [head + 1, (head + len(answer)) // 2]
        return places[(len(seen) * 5 + seed * 8) % len(places)]

    proxy.cut = cut_first_of_each
    s = started(proxy.url, engine)
    for number in range(1, 5):
        s.block(number, {"t": frame(number, number, number * 10)})
    s.fork(2)
    s.block(3, {"t": frame(3, 300)}, branch="x")
    s.target.close()
    s = started(proxy.url, engine)
    s.block(4, {"t": frame(4, 400)}, branch="x")
    assert proxy.cuts > 30
    proxy.cut = lambda statement, answer: None
    s.client = ClickHouseClient(url)
    shown = "t" if engine == "MergeTree" else "t_live"
    found = s.rows(f"SELECT value FROM {shown} ORDER BY block_number, log_index")
    assert [row["value"] for row in found] == [1, 10, 2, 20, 300, 400]
    expected = s.state
    s.target.close()
    s = started(url, engine)
    assert s.state == expected
    s.target.close()
