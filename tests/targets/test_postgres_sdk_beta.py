"""Databases of the Pipes SDK 1.0.0-beta, of alpha.19, and of both and us in turn.

The beta has alpha.19's state and undo data, with the database's own names of columns, and undoes a
fork by sets: rows that came go first, then images come back, parents first. Its statements, and
those of alpha.19, are replayed as they are documented.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg
import pytest

from headwater.targets.postgres import PostgresSettings, PostgresTarget, Tx, postgres_target
from tests.sampling import every
from tests.targets.postgres_places import Stream, database

TABLES = """
CREATE TABLE owner (owner_id int PRIMARY KEY, about jsonb, paid numeric(78,0));
CREATE TABLE item (
    item_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner_id int REFERENCES owner,
    amount bigint, doubled bigint GENERATED ALWAYS AS (amount * 2) STORED, seen timestamptz
);
"""
COLUMNS = {
    "owner": {"owner_id": "int", "about": "jsonb", "paid": "numeric(78,0)"},
    "item": {
        "item_id": "int",
        "owner_id": "int",
        "amount": "bigint",
        "doubled": "bigint",
        "seen": "timestamptz",
    },
}
KEY = {"owner": "owner_id", "item": "item_id"}
GENERATED = {"owner": (), "item": ("doubled",)}
OPERATION, BLOCK = '"___sqd__operation"', '"___sqd__block_number"'
STATE = """
CREATE TABLE IF NOT EXISTS sync (
    id text NOT NULL, current_number numeric NOT NULL, current_hash text NOT NULL,
    "current_timestamp" timestamptz, finalized jsonb, rollback_chain jsonb,
    CONSTRAINT sync_pk PRIMARY KEY (id, current_number)
)
"""


def sdk_starts(dsn: str) -> None:
    """Create what is missing, and install the triggers, as both releases do at every start."""
    with psycopg.connect(dsn) as connection:
        connection.execute(STATE)
        for table, columns in COLUMNS.items():
            names = ", ".join(f'"{name}"' for name in columns)
            typed = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
            put = (
                f'INSERT INTO "{table}__snapshots" ({names}, {OPERATION}, {BLOCK}) '
                f'VALUES ({{}}, TG_OP, block) ON CONFLICT ({BLOCK}, "{KEY[table]}") DO NOTHING;'
            )
            new, old = (
                put.format(", ".join(f'{row}."{name}"' for name in columns))
                for row in ("NEW", "OLD")
            )
            connection.execute(
                f"""
                CREATE TABLE IF NOT EXISTS "{table}__snapshots" (
                    {typed}, {OPERATION} TEXT NOT NULL, {BLOCK} BIGINT NOT NULL,
                    PRIMARY KEY ({BLOCK}, "{KEY[table]}")
                );
                CREATE OR REPLACE FUNCTION maybe_snapshot_{table}() RETURNS trigger
                LANGUAGE plpgsql AS $$
                DECLARE
                    enabled boolean :=
                        coalesce(current_setting('sqd.snapshot_enabled', true), 'false')::boolean;
                    block bigint :=
                        coalesce(current_setting('sqd.snapshot_block_number', true), '-1')::bigint;
                BEGIN
                    IF NOT enabled THEN RETURN NULL; END IF;
                    IF TG_OP = 'INSERT' THEN {new} ELSE {old} END IF;
                    RETURN NULL;
                END $$;
                DROP TRIGGER IF EXISTS "{table}_snapshot_trigger" ON {table};
                CREATE TRIGGER "{table}_snapshot_trigger" AFTER INSERT OR UPDATE OR DELETE
                ON {table} FOR EACH ROW EXECUTE FUNCTION maybe_snapshot_{table}();
                """.encode()
            )


def sdk_writes(dsn: str, number: int, branch: str, statements: list[str]) -> None:
    """Commit a block in one transaction, with its row of the state."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT pg_try_advisory_xact_lock(hashtext('s')::bigint)")
        connection.execute("SET LOCAL sqd.snapshot_enabled = true")
        connection.execute(f"SET LOCAL sqd.snapshot_block_number = {number}".encode())
        for sql in statements:
            connection.execute(sql.encode())
        chain = f'[{{"number": {number}, "hash": "{branch}{number}"}}]'
        connection.execute(
            "INSERT INTO sync VALUES ('s', %s, %s, NULL, %s, %s)",
            [number, f"{branch}{number}", '{"number": 1, "hash": "h1"}', chain],
        )


def images(table: str, number: int) -> str:
    return (
        f'SELECT DISTINCT ON ("{KEY[table]}") * FROM "{table}__snapshots" WHERE {BLOCK} > {number} '
        f'ORDER BY "{KEY[table]}", {BLOCK}'
    )


def beta_rolls_back(dsn: str, number: int) -> None:
    """Undo by sets: what came goes, children first; then images come back, parents first."""
    with psycopg.connect(dsn) as connection:
        for table in ("item", "owner"):
            key = KEY[table]
            connection.execute(
                f"DELETE FROM {table} AS now USING ({images(table, number)}) AS old "
                f"WHERE now.{key} = old.{key} AND old.{OPERATION} = 'INSERT'".encode()
            )
        for table in ("owner", "item"):
            key = KEY[table]
            names = [name for name in COLUMNS[table] if name not in GENERATED[table]]
            rest = ", ".join(f"{name} = excluded.{name}" for name in names if name != key)
            connection.execute(
                f"INSERT INTO {table} ({', '.join(names)}) OVERRIDING SYSTEM VALUE "
                f"SELECT {', '.join(names)} FROM ({images(table, number)}) AS old "
                f"WHERE old.{OPERATION} <> 'INSERT' "
                f"ON CONFLICT ({key}) DO UPDATE SET {rest}".encode()
            )
        _forget(connection, number)


def alpha_rolls_back(dsn: str, number: int) -> None:
    """Undo row by row, children first."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        back: list[tuple[str, list[str], list[Any]]] = []
        for table in ("item", "owner"):
            names = [name for name in COLUMNS[table] if name not in GENERATED[table]]
            found = connection.execute(
                f"SELECT {OPERATION}, {', '.join(f'{one}::text' for one in names)} "
                f"FROM ({images(table, number)}) AS old".encode()
            ).fetchall()
            for operation, *values in found:
                if operation == "INSERT":
                    key = values[names.index(KEY[table])]
                    connection.execute(
                        f"DELETE FROM {table} WHERE {KEY[table]} = %s".encode(), [key]
                    )
                else:
                    back.append((table, names, values))
        for table, names, values in reversed(back):
            given = ", ".join(f"%s::{COLUMNS[table][name]}" for name in names)
            rest = ", ".join(f"{name} = excluded.{name}" for name in names if name != KEY[table])
            connection.execute(
                f"INSERT INTO {table} ({', '.join(names)}) OVERRIDING SYSTEM VALUE "
                f"VALUES ({given}) ON CONFLICT ({KEY[table]}) DO UPDATE SET {rest}".encode(),
                values,
            )
        _forget(connection, number)


def _forget(connection: psycopg.Connection[Any], number: int) -> None:
    for table in COLUMNS:
        connection.execute(f'DELETE FROM "{table}__snapshots" WHERE {BLOCK} > {number}'.encode())
    connection.execute("DELETE FROM sync WHERE id = 's' AND current_number > %s", [number])


def contents(dsn: str) -> dict[str, list[tuple[Any, ...]]]:
    with psycopg.connect(dsn) as connection:
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1".encode()).fetchall()
            for table in COLUMNS
        }


@pytest.fixture
def targets() -> Iterator[list[PostgresTarget]]:
    made: list[PostgresTarget] = []
    yield made
    for one in made:
        one.close()


def resume(dsn: str, targets: list[PostgresTarget]) -> Stream:
    target = postgres_target(
        dsn,
        tables=list(COLUMNS),
        on_data=lambda tx, data: data["do"](tx) if "do" in data else None,
        settings=PostgresSettings(id="s", lock_wait_s=0.5),
    )
    targets.append(target)
    return Stream(target, dsn)


def statements_of(random: Random, number: int) -> list[str]:
    """Return what a block does: every operation, on parents and children."""
    owner = random.randrange(5)
    found = [
        f"INSERT INTO owner VALUES ({owner}, '{{\"at\": {number}}}', {10**77} + {number}) "
        "ON CONFLICT (owner_id) DO UPDATE SET about = excluded.about, paid = excluded.paid",
        f"INSERT INTO item (owner_id, amount, seen) VALUES ({owner}, {number}, "
        "'2024-02-29 01:02:03.456+00')",
    ]
    choice = random.randrange(4)
    if choice == 0:
        found.append(f"UPDATE item SET amount = amount + {number} WHERE item_id % 2 = 0")
    elif choice == 1:
        found.append(f"DELETE FROM item WHERE item_id % 3 = {random.randrange(3)}")
    elif choice == 2:
        found += [
            f"DELETE FROM item WHERE owner_id = {owner}",
            f"DELETE FROM owner WHERE owner_id = {owner}",
        ]
    return found


@pytest.mark.guarantee("STATE-1")
@pytest.mark.parametrize("seed", every(4).seeds(range(12)))
def test_three_writers_take_turns_and_undo_each_others_blocks(
    targets: list[PostgresTarget], seed: int
) -> None:
    """Each writes some blocks, and forks to any block above the final one, whoever wrote it."""
    random, dsn = Random(seed), database()
    with psycopg.connect(dsn) as connection:
        connection.execute(TABLES)
    sdk_starts(dsn)
    held: dict[int, Any] = {}
    at, branch, met = 0, 0, set()
    for turn in range(9):
        writer = ["alpha", "beta", "ours"][turn % 3 if seed % 2 else random.randrange(3)]
        stream = resume(dsn, targets) if writer == "ours" else None
        if writer != "ours":
            sdk_starts(dsn)
        if stream is not None and at:
            assert stream.state.number == at
        if at > 2 and random.random() < 0.8:
            safe = random.randrange(1, at)
            met.add(writer)
            if stream is not None:
                stream.fork(safe)
            else:
                (alpha_rolls_back if writer == "alpha" else beta_rolls_back)(dsn, safe)
            at, branch = safe, branch + 1
            assert contents(dsn) == held[at], (turn, writer, safe)
        for _ in range(random.randrange(1, 4)):
            at += 1
            statements = statements_of(random, at)
            if stream is not None:

                def do(tx: Tx, statements: list[str] = statements) -> None:
                    for sql in statements:
                        tx.execute(sql)

                stream.do(at, do, final=1)
            else:
                sdk_writes(dsn, at, "h", statements)
            held[at] = contents(dsn)
        if stream is not None:
            stream.target.close()
    assert met


def test_empty_undo_data_with_other_names_than_the_columns_is_put_right(
    targets: list[PostgresTarget],
) -> None:
    """Alpha.19 called columns as properties are called: its first hot write failed."""
    dsn = database()
    with psycopg.connect(dsn) as connection:
        connection.execute(TABLES)
        connection.execute(STATE)
        connection.execute(
            f'CREATE TABLE "owner__snapshots" (owner_id int, "aboutText" jsonb, paid numeric, '
            f"{OPERATION} TEXT NOT NULL, {BLOCK} BIGINT NOT NULL, "
            f"PRIMARY KEY ({BLOCK}, owner_id))".encode()
        )
        connection.execute(
            "INSERT INTO sync VALUES ('s', 3, 'h3', NULL, '{}', "
            '\'[{"number": 3, "hash": "h3"}]\')'
        )
        connection.execute("INSERT INTO owner VALUES (1, '{\"a\": 1}', 5)")
    stream = resume(dsn, targets)
    stream.do(4, "UPDATE owner SET about = NULL, paid = 6; INSERT INTO owner VALUES (2)")
    stream.fork(3)
    assert contents(dsn)["owner"] == [(1, {"a": 1}, 5)]
