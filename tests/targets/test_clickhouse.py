"""The ClickHouse target: tables and types, undo by engine, hooks, state, several streams."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import BlockCursor, PipeState
from headwater.decode import evm
from headwater.errors import (
    ClickHouseBlockColumnError,
    ClickHouseConnectionError,
    ClickHouseDatabaseError,
    ClickHouseMaxRowsError,
    ClickHouseRowsError,
    ClickHouseServerError,
    ClickHouseSharedTableError,
    ClickHouseTableError,
    ClickHouseTableNameError,
    ClickHouseUndeclaredError,
    ClickHouseWriterError,
    DistributedTableError,
    InvalidOptionError,
    RewindError,
    RollbackHandlerMissingError,
    StateMissingError,
)
from headwater.targets.admin import open_admin
from headwater.targets.clickhouse import (
    ClickHouseClient,
    ClickHouseSettings,
    clickhouse_target,
    table,
)
from headwater.targets.clickhouse.sql import TableName, parse_name, quote
from headwater.targets.clickhouse.transfer import Attempts
from tests.sampling import every
from tests.targets.clickhouse_places import Stream, database

LARGEST = 2**256 - 1
Make = Callable[..., Stream]


@pytest.fixture
def url() -> str:
    return database()


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    """Start a stream whose `on_data` inserts every frame into the table of its name."""
    made: list[Stream] = []

    def start(
        *tables: Any,
        id: str = "s",
        on_data: Any = None,
        on_rollback: Any = None,
        on_start: Any = None,
        on_before_rollback: Any = None,
        on_after_rollback: Any = None,
        **settings: Any,
    ) -> Stream:
        target = clickhouse_target(
            url,
            tables=tables or (None if on_rollback else ["t"]),
            on_data=on_data or insert_all,
            on_rollback=on_rollback,
            on_start=on_start,
            on_before_rollback=on_before_rollback,
            on_after_rollback=on_after_rollback,
            unrepresentable=settings.pop("unrepresentable", "replace"),
            settings=ClickHouseSettings(id=id, **settings),
        )
        made.append(Stream(target, url))
        return made[-1]

    yield start
    for one in made:
        one.target.close()
        one.client.close()


def insert_all(store: Any, data: Any) -> None:
    for name, frame in data.items():
        store.insert(name, frame)


def frame(block: int, *values: object, kind: Any = None) -> pa.Table:
    rows = len(values)
    return pa.table(
        {
            "block_number": pa.array([block] * rows, pa.int64()),
            "log_index": pa.array(range(rows), pa.int32()),
            "value": pa.array(values, kind or pa.string()),
        }
    )


def values(s: Stream, name: str = "t_live") -> list[Any]:
    return [row["value"] for row in s.rows(f"SELECT value FROM {name} ORDER BY ALL")]


# --- tables ---------------------------------------------------------------------------------------


def test_new_tables_hold_decoded_integers_as_numbers_and_older_ones_keep_text(make: Make) -> None:
    """What the decoder knows of a column is in its metadata; `types` outranks it."""
    s = make("t", "older", table("text", types={"value": "String"}))
    s.block(1, {"older": frame(1, "5")})
    decoded = evm.events("Moved(uint256 value, int256 change)").schema
    rows = frame(2, "7", str(LARGEST)).append_column("change", pa.array(["-7", "9"]))
    known = [decoded.field("value"), decoded.field("change")]
    rows = rows.cast(pa.schema([*rows.schema][:2] + known))
    s.block(2, {"t": rows, "older": rows.select([0, 1, 2]), "text": rows})
    kinds = {one["name"]: one["type"] for one in s.client.rows("DESCRIBE TABLE t")}
    assert (kinds["value"], kinds["change"]) == ("Nullable(UInt256)", "Nullable(Int256)")
    assert values(s) == ["7", str(LARGEST)]
    for name in ("older", "text"):
        kinds = {one["name"]: one["type"] for one in s.client.rows(f"DESCRIBE TABLE {name}")}
        assert kinds["value"].removeprefix("Nullable(").startswith("String")
        assert {"7", str(LARGEST)} <= set(values(s, f"{name}_live"))


def test_a_table_is_created_from_the_frame_and_its_values_come_back_exactly(make: Make) -> None:
    declared = table(
        "t",
        types={"value": "UInt256", "hash": "FixedString(32)", "small": "Int256"},
        partition_by="intDiv(block_number, 1000)",
    )
    s = make(declared)
    rows = pa.table(
        {
            "block_number": pa.array([1, 1], pa.int64()),
            "log_index": pa.array([0, 1], pa.int32()),
            "value": [str(LARGEST), "0"],
            "small": [str(-(2**255)), str(2**255 - 1)],
            "hash": ["0x" + "ab" * 32, "0x" + "0F" * 32],
            "at": pa.array([1, None], pa.timestamp("us", "UTC")),
            "amount": pa.array([None, 5], pa.decimal128(38, 0)),
            "path": pa.array([[1, 2], []], pa.list_(pa.int32())),
            "raw": pa.array([b"\x00\xff", None], pa.binary()),
            "ok": [True, None],
        }
    )
    s.block(1, {"t": rows})
    first, second = s.rows("SELECT * FROM t_live ORDER BY log_index")
    assert (first["value"], second["value"]) == (str(LARGEST), "0")
    assert (first["small"], second["small"]) == (str(-(2**255)), str(2**255 - 1))
    assert first["hash"] == b"\xab" * 32
    assert second["hash"] == b"\x0f" * 32
    assert second["at"] is None
    assert first["at"].microsecond == 1
    assert (first["amount"], second["amount"]) == (None, 5)
    assert (first["path"], second["path"]) == ([1, 2], [])
    assert (second["raw"], second["ok"]) == (None, None)
    kinds = {one["name"]: one["type"] for one in s.client.rows("DESCRIBE TABLE t")}
    assert kinds["value"] == "UInt256"
    assert kinds["at"] == "Nullable(DateTime64(6, 'UTC'))"
    assert kinds["amount"] == "Nullable(Decimal(38, 0))"
    made = s.client.rows(
        "SELECT engine, sorting_key, partition_key, create_table_query AS ddl FROM system.tables "
        f"WHERE name = 't' AND database = '{s.client.database}'"
    )[0]
    assert made["engine"] == "CollapsingMergeTree"
    assert made["sorting_key"] == "block_number, log_index"
    assert made["partition_key"] == "intDiv(block_number, 1000)"
    assert "_sqd_rollback_idx block_number TYPE minmax" in made["ddl"]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("UInt256", pa.array([str(LARGEST + 1)])),
        ("UInt256", pa.array(["-1"])),
        ("UInt256", pa.array(["1.5"])),
        ("UInt256", pa.array([""])),
        ("Int256", pa.array([str(2**255)])),
        ("Int256", pa.array([str(-(2**255) - 1)])),
        ("UInt64", pa.array([-1], pa.int64())),
        ("Int32", pa.array([2**31], pa.int64())),
        ("UInt64", pa.array([2**64], pa.decimal128(38, 0))),
        ("UInt64", pa.array([1.0], pa.float64())),
        ("FixedString(4)", pa.array(["abc"])),
        ("FixedString(4)", pa.array(["0x0123456g"])),
        ("FixedString(4)", pa.array([1], pa.int64())),
        ("DateTime", pa.array([1], pa.timestamp("us", "UTC"))),
        ("DateTime", pa.array([1], pa.int64())),
        ("String", pa.array([1], pa.int64())),
        ("Float32", pa.array([1.0], pa.float64())),
        ("Decimal(10, 0)", pa.array([5], pa.decimal128(38, 0))),
        ("Array(Int8)", pa.array([[300]], pa.list_(pa.int64()))),
    ],
)
def test_a_value_that_would_change_on_its_way_is_refused(
    make: Make, kind: str, column: pa.Array
) -> None:
    s = make(table("t", types={"value": kind}), unrepresentable="stop")
    rows = pa.table(
        {"block_number": pa.array([1], pa.int64()), "log_index": pa.array([0]), "value": column}
    )
    with pytest.raises(ClickHouseTableError, match="value"):
        s.block(1, {"t": rows})
    assert values(s) == []


@pytest.mark.parametrize(
    ("kind", "column", "stored"),
    [
        ("UInt256", pa.array(["007", None, "-0"]).slice(0, 1), ["7"]),
        ("Nullable(FixedString(2))", pa.array(["0x0102", None]).slice(0, 2), [b"\x01\x02", None]),
        ("LowCardinality(String)", pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
        ("Int128", pa.array([5], pa.int64()), ["5"]),
        ("UInt64", pa.array([5], pa.decimal128(38, 0)), [5]),
        ("Decimal(76, 2)", pa.array([5], pa.decimal128(38, 0)), [5]),
        ("Float64", pa.array([0.5], pa.float32()), [0.5]),
        ("Enum8('x' = 1, 'y' = 2)", pa.array(["y"]), [2]),
        ("String", pa.array([b"abcd"], pa.binary(4)), ["abcd"]),
    ],
)
def test_a_value_that_fits_another_type_is_stored_as_it_is(
    make: Make, kind: str, column: Any, stored: list[Any]
) -> None:
    s = make(table("t", types={"value": kind}))
    rows = pa.table(
        {
            "block_number": pa.array([1] * len(column), pa.int64()),
            "log_index": pa.array(range(len(column))),
            "value": column,
        }
    )
    s.block(1, {"t": rows})
    assert [row["value"] for row in s.rows("SELECT * FROM t_live ORDER BY log_index")] == stored


def test_null_is_refused_where_a_column_cannot_hold_it(make: Make) -> None:
    s = make(table("t", types={"value": "String"}))
    with pytest.raises(ClickHouseServerError, match="NULL"):
        s.block(1, {"t": frame(1, None)})


def test_times_of_whole_seconds_fit_a_column_of_seconds(make: Make) -> None:
    s = make(table("t", types={"value": "DateTime('UTC')"}))
    s.block(1, {"t": frame(1, 5_000_000, kind=pa.timestamp("us", "UTC"))})
    assert s.rows("SELECT toUnixTimestamp(value) AS n FROM t_live") == [{"n": 5}]


def test_a_frame_without_block_gets_the_batch_s(make: Make) -> None:
    s = make()
    for number in (1, 2, 3):
        s.block(number, {"t": pa.table({"token": ["a", "b"], "value": [number, number]})})
    s.fork(2)
    assert values(s) == [1, 1, 2, 2]
    found = s.rows("SELECT block_number AS n FROM t_live ORDER BY 1")
    assert [row["n"] for row in found] == [1, 1, 2, 2]


def test_without_on_data_each_output_has_a_table_that_a_restart_remembers(
    url: str, make: Make
) -> None:
    target = clickhouse_target(url, settings=ClickHouseSettings(id="s"))
    s = Stream(target, url)
    s.block(1, {"a.b": frame(1, "x"), "select": frame(1, "y")})
    s.block(2, {"a.b": frame(2, "x2")})
    target.on_statement = die_at("INSERT INTO " + str(TableName(s.client.database, "sync")))
    with pytest.raises(Died):
        s.block(3, {"select": frame(3, "lost")})
    target.close()
    target = clickhouse_target(url, settings=ClickHouseSettings(id="s"))
    s = Stream(target, url)
    assert s.state.cursor == BlockCursor(2, "h2")
    assert values(s, "`select_live`") == ["y"]
    assert values(s, "`a.b_live`") == ["x", "x2"]
    target.close()


def test_an_existing_table_keeps_its_form_and_any_name_works(make: Make) -> None:
    """CASE-22."""
    name = "we`ird \\ t'"
    quoted = quote(name)
    s = make(
        table(quoted, block_column="slot"),
        on_start=lambda store: store.command(
            f"CREATE TABLE IF NOT EXISTS {quoted} (slot UInt64, `sel``ect` String, d String "
            "MATERIALIZED upper(`sel``ect`), way Int8) ENGINE = VersionedCollapsingMergeTree(way, "
            "slot) ORDER BY `sel``ect`"
        ),
        on_data=lambda store, data: store.insert(quoted, data["x"]),
    )
    for number in (1, 2, 3):
        s.block(number, {"x": pa.table({"slot": [number], "sel`ect": [f"v{number}"]})})
    s.fork(2)
    found = s.rows(f"SELECT slot, d FROM {quoted} FINAL ORDER BY 1")
    assert found == [{"slot": 1, "d": "V1"}, {"slot": 2, "d": "V2"}]
    ddl = s.client.rows(f"SHOW CREATE TABLE {quoted}")[0]["statement"]
    assert "_sqd_rollback_idx slot" in ddl
    assert "non_replicated_deduplication_window" in ddl


def test_texts_of_a_list_arrive_as_they_are(url: str) -> None:
    """Attempts are looked for by tokens, which hold the stream's id."""
    client = ClickHouseClient(url)
    texts = ["it's \\ `q`", "tab\t, line\n, nul\0", "\\'", "é"]
    found = client.rows("SELECT {texts:Array(String)} AS texts", {"texts": texts})
    assert found == [{"texts": texts}]
    attempts = Attempts(client, TableName(client.database, "attempts"))
    attempts.create()
    for _ in range(2):
        attempts.note("it's/1", "1")
    assert attempts.are_single(["it's/2"])
    assert not attempts.are_single(["it's/2", "it's/1"])
    client.close()


def test_tables_that_could_not_be_undone_are_refused(make: Make, url: str) -> None:
    client = ClickHouseClient(url)
    client.run("CREATE TABLE local (block_number UInt64) ENGINE = MergeTree ORDER BY tuple()")
    here = client.database
    client.run(f"CREATE TABLE spread AS local ENGINE = Distributed(default, {here}, local)")
    with pytest.raises(DistributedTableError):
        make("spread")
    client.run("CREATE TABLE noblock (n UInt64) ENGINE = MergeTree ORDER BY n")
    with pytest.raises(ClickHouseBlockColumnError):
        make("noblock")
    client.run("CREATE TABLE wrong (block_number String) ENGINE = MergeTree ORDER BY tuple()")
    with pytest.raises(ClickHouseBlockColumnError, match="String"):
        make("wrong")
    client.run("CREATE TABLE memory (block_number UInt64) ENGINE = Memory")
    with pytest.raises(ClickHouseTableError, match="Memory"):
        make("memory")
    client.run(
        "CREATE TABLE latest (block_number UInt64, who String, ver UInt64, gone UInt8) "
        "ENGINE = ReplacingMergeTree(ver, gone) ORDER BY who"
    )
    with pytest.raises(ClickHouseTableError, match="ORDER BY"):
        make("latest")
    with pytest.raises(ClickHouseTableError, match="stream"):
        make(table("local", stream_column="stream"))
    client.close()


def test_rows_that_could_not_be_undone_are_refused(make: Make) -> None:
    s = make()
    s.block(1, {"t": frame(1, "a")})
    for rows in (frame(1, "old"), frame(3, "ahead"), frame(2, "a").set_column(
        0, "block_number", pa.array([None], pa.int64()))):  # fmt: skip
        with pytest.raises(ClickHouseRowsError, match="block number"):
            s.block(2, {"t": rows})
    twice = pa.concat_tables([frame(2, "a"), frame(2, "b")])
    with pytest.raises(ClickHouseRowsError, match="ORDER BY"):
        s.block(2, {"t": twice})
    with pytest.raises(ClickHouseUndeclaredError):
        s.block(2, {"other": frame(2, "a")})
    with pytest.raises(ClickHouseTableError, match="lacks columns"):
        s.block(2, {"t": frame(2, "a").append_column("more", pa.array([1]))})
    s.block(2, {"t": frame(2, "b")})
    assert values(s) == ["a", "b"]


def test_keys_with_lists_are_told_apart(make: Make) -> None:
    s = make()
    path = pa.array([[0], [0, 1], []], pa.list_(pa.int32()))
    rows = pa.table(
        {
            "block_number": [1, 1, 1],
            "transaction_index": [0, 0, 0],
            "instruction_address": path,
            "value": ["a", "b", "c"],
        }
    )
    s.block(1, {"t": rows})
    assert sorted(values(s)) == ["a", "b", "c"]
    same = pa.array([[0], [0], []], pa.list_(pa.int32()))
    with pytest.raises(ClickHouseRowsError):
        s.block(2, {"t": rows.set_column(2, "instruction_address", same).set_column(
            0, "block_number", pa.array([2, 2, 2]))})  # fmt: skip


def test_mistakes_in_declarations_are_named() -> None:
    with pytest.raises(ClickHouseMaxRowsError):
        ClickHouseSettings(max_rows=0)
    with pytest.raises(InvalidOptionError):
        ClickHouseSettings(id=" ")
    with pytest.raises(InvalidOptionError):
        ClickHouseSettings(attempts=0)
    with pytest.raises(InvalidOptionError, match="order_by"):
        table("t", order_by="block_number")
    with pytest.raises(InvalidOptionError, match="engine"):
        table("t", engine="Log")
    with pytest.raises(InvalidOptionError, match="types"):
        table("t", types={"a": "String) ENGINE = Null --"})
    with pytest.raises(InvalidOptionError, match="HTTP"):
        clickhouse_target("clickhouse://user:secret@host:9000")
    with pytest.raises(InvalidOptionError, match="%2F") as caught:
        clickhouse_target("http://user:secret/word@host:8123")
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__, "or the log shows what Python says of it"
    with pytest.raises(RollbackHandlerMissingError):
        clickhouse_target("http://localhost", on_data=insert_all)
    for name in ("a.b.c", "", "a.", "`a`b", "a..b"):
        with pytest.raises(ClickHouseTableNameError):
            parse_name(name, "default")
    assert parse_name('"a.b".`c``'.replace("``", "`"), "x") == TableName("a.b", "c")


def test_a_server_that_is_not_there_is_a_coded_error_without_the_password() -> None:
    target = clickhouse_target(
        "http://user:secret@127.0.0.1:9", settings=ClickHouseSettings(attempts=2)
    )
    with pytest.raises(ClickHouseConnectionError) as caught:
        target.recover()
    assert "secret" not in str(caught.value)
    target.close()
    with pytest.raises(InvalidOptionError, match="bound"):
        raise_when_bound_late()


def raise_when_bound_late() -> None:
    target = clickhouse_target(database())
    target.recover()
    try:
        target.bind("late")
    finally:
        target.close()


# --- undo -----------------------------------------------------------------------------------------


ENGINES = [
    "CollapsingMergeTree(sign)",
    "VersionedCollapsingMergeTree(sign, version)",
    "ReplacingMergeTree(version, gone)",
    "MergeTree",
    "ReplacingMergeTree",
    "SummingMergeTree",
]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_takes_rows_back_again_and_again(
    make: Make, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    columns = "block_number UInt64, log_index Int32, value Nullable(String)"
    columns += ", sign Int8" if "sign" in engine else ""
    columns += ", version UInt64" if "version" in engine else ""
    columns += ", gone UInt8" if "gone" in engine else ""
    s = make(
        on_start=lambda store: store.command(
            f"CREATE TABLE IF NOT EXISTS t ({columns}) ENGINE = {engine} "
            "ORDER BY (block_number, log_index)"
        )
    )
    plain = "gone" not in engine and "sign" not in engine
    shown = "t" if plain else "t_live"
    with caplog.at_level(logging.WARNING, "headwater.targets.clickhouse"):
        for round_number in range(3):  # the same rows come, go, and come again
            for number in range(1 if round_number == 0 else 3, 6):
                rows = frame(number, f"{number}", None)
                if engine.startswith("VersionedC"):
                    rows = rows.append_column("version", pa.array([7, 8], pa.uint64()))
                s.block(number, {"t": rows}, final=1)
            assert len(values(s, shown)) == 10
            s.fork(2)
            assert values(s, shown) == ["1", "2", None, None]
            s.target.roll_back(s.state)
            assert values(s, shown) == ["1", "2", None, None]
            s.sql("OPTIMIZE TABLE t FINAL")
            assert values(s, shown) == ["1", "2", None, None]
    noticed = [one for one in caplog.messages if "undo.by_deletion" in one]
    assert len(noticed) == (1 if plain else 0)


def test_rows_that_were_written_twice_are_all_taken_back(make: Make) -> None:
    s = make()
    for number in (1, 2, 3):
        s.block(number, {"t": frame(number, "a", "b")})
    s.sql("INSERT INTO t SELECT * FROM t WHERE block_number > 1")
    s.sql("INSERT INTO t SELECT * EXCEPT (sign), -1 FROM t WHERE block_number = 3 AND value = 'a'")
    s.sql("INSERT INTO t SELECT * EXCEPT (sign), -1 FROM t WHERE block_number = 3 AND value = 'a'")
    s.fork(1)
    left = s.rows("SELECT block_number, sum(sign) AS n FROM t GROUP BY 1 HAVING n != 0")
    assert left == [{"block_number": 1, "n": 2}]


@pytest.mark.guarantee("ORACLE-1")
@pytest.mark.parametrize("seed", every(2).seeds(range(2)))
def test_a_materialized_view_over_the_sign_equals_the_oracle_after_every_fork(
    make: Make, seed: int
) -> None:
    """Insert, fork, replay, crash and merge at random; the view is compared after each step."""
    dice = Random(seed)
    s = make(table("t", types={"value": "Int256"}))
    s.block(0, {"t": frame(0, "5")}, final=0)
    s.sql(
        "CREATE MATERIALIZED VIEW sums ENGINE = SummingMergeTree ORDER BY log_index AS "
        "SELECT log_index, sum(value * sign) AS total, sum(sign) AS n FROM t GROUP BY log_index"
    )
    held: dict[int, list[int]] = {}
    number = branch = 0
    for _ in range(40):
        action = dice.choices(["block", "fork", "crash", "merge"], [6, 3, 1, 1])[0]
        if action == "block" or number == 0:
            number += 1
            held[number] = [dice.getrandbits(200) for _ in range(dice.randrange(4))]
            rows = frame(number, *map(str, held[number]))
            s.block(number, {"t": rows}, final=max(0, number - 6), branch=f"b{branch}-")
        elif action == "fork":
            points = [one.number for one in s.state.landing_points()][:-1]
            if points:
                number, branch = dice.choice(points), branch + 1
                s.fork(number)
                held = {block: rows for block, rows in held.items() if block <= number}
        elif action == "crash":
            s.target.close()
            s = make(table("t", types={"value": "Int256"}))
        else:
            s.sql("OPTIMIZE TABLE t FINAL")
        expected: dict[int, tuple[int, int]] = {}
        for rows_of in held.values():
            for place, value in enumerate(rows_of):
                total, count = expected.get(place, (0, 0))
                expected[place] = (total + value, count + 1)
        found = s.rows(
            "SELECT log_index AS i, sum(total) AS total, sum(n) AS n FROM sums GROUP BY i "
            "HAVING n != 0 OR total != 0"
        )
        assert {row["i"]: (int(row["total"]), row["n"]) for row in found} == expected


def test_remove_all_rows_takes_a_condition_and_parameters(make: Make) -> None:
    removed: list[dict[str, int]] = []

    def on_data(store: Any, data: Any) -> None:
        insert_all(store, {k: v for k, v in data.items() if k != "remove"})
        if "remove" in data:
            for _ in range(2):
                removed.append(
                    store.remove_all_rows(
                        tables=["t", "u"], where="value = {v:String}", params={"v": data["remove"]}
                    )
                )

    s = make("t", table("u", engine="MergeTree"), on_data=on_data)
    s.block(1, {"t": frame(1, "it's", "b\t\\n"), "u": frame(1, "it's", "it's")})
    s.block(2, {"remove": "it's"})
    s.block(3, {"remove": "b\t\\n"})
    assert removed == [{"t": 1, "u": 2}, {"t": 0, "u": 0}, {"t": 1, "u": 0}, {"t": 0, "u": 0}]
    assert values(s) == []
    with pytest.raises(ClickHouseTableError, match="no such table"):
        s.target._store().remove_all_rows(tables=["never"], where="1")


@pytest.mark.guarantee("ORACLE-1")
def test_a_negative_without_its_row_leaves_nothing_visible(make: Make) -> None:
    """A -1 that comes first is cancelled by a +1, which the engine would show."""
    s = make()
    s.block(1, {"t": frame(1, "a")})
    s.block(2, {"t": frame(2, "b")})
    s.sql("INSERT INTO t SELECT 2, 7, 'lone', -1")  # of another key
    s.sql("INSERT INTO t SELECT 2, 0, 'other', -1")  # of the key of a row that stands
    for _ in range(2):
        s.fork(1)
        assert values(s) == ["a"]
        s.sql("OPTIMIZE TABLE t FINAL")
        assert s.rows("SELECT value, sign FROM t") == [{"value": "a", "sign": 1}]
        s.block(2, {"t": frame(2, "b")}, branch="x")
        assert values(s) == ["a", "b"]


def test_rows_that_are_removed_are_counted_where_negatives_are_among_them(make: Make) -> None:
    s = make()
    s.block(1, {"t": frame(1, "a", "b", "c")})
    s.sql("INSERT INTO t SELECT 1, 8, 'lone', -1")
    s.sql("INSERT INTO t SELECT 1, 9, 'gone', sign FROM (SELECT arrayJoin([1, -1]) AS sign)")
    removed = s.target._store().remove_all_rows(tables=["t"], where="block_number = 1 OR 0 -- all")
    assert removed == {"t": 3}
    assert values(s) == []
    assert s.rows("SELECT sum(sign) AS n FROM t") == [{"n": 0}]


@pytest.mark.parametrize("engine", ["CollapsingMergeTree", "ReplacingMergeTree", "MergeTree"])
def test_columns_may_have_the_names_that_undo_uses_itself(make: Make, engine: str) -> None:
    names = ["n", "net", "hashes", "rows", "_sqd_net", "_sqd_copy"]
    names += [f"_headwater_{one}" for one in ("net", "hashes", "copy", "count")]
    s = make(table("t", engine=engine))
    for number in (1, 2, 3):
        rows = frame(number, f"{number}")
        for name in names:
            rows = rows.append_column(name, pa.array([number], pa.int64()))
        s.block(number, {"t": rows})
    shown = "t" if engine == "MergeTree" else "t_live"
    s.fork(2)
    assert values(s, shown) == ["1", "2"]
    where = "n = 2 AND net = 2 AND _headwater_count = 2 AND _headwater_net = 2"
    assert s.target._store().remove_all_rows(tables=["t"], where=where) == {"t": 1}
    assert values(s, shown) == ["1"]


def test_a_table_that_was_not_declared_gets_the_index_when_rows_are_removed(make: Make) -> None:
    s = make(
        on_rollback=lambda store, safe_cursor: store.remove_all_rows(
            tables=["u"], where="block_number > {n:Int64}", params={"n": safe_cursor.number}
        ),
        on_start=lambda store: store.command(
            "CREATE TABLE IF NOT EXISTS u (block_number Int64, log_index Int32, value String, "
            "sign Int8) ENGINE = CollapsingMergeTree(sign) ORDER BY log_index"
        ),
    )
    for number in (1, 2):
        s.block(number, {"u": frame(number, f"{number}").slice(0, 1)})
    s.fork(1)
    found = s.rows("SELECT name, expr FROM system.data_skipping_indices WHERE table = 'u'"
                   " AND database = currentDatabase()")  # fmt: skip
    assert found == [{"name": "_sqd_rollback_idx", "expr": "block_number"}]


# --- hooks ----------------------------------------------------------------------------------------


def test_whoever_names_no_tables_undoes_by_the_hook_as_in_the_pipes_sdk(make: Make) -> None:
    calls: list[tuple[str, int, int]] = []

    def on_rollback(type: str, store: Any, cursor: BlockCursor, safe_cursor: BlockCursor) -> None:
        calls.append((type, cursor.number, safe_cursor.number))
        store.remove_all_rows(
            tables=["t"], where="block_number > {n:UInt32}", params={"n": safe_cursor.number}
        )

    s = make(on_rollback=on_rollback)
    assert calls == [], "there is no cursor to check"
    for number in (1, 2, 3):
        s.block(number, {"t": frame(number, f"{number}")})
    s.fork(1)
    assert values(s, "t FINAL") == ["1"]
    s.target.close()
    s = make(on_rollback=on_rollback)
    assert calls == [("blockchain_fork", 3, 1), ("offset_check", 1, 1)]


def test_whoever_undoes_forks_may_write_any_table(make: Make) -> None:
    s = make(
        on_rollback=lambda type: None,
        on_start=lambda store: store.command(
            "CREATE TABLE IF NOT EXISTS notes (text String) ENGINE = MergeTree ORDER BY text"
        ),
    )
    s.block(1, {"notes": pa.table({"text": ["a", "a"]}), "t": frame(77, "any block")})
    s.block(2, {"notes": pa.table({"text": ["a", "a"]})})
    assert s.rows("SELECT count() AS n FROM notes") == [{"n": 4}]
    assert values(s, "t FINAL") == ["any block"]


def test_a_hook_takes_what_it_names_and_comes_after_the_managed_undo(make: Make) -> None:
    seen: list[Any] = []
    s = make(
        "t",
        on_rollback=lambda store, safe_cursor: seen.append(
            (safe_cursor.number, store.query("SELECT count() AS n FROM t_live").to_pylist())
        ),
    )
    s.block(1, {"t": frame(1, "a")})
    s.block(2, {"t": frame(2, "b")})
    s.fork(1)
    assert seen == [(1, [{"n": 1}])]
    facts: list[Any] = []
    s.target.close()
    make("t", on_rollback=lambda **all_of_them: facts.append(sorted(all_of_them)))
    assert facts == [["cursor", "safe_cursor", "store", "type"]]


def test_the_hooks_of_other_targets_are_called_around_the_managed_undo(make: Make) -> None:
    seen: list[Any] = []

    def note(when: str) -> Any:
        return lambda store, cursor: seen.append(
            (when, cursor.number, store.query("SELECT count() AS n FROM t_live").to_pylist())
        )

    hooks = {"on_before_rollback": note("before"), "on_after_rollback": note("after")}
    s = make("t", **hooks)
    s.block(1, {"t": frame(1, "a")})
    s.block(2, {"t": frame(2, "b")})
    assert seen == []
    s.fork(1)
    assert seen == [("before", 1, [{"n": 2}]), ("after", 1, [{"n": 1}])]
    seen.clear()
    s.target.close()
    make("t", **hooks)  # a crash may have interrupted the undo
    assert [one[:2] for one in seen] == [("before", 1), ("after", 1)]


# --- state ----------------------------------------------------------------------------------------


class Died(BaseException):
    pass


def die_at(beginning: str) -> Callable[[str], None]:
    def hook(sql: str) -> None:
        if sql.startswith(beginning):
            raise Died

    return hook


@pytest.mark.guarantee("STATE-3")
@pytest.mark.guarantee("STATE-2")
def test_rows_that_come_again_after_a_crash_are_not_taken_for_known_ones(make: Make) -> None:
    """Crash after the data and before the cursor: the rows go, and the same rows come once."""
    s = make()
    s.block(1, {"t": frame(1, "a")})
    for _ in range(3):
        s.target.on_statement = die_at(f"INSERT INTO `{s.client.database}`.`sync`")
        with pytest.raises(Died):
            s.block(2, {"t": frame(2, "b")})
        assert values(s) == ["a", "b"], "the data was written"
        s.target.close()
        s = make()
        assert s.state.cursor == BlockCursor(1, "h1")
        assert values(s) == ["a"]
    s.block(2, {"t": frame(2, "b")})
    assert values(s) == ["a", "b"]
    assert s.rows("SELECT sum(sign) AS n FROM t") == [{"n": 2}]


def test_a_batch_that_failed_is_removed_before_the_next_call(make: Make) -> None:
    s = make("t", "u")
    s.block(1, {"t": frame(1, "a")})
    bad = frame(2, "x").rename_columns(["block_number", "log_index", "other"])
    s.block(2, {"u": frame(2, "u")})
    with pytest.raises(ClickHouseTableError):
        s.block(3, {"t": frame(3, "half"), "u": bad})
    assert values(s) == ["a", "half"]
    s.fork(1)
    assert values(s) == ["a"]
    assert values(s, "u_live") == []


@pytest.mark.guarantee("STATE-2")
def test_a_clock_that_is_set_back_changes_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASE-21."""
    now = [2_000_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    s = make()
    for number in range(1, 6):
        s.block(number, {"t": frame(number, f"{number}")})
        now[0] -= 1000.0
    s.fork(4)
    now[0] = 1_000_000_000.0
    s.block(5, {"t": frame(5, "other")}, branch="x")
    expected = s.state
    s.target.close()
    s = make()
    assert s.state == expected
    assert values(s) == ["1", "2", "3", "4", "other"]
    newest = "SELECT current FROM sync WHERE id = 's' ORDER BY timestamp DESC LIMIT 1"
    assert s.rows(newest) == [{"current": '{"number":5,"hash":"x5","timestamp":5}'}]


def test_a_fork_is_stored_when_it_completes(make: Make) -> None:
    s = make()
    for number in range(1, 5):
        s.block(number, {"t": frame(number, f"{number}")})
    s.fork(2)
    expected = s.state
    s.target.close()
    s = make()
    assert s.state == expected
    assert s.state.cursor == BlockCursor(2, "h2")
    with pytest.raises(RewindError):
        s.target.roll_back(PipeState(BlockCursor(0, "h0")))


@pytest.mark.parametrize("max_rows", [1, 30])
def test_state_is_kept_to_max_rows_and_a_legal_fork_is_still_possible(
    make: Make, max_rows: int
) -> None:
    """CASE-27."""
    other = make(id="other", max_rows=max_rows)
    other.block(1)
    s = make("u", max_rows=max_rows)
    for number in range(1, 64):
        s.block(number, {"u": frame(number, f"{number}")} if number % 9 == 0 else {}, final=20)
    expected = s.state
    rows = "SELECT id, count() AS n FROM sync FINAL GROUP BY id ORDER BY id"
    counts = {row["id"]: row["n"] for row in s.rows(rows)}
    assert counts["other"] == 1
    assert counts["s"] <= max_rows + 25
    s.target.close()
    s = make("u", max_rows=max_rows)
    assert s.state == expected
    s.fork(20)
    assert sorted(map(int, values(s, "u_live"))) == [9, 18]


def test_a_second_writer_of_one_stream_is_noticed(make: Make) -> None:
    """CASE-11."""
    first = make()
    first.block(1, {"t": frame(1, "a")})
    second = make()
    second.block(2, {"t": frame(2, "b")})
    with pytest.raises(ClickHouseWriterError):
        first.block(2, {"t": frame(2, "b")})
    with pytest.raises(ClickHouseWriterError):
        first.fork(1)
    assert values(second) == ["a", "b"]


def held(s: Stream) -> list[Any]:
    return [*values(s), *s.rows("SELECT count() AS n FROM sync__tables FINAL")]


@pytest.mark.guarantee("STATE-4")
@pytest.mark.parametrize("lost", ["DELETE FROM sync WHERE 1", "TRUNCATE TABLE sync", "all"])
def test_a_missing_state_is_an_error_and_nothing_is_removed(make: Make, lost: str) -> None:
    """Final rows were removed, and the stream began anew."""
    s = make()
    for number in (1, 2, 3):
        s.block(number, {"t": frame(number, f"{number}")}, final=2)
    before = held(s)
    s.target.close()
    for sql in ("TRUNCATE TABLE sync", "TRUNCATE TABLE sync__epochs") if lost == "all" else (lost,):
        s.sql(sql)
    for _ in range(2):
        with pytest.raises(StateMissingError, match="committed before"):
            make()
        assert held(s) == before
    admin = open_admin(f"{s.client._server}{s.client.database}")
    admin.reset("s", force=True)
    again = make()
    assert again.state == PipeState()
    again.block(1, {"t": frame(1, "anew")})
    assert values(again) == ["anew"]


@pytest.mark.guarantee("STATE-4")
def test_rows_of_the_stream_in_a_shared_table_are_not_given_up_either(make: Make) -> None:
    shared = table("t", stream_column="chain")
    s = make(shared)
    s.block(1, {"t": frame(1, "a")})
    s.target.close()
    for name in ("sync", "sync__epochs", "sync__tables"):
        s.sql(f"DROP TABLE {name}")
    with pytest.raises(StateMissingError):
        make(shared)
    assert values(s) == ["a"]
    make(shared, id="other")


@pytest.mark.guarantee("STATE-4")
def test_a_stream_that_died_before_its_first_commit_begins_again(make: Make) -> None:
    s = make()
    s.target.on_statement = die_at(f"INSERT INTO `{s.client.database}`.`sync` ")
    with pytest.raises(Died):
        s.block(1, {"t": frame(1, "half")})
    assert values(s) == ["half"]
    s.target.close()
    s = make()
    assert s.state == PipeState()
    assert values(s) == []


@pytest.mark.guarantee("STATE-4")
def test_a_database_of_the_first_release_is_opened(make: Make) -> None:
    """Its epochs are counted from 1, and say nothing of whether the stream has committed."""
    s = make()
    s.block(1, {"t": frame(1, "a")})
    s.target.close()
    s.sql("TRUNCATE TABLE sync__epochs")
    s.sql("INSERT INTO sync__epochs VALUES ('s', 7, 'abcd'), ('forgotten', 3, 'efgh')")
    again = make()
    assert again.state == s.state
    again.block(2, {"t": frame(2, "b")})
    assert values(again) == ["a", "b"]
    assert make("u", id="forgotten").state == PipeState()


# --- several streams ------------------------------------------------------------------------------


@pytest.mark.guarantee("STATE-2")
def test_two_streams_share_tables_and_state(make: Make) -> None:
    """CASE-11 and CASE-24: a fork and a crash of one leave the other alone."""
    shared = table("t", stream_column="chain")
    one, two = make(shared, id="one"), make(shared, id="two")
    for number in range(1, 5):
        one.block(number, {"t": frame(number, f"one {number}")})
        two.block(number, {"t": frame(number, f"two {number}")})
    one.fork(2)
    two.target.on_statement = die_at(f"INSERT INTO `{two.client.database}`.`sync`")
    with pytest.raises(Died):
        two.block(5, {"t": frame(5, "two lost")})
    two.target.close()
    two = make(shared, id="two")
    assert two.state.cursor == BlockCursor(4, "h4")
    expected = ["one 1", "one 2", "two 1", "two 2", "two 3", "two 4"]
    assert sorted(values(one)) == expected
    two.fork(3)
    one.block(3, {"t": frame(3, "one other")})
    assert sorted(values(one)) == sorted([*expected[:-1], "one other"])


def test_a_running_stream_leaves_a_table_alone_that_another_has_made(make: Make) -> None:
    """It has declared the table, too, but had no row for it yet."""
    running = make("t", "u")
    for number in (1, 2, 3):
        running.block(number, {"t": frame(number, "a")})
    other = make("u", id="other")
    for number in (1, 2, 3):
        other.block(number, {"u": frame(number, "b")})
    with pytest.raises(ClickHouseSharedTableError, match="another stream"):
        running.fork(2)
    assert values(other, "u_live") == ["b"] * 3
    other.target.close()
    assert make("u", id="other").state.cursor == BlockCursor(3, "h3", 3)
    running.target.close()
    resumed = make("t")
    assert resumed.state.cursor == BlockCursor(2, "h2", 2)
    assert values(resumed) == ["a"] * 2


def test_of_two_streams_that_take_a_table_at_one_moment_the_first_has_it(make: Make) -> None:
    slow, quick = make("t", id="slow"), make("t", id="quick")

    def overtake(sql: str) -> None:
        if "INSERT INTO" in sql and "`sync__tables`" in sql:
            slow.target.on_statement = None
            quick.block(1, {"t": frame(1, "quick")})

    slow.target.on_statement = overtake
    with pytest.raises(ClickHouseSharedTableError, match="another stream"):
        slow.block(1, {"t": frame(1, "slow")})
    assert values(quick) == ["quick"]
    quick.target.close()
    assert make("t", id="quick").state.cursor == BlockCursor(1, "h1", 1)


def test_a_database_that_is_not_there_is_refused(url: str) -> None:
    mistyped = url.replace("/place_", "/palce_")
    for target in (
        clickhouse_target(mistyped),
        clickhouse_target(url, settings=ClickHouseSettings(database="nowhere")),
    ):
        target.bind("s")
        with pytest.raises(ClickHouseDatabaseError, match=r"^\[E2018\].*nothing was created"):
            target.recover()
    assert "nowhere" not in ClickHouseClient(url).databases()
    assert not any(name.startswith("palce") for name in ClickHouseClient(url).databases())


def test_an_insert_of_too_many_partitions_is_refused_at_once(make: Make, url: str) -> None:
    s = make(table("t", partition_by="log_index"))
    with pytest.raises(ClickHouseTableError, match="partition by larger ranges"):
        s.block(1, {"t": frame(1, *"a" * 101)})
    allowed = clickhouse_target(
        f"{url}&max_partitions_per_insert_block=0",
        tables=[table("t", partition_by="log_index")],
        on_data=insert_all,
        settings=ClickHouseSettings(id="s"),
    )
    again = Stream(allowed, url)
    again.block(1, {"t": frame(1, *"a" * 101)})
    assert len(values(again)) == 101
    allowed.close()


def test_an_order_that_names_the_block_is_taken_as_it_is(make: Make) -> None:
    address_first = ["address", "block_number", "log_index"]
    s = make(
        table("t", order_by=address_first),
        table("u", order_by=["address", "log_index"]),
        table("v", order_by=["address", "chain", "block_number"], stream_column="chain"),
        table("w", order_by=["address"], stream_column="chain"),
    )
    rows = frame(1, "a").append_column("address", pa.array(["0x1"]))
    s.block(1, dict.fromkeys("tuvw", rows))
    s.block(2, {"t": rows.set_column(0, "block_number", pa.array([2], pa.int64()))})
    s.fork(1)
    assert values(s) == ["a"]
    keys = s.rows(
        "SELECT sorting_key AS key FROM system.tables "
        "WHERE length(name) = 1 AND database = currentDatabase() ORDER BY name"
    )
    assert [row["key"] for row in keys] == [
        "address, block_number, log_index",
        "block_number, address, log_index",
        "address, chain, block_number",
        "chain, block_number, address",
    ]


def test_tables_whose_rows_cannot_be_told_apart_are_refused(make: Make) -> None:
    s = make()
    s.block(1, {"t": frame(1, "a")})
    with pytest.raises(ClickHouseSharedTableError, match="another stream"):
        make(id="other")
    s.sql("CREATE TABLE u AS t")
    s.sql("INSERT INTO u SELECT * FROM t")
    with pytest.raises(ClickHouseSharedTableError, match="holds rows"):
        make("u", id="new")
    assert values(s) == ["a"]
