"""The Pipes SDK beside a running stream: it installs its triggers whenever it starts.

Its statements are replayed as they are documented: snapshot tables, row-level triggers, and the
rollback that restores the earliest image of each row.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.errors import PostgresAppendOnlyError, RewindError
from headwater.targets.admin import open_admin
from headwater.targets.postgres import PostgresSettings, PostgresTarget, Tx, postgres_target, table
from tests.targets.postgres_places import Stream, database

TABLE = "CREATE TABLE t (id int PRIMARY KEY, who text, block_number bigint)"
STARTS = """
SELECT pg_advisory_xact_lock(hashtext('sqd_drizzle_triggers')::bigint);
CREATE TABLE IF NOT EXISTS "t__snapshots" (
    id int, who text, block_number bigint, "___sqd__operation" TEXT NOT NULL,
    "___sqd__block_number" BIGINT NOT NULL, PRIMARY KEY ("___sqd__block_number", id)
);
CREATE OR REPLACE FUNCTION maybe_snapshot_t() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    enabled boolean := coalesce(current_setting('sqd.snapshot_enabled', true), 'false')::boolean;
    block bigint := coalesce(current_setting('sqd.snapshot_block_number', true), '-1')::bigint;
BEGIN
    IF NOT enabled THEN RETURN NULL; END IF;
    IF TG_OP = 'INSERT' THEN
        INSERT INTO "t__snapshots" (id, who, block_number, ___sqd__operation, ___sqd__block_number)
        VALUES (NEW.id, NEW.who, NEW.block_number, TG_OP, block)
        ON CONFLICT ("___sqd__block_number", id) DO NOTHING;
    ELSE
        INSERT INTO "t__snapshots" (id, who, block_number, ___sqd__operation, ___sqd__block_number)
        VALUES (OLD.id, OLD.who, OLD.block_number, TG_OP, block)
        ON CONFLICT ("___sqd__block_number", id) DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS "t_snapshot_trigger" ON t;
CREATE TRIGGER "t_snapshot_trigger" AFTER INSERT OR UPDATE OR DELETE ON t
FOR EACH ROW EXECUTE FUNCTION maybe_snapshot_t();
"""
ROWS = "SELECT id, who FROM t ORDER BY id"


def sdk_starts(dsn: str) -> None:
    """Install triggers, as the Pipes SDK does at every start."""
    with psycopg.connect(dsn) as connection:
        connection.execute(STARTS)


def sdk_writes(dsn: str, number: int, sql: str, *, finalized: int | None = 1) -> None:
    """Commit a block as the Pipes SDK does; it keeps images only while finality is known."""
    mark = "{}" if finalized is None else f'{{"number": {finalized}, "hash": "h{finalized}"}}'
    chain = "[]" if finalized is None else f'[{{"number": {number}, "hash": "h{number}"}}]'
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT pg_try_advisory_xact_lock(hashtext('s')::bigint)")
        enabled = "true" if finalized is not None and number >= finalized else "false"
        connection.execute(f"SET LOCAL sqd.snapshot_enabled = {enabled}".encode())
        connection.execute(f"SET LOCAL sqd.snapshot_block_number = {number}".encode())
        connection.execute(sql.encode())
        connection.execute(
            "INSERT INTO sync VALUES ('s', %s, %s, NULL, %s, %s)",
            [number, f"h{number}", mark, chain],
        )


def sdk_rolls_back(dsn: str, number: int) -> None:
    """Undo the blocks above a number as the Pipes SDK does: by the earliest image of each row."""
    with psycopg.connect(dsn) as connection:
        images = connection.execute(
            "SELECT DISTINCT ON (id) id, who, block_number, ___sqd__operation FROM t__snapshots "
            "WHERE ___sqd__block_number > %s ORDER BY id, ___sqd__block_number",
            [number],
        ).fetchall()
        for key, who, block, operation in images:
            connection.execute("DELETE FROM t WHERE id = %s", [key])
            if operation != "INSERT":
                connection.execute("INSERT INTO t VALUES (%s, %s, %s)", [key, who, block])
        connection.execute("DELETE FROM t__snapshots WHERE ___sqd__block_number > %s", [number])
        connection.execute("DELETE FROM sync WHERE id = 's' AND current_number > %s", [number])


@pytest.fixture
def dsn() -> str:
    made = database()
    with psycopg.connect(made) as connection:
        connection.execute(TABLE)
    return made


@pytest.fixture
def targets() -> Iterator[list[PostgresTarget]]:
    made: list[PostgresTarget] = []
    yield made
    for one in made:
        one.close()


def start(
    dsn: str, targets: list[PostgresTarget], *, id: str = "s", append_only: bool | None = None
) -> Stream:
    target = postgres_target(
        dsn,
        tables=[table("t", append_only=append_only)],
        on_data=lambda tx, data: data["do"](tx) if "do" in data else None,
        settings=PostgresSettings(id=id, lock_wait_s=0.5),
    )
    targets.append(target)
    return Stream(target, dsn)


def put(id: int, who: str, block: int) -> Any:
    rows = pa.table({"id": pa.array([id], pa.int32()), "who": [who], "block_number": [block]})
    return lambda tx: tx.upsert("t", rows)


def add(id: int, block: int) -> Any:
    rows = pa.table({"id": pa.array([id], pa.int32()), "who": ["x"], "block_number": [block]})
    return lambda tx: tx.insert("t", rows)


# --- triggers -------------------------------------------------------------------------------------


@pytest.mark.guarantee("SDK-1")
def test_blocks_after_the_sdk_has_started_are_still_undone(
    dsn: str, targets: list[PostgresTarget]
) -> None:
    s = start(dsn, targets)
    s.do(1, put(1, "one", 1))
    s.do(2, put(2, "two", 2))
    sdk_starts(dsn)
    s.do(3, put(1, "changed", 3), put(3, "three", 3))
    s.do(4, "DELETE FROM t WHERE id = 2")
    images = s.rows("SELECT DISTINCT ___sqd__id AS id FROM t__snapshots")
    assert images == [{"id": "s"}]
    triggers = "SELECT 1 FROM pg_trigger WHERE tgname = 't_snapshot_trigger'"
    assert s.rows(triggers) == []
    s.fork(2)
    assert s.rows(ROWS) == [{"id": 1, "who": "one"}, {"id": 2, "who": "two"}]
    s.fork(1)
    assert s.rows(ROWS) == [{"id": 1, "who": "one"}]


@pytest.mark.guarantee("SDK-1")
def test_triggers_that_a_batch_cannot_see_yet_are_made_up_for_by_the_rollback(
    dsn: str, targets: list[PostgresTarget]
) -> None:
    """The transaction's snapshot is older than the SDK's start; its triggers fire all the same."""
    s = start(dsn, targets)
    s.do(1, put(1, "one", 1))

    def begin(tx: Tx) -> None:
        tx.query("SELECT 1")
        sdk_starts(dsn)

    s.do(2, begin, put(1, "changed", 2), put(2, "two", 2))
    assert s.rows("SELECT count(*) AS n FROM t__snapshots WHERE ___sqd__id IS NULL") == [{"n": 2}]
    s.fork(1)
    assert s.rows(ROWS) == [{"id": 1, "who": "one"}]
    assert s.rows("SELECT * FROM t__snapshots") == []


def test_undo_data_that_may_be_another_streams_is_not_guessed(
    dsn: str, targets: list[PostgresTarget]
) -> None:
    s, other = start(dsn, targets), start(dsn, targets, id="other")
    s.do(1, put(1, "one", 1))
    other.do(1, put(100, "theirs", 1))

    def begin(tx: Tx) -> None:
        tx.query("SELECT 1")
        sdk_starts(dsn)

    s.do(2, begin, put(2, "two", 2))
    with pytest.raises(RewindError, match="several streams"):
        s.fork(1)
    assert [row["id"] for row in s.rows(ROWS)] == [1, 2, 100]
    assert s.target.recover() == s.state


def test_images_of_the_sdk_are_not_taken_by_a_stream_without_state(
    dsn: str, targets: list[PostgresTarget]
) -> None:
    start(dsn, targets).do(1, put(1, "one", 1))
    targets[0].close()
    sdk_starts(dsn)
    sdk_writes(dsn, 2, "INSERT INTO t VALUES (2, 'theirs', 2)")
    start(dsn, targets, id="new")
    s = start(dsn, targets)
    s.fork(1)
    assert s.rows(ROWS) == [{"id": 1, "who": "one"}]


# --- append-only ----------------------------------------------------------------------------------


@pytest.mark.guarantee("SDK-1")
def test_the_sdk_can_undo_rows_of_append_only_tables_that_it_tracks(
    dsn: str, targets: list[PostgresTarget]
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE sync (id text, current_number numeric, current_hash text, "
            '"current_timestamp" timestamptz, finalized jsonb, rollback_chain jsonb, '
            "PRIMARY KEY (id, current_number))"
        )
    sdk_starts(dsn)
    sdk_writes(dsn, 1, "INSERT INTO t VALUES (1, 'theirs', 1)")
    sdk_writes(dsn, 2, "INSERT INTO t VALUES (2, 'theirs', 2)")
    s = start(dsn, targets, append_only=True)
    s.do(3, add(3, 3))
    s.do(4, add(4, 4))
    s.target.close()
    sdk_rolls_back(dsn, 3)
    assert [row["id"] for row in s.rows(ROWS)] == [1, 2, 3]
    s.state = s.target.recover()
    s.do(4, add(5, 4))
    s.fork(1)
    assert s.rows(ROWS) == [{"id": 1, "who": "theirs"}]


@pytest.mark.guarantee("SDK-1")
def test_the_sdk_can_undo_rows_of_an_append_only_table_from_before_it_started(
    dsn: str, targets: list[PostgresTarget]
) -> None:
    s = start(dsn, targets, append_only=True)
    for number in (1, 2, 3):
        s.do(number, add(number, number))
    with pytest.raises(PostgresAppendOnlyError):
        s.do(4, put(1, "changed", 4))
    sdk_starts(dsn)
    s.do(4, add(4, 4))
    s.target.close()
    sdk_rolls_back(dsn, 2)
    assert [row["id"] for row in s.rows(ROWS)] == [1, 2]
    s.state = s.target.recover()
    s.do(3, add(3, 3))
    s.fork(1)
    assert [row["id"] for row in s.rows(ROWS)] == [1]


# --- finality -------------------------------------------------------------------------------------


@pytest.mark.guarantee("SDK-1")
@pytest.mark.parametrize("known_later", [False, True])
def test_a_fork_below_blocks_that_the_sdk_kept_nothing_of_is_refused_whole(
    dsn: str, targets: list[PostgresTarget], known_later: bool
) -> None:
    s = start(dsn, targets)
    s.do(1, put(1, "one", 1), final=-1)
    s.target.close()
    sdk_starts(dsn)
    sdk_writes(dsn, 2, "UPDATE t SET who = 'theirs'", finalized=None)
    sdk_writes(dsn, 3, "INSERT INTO t VALUES (3, 'theirs', 3)", finalized=None)
    s = start(dsn, targets)
    s.do(4, put(1, "ours", 4), final=0 if known_later else -1)
    before = s.rows(ROWS)
    with pytest.raises(RewindError, match=r"E1010.*Pipes SDK"):
        s.fork(1)
    s.target.close()
    with pytest.raises(RewindError, match=r"E1010.*Pipes SDK"):
        open_admin(dsn).move("s", 2)
    assert s.rows(ROWS) == before
    s.state = s.target.recover()
    s.fork(3)
    assert s.rows(ROWS) == [{"id": 1, "who": "theirs"}, {"id": 3, "who": "theirs"}]
