"""What is particular to DuckDB: names, types, SQL, sharing, retention, processes."""

import contextlib
import re
import resource
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.decode import evm
from headwater.errors import (
    AppendOnlyError,
    DuckDBDiskFullError,
    DuckDBPathError,
    DuckDBTransactionError,
    HeadwaterError,
    InvalidOptionError,
    MissingExtraError,
    RetentionError,
    RewindError,
    StreamInUseError,
    TableKeyError,
    TableSchemaError,
    UndeclaredTableError,
    UntraceableWriteError,
)
from headwater.targets import Delivery
from headwater.targets.duckdb import DuckDBSettings, DuckDBTarget, Tx, duckdb_target, session, table
from tests.targets.killed import writers

ROOT = Path(__file__).resolve().parent.parent.parent
LARGEST = 2**256 - 1
Rows = list[dict[str, Any]]


class Stream:
    """Commits blocks to a target."""

    def __init__(self, target: DuckDBTarget) -> None:
        self.target = target
        self.state = target.recover()

    def block(self, number: int, data: Any = None, *, final: int = 1, ctx: Any = None) -> None:
        head = Head(BlockCursor(final, f"h{final}") if final >= 0 else None)
        header = BlockHeader(number, f"h{number}", f"h{number - 1}", number - 1, number)
        state = self.state.advance([header], head)
        batch = Batch((header,), head, state, (), Delivery(data or {}, ctx))
        self.target.commit([batch], state)
        self.state = state

    def fork(self, number: int) -> None:
        safe = next(one for one in self.state.landing_points() if one.number == number)
        self.state = self.state.rewind(safe)
        self.target.roll_back(self.state)

    def rows(self, sql: str) -> Rows:
        found: Rows = self.target.query(sql).to_pylist()
        return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chain.duckdb"


@pytest.fixture
def opened() -> Iterator[list[DuckDBTarget]]:
    targets: list[DuckDBTarget] = []
    yield targets
    for one in targets:
        one.close()


@pytest.fixture
def stream(path: Path, opened: list[DuckDBTarget]) -> Any:
    """Return a function that starts a stream whose `on_data` is given as data: `{"do": f}`."""

    def start(*tables: Any, id: str = "s", **options: Any) -> Stream:
        settings = options.pop("settings", DuckDBSettings(id=id))
        target = duckdb_target(
            path,
            tables=tables,
            on_data=lambda tx, data: data["do"](tx) if "do" in data else None,
            settings=settings,
            **options,
        )
        opened.append(target)
        return Stream(target)

    return start


def doing(do: Any) -> dict[str, Any]:
    return {"do": do}


def balances(**values: Any) -> pa.Table:
    return pa.table({"who": list(values), "value": [str(one) for one in values.values()]})


# --- names and types ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["select", "My Table", '"a.b"', "other.Transfers", '"a.b"."c""d"', "ünï", "t-1"]
)
def test_any_name_of_a_table_and_its_columns_works_through_undo(stream: Any, name: str) -> None:
    columns = ["from", "Group", 'a"b', "x.y"]
    s = stream(table(name, key=columns[:2]))

    def rows(*values: int) -> pa.Table:
        return pa.table({one: [f"{one}{v}" for v in values] for one in columns})

    s.block(1, doing(lambda tx: tx.insert(name, rows(1, 2))))
    before = s.rows(f"FROM {_quoted(name)} ORDER BY ALL")
    s.block(2, doing(lambda tx: tx.upsert(name, rows(2, 3))))
    s.block(3, doing(lambda tx: tx.delete(name, rows(1).select([1, 0]))))
    assert len(s.rows(f"FROM {_quoted(name)}")) == 2
    s.fork(1)
    assert s.rows(f"FROM {_quoted(name)} ORDER BY ALL") == before


def _quoted(name: str) -> str:
    parts = re.findall(r'"(?:[^"]|"")+"|[^".]+', name)
    return ".".join(one if one.startswith('"') else f'"{one}"' for one in parts)


@pytest.mark.parametrize("name", ["", "a.", ".a", "a.b.c", 'a"b', '"a'])
def test_what_is_no_table_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidOptionError):
        duckdb_target(":memory:", tables=[table(name)])


def test_every_type_survives_insert_upsert_delete_and_undo(stream: Any) -> None:
    schema = pa.schema(
        [
            ("id", pa.binary()),
            ("text", pa.large_string()),
            ("flag", pa.bool_()),
            ("tiny", pa.uint8()),
            ("big", pa.uint64()),
            ("amount", pa.decimal128(38, 6)),
            ("wide", pa.decimal256(76, 0)),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("list", pa.list_(pa.int64())),
            ("pair", pa.struct([("a", pa.int32()), ("b c", pa.string())])),
            ("ratio", pa.float64()),
            ("nothing", pa.null()),
        ]
    )
    row: dict[str, Any] = dict.fromkeys(schema.names)
    full = row | {
        "id": b"\x00\xff", "text": "x\x00y", "flag": True, "tiny": 255, "big": 2**64 - 1,
        "amount": Decimal("-12345678901234567890123456789012.654321"), "wide": Decimal(10**75),
        "at": 1, "day": 1, "list": [1, None], "pair": {"a": 1, "b c": None}, "ratio": 1e300,
    }  # fmt: skip
    one = pa.Table.from_pylist([full, row | {"id": b"null"}], schema=schema)
    other = pa.Table.from_pylist([row | {"id": b"\x00\xff"}, full | {"id": b"null"}], schema=schema)
    s = stream(table("t", key=["id"]))
    s.block(1, doing(lambda tx: tx.insert("t", one)))
    before = s.rows("FROM t ORDER BY id")
    assert before[0]["wide"] == str(10**75)
    assert before[0]["amount"] == full["amount"]
    s.block(2, doing(lambda tx: tx.upsert("t", other)))
    assert s.rows("FROM t ORDER BY id") != before
    s.block(3, doing(lambda tx: tx.delete("t", other.select(["id"]))))
    assert s.rows("FROM t") == []
    s.fork(1)
    assert s.rows("FROM t ORDER BY id") == before


def test_integers_of_256_bits_are_exact_as_numbers(stream: Any) -> None:
    s = stream(table("t", key=["who"], types={"value": "bignum"}))
    s.block(1, doing(lambda tx: tx.insert("t", balances(a=LARGEST, b=-LARGEST, c=0))))
    s.block(2, doing(lambda tx: tx.upsert("t", balances(a=LARGEST - 1, d=1))))
    assert s.rows("SELECT value::VARCHAR AS v FROM t WHERE who = 'a'") == [{"v": str(LARGEST - 1)}]
    s.fork(1)
    assert s.rows("SELECT who, value FROM t ORDER BY t.value") == [
        {"who": "b", "value": str(-LARGEST)},
        {"who": "c", "value": "0"},
        {"who": "a", "value": str(LARGEST)},
    ]
    assert s.rows("SELECT sum(value) AS total FROM t") == [{"total": "0"}]


def test_new_tables_hold_decoded_integers_as_numbers_and_older_ones_keep_text(stream: Any) -> None:
    """What the decoder knows of a column is in its metadata; `types` outranks it."""
    value = evm.events("erc20.Transfer").schema.field("value")
    known = pa.schema([("who", pa.string()), value])
    s = stream("t", "older", table("text", types={"value": "varchar"}))
    s.block(1, doing(lambda tx: tx.insert("older", balances(a=LARGEST))))

    def write(tx: Tx) -> None:
        for name in ("t", "older", "text"):
            tx.insert(name, balances(b=LARGEST, c=7).cast(known))

    s.block(2, doing(write))
    s.fork(1)
    s.block(2, doing(write))
    for name, kind in (("t", "BIGNUM"), ("older", "VARCHAR"), ("text", "VARCHAR")):
        assert s.rows(f"SELECT value, typeof(value) AS kind FROM {name} WHERE who > 'a'") == [
            {"value": str(LARGEST), "kind": kind},
            {"value": "7", "kind": kind},
        ]


@pytest.mark.parametrize("text", ["1.5", "1e3", "x", "", " 1", "0x10"])
def test_text_that_is_no_integer_is_not_rounded_into_one(stream: Any, text: str) -> None:
    s = stream(table("t", types={"value": "BIGNUM"}), unrepresentable="stop")
    with pytest.raises(TableSchemaError, match="does not fit its column"):
        s.block(1, doing(lambda tx: tx.insert("t", balances(a=text))))
    assert s.target.recover() == PipeState()


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_text_in_any_form_is_not_rounded_into_an_integer(stream: Any, kind: Any) -> None:
    s = stream(table("t", types={"value": "BIGINT"}), unrepresentable="stop")

    def rows(text: str) -> pa.Table:
        found = balances(a=text)
        place = found.schema.get_field_index("value")
        return found.set_column(place, "value", pa.array([text]).cast(kind))

    with pytest.raises(TableSchemaError, match="does not fit its column"):
        s.block(1, doing(lambda tx: tx.insert("t", rows("1.5"))))
    s.block(1, doing(lambda tx: tx.insert("t", rows("7"))))
    assert s.rows("SELECT value FROM t") == [{"value": 7}]


@pytest.mark.parametrize(
    "frame",
    [
        pa.table({"who": ["a"], "more": ["x"]}),
        pa.table({"who": ["a"], "value": [1]}),
        pa.table({"who": ["a"], "VALUE": ["x"], "value": ["y"]}),
        pa.table({"who": ["a"], "___sqd__block_number": [1]}),
        pa.table({"who": ["a"], "value": pa.array([1], pa.duration("s"))}),
    ],
)
def test_a_frame_that_clashes_with_the_table_is_refused_and_nothing_written(
    stream: Any, frame: pa.Table
) -> None:
    s = stream("t", "u")
    s.block(1, doing(lambda tx: tx.insert("t", balances(a=1))))

    def both(tx: Tx) -> None:
        tx.insert("u", balances(b=1))
        tx.insert("t", frame)

    with pytest.raises(TableSchemaError):
        s.block(2, doing(both))
    assert s.rows("FROM t") == [{"who": "a", "value": "1"}]
    assert s.rows("SELECT count(*) AS n FROM duckdb_tables() WHERE table_name = 'u'") == [{"n": 0}]
    s.block(2, doing(lambda tx: tx.insert("t", balances(a=2))))
    assert len(s.rows("FROM t")) == 2


def test_a_table_of_ones_own_is_used_if_it_agrees(stream: Any, path: Path) -> None:
    def prepare(tx: Tx) -> None:
        tx.execute("CREATE TABLE t (who VARCHAR PRIMARY KEY, value HUGEINT, seen INT DEFAULT 7)")
        tx.execute("INSERT INTO t VALUES ('a', 5, 1)")

    s = stream("t", on_start=prepare)
    s.block(1, final=1)
    s.block(2, doing(lambda tx: tx.upsert("T", balances(a=6, b=2**100))))
    rows = "SELECT who, value::VARCHAR AS v, seen FROM t ORDER BY who"
    assert s.rows(rows) == [
        {"who": "a", "v": "6", "seen": 1},
        {"who": "b", "v": str(2**100), "seen": 7},
    ]
    s.fork(1)
    assert s.rows(rows) == [{"who": "a", "v": "5", "seen": 1}]
    with pytest.raises(TableSchemaError, match="primary key"):
        stream(table("t", key=["value"]), id="other").block(
            1, doing(lambda tx: tx.insert("t", balances(c=1)))
        )


# --- declarations ---------------------------------------------------------------------------------


def test_tables_must_be_declared(stream: Any) -> None:
    with pytest.raises(UndeclaredTableError):
        duckdb_target(":memory:", on_data=lambda tx, data: None)
    s = stream(table("free", untracked=True))
    for do in (
        lambda tx: tx.insert("t", balances(a=1)),
        lambda tx: tx.upsert("t", balances(a=1), key=["who"]),
        lambda tx: tx.delete("t", balances(a=1), key=["who"]),
        lambda tx: tx.execute("CREATE TABLE t (a INT); INSERT INTO t VALUES (1)"),
    ):
        with pytest.raises(UndeclaredTableError):
            s.block(1, doing(do))


def test_a_key_is_needed_where_rows_are_replaced_or_removed(stream: Any) -> None:
    s = stream("plain", table("keyed", key=["who"]))
    s.block(1, doing(lambda tx: tx.insert("plain", balances(a=1))))
    twice = pa.concat_tables([balances(a=1), balances(a=2)])
    for do in (
        lambda tx: tx.upsert("plain", balances(a=1)),
        lambda tx: tx.upsert("plain", balances(a=1), key=["who"]),
        lambda tx: tx.delete("plain", balances(a=1), key=["who"]),
        lambda tx: tx.upsert("keyed", balances(a=1), key=["value"]),
        lambda tx: tx.upsert("keyed", twice),
        lambda tx: tx.insert("keyed", twice),
        lambda tx: tx.upsert("keyed", pa.table({"who": [None], "value": ["1"]})),
    ):
        with pytest.raises((TableKeyError, TableSchemaError)):
            s.block(2, doing(do))
    assert s.rows("FROM plain") == [{"who": "a", "value": "1"}]


def test_a_key_given_at_the_first_upsert_becomes_the_tables(stream: Any) -> None:
    s = stream("t")
    s.block(1, doing(lambda tx: tx.upsert("t", balances(a=1), key=["who"])))
    s.block(2, doing(lambda tx: tx.upsert("t", balances(a=2))))
    s.fork(1)
    assert s.rows("FROM t") == [{"who": "a", "value": "1"}]


def test_an_upsert_of_some_columns_leaves_the_others(stream: Any) -> None:
    s = stream(table("t", key=["who"]))
    s.block(1, doing(lambda tx: tx.insert("t", balances(a=1))))
    s.block(2, doing(lambda tx: tx.upsert("t", pa.table({"who": ["a", "b"]}))))
    assert s.rows("FROM t ORDER BY who") == [
        {"who": "a", "value": "1"},
        {"who": "b", "value": None},
    ]
    s.fork(1)
    assert s.rows("FROM t") == [{"who": "a", "value": "1"}]


def test_a_declaration_cannot_change_once_rows_depend_on_it(stream: Any) -> None:
    s = stream(table("t", append_only=True, block_column="n"))
    s.block(1, doing(lambda tx: tx.insert("t", pa.table({"n": [1]}))))
    s.target.close()
    with pytest.raises(TableSchemaError, match="declared otherwise"):
        stream("t").block(2, doing(lambda tx: tx.insert("t", pa.table({"n": [2]}))))


def test_options_that_cannot_work_are_refused_before_anything_is_opened() -> None:
    with pytest.raises(RetentionError):
        DuckDBSettings(unfinalized_blocks_retention=0)
    with pytest.raises(InvalidOptionError):
        DuckDBSettings(id=" ")
    with pytest.raises(InvalidOptionError):
        table("t", key="who")
    with pytest.raises(InvalidOptionError):
        table("t", types={"value": "TEXT; DROP TABLE t"})
    with pytest.raises(InvalidOptionError):
        table("t", append_only=True, untracked=True)


# --- append-only ----------------------------------------------------------------------------------


def test_without_on_data_every_output_gets_its_table(path: Path) -> None:
    target = duckdb_target(path)
    s = Stream(target)
    s.block(1, {"a.b": pa.table({"block_number": [1], "v": ["x"]}), "plain": balances(a=1)})
    s.block(2, {"a.b": pa.table({"block_number": [2], "v": ["x"]}), "plain": balances(a=1)})
    s.target.close()
    s = Stream(duckdb_target(path))  # undoes tables that it has not written yet
    s.fork(1)
    assert s.rows('FROM "a.b"') == [{"block_number": 1, "v": "x"}]
    assert s.rows("FROM plain") == [{"who": "a", "value": "1"}]
    undo = s.rows("SELECT table_name, undo FROM sync__tables ORDER BY ALL")
    assert undo == [
        {"table_name": "a.b", "undo": "append_only"},
        {"table_name": "plain", "undo": "keyless"},
    ]
    s.target.close()


def test_outputs_whose_names_differ_in_case_alone_are_refused(path: Path) -> None:
    """DuckDB takes both for one table, which would hold the rows of both."""
    rows = pa.table({"block_number": [2]})
    stream = Stream(duckdb_target(path))
    with pytest.raises(InvalidOptionError, match=r"E0007.*one table.*'Swaps', 'swaps'"):
        stream.block(2, {"Swaps": rows, "swaps": rows})
    stream.block(2, {"Swaps": rows})
    assert stream.target.query("SELECT count(*) AS n FROM swaps").to_pylist() == [{"n": 1}]
    stream.target.close()


def test_rows_that_their_block_number_would_not_undo_are_refused(stream: Any) -> None:
    s = stream(table("t", append_only=True))

    def at(*numbers: int | None) -> dict[str, Any]:
        frame = pa.table({"block_number": pa.array(numbers, pa.int64())})
        return doing(lambda tx: tx.insert("t", frame))

    s.block(5, at(1, 5), final=5)
    for wrong in ((5,), (7,), (6, None), (4, 6)):
        with pytest.raises(AppendOnlyError):
            s.block(6, at(*wrong), final=5)
    s.block(6, at(6, 6), final=5)
    for do in (
        lambda tx: tx.upsert("t", pa.table({"block_number": [7]}), key=["block_number"]),
        lambda tx: tx.execute("UPDATE t SET block_number = 3", tables=["t"]),
        lambda tx: tx.execute("INSERT INTO t VALUES (2)", tables=["t"]),
    ):
        with pytest.raises((AppendOnlyError, TableKeyError)):
            s.block(7, doing(do), final=5)
    s.block(7, doing(lambda tx: tx.execute("INSERT INTO t VALUES (7)", tables=["t"])), final=5)
    s.fork(5)
    assert s.rows("FROM t ORDER BY 1") == [{"block_number": 1}, {"block_number": 5}]


def test_an_append_only_table_has_one_stream(stream: Any) -> None:
    insert = doing(lambda tx: tx.insert("t", pa.table({"block_number": [1]})))
    stream(table("t", append_only=True), id="one").block(1, insert)
    with pytest.raises(AppendOnlyError, match="one"):
        stream(table("t", append_only=True), id="two").block(1, insert)


# --- SQL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES ('b', '1')",
        "insert or replace into main.t values ('a', '1')",
        "UPDATE t SET value = '2'",
        'WITH x AS (SELECT 1) DELETE FROM "T"',
        "TRUNCATE t",
        "MERGE INTO t USING t AS o ON t.who = o.who WHEN MATCHED THEN DELETE",
        "WITH x AS (INSERT INTO t VALUES ('b', '1') RETURNING *) SELECT * FROM x",
        "EXPLAIN ANALYZE DELETE FROM t",
        "SELECT 1; /* ; */ DELETE FROM t -- all",
        "DROP TABLE t",
        "ALTER TABLE t RENAME TO u",
        "CREATE OR REPLACE TABLE t AS SELECT 1",
        "PREPARE p AS DELETE FROM t",
        "COMMIT",
        "DROP SCHEMA main CASCADE",
    ],
)
def test_sql_that_a_fork_could_not_undo_is_refused(stream: Any, sql: str) -> None:
    s = stream(table("t", key=["who"]))
    s.block(1, doing(lambda tx: tx.insert("t", balances(a=1))))
    with pytest.raises(UntraceableWriteError):
        s.block(2, doing(lambda tx: tx.execute(sql)))
    with pytest.raises(UntraceableWriteError):
        s.block(2, doing(lambda tx: tx.query(sql)))
    assert s.rows("FROM t") == [{"who": "a", "value": "1"}]


def test_sql_that_names_what_it_changes_is_undone(stream: Any) -> None:
    s = stream(table("t", key=["who"]), "plain")

    def first(tx: Tx) -> None:
        tx.insert("t", balances(a=1, b=2, c=3))
        tx.insert("plain", balances(x=1, y=1))
        tx.execute("UPDATE t SET value = '5' WHERE who = ?", ["c"])  # final: nothing to keep

    s.block(1, doing(first))
    before = [s.rows("FROM t ORDER BY ALL"), s.rows("FROM plain ORDER BY ALL")]

    def change(tx: Tx) -> None:
        tx.execute("UPDATE t SET value = '9' WHERE who = $1", ["a"], tables=["t"])
        tx.execute("DELETE FROM t WHERE who = 'b'; INSERT INTO t VALUES ('d', '4')", tables=["T"])
        tx.execute("INSERT INTO plain SELECT * FROM plain", tables=["plain"])
        tx.execute("DELETE FROM plain WHERE who = 'y'", tables=["plain"])
        assert tx.query("SELECT count(*) AS n FROM plain").to_pylist() == [{"n": 2}]

    s.block(2, doing(change))
    s.block(3, doing(lambda tx: tx.execute("UPDATE plain SET who = 'z'", tables=["plain"])))
    assert s.rows("FROM plain")[0]["who"] == "z"
    s.fork(1)
    assert [s.rows("FROM t ORDER BY ALL"), s.rows("FROM plain ORDER BY ALL")] == before


@pytest.mark.guarantee("GUARD-1")
@pytest.mark.parametrize("sql", ["EXPLAIN ANALYZE COMMIT", "EXPLAIN ANALYZE ROLLBACK"])
@pytest.mark.parametrize("run", ["execute", "query"])
def test_a_callback_that_ends_the_transaction_is_noticed_and_undone(
    stream: Any, sql: str, run: str
) -> None:
    s = stream(table("t", key=["k"]), table("log", append_only=True))

    def write(number: int) -> Callable[[Tx], None]:
        def run(tx: Tx) -> None:
            tx.upsert("t", pa.table({"k": [1], "v": [number]}))
            tx.insert("log", pa.table({"block_number": [number]}))

        return run

    for number in (1, 2):
        s.block(number, doing(write(number)))

    def end(tx: Tx) -> None:
        write(3)(tx)
        getattr(tx, run)(sql)
        tx.upsert("t", pa.table({"k": [2], "v": [3]}))

    with pytest.raises(DuckDBTransactionError, match=r"E2509.*transaction was ended"):
        s.block(3, doing(end))
    assert s.rows("FROM t") == [{"k": 1, "v": 2}]
    assert s.rows("FROM log ORDER BY 1") == [{"block_number": 1}, {"block_number": 2}]
    assert s.target.recover() == s.state
    s.block(3, doing(write(3)))


@pytest.mark.parametrize("hook", ["on_start", "on_before_rollback", "on_after_rollback"])
def test_hooks_that_end_the_transaction_are_noticed(stream: Any, hook: str) -> None:
    armed = False

    def end(tx: Tx, *_: Any) -> None:
        if armed:
            tx.query("EXPLAIN ANALYZE COMMIT")

    s = stream(table("t", key=["k"]), **{hook: end})
    for number in (1, 2, 3):
        s.block(number, doing(lambda tx, n=number: tx.insert("t", pa.table({"k": [n]}))))
    armed = True
    if hook == "on_start":
        s.target.close()
    with pytest.raises(DuckDBTransactionError):
        s.target.recover() if hook == "on_start" else s.fork(2)
    armed = False
    state = s.target.recover()
    assert s.rows("SELECT max(k) AS k FROM t") == [{"k": state.number}]


def test_untracked_and_temporary_tables_are_free(stream: Any) -> None:
    s = stream(table("free", untracked=True), "t")

    def use(tx: Tx) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS free (a INT)")
        tx.execute("INSERT INTO free SELECT count(*) FROM free")
        tx.execute("CREATE TEMP TABLE scratch (a INT)")
        tx.execute("INSERT INTO scratch VALUES (1)")
        tx.execute("DROP TABLE scratch")

    for number in (1, 2, 3):
        s.block(number, doing(use))
    s.fork(1)
    assert s.rows("SELECT count(*) AS n FROM free") == [{"n": 3}]


def test_callbacks_get_the_context_and_run_inside_the_transaction(path: Path) -> None:
    calls: list[Any] = []

    def before(tx: Tx, cursor: BlockCursor | None) -> None:
        calls.append(tx.query("SELECT count(*) AS n FROM t").to_pylist())

    def after(tx: Tx, cursor: BlockCursor | None) -> None:
        calls.append((cursor, tx.query("SELECT count(*) AS n FROM t").to_pylist()))
        tx.execute("CREATE TABLE seen AS SELECT 1 AS a")
        if len(calls) == 2:
            raise OSError("no")

    def write(tx: Tx, data: Any, ctx: Any) -> None:
        tx.insert("t", data["t"])
        calls.append(ctx)

    target = duckdb_target(
        path,
        tables=["t"],
        on_data=write,
        on_start=lambda tx: calls.append("start"),
        on_before_rollback=before,
        on_after_rollback=after,
    )
    s = Stream(target)
    for number in (1, 2):
        s.block(number, {"t": balances(a=number)}, ctx=number)
    assert calls == ["start", 1, 2]
    calls.clear()
    state = s.state
    with pytest.raises(OSError, match="no"):
        s.fork(1)
    assert len(s.rows("FROM t")) == 2
    assert target.recover() == state
    s.state = state
    s.fork(1)
    assert calls[2:] == [[{"n": 2}], (BlockCursor(1, "h1"), [{"n": 1}])]
    assert s.rows("FROM seen") == [{"a": 1}]
    target.close()


# --- state ----------------------------------------------------------------------------------------


def test_state_has_the_form_of_the_pipes_sdk_and_its_rows_are_read(path: Path) -> None:
    """CASE-12: rows with empty finality and chain."""
    settings = DuckDBSettings(id="s", schema="state", table="progress")
    s = Stream(duckdb_target(path, settings=settings))
    s.block(1)
    s.block(2)
    rows = s.rows("SELECT * EXCLUDE (current_timestamp) FROM state.progress ORDER BY 2")
    finalized = '{"number":1,"hash":"h1","timestamp":1}'
    assert rows == [
        {"id": "s", "current_number": 1, "current_hash": "h1", "finalized": finalized,
         "rollback_chain": f"[{finalized}]"},
        {"id": "s", "current_number": 2, "current_hash": "h2", "finalized": finalized,
         "rollback_chain": '[{"number":2,"hash":"h2","timestamp":2}]'},
    ]  # fmt: skip
    s.target.close()
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "INSERT INTO state.progress VALUES ('old', 7, '0x7', NULL, '{}', '[]'), "
            "('older', 8, '0x8', NULL, NULL, NULL)"
        )
    for name, number in (("old", 7), ("older", 8)):
        target = duckdb_target(path, settings=DuckDBSettings(name, "state", "progress"))
        cursor = BlockCursor(number, f"0x{number}")
        assert target.recover() == PipeState(cursor, None, (cursor,))
        target.close()


def test_undo_data_is_bounded_but_never_lacks_what_a_legal_fork_needs(stream: Any) -> None:
    """CASE-27."""
    s = stream(
        table("t", key=["who"]),
        settings=DuckDBSettings(id="s", unfinalized_blocks_retention=5),
    )
    other = stream(table("t", key=["who"]), id="other")
    other.block(1)
    other.block(2, doing(lambda tx: tx.insert("t", balances(other=1))))
    for number in range(1, 151):
        do = doing(lambda tx, number=number: tx.upsert("t", balances(a=number)))
        s.block(number, do, final=100 if number > 100 else max(1, number - 20))
    held = s.rows("SELECT min(___sqd__block_number) AS n FROM t__snapshots WHERE ___sqd__id = 's'")
    assert 80 <= held[0]["n"] <= 101
    assert 80 <= s.rows("SELECT min(current_number) AS n FROM sync WHERE id = 's'")[0]["n"] <= 100
    assert s.rows("SELECT count(*) AS n FROM sync WHERE id = 'other'") == [{"n": 2}]
    assert s.target.recover() == s.state
    s.fork(100)
    assert s.rows("FROM t ORDER BY who") == [
        {"who": "a", "value": "100"},
        {"who": "other", "value": "1"},
    ]
    other.fork(1)
    assert s.rows("FROM t") == [{"who": "a", "value": "100"}]


def test_while_finality_is_unknown_the_whole_chain_can_be_undone(stream: Any) -> None:
    s = stream(
        table("t", key=["who"]),
        settings=DuckDBSettings(id="s", unfinalized_blocks_retention=1),
    )
    for number in range(1, 60):
        s.block(number, doing(lambda tx, n=number: tx.upsert("t", balances(a=n))), final=-1)
    s.fork(2)
    assert s.rows("FROM t") == [{"who": "a", "value": "2"}]


def test_final_blocks_leave_no_undo_data(stream: Any) -> None:
    s = stream(table("t", key=["who"]))
    for number in (1, 2, 3):
        s.block(number, doing(lambda tx: tx.upsert("t", balances(a=1))), final=9)
    tables = s.rows("SELECT table_name AS t FROM duckdb_tables() ORDER BY ALL")
    assert [one["t"] for one in tables] == ["sync", "sync__tables", "t"]


def test_a_rollback_below_the_undo_data_is_refused(stream: Any) -> None:
    s = stream("t")
    s.block(1)
    s.block(2)
    with pytest.raises(RewindError):
        s.target.roll_back(PipeState(BlockCursor(0, "h0")))
    assert s.target.recover() == s.state


# --- processes ------------------------------------------------------------------------------------


def test_a_stream_id_has_one_writer_and_ids_of_their_own_share_a_file(path: Path) -> None:
    first = duckdb_target(path)
    first.bind("one")
    first.recover()
    second = duckdb_target(path)
    second.bind("one")
    with pytest.raises(StreamInUseError):
        second.recover()
    second.bind("two")
    assert second.recover() == PipeState()
    with pytest.raises(InvalidOptionError):
        second.bind("three")
    first.close()
    first.close()
    second.close()
    again = duckdb_target(path, settings=DuckDBSettings(id="one"))
    again.bind("two")  # the settings win
    again.recover()
    again.close()


def test_a_second_process_is_told_why_it_cannot_open_the_file(path: Path, tmp_path: Path) -> None:
    target = duckdb_target(path)
    target.recover()
    code = (
        "from headwater.targets import duckdb_target\n"
        f"try: duckdb_target({str(path)!r}).recover()\n"
        "except Exception as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("[E2501] another process holds the file")
    target.close()


def test_a_path_that_leads_to_no_database_is_told_apart_from_one_that_is_held(
    tmp_path: Path,
) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir or Madam")
    for path, what in (
        (tmp_path / "no" / "such" / "folder.duckdb", "the folder of the file does not exist"),
        (letter, "something else than a DuckDB database"),
        (tmp_path, "something else than a DuckDB database"),
    ):
        with pytest.raises(DuckDBPathError, match=what) as refused:
            duckdb_target(path).recover()
        assert "process" not in str(refused.value)
    assert letter.read_text() == "Dear Sir or Madam"


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import headwater.targets

    for name in [one for one in sys.modules if one.startswith("headwater.targets.duckdb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=re.escape("headwater[duckdb]")):
        headwater.targets.__getattr__("duckdb_target")
    with pytest.raises(AttributeError):
        headwater.targets.__getattr__("nothing")


WRITER = """
from tests.targets.test_duckdb import *
def write(path):
    target = duckdb_target(path, tables=["plain", table("keyed", key=["who"])],
        on_data=lambda tx, data: (tx.insert("plain", data["f"]), tx.upsert("keyed", data["f"])))
    s = Stream(target)
    while True:
        number = 1 if s.state.cursor is None else s.state.cursor.number + 1
        s.block(number, {"f": balances(a=number)})
        print(number, flush=True)
        if number % 5 == 0:
            s.fork(number - 2)
"""


def test_a_process_that_is_killed_leaves_data_and_cursor_equal(path: Path) -> None:
    """Killed without warning, over and over, while it commits and rolls back."""
    with writers(WRITER, str(path)) as mortal:
        for attempt in range(4):
            mortal.kill_one_after(3 + attempt * 2)
            s = Stream(duckdb_target(path))
            number = s.state.cursor.number if s.state.cursor else 0
            assert number > 0
            values = [int(one["value"]) for one in s.rows("FROM plain")]
            assert sorted(values) == list(range(1, number + 1))
            assert s.rows("FROM keyed") == [{"who": "a", "value": str(number)}]
            s.target.close()


def test_the_example_of_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "targets" / "duckdb.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)[:2]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == printed


def test_errors_of_the_engine_are_not_swallowed(stream: Any) -> None:
    s = stream("t")
    with pytest.raises(duckdb.Error):
        s.block(1, doing(lambda tx: tx.query("SELECT * FROM nowhere")))
    with pytest.raises(HeadwaterError, match="toArrow"):
        s.block(1, doing(lambda tx: tx.insert("t", [{"a": 1}])))
    s.block(1, doing(lambda tx: tx.insert("t", balances(a=1).to_batches()[0])))
    assert s.rows("FROM t") == [{"who": "a", "value": "1"}]


def test_a_row_of_state_does_not_name_blocks_whose_undo_data_was_pruned(tmp_path: Path) -> None:
    """Its chain may be longer than its batch: after a rollback it holds all that is left."""
    target = duckdb_target(
        tmp_path / "a.duckdb", settings=DuckDBSettings("s", unfinalized_blocks_retention=1)
    )
    chain = tuple(BlockCursor(number, f"h{number}") for number in range(6))
    state = target.recover()
    target.commit((), PipeState(chain[-1], None, chain))
    assert target.recover().landing_points() == chain
    for number in range(6, 32):
        cursor = BlockCursor(number, f"h{number}")
        state = PipeState(cursor, None, (*chain[-2:], cursor))
        chain = state.rollback_chain
        target.commit((), state)
    target.close()
    oldest = target.recover().landing_points()[0].number
    target.close()
    assert oldest == 28  # the 26th commit, of block 30, pruned what lies below its own chain


def test_a_full_disk_is_a_coded_error_and_leaves_the_batch_before(tmp_path: Path) -> None:
    """The limit of file sizes stands for a disk without room: writing fails as it does there."""
    path = tmp_path / "full.duckdb"

    def fill(tx: Tx, data: Any) -> None:
        tx.insert("t", pa.table({"k": list(range(data["from"], data["to"]))}))

    target = duckdb_target(path, tables=[table("t", key=["k"])], on_data=fill)
    stream = Stream(target)
    stream.block(1, {"from": 0, "to": 10})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(DuckDBDiskFullError, match=r"E2510.*File too large"):
            stream.block(2, {"from": 10, "to": 1_000_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    target.close()
    stream = Stream(target)
    assert stream.state.number == 1
    stream.block(2, {"from": 10, "to": 20})
    assert stream.rows("SELECT count(*) AS n FROM t") == [{"n": 20}]
    target.close()


def test_closing_a_file_takes_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB merges what commits have left when it closes a file, in a gigabyte if it may."""
    path, limits = tmp_path / "chain.duckdb", list[str]()
    target = duckdb_target(path)
    Stream(target).block(1, {"t": balances(a=1)})
    opened = target._database._session
    assert opened is not None
    limited_to = session.SharedFile.limited_to

    @contextlib.contextmanager
    def watched(file: session.SharedFile, size: str) -> Iterator[None]:
        with limited_to(file, size):
            limits.append(file._limit)
            yield

    monkeypatch.setattr(session.SharedFile, "limited_to", watched)
    with duckdb.connect(str(path)) as other:  # a user's own connection, in this process
        target.close()
        assert limits == ["122.0 MiB"]
        assert not path.with_name("chain.duckdb.wal").exists()
        ((limit,),) = other.execute("SELECT current_setting('memory_limit')").fetchall()
    assert limit == opened._file._own_limit


@pytest.mark.parametrize("limited", [False, True])
def test_little_of_the_file_stays_in_memory_unless_a_limit_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    monkeypatch.setattr(session, "_KEPT", "4MB")
    settings = DuckDBSettings(config={"memory_limit": "1GB"} if limited else {})
    target = duckdb_target(tmp_path / "chain.duckdb", settings=settings)
    stream = Stream(target)
    opened = target._database._session
    assert opened is not None

    def kept() -> int:
        ((size, limit),) = opened.rows(
            "SELECT sum(memory_usage_bytes), current_setting('memory_limit') FROM duckdb_memory()"
        )
        assert limit == ("953.6 MiB" if limited else opened._file._own_limit)
        return int(size)

    dice = Random(7)
    texts = pa.array([dice.randbytes(40).hex() for _ in range(100_000)])

    def rows(number: int) -> dict[str, pa.Table]:
        return {"t": pa.table({"block_number": [number] * len(texts), "text": texts})}

    with contextlib.closing(target._database.reader()):  # what another session reads is left alone
        stream.block(1, rows(1), final=9)
        full = kept()
    for number in (2, 3):
        stream.block(number, rows(number), final=9)
    assert full > 4e6
    assert kept() > full if limited else kept() < 6e6
    assert target.query("SELECT count(*) AS n FROM t")["n"].to_pylist() == [300_000]
    target.close()


def test_rows_that_were_inserted_are_let_go_before_the_commit(tmp_path: Path) -> None:
    alive: list[weakref.ref[pa.Table]] = []
    still: list[int] = []

    def on_data(tx: Tx, data: Any) -> None:
        for number in range(3):
            rows = pa.table({"block_number": [1], "n": [number]})
            alive.append(weakref.ref(rows))
            tx.insert("t", rows)
            del rows
            still.append(sum(one() is not None for one in alive))

    target = duckdb_target(tmp_path / "chain.duckdb", tables=["t"], on_data=on_data)
    Stream(target).block(1)
    target.close()
    assert still == [0, 0, 0]
