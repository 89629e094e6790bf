"""Careless SQL in callbacks: what the text does not show, the server is asked before the commit."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import PostgresLockError, PostgresStatementError, PostgresTransactionError
from headwater.targets.postgres import PostgresSettings, PostgresTarget, Tx, postgres_target, table
from tests.targets.postgres_places import Stream, database

Start = Callable[..., Stream]
KEYED, LOG = table("t", key=["k"]), table("log", append_only=True)
ROWS = "SELECT k FROM t ORDER BY k"
BLOCKS = "SELECT block_number AS b FROM log ORDER BY b"


@pytest.fixture
def dsn() -> str:
    return database()


@pytest.fixture
def stream(dsn: str) -> Iterator[Start]:
    targets: list[PostgresTarget] = []

    def start(*tables: Any, **options: Any) -> Stream:
        target = postgres_target(
            dsn,
            tables=tables or (KEYED, LOG),
            on_data=lambda tx, data: data["do"](tx) if "do" in data else None,
            settings=PostgresSettings(id="s", lock_wait_s=0.2),
            **options,
        )
        targets.append(target)
        return Stream(target, dsn)

    yield start
    for one in targets:
        one.close()


def write(number: int) -> Callable[[Tx], None]:
    """Return what writes a block to both tables."""

    def run(tx: Tx) -> None:
        tx.insert("t", pa.table({"k": [number]}))
        tx.insert("log", pa.table({"block_number": [number]}))

    return run


ENDINGS = [
    "SELECT 1 AS atomic; COMMIT",
    "SELECT 1 AS atomic; COMMIT; BEGIN",
    "SELECT 1 AS atomic; COMMIT AND CHAIN",
    "SELECT 1 AS atomic; ROLLBACK",
    "SELECT 1 AS atomic; ROLLBACK; BEGIN",
]
READ = [  # these are told by their text
    "SELECT 1 AS a$x$; COMMIT; SELECT 2 AS b$x$",
    "SELECT 'a' like'x\\'; COMMIT; SELECT 'b' --'",
]


@pytest.mark.guarantee("GUARD-1")
@pytest.mark.parametrize("sql", ENDINGS + READ)
@pytest.mark.parametrize("swallowed", [False, True])
def test_a_callback_that_ends_the_transaction_is_noticed_and_undone(
    stream: Start, sql: str, swallowed: bool
) -> None:
    s = stream()
    s.do(1, write(1))
    s.do(2, write(2))

    def end(tx: Tx) -> None:
        write(3)(tx)
        tx.execute(sql)
        try:
            tx.insert("t", pa.table({"k": [33]}))
        except PostgresTransactionError:
            if not swallowed:
                raise

    expected = PostgresStatementError if sql in READ else PostgresTransactionError
    with pytest.raises(expected, match="E2113" if sql in READ else r"E2114.*transaction was ended"):
        s.do(3, end)
    assert s.rows(ROWS) == [{"k": 1}, {"k": 2}]
    assert s.rows(BLOCKS) == [{"b": 1}, {"b": 2}]
    assert s.target.recover() == s.state
    s.do(3, write(3))
    s.fork(1)
    assert s.rows(ROWS) == [{"k": 1}]


@pytest.mark.parametrize("hook", ["on_start", "on_before_rollback", "on_after_rollback"])
def test_hooks_that_end_the_transaction_are_noticed(stream: Start, hook: str) -> None:
    armed = hook == "on_start"

    def end(tx: Tx, *_: Any) -> None:
        if armed:
            tx.execute(ENDINGS[1])

    if armed:
        with pytest.raises(PostgresTransactionError):
            stream(**{hook: end})
        return
    s = stream(**{hook: end})
    for number in (1, 2, 3):
        s.do(number, write(number))
    armed = True
    with pytest.raises(PostgresTransactionError):
        s.fork(2)
    armed = False
    s.state = s.target.recover()
    assert s.state.cursor is not None
    assert s.rows(ROWS)[-1] == {"k": s.state.cursor.number}
    assert s.rows(BLOCKS)[-1] == {"b": s.state.cursor.number}


@pytest.mark.guarantee("GUARD-1")
def test_a_callback_that_releases_the_lock_is_noticed(stream: Start) -> None:
    s = stream()
    s.do(1, write(1))
    with pytest.raises(PostgresTransactionError, match=r"E2114.*lock was released"):
        s.do(2, write(2), "SELECT pg_advisory_unlock_all()")
    assert s.rows(ROWS) == [{"k": 1}]
    s.do(2, write(2))
    second = postgres_target(
        s.dsn, tables=[KEYED, LOG], on_data=print, settings=PostgresSettings(id="s", lock_wait_s=0)
    )
    with pytest.raises(PostgresLockError):
        second.recover()


DIES = """
import os, sys
from tests.targets.test_postgres_guards import *
target = postgres_target(sys.argv[1], tables=[KEYED, LOG],
    on_data=lambda tx, data: data["do"](tx), settings=PostgresSettings(id="s"))
s = Stream(target, sys.argv[1])
s.do(3, write(3), lambda tx: tx.execute("UPDATE t SET k = 20 WHERE k = 2"),
    "SELECT 1 AS atomic; COMMIT", lambda tx: os._exit(9))
"""


@pytest.mark.guarantee("GUARD-1")
def test_what_became_visible_without_its_cursor_is_undone_by_the_next_start(stream: Start) -> None:
    s = stream()
    s.do(1, write(1))
    s.do(2, write(2))
    s.target.close()
    ran = subprocess.run(
        [sys.executable, "-c", DIES, s.dsn], env=dict(os.environ), capture_output=True, check=False
    )
    assert ran.returncode == 9, ran.stderr
    assert s.rows(ROWS) == [{"k": 1}, {"k": 3}, {"k": 20}]
    assert s.target.recover() == s.state
    assert s.rows(ROWS) == [{"k": 1}, {"k": 2}]
    assert s.rows(BLOCKS) == [{"b": 1}, {"b": 2}]
    s.do(3, write(3))


# --- undo -----------------------------------------------------------------------------------------


@pytest.mark.guarantee("GUARD-2")
@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE t",
        "DROP TABLE t; CREATE TABLE t (k bigint PRIMARY KEY)",
        "DO $$ BEGIN EXECUTE 'DR' || 'OP TABLE t'; END $$",
        "DO $$ BEGIN EXECUTE 'DR' || 'OP TABLE log'; END $$",
        "DO $$ BEGIN EXECUTE 'ALT' || 'ER TABLE t RENAME TO x'; END $$",
        "SELECT set_config('sqd.snapshot_enabled', 'false', true)",
        "SET sqd.snapshot_block_number = 1",
        "DO $$ BEGIN EXECUTE 'ALT' || 'ER TABLE t DISABLE TRIGGER USER'; END $$",
    ],
)
def test_what_a_fork_could_not_undo_is_refused_however_it_is_written(
    stream: Start, sql: str
) -> None:
    s = stream()
    s.do(1, write(1))
    s.do(2, write(2))
    with pytest.raises(PostgresStatementError, match="E2113"):
        s.do(3, write(3), sql)
    assert s.rows(ROWS) == [{"k": 1}, {"k": 2}]
    assert s.rows(BLOCKS) == [{"b": 1}, {"b": 2}]
    s.do(3, write(3))
    s.fork(1)
    assert s.rows(ROWS) == [{"k": 1}]


def test_a_table_that_is_made_anew_while_blocks_are_final_is_tracked_again(stream: Start) -> None:
    s = stream()
    s.do(1, write(1))
    anew = "DO $$ BEGIN EXECUTE 'DR' || 'OP TABLE t; CREATE TABLE t (k int PRIMARY KEY)'; END $$"
    s.do(2, write(2), anew, final=2)
    s.do(3, write(3), final=2)
    assert s.rows(ROWS) == [{"k": 3}]
    s.fork(2)
    assert s.rows(ROWS) == []


def test_a_partition_that_a_function_makes_ends_in_an_error_not_in_a_loop(stream: Start) -> None:
    s = stream(
        "p",
        on_start=lambda tx: tx.execute(
            "CREATE TABLE IF NOT EXISTS p (k int PRIMARY KEY) PARTITION BY RANGE (k)"
        ),
    )
    grow = "DO $$ BEGIN EXECUTE 'CRE' || 'ATE TABLE p1 PARTITION OF p DEFAULT'; END $$"
    with pytest.raises(PostgresStatementError, match=r"E2113.*partition"):
        s.do(1, grow, "INSERT INTO p VALUES (1)", final=0)
