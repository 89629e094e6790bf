"""Writers that compete, connections that break, processes that die: nothing lost, nothing twice."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater import evm, portal_stream
from headwater.core import BlockCursor, Head, PipeState
from headwater.errors import (
    PostgresConflictError,
    PostgresConnectionError,
    PostgresDiskFullError,
    PostgresLockError,
)
from headwater.runtime import Runtime
from headwater.targets.postgres import PostgresSettings, PostgresTarget, Tx, postgres_target, table
from headwater.testing import simulated_portal
from tests.sampling import every
from tests.stream.truth import transfers
from tests.targets.killed import writers
from tests.targets.postgres_places import Stream, database
from tests.targets.postgres_proxy import Proxy

ROOT = Path(__file__).resolve().parent.parent.parent
Start = Callable[..., Stream]


@pytest.fixture
def dsn() -> str:
    return database()


@pytest.fixture
def stream(dsn: str) -> Iterator[Start]:
    targets: list[PostgresTarget] = []

    def start(*tables: Any, at: str = dsn, id: str = "s", **settings: Any) -> Stream:
        target = postgres_target(
            at,
            tables=tables or [table("t", key=["k"])],
            on_data=lambda tx, data: data["do"](tx) if "do" in data else None,
            settings=PostgresSettings(id=id, **({"lock_wait_s": 0.2} | settings)),
        )
        targets.append(target)
        return Stream(target, dsn)

    yield start
    for one in targets:
        one.close()


def rows(*keys: int) -> pa.Table:
    return pa.table({"k": list(keys), "v": [f"v{key}" for key in keys]})


def insert(*keys: int) -> Callable[[Tx], None]:
    return lambda tx: tx.insert("t", rows(*keys))


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    made = Proxy(dsn)
    yield made
    made.close()


# --- connections ----------------------------------------------------------------------------------


@pytest.mark.guarantee("STATE-2")
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("step", ["block", "fork", "settle"])
def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_repeated(
    stream: Start, proxy: Proxy, forward: bool, step: str
) -> None:
    """CASE-10: with an operation that would show if it were applied twice."""
    s = stream(at=proxy.dsn, lock_wait_s=5)
    calls: list[int] = []

    def add(tx: Tx) -> None:
        calls.append(1)
        tx.execute("UPDATE t SET v = (v::int + 1)::text")

    s.do(1, lambda tx: tx.insert("t", pa.table({"k": [1], "v": ["0"]})))
    s.do(2, add)
    proxy.forward, proxy.cut_at = forward, b"COMMIT"
    if step == "block":
        s.do(3, add)
        assert len(calls) == (2 if forward else 3)
    elif step == "fork":
        s.fork(1)
    else:
        state = s.state.settle(_final(2), confirmed=True)
        s.target.commit((), state)
        s.state = state
    assert proxy.cuts == 1
    value = {"block": "2", "fork": "0", "settle": "1"}[step]
    assert s.rows("SELECT v FROM t") == [{"v": value}]
    assert s.target.recover() == s.state
    s.do(5, add)
    assert s.rows("SELECT v FROM t") == [{"v": str(int(value) + 1)}]


def _final(number: int) -> Head:
    return Head(BlockCursor(number, f"h{number}"))


@pytest.mark.parametrize(
    ("cut_at", "block"),
    [
        (b"BEGIN", 2),
        (b"COPY", 2),
        (b"PGCOPY", 2),
        (b'INSERT INTO "public"."sync" (id', 1),  # prepared: its text is sent once
        (b'[{"number":2', 2),  # what it is executed with
        (b"pg_locks", 1),
    ],
)
def test_a_connection_that_breaks_anywhere_is_made_again(
    stream: Start, proxy: Proxy, cut_at: bytes, block: int
) -> None:
    s = stream(at=proxy.dsn, lock_wait_s=5)
    for number in (1, 2):
        if number == block:
            proxy.cut_at = cut_at
        s.do(number, insert(number))
    assert proxy.cuts == 1
    assert s.rows("SELECT k FROM t ORDER BY k") == [{"k": 1}, {"k": 2}]
    s.fork(1)
    assert s.rows("SELECT k FROM t") == [{"k": 1}]


def test_a_server_is_waited_for_by_minutes(stream: Start, proxy: Proxy) -> None:
    """Ten minutes unless the settings say otherwise; what pauses stands in for the time."""
    s = stream(at=proxy.dsn, lock_wait_s=5)
    s.do(1, insert(1))
    waited: list[float] = []

    def pause(seconds: float, why: str) -> None:
        assert "away" in why
        waited.append(seconds)
        proxy.refuse = sum(waited) < 180

    s.target.runtime = Runtime(wait=pause)
    proxy.cut_at, proxy.refuse = b"COMMIT", True
    s.do(2, insert(2))
    assert sum(waited) >= 180
    assert s.rows("SELECT k FROM t ORDER BY k") == [{"k": 1}, {"k": 2}]
    s.target.close()
    impatient = stream(at=proxy.dsn, wait_s=0)
    proxy.cut_at, proxy.refuse = b"COMMIT", True
    with pytest.raises(PostgresConnectionError, match=r"attempts=1"):
        impatient.do(3, insert(3))


def test_a_stop_ends_the_wait_for_a_server(proxy: Proxy) -> None:
    """What was committed stays, and the next start goes on there."""

    target = postgres_target(proxy.dsn)

    def cut(sql: str) -> None:
        if "INSERT" in sql:
            proxy.cut_at, proxy.refuse, target.on_statement = b"COMMIT", True, None

    with simulated_portal(seed=3, blocks=40) as portal:
        outputs = {"t": evm.events("erc20.Transfer", range=(0, 35))}
        program = portal_stream(id="waits", portal=portal.url, outputs=outputs)
        target.on_statement = cut
        handle = program.start(target)
        while handle.record.trouble is None:
            handle.await_termination(0.05)
        assert handle.record.trouble.startswith("the database is away")
        handle.stop()
        handle.await_termination(120)
        assert not handle.is_active
        proxy.refuse = False
        target = postgres_target(proxy.dsn)
        program.pipe_to(target, progress=False)
        (found,) = target.query("SELECT count(*) AS n FROM t").to_pylist()
        assert found["n"] == len(transfers(portal.chain, portal.chain.canonical(0, 35)))


def test_a_server_that_stays_away_is_given_up_and_nothing_is_lost(
    stream: Start, proxy: Proxy
) -> None:
    s = stream(at=proxy.dsn, lock_wait_s=5, attempts=2)
    s.do(1, insert(1))
    proxy.cut_at, proxy.refuse = b"COMMIT", True
    with pytest.raises(PostgresConnectionError):
        s.do(2, insert(2))
    proxy.refuse = False
    recovered = s.target.recover()
    kept = s.rows("SELECT count(*) AS n FROM t")[0]["n"]
    assert recovered.cursor is not None
    assert recovered.cursor.number == kept


def test_a_backend_that_is_terminated_costs_one_retry(stream: Start) -> None:
    s = stream(lock_wait_s=5)
    s.do(1, insert(1))
    calls: list[int] = []

    def write(tx: Tx) -> None:
        calls.append(1)
        tx.insert("t", rows(2))
        if len(calls) == 1:
            pid = tx.query("SELECT pg_backend_pid() AS p").to_pylist()[0]["p"]
            s.sql(f"SELECT pg_terminate_backend({pid})")
        tx.query("SELECT 1")

    s.do(2, write)
    assert len(calls) == 2
    assert s.rows("SELECT k FROM t ORDER BY k") == [{"k": 1}, {"k": 2}]


# --- conflicts ------------------------------------------------------------------------------------


def test_conflicts_are_tried_again_and_errors_of_the_users_are_not(stream: Start) -> None:
    s = stream()
    s.sql("CREATE TABLE other (k int PRIMARY KEY, v int); INSERT INTO other VALUES (1, 1), (2, 2)")
    s.do(1, insert(1))
    calls: list[int] = []

    def conflicting(tx: Tx) -> None:
        """Read what a transaction of somebody else's then changes, and write what it has read."""
        calls.append(1)
        total = tx.query("SELECT sum(v)::int AS n FROM other").to_pylist()[0]["n"]
        if len(calls) == 1:
            with psycopg.connect(s.dsn) as connection:
                connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                count = connection.execute("SELECT count(*) FROM t").fetchone()
                assert count is not None
                connection.execute("UPDATE other SET v = %s + 100 WHERE k = 1", count)
        tx.execute("UPDATE t SET v = $1", [str(total)])

    s.do(2, conflicting)
    assert len(calls) == 2
    assert s.rows("SELECT v FROM t") == [{"v": "103"}]

    def failing(tx: Tx) -> None:
        calls.append(1)
        tx.insert("t", rows(3))
        raise psycopg.OperationalError("of another database")

    calls.clear()
    with pytest.raises(psycopg.OperationalError, match="of another"):
        s.do(3, failing)
    with pytest.raises(psycopg.errors.DivisionByZero):
        s.do(3, lambda tx: tx.execute("SELECT 1 / 0"))
    assert len(calls) == 1
    s.do(3, insert(3))


def test_transactions_that_met_a_conflict_take_turns(stream: Start) -> None:
    """Eight streams that are tried again in step would conflict each time."""
    s = stream()
    in_turn: list[int] = []
    turns = "SELECT count(*)::int AS n FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"

    def conflicting(tx: Tx) -> None:
        in_turn.append(tx.query(f"{turns} AND pid = pg_backend_pid()").to_pylist()[0]["n"])
        if len(in_turn) == 1:
            tx.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$")
        tx.insert("t", rows(1))

    s.do(1, conflicting)
    assert in_turn == [0, 1]
    assert s.rows(turns) == [{"n": 0}]
    assert s.rows("SELECT k FROM t") == [{"k": 1}]


def test_a_conflict_that_stays_is_raised(stream: Start) -> None:
    s = stream(attempts=3)
    calls: list[int] = []

    def conflicting(tx: Tx) -> None:
        calls.append(1)
        tx.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$")

    with pytest.raises(PostgresConflictError, match=r"E2118.*attempts=3"):
        s.do(1, conflicting)
    assert len(calls) == 3


# --- writers --------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_changes_nothing(stream: Start, dsn: str) -> None:
    """CASE-11."""
    s = stream()
    s.do(1, insert(1))
    ran: list[int] = []
    second = postgres_target(
        dsn,
        tables=[table("u", key=["k"])],
        on_data=lambda tx, data: None,
        on_start=lambda tx: ran.append(1),
        settings=PostgresSettings(id="s", lock_wait_s=0.1),
    )
    with pytest.raises(PostgresLockError):
        second.recover()
    assert not ran
    other = stream(id="other")
    assert other.state == PipeState()
    s.target.close()
    assert second.recover() == s.state
    second.close()


def test_a_writer_of_another_kind_is_noticed(stream: Start) -> None:
    """The Pipes SDK locks per batch: it may hold that lock, or have moved the cursor."""
    s = stream()
    s.do(1, insert(1))
    with psycopg.connect(s.dsn) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('s')::bigint)")
        with pytest.raises(PostgresLockError, match="is writing"):
            s.do(2, insert(2))
    s.do(2, insert(2))
    s.sql("INSERT INTO sync VALUES ('s', 3, 'theirs', NULL, '{}', '[]')")
    changed = "is not what this writer has stored"
    with pytest.raises(PostgresLockError, match=changed):
        s.do(3, insert(3))
    with pytest.raises(PostgresLockError, match=changed):
        s.fork(1)
    assert s.rows("SELECT count(*) AS n FROM t") == [{"n": 2}]
    s.state = s.target.recover()
    assert s.state.cursor is not None
    assert s.state.cursor.number == 3
    s.do(4, insert(4))


def test_two_streams_share_a_table_and_their_forks_do_not_meet(stream: Start) -> None:
    """CASE-11 and CASE-24, at the same block numbers."""
    one, two = stream(id="one"), stream(id="two")
    for number in range(1, 6):
        one.do(number, lambda tx, n=number: tx.upsert("t", rows(n)))
        two.do(number, lambda tx, n=number: tx.upsert("t", rows(100 + n, 200)))
    one.fork(2)
    two.do(6, insert(106))
    two.fork(4)
    keys = [row["k"] for row in one.rows("SELECT k FROM t ORDER BY k")]
    assert keys == [1, 2, 101, 102, 103, 104, 200]
    for s in (one, two):
        assert s.target.recover() == s.state


# --- processes ------------------------------------------------------------------------------------


WRITER = """
import pyarrow as pa
from headwater.targets.postgres import PostgresSettings, postgres_target, table
from tests.targets.postgres_places import Stream
def write(dsn):
    target = postgres_target(
        dsn, tables=[table("log", append_only=True), table("t", key=["k"])],
        on_data=lambda tx, data: (
            tx.insert("log", pa.table({"block_number": [data["n"]]})),
            tx.upsert("t", pa.table({"k": [1], "v": [str(data["n"])]}))),
        settings=PostgresSettings(id="s", lock_wait_s=10))
    s = Stream(target, dsn)
    while True:
        number = 1 if s.state.cursor is None else s.state.cursor.number + 1
        s.block(number, {"n": number})
        print(number, flush=True)
        if number % 5 == 0:
            s.fork(number - 2)
"""


@pytest.mark.guarantee("STATE-2")
def test_a_process_that_is_killed_leaves_data_and_cursor_equal(dsn: str) -> None:
    """Killed without warning, over and over, while it commits and rolls back."""
    with writers(WRITER, dsn) as mortal:
        for attempt in range(4):
            mortal.kill_one_after(3 + attempt * 2)
            target = postgres_target(dsn, settings=PostgresSettings(id="s", lock_wait_s=10))
            s = Stream(target, dsn)
            number = s.state.cursor.number if s.state.cursor else 0
            assert number > 0
            numbers = [one["n"] for one in s.rows("SELECT block_number AS n FROM log ORDER BY 1")]
            assert numbers == list(range(1, number + 1))
            assert s.rows("SELECT * FROM t") == [{"k": 1, "v": str(number)}]
            target.close()


# --- opening, and disks without room --------------------------------------------------------------


def test_a_connection_lost_at_any_statement_of_the_opening_is_made_again(dsn: str) -> None:
    """A restart of the server while a stream starts: recover returns the state all the same."""
    first = Stream(_target(dsn), dsn)
    first.do(1, insert(1))
    first.do(2, insert(2))
    first.target.close()
    said: list[str] = []
    counting = _target(dsn)
    counting.on_statement = said.append
    assert counting.recover() == first.state
    counting.close()
    places = range(1, len(said))  # not before the first connection
    assert len(places) > 10
    for place in every(3).of(places):
        target, cuts = _target(dsn), list[str]()
        target.on_statement = partial(_cut_once, dsn, iter(range(place)), cuts)
        assert target.recover() == first.state, said[place]
        assert len(cuts) == 1, said[place]
        assert cuts[0] in said  # on a busy machine the lock of the last one is asked for twice
        target.close()


def test_a_connection_lost_while_the_configuration_is_compared_is_made_again(dsn: str) -> None:
    """Right after recover a stream reads and writes what it asked for."""
    target = _target(dsn)
    target.recover()
    for text in ("first", "second"):
        for cut_at in range(4):
            target.on_statement = partial(_cut_once, dsn, iter(range(cut_at)), [])
            target.stored_config().write(text)
            target.on_statement = partial(_cut_once, dsn, iter(range(cut_at)), [])
            assert target.stored_config().read() == text
    target.close()


def test_a_connection_that_is_lost_at_every_opening_is_a_coded_error(dsn: str) -> None:
    target, connections = _target(dsn, attempts=3), list[str]()

    def cut(sql: str) -> None:
        if sql == "CONNECT":
            connections.append(sql)
        elif "CREATE TABLE" in sql:
            _end_connections(dsn)

    target.on_statement = cut
    with pytest.raises(PostgresConnectionError, match=r"E2119.*lost"):
        target.recover()
    assert len(connections) == 3
    target.on_statement = None
    assert target.recover() == PipeState()
    target.close()


@pytest.mark.parametrize("times", [1, 9])
def test_a_full_disk_is_waited_for_and_then_a_coded_error(stream: Start, times: int) -> None:
    """The server says 53100 in the middle of a batch; nothing of that batch is left."""
    s = stream(attempts=2)
    s.do(1, insert(1))
    failures = iter(range(times))

    def fill(tx: Tx) -> None:
        tx.insert("t", rows(2))
        if next(failures, None) is not None:
            tx.execute("DO $$BEGIN RAISE 'no space left' USING ERRCODE = 'disk_full'; END$$")

    if times == 1:
        s.do(2, fill)
        assert s.rows("SELECT k FROM t ORDER BY k") == [{"k": 1}, {"k": 2}]
        return
    with pytest.raises(PostgresDiskFullError, match=r"E2115.*no space left"):
        s.do(2, fill)
    assert s.rows("SELECT k FROM t") == [{"k": 1}]
    s.do(2, insert(2))


def test_a_full_disk_while_a_target_opens_is_a_coded_error(dsn: str) -> None:
    target = postgres_target(
        dsn,
        on_start=lambda tx: tx.execute("DO $$BEGIN RAISE 'full' USING ERRCODE = '53100'; END$$"),
        settings=PostgresSettings(id="s", attempts=1),
    )
    with pytest.raises(PostgresDiskFullError, match="E2115"):
        target.recover()
    target.close()


def _target(dsn: str, **settings: Any) -> PostgresTarget:
    return postgres_target(
        dsn,
        tables=[table("t", key=["k"])],
        on_data=lambda tx, data: data["do"](tx),
        settings=PostgresSettings(id="s", **settings),
    )


def _cut_once(dsn: str, left: Iterator[int], cuts: list[str], sql: str) -> None:
    """Let some statements pass, then end the connection before one of them."""
    if next(left, None) is None and not cuts:
        cuts.append(sql)
        _end_connections(dsn)


def _end_connections(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_two_streams_that_store_their_definitions_for_the_first_time_do_not_meet(
    stream: Start,
) -> None:
    """The table is made while streams take turns; made later, the second one met the first's."""
    one, two = stream("t", id="one"), stream("u", id="two")
    for s in (one, two):
        assert s.rows("SELECT count(*) AS n FROM headwater_config") == [{"n": 0}]
