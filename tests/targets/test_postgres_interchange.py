"""State of the Pipes SDK is resumed, forked across, and kept in its form.

The fixtures are built from the documented format: `sync` rows, snapshot tables with a primary key
of block and key, row-level triggers that are switched by two settings.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.core import BlockCursor, PipeState, resolve_fork
from headwater.errors import CursorMoveError
from headwater.targets.admin import open_admin
from headwater.targets.postgres import PostgresSettings, PostgresTarget, postgres_target
from tests.targets.postgres_places import NEWEST, OTHER, Stream, database

SYNC = """
CREATE TABLE "{schema}"."{table}" (
    id text NOT NULL, current_number numeric NOT NULL, current_hash text NOT NULL,
    "current_timestamp" timestamptz, finalized jsonb, rollback_chain jsonb,
    CONSTRAINT "{table}_pk" PRIMARY KEY (id, current_number)
)
"""
TABLE = "CREATE TABLE transfers (id int PRIMARY KEY, who text, value numeric(78,0))"
ROW_TRIGGER = """
CREATE TABLE "transfers__snapshots" (
    id int, who text, value numeric(78,0), "___sqd__operation" TEXT NOT NULL,
    "___sqd__block_number" BIGINT NOT NULL, PRIMARY KEY ("___sqd__block_number", id)
);
CREATE FUNCTION maybe_snapshot_transfers() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    enabled boolean := coalesce(current_setting('sqd.snapshot_enabled', true), 'false')::boolean;
    block bigint := coalesce(current_setting('sqd.snapshot_block_number', true), '-1')::bigint;
BEGIN
    IF NOT enabled THEN RETURN NULL; END IF;
    IF TG_OP = 'INSERT' THEN
        INSERT INTO "transfers__snapshots" VALUES (NEW.id, NEW.who, NEW.value, TG_OP, block)
        ON CONFLICT ("___sqd__block_number", id) DO NOTHING;
    ELSE
        INSERT INTO "transfers__snapshots" VALUES (OLD.id, OLD.who, OLD.value, TG_OP, block)
        ON CONFLICT ("___sqd__block_number", id) DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER "transfers_snapshot_trigger" AFTER INSERT OR UPDATE OR DELETE ON transfers
FOR EACH ROW EXECUTE FUNCTION maybe_snapshot_transfers();
"""
Connection = psycopg.Connection[Any]


def theirs(dsn: str, *, id: str = "pipe", schema: str = "public", table: str = "sync") -> None:
    """Write five blocks as the Pipes SDK does: block 2 is final, 3 to 5 can be forked."""
    with psycopg.connect(dsn) as connection:
        if schema != "public":
            connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
        connection.execute(SYNC.format(schema=schema, table=table).encode())
        connection.execute(TABLE + ";" + ROW_TRIGGER)
    with psycopg.connect(dsn) as connection:
        for number in range(1, 6):
            with connection.transaction():
                _batch(connection, number, id, f'"{schema}"."{table}"')


def _batch(connection: Connection, number: int, id: str, sync: str) -> None:
    connection.execute("SELECT pg_try_advisory_xact_lock(hashtext(%s)::bigint)", [id])
    hot = "true" if number >= 2 else "false"
    connection.execute(f"SET LOCAL sqd.snapshot_enabled = {hot}".encode())
    connection.execute(f"SET LOCAL sqd.snapshot_block_number = {number}".encode())
    connection.execute("INSERT INTO transfers VALUES (%s, 'new', %s)", [number, 10**70 + number])
    if number == 3:
        connection.execute("UPDATE transfers SET who = 'changed' WHERE id <= 2")
    if number == 4:
        connection.execute("DELETE FROM transfers WHERE id = 1")
    if number == 5:
        connection.execute("UPDATE transfers SET who = 'again' WHERE id = 2")
    chain = f'[{{"number": {number}, "hash": "h{number}", "timestamp": {number}}}]'
    connection.execute(
        f"INSERT INTO {sync} VALUES (%s, %s, %s, to_timestamp(%s), %s, %s)".encode(),
        [id, number, f"h{number}", number, '{"number": 2, "hash": "h2"}' if number > 1 else "{}",
         chain if number > 2 else "[]"],
    )  # fmt: skip


@pytest.fixture(params=sorted({NEWEST, OTHER}))
def dsn(request: pytest.FixtureRequest) -> str:
    return database(request.param)


@pytest.fixture
def targets() -> Iterator[list[PostgresTarget]]:
    made: list[PostgresTarget] = []
    yield made
    for one in made:
        one.close()


def resume(dsn: str, targets: list[PostgresTarget], bind: str = "pipe", **settings: Any) -> Stream:
    target = postgres_target(
        dsn,
        tables=["transfers"],
        on_data=lambda tx, data: data["do"](tx) if "do" in data else None,
        settings=PostgresSettings(**({"lock_wait_s": 0.5} | settings)),
    )
    target.bind(bind)
    targets.append(target)
    return Stream(target, dsn)


def cursor(number: int) -> BlockCursor:
    return BlockCursor(number, f"h{number}", number)


@pytest.mark.guarantee("STATE-1")
def test_a_pipeline_of_the_pipes_sdk_goes_on_here_and_forks_across_the_seam(
    dsn: str, targets: list[PostgresTarget]
) -> None:
    theirs(dsn)
    s = resume(dsn, targets)
    assert s.state == PipeState(cursor(5), cursor(2), tuple(map(cursor, (2, 3, 4, 5))))
    triggers = s.rows(
        "SELECT tgname AS t FROM pg_trigger WHERE tgrelid = 'transfers'::regclass "
        "AND NOT tgisinternal ORDER BY 1"
    )
    assert all(one["t"].startswith("sqd_snapshot_") for one in triggers)
    functions = s.rows("SELECT 1 AS f FROM pg_proc WHERE proname = 'maybe_snapshot_transfers'")
    assert functions == []
    s.do(6, lambda tx: tx.upsert("transfers", _row(2, "ours", 1)), final=2)
    s.do(7, "DELETE FROM transfers WHERE id IN (2, 3)", final=2)
    found = resolve_fork(s.state, [BlockCursor(3, "h3"), BlockCursor(4, "x4")], patient=False)
    s.fork(found.safe_cursor.number)
    everything = "SELECT id, who FROM transfers ORDER BY id"
    assert s.rows(everything) == [
        {"id": 1, "who": "changed"}, {"id": 2, "who": "changed"}, {"id": 3, "who": "new"},
    ]  # fmt: skip
    s.fork(2)
    assert s.rows(everything) == [{"id": 1, "who": "new"}, {"id": 2, "who": "new"}]
    assert s.rows("SELECT value FROM transfers WHERE id = 2") == [{"value": str(10**70 + 2)}]
    assert s.target.recover() == s.state


def test_what_is_written_here_keeps_the_form(dsn: str, targets: list[PostgresTarget]) -> None:
    """A reader that knows the documented format alone can resume, and fork, across our batches."""
    theirs(dsn)
    s = resume(dsn, targets)
    s.do(6, lambda tx: tx.upsert("transfers", _row(2, "ours", 1)), final=2)
    s.do(7, "DELETE FROM transfers WHERE id = 3", final=2)
    s.do(8, lambda tx: tx.insert("transfers", _row(8, "eight", 8)), final=2)
    s.target.close()
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            'SELECT current_number, current_hash, extract(epoch FROM "current_timestamp")::int, '
            "finalized, rollback_chain FROM sync WHERE id = 'pipe' ORDER BY current_number DESC"
        ).fetchall()
        assert found[0] == (
            8, "h8", 8, {"number": 2, "hash": "h2", "timestamp": 2},
            [{"number": 8, "hash": "h8", "timestamp": 8}],
        )  # fmt: skip
        images = connection.execute(
            "SELECT DISTINCT ON (id) id, who, ___sqd__operation FROM transfers__snapshots "
            "WHERE ___sqd__block_number > 5 ORDER BY id, ___sqd__block_number"
        ).fetchall()
        assert images == [(2, "again", "UPDATE"), (3, "new", "DELETE"), (8, None, "INSERT")]
        connection.execute(ROW_TRIGGER.split(";\n", 1)[1])  # and its triggers work on our log
        _batch(connection, 9, "pipe", "sync")
    s = resume(dsn, targets)
    assert s.state.cursor == cursor(9)
    s.fork(5)
    assert s.rows("SELECT id, who FROM transfers ORDER BY id") == [
        {"id": 2, "who": "again"}, {"id": 3, "who": "new"}, {"id": 4, "who": "new"},
        {"id": 5, "who": "new"},
    ]  # fmt: skip


def test_the_old_key_is_adopted_once(dsn: str, targets: list[PostgresTarget]) -> None:
    theirs(dsn, id="stream")
    explicit = resume(dsn, targets, id="named")
    assert explicit.state == PipeState()
    s = resume(dsn, targets, bind="mine")
    assert s.state.cursor == cursor(5)
    assert s.rows("SELECT DISTINCT id FROM sync") == [{"id": "mine"}]
    s.sql("INSERT INTO sync VALUES ('stream', 9, 'h9', NULL, '{}', '[]')")
    s.target.close()
    assert resume(dsn, targets, bind="mine").state.cursor == cursor(5)
    assert resume(dsn, targets, bind="later").state.cursor == cursor(9)


def test_state_may_be_kept_elsewhere(dsn: str, targets: list[PostgresTarget]) -> None:
    theirs(dsn, schema="My State", table="pipes sync")
    s = resume(dsn, targets, schema="My State", table="pipes sync")
    assert s.state.cursor == cursor(5)
    s.fork(3)
    assert s.rows('SELECT count(*) AS n FROM "My State"."pipes sync"') == [{"n": 3}]


def test_rows_without_finality_or_chain_are_read(dsn: str, targets: list[PostgresTarget]) -> None:
    """CASE-12."""
    theirs(dsn)
    s = resume(dsn, targets)
    s.sql(
        "INSERT INTO sync VALUES ('old', 7, 'h7', NULL, '{}', '[]'), "
        "('older', 8, 'h8', NULL, NULL, NULL)"
    )
    for name, number in (("old", 7), ("older", 8)):
        found = resume(dsn, targets, id=name)
        assert found.state == PipeState(cursor(number), None, (cursor(number),))


def test_an_operator_moves_and_forgets_a_pipe_of_the_sdk(dsn: str) -> None:
    """Its tables are not listed anywhere, so they stay as they are, and force is needed."""
    theirs(dsn)
    commands = open_admin(dsn)
    with pytest.raises(CursorMoveError, match="no table of the stream is known"):
        commands.move("pipe", 4)
    commands.move("pipe", 4, force=True)
    assert [one.state.cursor for one in commands.streams()] == [cursor(4)]
    commands.reset("pipe", force=True)
    assert commands.streams() == []
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM transfers").fetchall() == [(4,)]


def _row(id: int, who: str, value: int) -> pa.Table:
    return pa.table(
        {"id": pa.array([id], pa.int32()), "who": [who], "value": pa.array([value], pa.int64())}
    )
