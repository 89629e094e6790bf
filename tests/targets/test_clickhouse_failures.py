"""Lost answers, servers that are killed, drivers that die with an insert under way."""

from __future__ import annotations

import http.client
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from headwater.errors import (
    ClickHouseConnectionError,
    ClickHouseDiskFullError,
    ClickHouseWriterError,
)
from headwater.runtime import Runtime
from headwater.targets.clickhouse import (
    ClickHouseClient,
    ClickHouseSettings,
    clickhouse_target,
    table,
)
from headwater.targets.clickhouse.transfer import plan_transfer
from headwater.targets.contract import Scope
from headwater.testing.servers.clickhouse import ClickHouseServer
from tests.sampling import is_whole
from tests.shared import HANG_S
from tests.targets.clickhouse_places import Stream, at_once, database


def frame(block: int, *values: int) -> pa.Table:
    return pa.table(
        {
            "block_number": pa.array([block] * len(values), pa.int64()),
            "log_index": pa.array(range(len(values)), pa.int32()),
            "value": pa.array(values, pa.int64()),
        }
    )


def started(url: str, *tables: Any, **settings: Any) -> Stream:
    target = clickhouse_target(
        url,
        tables=tables or ["t"],
        on_data=lambda store, data: [store.insert(name, one) for name, one in data.items()],
        settings=ClickHouseSettings(id="s", **settings),
    )
    return Stream(target, url)


class LossyProxy(ThreadingHTTPServer):
    """Passes statements on to a server, and loses those answers that it is told to lose."""

    daemon_threads = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        parts = urlsplit(url)
        self.server = (str(parts.hostname), int(parts.port or 8123))
        self.lose: Callable[[str], bool] = lambda sql: False
        self.lost = 0
        self.url = f"http://127.0.0.1:{self.server_port}{parts.path}?{parts.query}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Forward(BaseHTTPRequestHandler):
    server: LossyProxy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        upstream = http.client.HTTPConnection(*self.server.server)
        upstream.request("POST", self.path, body, {"Connection": "close"})
        answer = upstream.getresponse()
        said = answer.read()
        upstream.close()
        statement = self.path + body[:2000].decode(errors="replace")
        if self.server.lose(statement.replace("+", " ")):
            self.server.lost += 1
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name in ("X-ClickHouse-Exception-Code", "Content-Type"):
            if answer.headers.get(name):
                self.send_header(name, answer.headers[name])
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> str:
    return database()


@pytest.fixture
def proxy(url: str) -> Iterator[LossyProxy]:
    made = LossyProxy(url)
    yield made
    made.stop()


@pytest.mark.guarantee("STATE-3")
@pytest.mark.guarantee("STATE-2")
@pytest.mark.parametrize("engine", ["CollapsingMergeTree", "ReplacingMergeTree", "MergeTree"])
def test_what_is_applied_twice_counts_once(proxy: LossyProxy, url: str, engine: str) -> None:
    """CASE-10: the first answer to each statement is lost, after the server has done it."""
    s = started(proxy.url, table("t", engine=engine))
    s.client, s.target.runtime = ClickHouseClient(url), Runtime(wait=at_once)
    seen: set[str] = set()

    def first_time(sql: str) -> bool:
        found = re.search(r"query_id=(\S+?)&", sql)
        new = found is not None and found[1] not in seen
        seen.add(found[1] if found else "")
        return new

    proxy.lose = first_time
    for number in range(1, 7):
        s.block(number, {"t": frame(number, number, number * 10)})
    s.fork(3)
    s.block(4, {"t": frame(4, 400)}, branch="x")
    assert proxy.lost > 15
    proxy.lose = lambda sql: False
    shown = "t" if engine == "MergeTree" else "t_live"
    found = s.rows(f"SELECT value FROM {shown} ORDER BY block_number, log_index")
    assert [row["value"] for row in found] == [1, 10, 2, 20, 3, 30, 400]
    if engine == "CollapsingMergeTree":
        assert s.rows("SELECT sum(sign) AS n FROM t") == [{"n": 7}]
    expected = s.state
    s.target.close()
    s = started(url, table("t", engine=engine))
    assert s.state == expected
    s.target.close()


def test_a_try_that_still_runs_on_the_server_is_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement is sent again with the id of its first try, which may not have ended yet."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "the-same")
    first, second, watch = (ClickHouseClient(url) for _ in range(3))
    second.prefix, watch.prefix = first.prefix, "watch"
    slow = threading.Thread(target=first.rows, args=("SELECT sleep(1)",))
    slow.start()
    while not watch.rows(
        f"SELECT 1 FROM system.processes WHERE query_id = '{first.prefix}the-same'"
    ):
        assert slow.is_alive()
    assert second.rows("SELECT 7 AS n") == [{"n": 7}]
    slow.join()
    for client in (first, second, watch):
        client.close()


def test_a_server_that_stays_away_stops_the_stream_and_a_restart_repairs(
    proxy: LossyProxy, url: str
) -> None:
    s = started(proxy.url, attempts=2)
    s.block(1, {"t": frame(1, 1)})
    proxy.lose = lambda sql: "INSERT" in sql
    with pytest.raises(ClickHouseConnectionError):
        s.block(2, {"t": frame(2, 2)})
    proxy.lose = lambda sql: False
    s.block(2, {"t": frame(2, 2)})  # the next call repairs first
    s.client = ClickHouseClient(url)
    assert s.rows("SELECT sum(sign) AS n, sum(value * sign) AS v FROM t") == [{"n": 2, "v": 3}]
    s.target.close()


def test_a_server_that_was_there_is_waited_for_and_a_wrong_address_is_said_soon(
    proxy: LossyProxy, url: str
) -> None:
    """Ten minutes unless the settings say otherwise; what pauses stands in for the time."""
    s = started(proxy.url)
    s.block(1, {"t": frame(1, 1)})
    proxy.lose = lambda sql: "INSERT" in sql
    waits: list[float] = []

    def pause(seconds: float, why: str) -> None:
        assert "away" in why
        waits.append(seconds)
        if len(waits) == 20:
            proxy.lose = lambda sql: False

    s.target.runtime = Runtime(wait=pause)
    s.block(2, {"t": frame(2, 2)})
    assert len(waits) == 20
    s.client = ClickHouseClient(url)
    assert s.rows("SELECT sum(sign) AS n, sum(value * sign) AS v FROM t") == [{"n": 2, "v": 3}]
    s.target.close()
    wrong = clickhouse_target("http://127.0.0.1:9")
    waits.clear()
    wrong.runtime = Runtime(wait=lambda seconds, why: waits.append(seconds))
    with pytest.raises(ClickHouseConnectionError):
        wrong.recover()
    assert len(waits) == 7


def test_without_memory_of_inserts_a_lost_answer_is_an_error_not_a_duplicate(
    proxy: LossyProxy, url: str
) -> None:
    client = ClickHouseClient(url)
    client.run(
        "CREATE TABLE t (block_number Int64, log_index Int32, value Int64, sign Int8) "
        "ENGINE = CollapsingMergeTree(sign) ORDER BY (block_number, log_index)"
    )
    s = started(proxy.url)
    s.client = client
    s.block(1, {"t": frame(1, 1)})
    client.run("ALTER TABLE t MODIFY SETTING non_replicated_deduplication_window = 0")
    s.target._catalog.forget()
    real = s.target._client.run
    s.target._client.run = lambda sql, *a, **k: None if "MODIFY" in sql else real(sql, *a, **k)  # type: ignore[method-assign]
    proxy.lose = lambda sql: "ArrowStream" in sql
    with pytest.raises(ClickHouseConnectionError):
        s.block(2, {"t": frame(2, 2)})
    proxy.lose = lambda sql: False
    s.block(2, {"t": frame(2, 2)})
    assert s.rows("SELECT sum(sign) AS n FROM t") == [{"n": 2}]
    s.target.close()


@pytest.mark.guarantee("STATE-3")
def test_an_executor_of_a_dead_driver_writes_no_more(url: str) -> None:
    """It was computing while the driver was killed and started again."""
    s = started(url)
    s.block(1, {"t": frame(1, 1)})
    layout = s.target._catalog.prepare(s.target._catalog.parse("t"), frame(1, 1).schema)
    transfer = plan_transfer(frame(2, 2).schema, layout, "s", Scope(2, 1, False), 0)
    task = pickle.loads(pickle.dumps(s.target._inserts.writer(transfer, "token")))
    assert next(task(frame(2, 2).to_batches(), 0))["rows"].to_pylist() == [1]
    s.target.close()
    s = started(url)
    with pytest.raises(ClickHouseWriterError):
        next(task(frame(2, 3).to_batches(), 0))
    assert s.rows("SELECT value FROM t_live") == [{"value": 1}]
    s.target.close()


@pytest.mark.guarantee("STATE-3")
def test_an_insert_of_a_dead_driver_is_ended_before_the_repair(url: str) -> None:
    """A statement that still runs on the server would write after the rows were removed."""
    s = started(url)
    s.block(1, {"t": frame(1, 1)})
    dead = ClickHouseClient(url, attempts=1)
    dead.prefix = s.target._client.prefix
    s.target.close()
    slow = (
        "INSERT INTO t (block_number, log_index, value) SELECT 2, number, sleepEachRow(0.1) "
        "FROM numbers(1000) SETTINGS max_block_size = 1, min_insert_block_size_rows = 1, "
        "function_sleep_max_microseconds_per_block = 0"
    )

    def run_slowly() -> None:
        with pytest.raises(ClickHouseConnectionError):
            dead.run(slow)

    thread = threading.Thread(target=run_slowly)
    thread.start()
    deadline = time.monotonic() + HANG_S
    while not s.rows("SELECT count() AS n FROM t WHERE block_number = 2")[0]["n"]:
        assert time.monotonic() < deadline
    s = started(url)
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert s.rows("SELECT block_number AS n FROM t_live") == [{"n": 1}]
    s.target.close()


@pytest.mark.guarantee("STATE-3")
@pytest.mark.guarantee("STATE-2")
def test_the_server_is_killed_again_and_again_while_a_stream_runs() -> None:
    """kill -9 of ClickHouse itself, at any moment; the stream waits for it and goes on."""
    server = ClickHouseServer()
    server.start()
    stop = threading.Event()
    kills, often = [0], 8 if is_whole() else 4

    def kill_often() -> None:
        while not stop.wait(0.35):
            server.kill()
            kills[0] += 1
            server.start()

    thread = threading.Thread(target=kill_often)
    try:
        s = started(server.url, attempts=60)
        s.block(0, {"t": frame(0, 0)}, final=0)
        expected: dict[int, list[int]] = {0: [0]}
        thread.start()
        number, deadline = 0, time.monotonic() + HANG_S
        while kills[0] < often and time.monotonic() < deadline:
            number += 1
            expected[number] = [number, kills[0]]
            s.block(number, {"t": frame(number, *expected[number])}, final=max(0, number - 9))
            if number % 7 == 0:
                number -= 3
                s.fork(number)
                expected = {at: rows for at, rows in expected.items() if at <= number}
        stop.set()
        thread.join()
        assert kills[0] >= often
        found = s.rows("SELECT block_number, log_index, value FROM t_live")
        held = {(row["block_number"], row["log_index"]): row["value"] for row in found}
        wanted = {(at, i): one for at, rows in expected.items() for i, one in enumerate(rows)}
        assert held == wanted
        assert s.rows("SELECT sum(sign) AS n FROM t") == [{"n": len(wanted)}]
        state = s.state
        s.target.close()
        s = started(server.url)
        assert s.state == state
        s.target.close()
    finally:
        stop.set()
        if thread.is_alive():
            thread.join()
        server.remove()


@pytest.mark.parametrize(
    ("number", "said"),
    [(243, "Cannot reserve 1.00 MiB"), (75, "errno: 28, No space left on device")],
)
def test_a_full_disk_is_waited_for_and_then_a_coded_error(number: int, said: str) -> None:
    """The server refuses with 243 when it cannot reserve space, with others while it writes."""
    url = database()
    client = ClickHouseClient(url, settings={"allow_custom_error_code_in_throwif": "1"})
    client.run("CREATE TABLE room (n UInt8) ENGINE = Memory")
    full = f"SELECT throwIf(count() = 0, '{said}', toInt16({number})) FROM room"
    waits: list[float] = []
    client.attempts, client.wait = 3, lambda seconds, why: waits.append(seconds)
    with pytest.raises(ClickHouseDiskFullError, match=rf"E2017.*{said}"):
        client.run(full)
    assert len(waits) == 2
    client.wait = lambda seconds, why: ClickHouseClient(url).run("INSERT INTO room VALUES (1)")
    client.run(full)
    client.close()
