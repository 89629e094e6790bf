"""What is particular to PostgreSQL: names, types, declarations, SQL, state, retention."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.core import BlockCursor, PipeState
from headwater.decode import evm
from headwater.errors import (
    HeadwaterError,
    InvalidOptionError,
    MissingExtraError,
    PostgresAppendOnlyError,
    PostgresConnectionError,
    PostgresKeyError,
    PostgresStatementError,
    PostgresTableError,
    PrimaryKeyMissingError,
    RetentionError,
    RewindError,
    UntrackedTableError,
)
from headwater.targets.postgres import (
    PostgresSettings,
    PostgresTarget,
    Tx,
    postgres_target,
    table,
)
from tests.targets.postgres_places import Stream, database, server

ROOT = Path(__file__).resolve().parent.parent.parent
LARGEST = 2**256 - 1
Start = Callable[..., Stream]


@pytest.fixture
def dsn() -> str:
    return database()


@pytest.fixture
def stream(dsn: str) -> Iterator[Start]:
    """Return a function that starts a stream whose `on_data` is given as data: `{"do": f}`."""
    targets: list[PostgresTarget] = []

    def start(*tables: Any, id: str = "s", **options: Any) -> Stream:
        target = postgres_target(
            options.pop("dsn", dsn),
            tables=tables,
            on_data=lambda tx, data: data["do"](tx) if "do" in data else None,
            settings=options.pop("settings", PostgresSettings(id=id, lock_wait_s=0.2)),
            **options,
        )
        targets.append(target)
        return Stream(target, dsn)

    yield start
    for one in targets:
        one.close()


def balances(**values: Any) -> pa.Table:
    return pa.table({"who": list(values), "value": [str(one) for one in values.values()]})


def quoted(name: str) -> str:
    parts = re.findall(r'"(?:[^"]|"")+"|[^".]+', name)
    return ".".join(one if one.startswith('"') else f'"{one}"' for one in parts)


# --- names and types ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["select", "My Table", '"a.b"', "Other.Transfers", '"a.b"."c""d{}%"', "ünï", "t" * 63, "x'y"],
)
def test_any_name_of_a_table_and_its_columns_works_through_undo(stream: Start, name: str) -> None:
    """CASE-22."""
    columns = ["from", "Group", 'a"b', "x.y", "block", "%s{0}", "c'd"]
    s = stream(table(name, key=columns[:2]))

    def rows(*values: int) -> pa.Table:
        return pa.table({one: [f"{one}{v}" for v in values] for one in columns})

    everything = f"SELECT * FROM {quoted(name)} ORDER BY 1, 2"
    s.do(1, lambda tx: tx.insert(name, rows(1, 2)))
    before = s.rows(everything)
    s.do(2, lambda tx: tx.upsert(name, rows(2, 3)))
    s.do(3, lambda tx: tx.delete(name, rows(1).select([1, 0])))
    assert len(s.rows(everything)) == 2
    s.do(4, f'UPDATE {quoted(name)} SET "from" = "from" || \'x\'')
    s.fork(1)
    assert s.rows(everything) == before
    s.target.close()
    s = stream(table(name, key=columns[:2]))
    s.do(2, lambda tx: tx.upsert(name, rows(2, 3)))


def test_many_rows_arrive_whole_or_not_at_all(stream: Start) -> None:
    """They are sorted by their key and encoded in a thread while others are sent."""
    s = stream(table("t", key=["who"], types={"value": "integer"}), unrepresentable="stop")
    many = 40_000
    who = [f"{at * 7919 % many:05}" for at in range(many)]
    rows = pa.table({"who": who, "value": list(range(many))})
    s.do(1, lambda tx: tx.insert("t", rows), final=9)
    held = "SELECT who, value FROM t ORDER BY value"
    assert [tuple(one.values()) for one in s.rows(held)] == list(zip(who, range(many), strict=True))

    large = pa.table({"who": [f"x{one}" for one in who], "value": [*range(many - 1), 2**40]})
    with pytest.raises(PostgresTableError, match="does not fit its column"):
        s.do(2, lambda tx: tx.insert("t", large), final=9)
    assert len(s.rows(held)) == many


def test_a_server_that_does_not_read_is_waited_for_by_the_driver(stream: Start, dsn: str) -> None:
    """libpq would take all of a COPY into memory, and move it about for every piece it sends."""
    s = stream(table("held", untracked=True))
    chunk, chunks, all_made = b"x" * 1023 + b"\n", 64, Event()

    def rows() -> Iterator[bytes]:
        for _ in range(chunks):
            yield chunk * 1024
        all_made.set()

    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("CREATE TABLE held (line text)")
        other.execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END$$"
        )
        other.execute(
            "CREATE TRIGGER wait BEFORE INSERT ON held FOR STATEMENT EXECUTE FUNCTION wait()"
        )
        other.execute("SELECT pg_advisory_lock(7)")
        with ThreadPoolExecutor(1) as threads:
            copied = threads.submit(
                s.do, 1, lambda tx: tx.session.copy("COPY held FROM STDIN", rows()), final=9
            )
            try:
                assert not all_made.wait(1.0)
            finally:
                other.execute("SELECT pg_advisory_unlock(7)")
            copied.result()
        assert all_made.is_set()
        assert s.rows("SELECT count(*) AS n FROM held") == [{"n": chunks * 1024}]


def test_frames_of_one_shape_do_not_mix_in_a_batch(stream: Start) -> None:
    """Also where the first of them begins the transaction, as in final blocks."""
    s = stream(table("t", key=["who"]))

    def write(tx: Tx) -> None:
        tx.upsert("t", pa.table({"who": ["a"], "value": [2]}))

    for number, times in enumerate((1, 1, 2), 1):
        s.do(number, *[write] * times, final=9)
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": 2}]


@pytest.mark.parametrize("name", ["", "a.", ".a", "a.b.c", 'a"b', '"a', "x" * 64, "a\0"])
def test_what_is_no_table_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidOptionError):
        postgres_target("postgresql://nowhere/x", tables=[table(name)])


def test_every_type_survives_insert_upsert_delete_and_undo(stream: Start) -> None:
    schema = pa.schema(
        [
            ("id", pa.binary()), ("text", pa.large_string()), ("flag", pa.bool_()),
            ("tiny", pa.uint8()), ("big", pa.uint64()), ("amount", pa.decimal128(38, 6)),
            ("wide", pa.decimal256(76, 0)), ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()), ("list", pa.list_(pa.int64())), ("names", pa.list_(pa.string())),
            ("pair", pa.struct([("a", pa.int32()), ("b c", pa.binary())])),
            ("nested", pa.list_(pa.list_(pa.int32()))), ("ratio", pa.float64()),
            ("single", pa.float32()), ("naive", pa.timestamp("ms")), ("nothing", pa.null()),
            ("kind", pa.dictionary(pa.int32(), pa.string())), ("hash", pa.binary(4)),
            ("small", pa.int16()), ("value", pa.string()), ("sender", pa.string()),
            ("document", pa.string()),
        ]
    )  # fmt: skip
    row: dict[str, Any] = dict.fromkeys(schema.names)
    full = row | {
        "id": b"\x00\xff", "text": "x\n\t\\y", "flag": True, "tiny": 255, "big": 2**64 - 1,
        "amount": Decimal("-12345678901234567890123456789012.654321"), "wide": Decimal(10**75),
        "at": 1, "day": -20000, "list": [1, None], "names": ["a", None, "{}"],
        "pair": {"a": 1, "b c": b"\1"}, "nested": [[1], []], "ratio": -1e300, "single": 0.5,
        "naive": 7, "kind": "k", "hash": b"abcd", "small": -5, "value": str(LARGEST),
        "sender": "0x00fFa1", "document": '{"a": [1, "x"]}',
    }  # fmt: skip
    one = pa.Table.from_pylist([full, row | {"id": b"null"}], schema=schema)
    other = pa.Table.from_pylist([row | {"id": b"\x00\xff"}, full | {"id": b"null"}], schema=schema)
    types = {"value": "numeric(78,0)", "sender": "bytea", "document": "jsonb"}
    s = stream(table("t", key=["id"], types=types))
    s.do(1, lambda tx: tx.insert("t", one))
    before = s.rows("SELECT * FROM t ORDER BY id")
    got = before[0]
    assert got["wide"] == str(10**75)
    assert got["value"] == str(LARGEST)
    assert got["sender"] == bytes.fromhex("00ffa1")
    assert got["pair"] == '{"a": 1, "b c": "0x01"}'
    assert got["nested"] == "[[1], []]"
    for name in ("amount", "text", "list", "names", "ratio", "small", "hash", "kind", "big"):
        assert got[name] == full[name] or str(got[name]) == str(full[name]), name
    kinds = {
        one["c"]: one["t"]
        for one in s.rows(
            "SELECT attname AS c, format_type(atttypid, atttypmod) AS t FROM pg_attribute "
            "WHERE attrelid = 't'::regclass AND attnum > 0"
        )
    }
    assert kinds["value"] == "numeric(78,0)"
    assert kinds["at"] == "timestamp with time zone"
    assert kinds["id"] == "bytea"
    s.do(2, lambda tx: tx.upsert("t", other))
    assert s.rows("SELECT * FROM t ORDER BY id") != before
    s.do(3, lambda tx: tx.delete("t", other.select(["id"])))
    assert s.rows("SELECT * FROM t") == []
    s.fork(1)
    assert s.rows("SELECT * FROM t ORDER BY id") == before


def test_integers_of_256_bits_are_exact_as_numbers(stream: Start) -> None:
    s = stream(table("t", key=["who"], types={"value": "NUMERIC(78,0)"}))
    s.do(1, lambda tx: tx.insert("t", balances(a=LARGEST, b=-LARGEST, c=0, d=10000, e=-1)))
    s.do(2, lambda tx: tx.upsert("t", balances(a=LARGEST - 1, f=1)))
    assert s.rows("SELECT value FROM t WHERE who = 'a'") == [{"value": str(LARGEST - 1)}]
    s.fork(1)
    assert [one["value"] for one in s.rows("SELECT value FROM t ORDER BY who")] == [
        str(LARGEST), str(-LARGEST), "0", "10000", "-1",
    ]  # fmt: skip
    assert s.rows("SELECT sum(value) AS total FROM t") == [{"total": "9999"}]


def test_new_tables_hold_decoded_integers_as_numbers_and_older_ones_keep_text(
    stream: Start,
) -> None:
    """What the decoder knows of a column is in its metadata; `types` outranks it."""
    value = evm.events("erc20.Transfer").schema.field("value")
    known = pa.schema([("who", pa.string()), value])
    text = table("text", key=["who"], types={"value": "text"})
    s = stream(table("t", key=["who"]), table("older", key=["who"]), text)
    s.do(1, lambda tx: tx.insert("older", balances(a=LARGEST)))

    def write(tx: Tx) -> None:
        for name in ("t", "older", "text"):
            tx.upsert(name, balances(b=LARGEST, c=7).cast(known))

    s.do(2, write)
    s.fork(1)
    s.do(2, write)
    for name, kind in (("t", "numeric"), ("older", "text"), ("text", "text")):
        found = f"SELECT value, pg_typeof(value)::text AS kind FROM {name} WHERE who > 'a'"
        assert s.rows(f"{found} ORDER BY who") == [
            {"value": str(LARGEST), "kind": kind},
            {"value": "7", "kind": kind},
        ]


@pytest.mark.parametrize("text", ["1.5", "1e3", "x", "", " 1", "0x10", "9" * 79])
def test_text_that_is_no_integer_is_not_rounded_into_one(stream: Start, text: str) -> None:
    s = stream(table("t", key=["who"], types={"value": "numeric(78,0)"}), unrepresentable="stop")
    with pytest.raises(PostgresTableError):
        s.do(1, lambda tx: tx.insert("t", balances(a=text)))
    assert s.target.recover() == PipeState()


def test_a_text_with_the_character_zero_is_refused_and_its_column_named(stream: Start) -> None:
    s = stream(table("t", key=["who"]), unrepresentable="stop")
    with pytest.raises(PostgresTableError, match="column=value"):
        s.do(1, lambda tx: tx.insert("t", balances(a="x\0y")))


@pytest.mark.parametrize(
    "frame",
    [
        pa.table({"who": ["a"], "more": ["x"]}),
        pa.table({"who": ["a"], "value": [1]}),
        pa.table({"who": ["a"], "___sqd__block_number": [1]}),
        pa.table({"who": ["a"], "value": pa.array([1], pa.duration("s"))}),
        pa.table([pa.array(["a"]), pa.array(["a"]), pa.array(["x"])], ["who", "who", "value"]),
    ],
)
def test_a_frame_that_clashes_with_the_table_is_refused_and_nothing_written(
    stream: Start, frame: pa.Table
) -> None:
    s = stream(table("t", key=["who"]), table("u", key=["who"]))
    s.do(1, lambda tx: tx.insert("t", balances(a=1)))

    def both(tx: Tx) -> None:
        tx.insert("u", balances(b=1))
        tx.insert("t", frame)

    with pytest.raises(PostgresTableError):
        s.do(2, both)
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "1"}]
    assert s.rows("SELECT to_regclass('u')::text AS u") == [{"u": None}]
    s.do(2, lambda tx: tx.insert("t", balances(b=2)))
    assert len(s.rows("SELECT * FROM t")) == 2


def test_a_table_of_ones_own_is_used_if_it_agrees(stream: Start) -> None:
    """Generated and identity columns, defaults, an enumeration, a uuid, a domain, a varchar."""

    def prepare(tx: Tx) -> None:
        tx.execute(
            "CREATE TYPE mood AS ENUM ('good', 'bad'); "
            "CREATE DOMAIN positive AS numeric(78,0) CHECK (value >= 0); "
            "CREATE TABLE t (who varchar(5) PRIMARY KEY, value positive, seen int DEFAULT 7, "
            "n bigint GENERATED ALWAYS AS IDENTITY, twice numeric GENERATED ALWAYS AS (value * 2) "
            "STORED, m mood, u uuid); INSERT INTO t (who, value) VALUES ('a', 5)"
        )

    s = stream("t", on_start=prepare)
    s.block(1)
    frame = balances(a=6, b=2**100).append_column("m", pa.array(["good", None]))
    frame = frame.append_column("u", pa.array(["0d1f3a5e-0000-4000-8000-000000000001", None]))
    s.do(2, lambda tx: tx.upsert("t", frame))
    rows = "SELECT who, value, seen, n, twice, m FROM t ORDER BY who"
    now = s.rows(rows)
    assert [one["value"] for one in now] == ["6", str(2**100)]
    assert now[0] | {"n": 1} == {
        "who": "a", "value": "6", "seen": 7, "n": 1, "twice": "12", "m": "good",
    }  # fmt: skip
    s.do(3, lambda tx: tx.delete("t", balances(a=0), key=["who"]))
    s.fork(1)
    assert s.rows(rows) == [{"who": "a", "value": "5", "seen": 7, "n": 1, "twice": "10", "m": None}]
    for wrong in (
        balances(toolong=1),
        balances(c=-1),
        frame.rename_columns(["who", "value", "m", "twice"]),
    ):
        with pytest.raises((PostgresTableError, psycopg.errors.CheckViolation)):
            s.do(2, lambda tx, wrong=wrong: tx.insert("t", wrong))
    with pytest.raises(PostgresTableError, match="primary key"):
        stream(table("t", key=["value"]), id="other")


def test_a_table_that_is_given_a_column_later_is_still_undone_whole(stream: Start) -> None:
    s = stream(table("t", key=["who"]))
    s.do(1, lambda tx: tx.insert("t", balances(a=1)))
    s.do(2, lambda tx: tx.upsert("t", balances(a=2)))
    s.do(3, "ALTER TABLE t ADD COLUMN note text", "UPDATE t SET note = 'x'")
    s.do(4, "UPDATE t SET note = 'y'")
    s.fork(3)
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "2", "note": "x"}]
    s.fork(1)
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "1", "note": None}]


# --- declarations ---------------------------------------------------------------------------------


def test_tables_must_be_declared_however_they_are_written(stream: Start) -> None:
    with pytest.raises(UntrackedTableError):
        postgres_target("", on_data=lambda tx, data: None)
    s = stream(table("free", untracked=True), table("p", key=["a"]))
    s.sql(
        "CREATE TABLE t (a int PRIMARY KEY, b int); CREATE TABLE p (a int PRIMARY KEY); "
        "CREATE TABLE child (a int PRIMARY KEY REFERENCES p ON DELETE CASCADE); "
        "INSERT INTO p VALUES (1); INSERT INTO child VALUES (1); INSERT INTO t VALUES (1, 1)"
    )
    s.block(1)
    one = pa.table({"a": [1]})
    for number, do in enumerate(
        [
            lambda tx: tx.insert("t", one),
            lambda tx: tx.upsert("t", one, key=["a"]),
            lambda tx: tx.delete("t", one, key=["a"]),
            "INSERT INTO t VALUES (2, 2)",
            "WITH x AS (UPDATE t SET b = 2 RETURNING a) SELECT * FROM x",
            "DO $$ BEGIN EXECUTE 'DELETE FROM t'; END $$",
            "DELETE FROM p",  # reaches `child` by its foreign key
            "TRUNCATE t",
            lambda tx: tx.query("DELETE FROM t RETURNING a"),
        ]
    ):
        with pytest.raises(UntrackedTableError):
            s.do(2, do, final=1 if number % 2 else 5)
    assert s.rows("SELECT (SELECT count(*) FROM t) AS t, (SELECT count(*) FROM child) AS c") == [
        {"t": 1, "c": 1}
    ]
    s.do(2, "SELECT * FROM t FOR UPDATE", "CREATE TEMP TABLE x AS SELECT 1", "DROP TABLE x")


def test_a_table_without_primary_key_is_refused_at_the_start(stream: Start, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a int); CREATE TABLE log (block_number int)")
    with pytest.raises(PrimaryKeyMissingError):
        stream("t")
    s = stream(table("log", append_only=True), table("t", untracked=True), "new")
    with pytest.raises(PrimaryKeyMissingError):
        s.do(1, lambda tx: tx.insert("new", balances(a=1)))
    s.do(1, lambda tx: tx.upsert("new", balances(a=1), key=["who"]))
    s.do(2, lambda tx: tx.upsert("new", balances(a=2)))
    s.fork(1)
    assert s.rows("SELECT * FROM new") == [{"who": "a", "value": "1"}]


def test_a_key_is_needed_where_rows_are_replaced_or_removed(stream: Start) -> None:
    s = stream(table("keyed", key=["who"]), table("log", append_only=True))
    s.do(1, lambda tx: tx.insert("keyed", balances(a=1)))
    s.do(2, lambda tx: tx.insert("log", pa.table({"block_number": [2]})))
    twice = pa.concat_tables([balances(a=1), balances(a=2)])
    for do in (
        lambda tx: tx.upsert("log", pa.table({"block_number": [3]})),
        lambda tx: tx.delete("log", pa.table({"block_number": [3]})),
        lambda tx: tx.upsert("keyed", balances(a=1), key=["value"]),
        lambda tx: tx.upsert("keyed", pa.table({"value": ["1"]})),
        lambda tx: tx.upsert("keyed", twice),
        lambda tx: tx.insert("keyed", twice),
        lambda tx: tx.insert("keyed", balances(a=5)),
        lambda tx: tx.upsert("keyed", pa.table({"who": [None], "value": ["1"]})),
    ):
        with pytest.raises((PostgresKeyError, PostgresTableError)):
            s.do(3, do)
    assert s.rows("SELECT * FROM keyed") == [{"who": "a", "value": "1"}]


def test_an_upsert_of_some_columns_leaves_the_others(stream: Start) -> None:
    s = stream(table("t", key=["who"]))
    s.do(1, lambda tx: tx.insert("t", balances(a=1)))
    s.do(2, lambda tx: tx.upsert("t", pa.table({"who": ["a", "b"]})))
    assert s.rows("SELECT * FROM t ORDER BY who") == [
        {"who": "a", "value": "1"},
        {"who": "b", "value": None},
    ]
    s.fork(1)
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "1"}]


def test_a_declaration_cannot_change_once_rows_depend_on_it(stream: Start) -> None:
    s = stream(table("t", append_only=True, block_column="n"))
    s.do(1, lambda tx: tx.insert("t", pa.table({"n": [1]})))
    s.target.close()
    s.sql("ALTER TABLE t ADD PRIMARY KEY (n)")
    with pytest.raises(PostgresTableError, match="declared otherwise"):
        stream("t")
    with pytest.raises(PostgresTableError, match="integer column"):
        stream(table("t", append_only=True, block_column="other"))


def test_a_table_that_is_no_longer_declared_is_still_undone(stream: Start) -> None:
    s = stream(table("t", key=["who"]), table("log", append_only=True))
    s.do(1, lambda tx: tx.insert("t", balances(a=1)))
    s.do(2, lambda tx: tx.upsert("t", balances(a=2)))
    s.do(3, lambda tx: tx.insert("log", pa.table({"block_number": [3]})))
    s.target.close()
    s = stream()
    s.fork(1)
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "1"}]
    assert s.rows("SELECT * FROM log") == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: PostgresSettings(id=" "),
        lambda: PostgresSettings(isolation_level="dirty"),
        lambda: PostgresSettings(attempts=0),
        lambda: PostgresSettings(table="s" * 64),
        lambda: PostgresSettings(schema="é" * 32),
        lambda: table("t", key="who"),
        lambda: table("t", indexes=["who"]),
        lambda: table("t", types={"value": "text; DROP TABLE t"}),
        lambda: table("t", append_only=True, untracked=True),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_opened(make: Any) -> None:
    with pytest.raises(InvalidOptionError):
        make()


def test_a_retention_of_nothing_is_refused() -> None:
    with pytest.raises(RetentionError):
        PostgresSettings(unfinalized_blocks_retention=0)


# --- append-only ----------------------------------------------------------------------------------


def test_without_on_data_every_output_gets_its_table(dsn: str) -> None:
    s = Stream(postgres_target(dsn), dsn)
    keyed = table("keyed", key=["who"])
    s.block(1, {"a.b": pa.table({"block_number": [1], "v": ["x"]})})
    s.block(2, {"a.b": pa.table({"block_number": [2], "v": ["x"]})})
    s.target.close()
    s = Stream(postgres_target(dsn, tables=[keyed]), dsn)
    s.block(3, {"keyed": balances(a=1)})
    s.target.close()
    s = Stream(postgres_target(dsn), dsn)  # undoes tables that it has not written yet
    s.fork(1)
    assert s.rows('SELECT * FROM "a.b"') == [{"block_number": 1, "v": "x"}]
    assert s.rows("SELECT * FROM keyed") == []
    assert s.rows("SELECT table_name, undo FROM sync__tables ORDER BY 1") == [
        {"table_name": "a.b", "undo": "append_only"},
        {"table_name": "keyed", "undo": "keyed"},
    ]
    s.target.close()


def test_rows_that_their_block_number_would_not_undo_are_refused(stream: Start) -> None:
    s = stream(table("t", append_only=True))

    def at(*numbers: int | None) -> Any:
        frame = pa.table({"block_number": pa.array(numbers, pa.int64())})
        return lambda tx: tx.insert("t", frame)

    s.do(5, at(1, 5), final=5)
    for wrong in ((5,), (7,), (6, None), (4, 6)):
        with pytest.raises(PostgresAppendOnlyError):
            s.do(6, at(*wrong), final=5)
    s.do(6, at(6, 6), final=5)
    for do in (
        lambda tx: tx.delete("t", pa.table({"block_number": [6]}), key=["block_number"]),
        "UPDATE t SET block_number = 3",
        "DELETE FROM t",
        "TRUNCATE t",
    ):
        with pytest.raises(PostgresAppendOnlyError):
            s.do(7, do, final=5)
    s.do(7, "INSERT INTO t VALUES (7)", final=5)
    s.fork(5)
    assert s.rows("SELECT * FROM t ORDER BY 1") == [{"block_number": 1}, {"block_number": 5}]
    tables = s.rows("SELECT relname AS t FROM pg_class WHERE relname LIKE '%snapshots'")
    assert tables == []


def test_an_append_only_table_has_one_stream(stream: Start) -> None:
    rows = pa.table({"block_number": [1]})
    stream(table("t", append_only=True), id="one").do(1, lambda tx: tx.insert("t", rows))
    with pytest.raises(PostgresAppendOnlyError, match="one"):
        stream(table("t", append_only=True), id="two")


# --- SQL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT", "ROLLBACK", "end", "BEGIN", "START TRANSACTION", "ABORT",
        "PREPARE TRANSACTION 'x'", "/* /* */ */ COMMIT", "/* ; */ SELECT 1; -- x\n commit",
        "SELECT ';'; ROLLBACK AND CHAIN", "TRUNCATE t",
    ],
)  # fmt: skip
def test_sql_that_would_escape_the_undo_is_refused(stream: Start, sql: str) -> None:
    s = stream(table("t", key=["who"]))
    s.do(1, lambda tx: tx.insert("t", balances(a=1)))
    for run in ("execute", "query"):
        with pytest.raises(PostgresStatementError):
            s.do(2, lambda tx, run=run: getattr(tx, run)(sql))
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "1"}]


def test_savepoints_functions_and_parameters_are_free(stream: Start) -> None:
    s = stream(table("t", key=["who"]))
    s.do(1, lambda tx: tx.insert("t", balances(a=1)))

    def write(tx: Tx) -> None:
        tx.execute("SAVEPOINT x")
        assert tx.execute("UPDATE t SET value = $1 WHERE who = $2", ["9", "a"]) == 1
        tx.execute("ROLLBACK TO SAVEPOINT x; RELEASE x")
        tx.execute("DO $body$ BEGIN UPDATE t SET value = 'commit;'; END $body$")
        assert tx.query("SELECT value FROM t WHERE who = $1", ["a"]).to_pylist() == [
            {"value": "commit;"}
        ]
        tx.execute("CREATE OR REPLACE FUNCTION one() RETURNS int BEGIN ATOMIC SELECT 1; END")

    s.do(2, write)
    s.fork(1)
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "1"}]


def test_an_error_that_on_data_swallows_does_not_become_a_commit(stream: Start) -> None:
    s = stream(table("t", key=["who"]))
    s.do(1, lambda tx: tx.insert("t", balances(a=1)))

    def swallow(tx: Tx) -> None:
        tx.insert("t", balances(b=1))
        with pytest.raises(psycopg.errors.DivisionByZero):
            tx.execute("SELECT 1 / 0")

    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        s.do(2, swallow)
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "1"}]
    assert s.target.recover() == s.state


def test_what_a_query_returns_is_exact(stream: Start) -> None:
    s = stream()
    got = s.target.query(
        "SELECT 1::smallint AS s, 2::bigint AS b, 1.50::numeric(5,2) AS d, 10::numeric ^ 70 AS n, "
        "'\\x00ff'::bytea AS y, true AS t, '2024-01-01'::date AS day, "
        "'2024-01-01T00:00:00Z'::timestamptz AS at, '{\"a\": 1}'::jsonb AS j, "
        "ARRAY[1, 2]::int[] AS l, ARRAY['a', NULL] AS tl, NULL AS nothing, 1.5::float8 AS f"
    )
    row = got.to_pylist()[0]
    assert row["n"].startswith("1" + "0" * 70)
    assert row["d"] == Decimal("1.50")
    assert (row["y"], row["j"], row["l"], row["tl"]) == (b"\0\xff", '{"a": 1}', [1, 2], ["a", None])
    assert got.schema.field("at").type == pa.timestamp("us", "UTC")
    assert s.target.query("SET x.y = 1").num_columns == 0


def test_callbacks_get_the_context_and_run_inside_the_transaction(dsn: str) -> None:
    calls: list[Any] = []
    count = "SELECT count(*) AS n FROM t"

    def before(tx: Tx, cursor: BlockCursor | None) -> None:
        calls.append(tx.query(count).to_pylist())

    def after(tx: Tx, cursor: BlockCursor | None) -> None:
        calls.append((cursor, tx.query(count).to_pylist()))
        tx.execute("CREATE TABLE IF NOT EXISTS seen AS SELECT 1 AS a")
        if len(calls) == 2:
            raise OSError("no")

    def write(tx: Tx, data: Any, ctx: Any) -> None:
        tx.insert("t", data["t"])
        calls.append(ctx)

    target = postgres_target(
        dsn,
        tables=[table("t", key=["who"])],
        on_data=write,
        on_start=lambda tx: calls.append("start"),
        on_before_rollback=before,
        on_after_rollback=after,
    )
    s = Stream(target, dsn)
    for number in (1, 2):
        s.block(number, {"t": balances(**{f"a{number}": number})}, ctx=number)
    assert calls == ["start", 1, 2]
    calls.clear()
    state = s.state
    with pytest.raises(OSError, match="no"):
        s.fork(1)
    assert len(s.rows("SELECT * FROM t")) == 2
    assert target.recover() == state
    s.fork(1)
    assert calls[2:] == [[{"n": 2}], (BlockCursor(1, "h1"), [{"n": 1}])]
    assert s.rows("SELECT * FROM seen") == [{"a": 1}]
    target.close()


# --- state ----------------------------------------------------------------------------------------


def test_undo_data_is_bounded_but_never_lacks_what_a_legal_fork_needs(stream: Start) -> None:
    """CASE-27."""
    settings = PostgresSettings(id="s", unfinalized_blocks_retention=5)
    s = stream(table("t", key=["who"]), settings=settings)
    other = stream(table("t", key=["who"]), id="other")
    other.block(1)
    other.do(2, lambda tx: tx.insert("t", balances(other=1)))
    for number in range(1, 151):
        do = lambda tx, number=number: tx.upsert("t", balances(a=number))  # noqa: E731
        s.do(number, do, final=100 if number > 100 else max(1, number - 20))
    held = s.rows("SELECT min(___sqd__block_number) AS n FROM t__snapshots WHERE ___sqd__id = 's'")
    assert 80 <= held[0]["n"] <= 101
    lowest = s.rows("SELECT min(current_number)::int AS n FROM sync WHERE id = 's'")
    assert 80 <= lowest[0]["n"] <= 100
    assert s.rows("SELECT count(*) AS n FROM sync WHERE id = 'other'") == [{"n": 2}]
    assert s.target.recover() == s.state
    s.fork(100)
    assert s.rows("SELECT * FROM t ORDER BY who") == [
        {"who": "a", "value": "100"},
        {"who": "other", "value": "1"},
    ]
    other.fork(1)
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "100"}]


def test_while_finality_is_unknown_the_whole_chain_can_be_undone(stream: Start) -> None:
    settings = PostgresSettings(id="s", unfinalized_blocks_retention=1)
    s = stream(table("t", key=["who"]), settings=settings)
    for number in range(1, 60):
        s.do(number, lambda tx, n=number: tx.upsert("t", balances(a=n)), final=-1)
    s.fork(2)
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "2"}]


def test_final_blocks_leave_no_undo_data(stream: Start) -> None:
    s = stream(table("t", key=["who"]))
    for number in (1, 2, 3):
        s.do(number, lambda tx: tx.upsert("t", balances(a=1)), "TRUNCATE t", final=9)
    assert s.rows("SELECT * FROM t__snapshots") == []


def test_a_rollback_below_the_undo_data_is_refused(stream: Start) -> None:
    """CASE-18."""
    s = stream()
    s.block(1)
    s.block(2)
    with pytest.raises(RewindError):
        s.target.roll_back(PipeState(BlockCursor(0, "h0")))
    assert s.target.recover() == s.state


def test_indexes_that_were_put_off_are_built_when_the_head_is_near(stream: Start) -> None:
    settings = PostgresSettings(id="s", defer_indexes=True)
    tables = (
        table("log", append_only=True, indexes=[["v"]]),
        table("t", key=["who"]),
        table("early", key=["who"]),
    )
    s = stream(*tables, settings=settings)
    indexes = "SELECT tablename AS t, count(*) AS n FROM pg_indexes WHERE tablename IN " \
        "('log', 't', 'early') GROUP BY 1 ORDER BY 1"  # fmt: skip

    def rows(number: int) -> Any:
        log = pa.table({"block_number": [number], "v": ["x"]})
        return lambda tx: (tx.insert("log", log), tx.insert("t", balances(**{f"a{number}": 1})))

    s.do(1, rows(1), lambda tx: tx.upsert("early", balances(a=1)), final=2)
    assert s.rows(indexes) == [{"t": "early", "n": 1}]
    s.target.close()
    s = stream(*tables, settings=settings)
    s.do(2, rows(2), final=2)
    assert s.rows(indexes) == [{"t": "early", "n": 1}]
    s.do(3, rows(3), lambda tx: tx.upsert("t", balances(a1=9)), final=2)
    every = [{"t": "early", "n": 1}, {"t": "log", "n": 2}, {"t": "t", "n": 1}]
    assert s.rows(indexes) == every
    s.do(4, rows(4), final=2)
    s.fork(2)
    assert s.rows("SELECT who, value FROM t ORDER BY who") == [
        {"who": "a1", "value": "1"},
        {"who": "a2", "value": "1"},
    ]
    assert s.rows("SELECT count(*) AS n FROM log") == [{"n": 2}]


# --- bad input ------------------------------------------------------------------------------------


def test_a_server_that_cannot_be_reached_is_named_without_the_password() -> None:
    target = postgres_target("postgresql://me:secret@127.0.0.1:1/none?connect_timeout=2")
    with pytest.raises(PostgresConnectionError) as caught:
        target.recover()
    assert "secret" not in str(caught.value)
    assert "port=1" in str(caught.value)
    with pytest.raises(InvalidOptionError, match="cannot be read"):
        postgres_target("this is no address")


def test_errors_of_the_engine_and_of_the_caller_are_not_swallowed(stream: Start) -> None:
    s = stream(table("t", key=["who"]))
    with pytest.raises(psycopg.errors.UndefinedTable):
        s.do(1, lambda tx: tx.query("SELECT * FROM nowhere"))
    with pytest.raises(HeadwaterError, match="toArrow"):
        s.do(1, lambda tx: tx.insert("t", [{"a": 1}]))
    with pytest.raises(InvalidOptionError):
        s.target.bind("other")
    s.do(1, lambda tx: tx.insert("t", balances(a=1).to_batches()[0]))
    s.do(2, lambda tx: tx.insert("t", balances(a=1).slice(1)))
    assert s.rows("SELECT * FROM t") == [{"who": "a", "value": "1"}]


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import headwater.targets

    for name in [one for one in sys.modules if one.startswith("headwater.targets.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=re.escape("headwater[postgres]")):
        headwater.targets.__getattr__("postgres_target")


def test_the_example_of_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "targets" / "postgres.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)[:2]
    code = code.replace("postgresql://localhost/chain", database())
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == printed
    assert server()
