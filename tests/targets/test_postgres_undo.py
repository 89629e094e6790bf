"""Whatever SQL does to tracked tables, a fork undoes: every statement, every kind of table."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import PostgresStatementError
from headwater.targets.postgres import PostgresSettings, PostgresTarget, Tx, postgres_target
from tests.sampling import every
from tests.targets.postgres_places import NEWEST, OTHER, Stream, database

Start = Callable[..., Stream]


@pytest.fixture(params=sorted({NEWEST, OTHER}))
def version(request: pytest.FixtureRequest) -> int:
    """Return a version of the server: each test runs on both."""
    return int(request.param)


@pytest.fixture
def stream(version: int) -> Iterator[Start]:
    """Return a function that starts a stream on tables that SQL creates."""
    dsn = database(version)
    targets: list[PostgresTarget] = []

    def start(schema: str, *tables: str, id: str = "s") -> Stream:
        target = postgres_target(
            dsn,
            tables=tables,
            on_data=lambda tx, data: data["do"](tx) if "do" in data else None,
            on_start=lambda tx: tx.execute(schema) if schema else None,
            settings=PostgresSettings(id=id, lock_wait_s=0.5),
        )
        targets.append(target)
        s = Stream(target, dsn)
        s.block(1)
        return s

    yield start
    for one in targets:
        one.close()


def check_undo(s: Stream, tables: list[str], *blocks: list[str]) -> None:
    """Run each list of statements as a block; then undo block by block, and all at once."""

    def state() -> list[Any]:
        return [sorted(map(repr, s.rows(f"SELECT * FROM {one}"))) for one in tables]

    states = [state()]
    for number, statements in enumerate(blocks, 2):
        s.do(number, *statements)
        states.append(state())
        assert states[-1] != states[-2], "a statement that changes nothing shows nothing"
    for number in range(len(blocks), 0, -1):
        s.fork(number)
        assert state() == states[number - 1], f"after undoing block {number + 1}"
    for number, statements in enumerate(blocks, 2):
        s.do(number, *statements)
    s.fork(1)
    assert state() == states[0]
    for one in tables:
        if s.rows(f"SELECT to_regclass('{one}__snapshots')::text AS t")[0]["t"]:
            assert s.rows(f"SELECT * FROM {one}__snapshots") == []


def test_every_statement_is_undone(stream: Start, version: int) -> None:
    """Insert, update, delete, upsert, MERGE, COPY through `tx`; several of them on one row."""
    s = stream(
        "CREATE TABLE t (k int PRIMARY KEY, v text, n numeric(78,0), at timestamptz, j jsonb, "
        "b bytea, l int[]); INSERT INTO t SELECT g, 'v' || g, g, to_timestamp(g), "
        "jsonb_build_object('g', g), '\\x00ff', ARRAY[g, NULL] FROM generate_series(1, 9) AS g",
        "t",
    )
    merge = (
        "MERGE INTO t USING (VALUES (1, 'm'), (2, 'm'), (77, 'm')) AS s (k, v) ON t.k = s.k "
        "WHEN MATCHED AND t.k = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, s.v)"
    )
    check_undo(
        s,
        ["t"],
        ["INSERT INTO t (k, v) VALUES (10, 'x'), (11, 'y')"],
        ["UPDATE t SET v = 'u', n = -n WHERE k % 2 = 0", "UPDATE t SET b = NULL WHERE k = 4"],
        ["DELETE FROM t WHERE k < 4", "INSERT INTO t (k) VALUES (2)", "DELETE FROM t WHERE k = 2"],
        ["INSERT INTO t (k, v) SELECT g, 'c' FROM generate_series(3, 14) AS g "
         "ON CONFLICT (k) DO UPDATE SET v = excluded.v || t.v"],
        [merge if version >= 15 else "DELETE FROM t WHERE k = 5"],
        ["WITH gone AS (DELETE FROM t WHERE k = 6 RETURNING *) INSERT INTO t (k, v) "
         "SELECT 60, v FROM gone", "INSERT INTO t (k) VALUES (6)", "UPDATE t SET v = 'z'"],
    )  # fmt: skip
    s.do(2, lambda tx: tx.insert("t", pa.table({"k": [100], "v": ["copied"]})))
    s.fork(1)
    assert s.rows("SELECT * FROM t WHERE k = 100") == []


def test_a_changed_primary_key_goes_back_and_the_new_one_goes(stream: Start) -> None:
    s = stream(
        "CREATE TABLE t (a int, b text, v int, PRIMARY KEY (a, b) DEFERRABLE INITIALLY DEFERRED); "
        "INSERT INTO t SELECT g, 'b', g FROM generate_series(1, 6) AS g",
        "t",
    )
    check_undo(
        s,
        ["t"],
        ["UPDATE t SET a = a + 100 WHERE a = 1"],
        ["UPDATE t SET a = CASE a WHEN 2 THEN 3 WHEN 3 THEN 2 ELSE a END, v = v + 1"],
        ["UPDATE t SET a = a + 1"],
        ["DELETE FROM t WHERE a = 101", "UPDATE t SET a = 101 WHERE a = 102", "UPDATE t SET a = 5 "
         "WHERE a = 101 AND NOT EXISTS (SELECT FROM t WHERE a = 5)"],
        ["UPDATE t SET a = 1000 WHERE a = 4", "UPDATE t SET a = 4 WHERE a = 1000 AND v > 0",
         "UPDATE t SET v = -v"],
    )  # fmt: skip


def test_a_key_that_a_trigger_of_the_users_changes_is_undone_too(stream: Start) -> None:
    s = stream(
        "CREATE TABLE t (k int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1), (2, 2); "
        "CREATE FUNCTION shift() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN NEW.k := NEW.k + 10; RETURN NEW; END'; "
        "CREATE TRIGGER shift BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION shift()",
        "t",
    )
    s.do(2, "UPDATE t SET v = v + 1 WHERE k = 1")
    assert s.rows("SELECT k FROM t ORDER BY k") == [{"k": 2}, {"k": 11}]
    s.fork(1)
    assert s.rows("SELECT * FROM t ORDER BY k") == [{"k": 1, "v": 1}, {"k": 2, "v": 2}]


def test_what_triggers_do_inside_a_statement_does_not_hide_what_was_before(stream: Start) -> None:
    """The inner statement is kept first, but the outer one changed the row first."""
    s = stream(
        "CREATE TABLE t (k int PRIMARY KEY, v int, n int DEFAULT 0); "
        "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3); "
        "CREATE FUNCTION bump() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN UPDATE t SET n = n + 1 WHERE k = coalesce(NEW.k, OLD.k); "
        "IF TG_OP = ''DELETE'' AND OLD.k = 3 THEN INSERT INTO t VALUES (3, 33); END IF; "
        "RETURN NULL; END'; CREATE TRIGGER bump AFTER INSERT OR UPDATE OR DELETE ON t "
        "FOR EACH ROW WHEN (pg_trigger_depth() < 2) EXECUTE FUNCTION bump()",
        "t",
    )
    check_undo(
        s,
        ["t"],
        ["UPDATE t SET v = v * 10"],
        ["INSERT INTO t VALUES (4, 4)", "UPDATE t SET v = 5 WHERE k = 4"],
        ["DELETE FROM t WHERE k > 1", "UPDATE t SET k = k + 10, v = 0"],
        ["INSERT INTO t VALUES (1, 1) ON CONFLICT DO NOTHING", "UPDATE t SET k = 2 WHERE k = 1"],
    )


def test_partitions_are_undone_however_they_are_written(stream: Start) -> None:
    s = stream(
        "CREATE TABLE t (region text, k int, v text, PRIMARY KEY (region, k)) "
        "PARTITION BY LIST (region); CREATE SCHEMA parts; "
        "CREATE TABLE parts.a PARTITION OF t FOR VALUES IN ('a') PARTITION BY RANGE (k); "
        "CREATE TABLE parts.a1 PARTITION OF parts.a FOR VALUES FROM (0) TO (100); "
        "CREATE TABLE b (v text, k int, region text NOT NULL, PRIMARY KEY (region, k)); "
        "ALTER TABLE t ATTACH PARTITION b FOR VALUES IN ('b'); "
        "INSERT INTO t SELECT r, g, 'v' FROM generate_series(1, 4) AS g, "
        "(VALUES ('a'), ('b')) AS x (r)",
        "t",
    )
    check_undo(
        s,
        ["t"],
        ["INSERT INTO t VALUES ('a', 10, 'x'), ('b', 10, 'x')"],
        ["UPDATE parts.a1 SET v = 'direct' WHERE k = 1", "DELETE FROM b WHERE k = 2"],
        ["UPDATE t SET region = 'b', k = k + 50 WHERE region = 'a' AND k = 3"],
        ["INSERT INTO parts.a VALUES ('a', 20, 'middle')", "UPDATE b SET k = 99 WHERE k = 4"],
        ["DELETE FROM t"],
    )
    with pytest.raises(PostgresStatementError):
        s.do(2, "TRUNCATE b")
    with pytest.raises(PostgresStatementError):
        s.do(2, "TRUNCATE t")

    def new(tx: Tx) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS c PARTITION OF t FOR VALUES IN ('c')")
        tx.execute("INSERT INTO c VALUES ('c', 1, 'new')")

    s.do(2, new)
    s.sql("CREATE TABLE d PARTITION OF t FOR VALUES IN ('d')")  # by somebody else, while we run
    s.do(3, "INSERT INTO d VALUES ('d', 1, 'direct')", "INSERT INTO t VALUES ('d', 2, 'parent')")
    assert len(s.rows("SELECT * FROM t")) == 11
    s.fork(1)
    assert len(s.rows("SELECT * FROM t")) == 8


FAMILY = """
CREATE TABLE parent (id int PRIMARY KEY, name text, favourite int);
CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent, note text);
CREATE TABLE toy (child int REFERENCES child {action}, n int, PRIMARY KEY (n));
ALTER TABLE parent ADD FOREIGN KEY (favourite) REFERENCES child (id);
CREATE TABLE node (id int PRIMARY KEY, up int REFERENCES node {action});
INSERT INTO parent VALUES (1, 'p1', NULL), (2, 'p2', NULL);
INSERT INTO child VALUES (1, 1, 'c1'), (2, 2, 'c2');
INSERT INTO toy VALUES (1, 1), (2, 2), (2, 3);
UPDATE parent SET favourite = id;
INSERT INTO node VALUES (1, 1), (2, 1), (3, 2), (4, 3);
"""


@pytest.mark.parametrize(
    "action",
    ["", "ON DELETE CASCADE ON UPDATE CASCADE", "ON DELETE SET NULL", "ON DELETE RESTRICT"],
)
def test_foreign_keys_in_every_direction_are_no_obstacle(stream: Start, action: str) -> None:
    """Parents and children that come and go together, a cycle of tables, a tree in one table."""
    s = stream(FAMILY.format(action=action), "toy", "parent", "node", "child")
    check_undo(
        s,
        ["parent", "child", "toy", "node"],
        ["INSERT INTO parent VALUES (3, 'p3', NULL)", "INSERT INTO child VALUES (3, 3, 'c3')",
         "UPDATE parent SET favourite = 3 WHERE id IN (1, 3)", "UPDATE toy SET child = 3"],
        ["UPDATE parent SET favourite = NULL", "DELETE FROM toy", "DELETE FROM child WHERE id < 3",
         "DELETE FROM parent WHERE id < 3"],
        ["INSERT INTO node VALUES (5, 4), (6, 6)", "UPDATE node SET up = 5 WHERE id = 2"],
        ["UPDATE node SET up = id", "DELETE FROM node WHERE id = 3"],
        ["INSERT INTO parent VALUES (1, 'again', NULL)", "UPDATE child SET parent = 1, id = 30"]
        if action != "" and "UPDATE" in action
        else ["INSERT INTO parent VALUES (1, 'again', NULL)", "UPDATE child SET parent = 1"],
    )  # fmt: skip


def test_cascades_are_kept_and_undone(stream: Start) -> None:
    s = stream(
        FAMILY.format(action="ON DELETE CASCADE ON UPDATE CASCADE"),
        "toy", "parent", "node", "child",
    )  # fmt: skip
    check_undo(
        s,
        ["parent", "child", "toy", "node"],
        ["UPDATE parent SET favourite = NULL", "UPDATE child SET id = 20 WHERE id = 2"],
        ["DELETE FROM child"],
        ["UPDATE node SET id = id + 100 WHERE id = 1"],
        ["DELETE FROM node WHERE id = 101"],
    )


def test_a_row_that_two_foreign_keys_change_at_once_is_undone(stream: Start) -> None:
    """Both changes come in one set: the row twice, once as it was and once half changed."""
    s = stream(
        "CREATE TABLE p (k int PRIMARY KEY); "
        "CREATE TABLE c (k int PRIMARY KEY, a int REFERENCES p ON UPDATE CASCADE ON DELETE SET "
        "NULL, b int REFERENCES p ON UPDATE CASCADE ON DELETE CASCADE); "
        "INSERT INTO p VALUES (1), (2), (3); INSERT INTO c VALUES (1, 1, 2), (2, 2, 2), (3, 1, 1)",
        "p", "c",
    )  # fmt: skip
    check_undo(
        s,
        ["p", "c"],
        ["UPDATE p SET k = k + 10"],
        ["UPDATE c SET b = 13 WHERE k = 1", "DELETE FROM p WHERE k < 13"],
        ["UPDATE p SET k = 1", "DELETE FROM p"],
    )


def test_unique_values_that_changed_hands_come_back(stream: Start) -> None:
    s = stream(
        "CREATE TABLE t (k int PRIMARY KEY, mail text UNIQUE); "
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "t",
    )
    swap = ["UPDATE t SET mail = 'x' WHERE k = 1", "UPDATE t SET mail = 'a' WHERE k = 2",
            "UPDATE t SET mail = 'b' WHERE k = 1"]  # fmt: skip
    check_undo(s, ["t"], swap, ["DELETE FROM t WHERE k = 3", "INSERT INTO t VALUES (4, 'c')"])


def test_unique_values_of_a_table_that_others_follow_come_back(stream: Start) -> None:
    """Rows cannot be replaced there: those that refer to them would go along."""
    s = stream(
        "CREATE TABLE t (k int PRIMARY KEY, mail text UNIQUE); "
        "CREATE TABLE u (k int PRIMARY KEY REFERENCES t ON DELETE CASCADE); "
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'); INSERT INTO u VALUES (1), (2), (3)",
        "t", "u",
    )  # fmt: skip
    swap = ["UPDATE t SET mail = 'x' WHERE k = 1", "UPDATE t SET mail = 'a' WHERE k = 2",
            "UPDATE t SET mail = 'b' WHERE k = 1"]  # fmt: skip
    check_undo(s, ["t", "u"], swap, ["DELETE FROM t WHERE k = 3", "INSERT INTO t VALUES (4, 'c')"])


def test_a_write_of_somebody_else_is_neither_kept_nor_undone(stream: Start) -> None:
    s = stream("CREATE TABLE t (k int PRIMARY KEY, v text)", "t")
    s.do(2, "INSERT INTO t VALUES (1, 'ours')")
    s.sql("INSERT INTO t VALUES (2, 'theirs')")
    s.fork(1)
    assert s.rows("SELECT * FROM t") == [{"k": 2, "v": "theirs"}]


@pytest.mark.parametrize("seed", every(6).seeds(range(6)))
def test_random_sql_is_undone_exactly(stream: Start, seed: int) -> None:
    """Random statements over random blocks, forks to random depths, compared with copies."""
    dice = Random(f"postgres {seed}")
    s = stream(
        "CREATE TABLE t (k int PRIMARY KEY, u int UNIQUE, v text); "
        "CREATE TABLE c (k int PRIMARY KEY, t int REFERENCES t, w int)",
        "c", "t",
    )  # fmt: skip

    def statement() -> str:
        k, other = dice.randrange(8), dice.randrange(8)
        return dice.choice(
            [
                f"INSERT INTO t VALUES ({k}, {other}, '{dice.random()}') ON CONFLICT DO NOTHING",
                f"INSERT INTO t VALUES ({k}, NULL, 'u') ON CONFLICT (k) DO UPDATE SET v = '{k}'",
                f"UPDATE t SET v = v || '{k}' WHERE k % 3 = {k % 3}",
                f"UPDATE t SET k = {k} WHERE k = {other} AND NOT EXISTS "
                f"(SELECT FROM t WHERE k = {k}) AND NOT EXISTS (SELECT FROM c WHERE t = {other})",
                f"UPDATE t SET u = NULL WHERE k = {k}",
                f"DELETE FROM t WHERE k = {k} AND NOT EXISTS (SELECT FROM c WHERE t = {k})",
                f"INSERT INTO c SELECT {k}, min(k), 1 FROM t ON CONFLICT DO NOTHING",
                f"UPDATE c SET t = (SELECT max(k) FROM t), w = w + 1 WHERE k = {k}",
                f"DELETE FROM c WHERE k % 4 = {k % 4}",
            ]
        )

    def state() -> list[Any]:
        return [s.rows("SELECT * FROM t ORDER BY k"), s.rows("SELECT * FROM c ORDER BY k")]

    kept = {1: state()}
    number = 1
    for _ in range(25):
        if number > 1 and dice.random() < 0.25:
            number = dice.randrange(1, number)
            s.fork(number)
            assert state() == kept[number]
        else:
            number += 1
            s.do(number, *(statement() for _ in range(dice.randrange(1, 6))))
            kept[number] = state()
