"""Values that contracts can emit and targets cannot hold: none of them stops a stream."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from headwater import evm, portal_stream
from headwater.changes import Changes, TableSchema
from headwater.core import Batch, BlockCursor, BlockHeader, Head
from headwater.errors import (
    ClickHouseRowsError,
    ClickHouseTableError,
    PostgresNameError,
    PostgresSizeError,
    PostgresTableError,
    TableSchemaError,
)
from headwater.stream.verification import verify
from headwater.targets import Delivery
from headwater.targets.clickhouse import ClickHouseClient, ClickHouseTarget, clickhouse_target
from headwater.targets.clickhouse import table as clickhouse_table
from headwater.targets.delta import delta_target
from headwater.targets.duckdb import duckdb_target
from headwater.targets.extras import import_extra
from headwater.targets.iceberg import iceberg_target
from headwater.targets.parquet import ParquetSettings, Rollover, parquet_target
from headwater.targets.postgres import postgres_target, table
from headwater.targets.sql.aggregates import aggregate
from headwater.targets.sql.history import history_target
from headwater.testing import PortalServer, simulated_portal
from tests.targets import clickhouse_places, postgres_places
from tests.unit.test_values import COLUMNS

Make = Callable[..., Any]
NAMES = [f"{str(one.type).partition('<')[0].partition('[')[0]}_{at}"
         for at, one in enumerate(COLUMNS)]  # fmt: skip


class Stream:
    """Commits blocks to a target."""

    def __init__(self, target: Any, admin: Any = None) -> None:
        self.target = target
        self.admin = admin
        target.bind("s")
        self.state = target.recover()

    def block(self, number: int, final: int = 0, **data: pa.Table) -> None:
        """Commit one block, of which the portal calls `final` finalized."""
        head = Head(BlockCursor(final, f"h{final}"))
        header = BlockHeader(number, f"h{number}", f"h{number - 1}", number - 1, number)
        state = self.state.advance([header], head)
        batch = Batch((header,), head, state, (), Delivery(data))
        prepare = self.target.capabilities.prepare_batch
        self.target.commit([batch if prepare is None else prepare(batch)], state)
        self.state = state

    def fork(self, number: int) -> None:
        """Go back to a block."""
        safe = next(one for one in self.state.landing_points() if one.number == number)
        self.state = self.state.rewind(safe)
        self.target.roll_back(self.state)


@pytest.fixture
def stream() -> Iterator[Callable[..., Stream]]:
    """Return a function that starts a stream; it is closed with the test."""
    opened: list[Any] = []

    def start(target: Any, admin: Any = None) -> Stream:
        opened.append(target)
        return Stream(target, admin)

    yield start
    for one in opened:
        one.close()


def _postgres(path: Path) -> Make:
    dsn = postgres_places.database()
    return lambda **options: postgres_target(dsn, **options)


def _duckdb(path: Path) -> Make:
    return lambda **options: duckdb_target(path / "chain.duckdb", **options)


def _clickhouse(path: Path) -> Make:
    url = clickhouse_places.database()
    return lambda **options: clickhouse_target(url, **options)


def _iceberg(path: Path) -> Make:
    return lambda **options: iceberg_target(path / "lake", tables=["ends"], **options)


def _delta(path: Path) -> Make:
    return lambda **options: delta_target(path / "lake", **options)


def _parquet(path: Path) -> Make:
    return lambda **options: parquet_target(
        path / "lake", settings=ParquetSettings(rollover=Rollover(rows=1)), **options
    )


SQL = {"postgres": _postgres, "duckdb": _duckdb}
MAKERS = {**SQL, "clickhouse": _clickhouse, "iceberg": _iceberg, "delta": _delta,
          "parquet": _parquet}  # fmt: skip
MAP = "map<string, timestamp[us]>"
LACKS = {  # types for which a target has no column at all, which it says before it writes
    "postgres": {MAP},
    "duckdb": {MAP, "timestamp[ns]", "decimal256(76, 0)"},
    **{one: {MAP} for one in ("iceberg", "delta", "parquet")},
}


def frame_of(name: str, block: int) -> pa.Table:
    """Return the ends of all types that a target has columns for, below each other."""
    longest = max(map(len, COLUMNS))
    columns = {
        one: pa.concat_arrays([values, pa.nulls(longest - len(values), values.type)])
        for one, values in zip(NAMES, COLUMNS, strict=True)
        if str(values.type) not in LACKS.get(name, ())
    }
    return pa.table({"block_number": pa.repeat(block, longest), **columns})


def count(s: Stream, name: str) -> int:
    """Return how many rows a table has."""
    if not hasattr(s.target, "query"):
        return int(s.admin.read_blocks("s", name, 0, 9).rows.num_rows)
    shown = f"{name}_live" if isinstance(s.target, ClickHouseTarget) else name
    return int(s.target.query(f"SELECT count(*) AS n FROM {shown}")["n"][0].as_py())


@pytest.mark.guarantee("VALUE-1")
@pytest.mark.parametrize("policy", ["replace", "null", "skip"])
@pytest.mark.parametrize("name", list(MAKERS))
def test_the_ends_of_every_type_are_committed_and_undone(
    name: str, policy: str, tmp_path: Path, stream: Callable[..., Stream]
) -> None:
    make = MAKERS[name](tmp_path)
    lake = None if name in (*SQL, "clickhouse") else import_extra(name, "ADMIN", ".target")
    admin = lake and lake(str(tmp_path / "lake"), None, "sync")
    s = stream(make(unrepresentable=policy), admin)
    rows = frame_of(name, 1).num_rows
    for block in (1, 2):
        s.block(block, final=1, ends=frame_of(name, block))
    left_out = s.target.altered.rows // 2
    assert s.target.altered.values
    assert (left_out > 0) == (policy == "skip" and s.target.altered.values > 0)
    published = 1 if name == "parquet" else 2  # there final blocks alone
    assert count(s, "ends") == published * (rows - left_out)
    s.fork(1)
    assert count(s, "ends") == rows - left_out


def noise(length: int) -> str:
    """Return a text that no database compresses."""
    return "".join(map(chr, random.Random(7).choices(range(0x4E00, 0x9FFF), k=length)))


def keyed(*rows: tuple[str, int]) -> pa.Table:
    return pa.table({"who": [one for one, _ in rows], "value": [one for _, one in rows]})


@pytest.mark.parametrize("name", list(SQL))
def test_texts_of_a_key_stay_apart_are_written_again_and_undone(
    name: str, tmp_path: Path, stream: Callable[[Any], Stream]
) -> None:
    """With the character 0, too long for an index, and one that looks like what another becomes."""
    names = ["a", "b\0", "b\ufffd", noise(9_000), noise(9_000) + "2"]
    s = stream(
        MAKERS[name](tmp_path)(
            tables=[table("t", key=["who"])],
            on_data=lambda tx, data: tx.upsert("t", data["t"]),
        )
    )
    s.block(1, final=1, t=keyed(*((one, 1) for one in names)))
    held = s.target.query("SELECT who, value FROM t ORDER BY who").to_pylist()
    assert len(held) == 5
    s.block(2, final=1, t=keyed(*((one, 2) for one in names)))
    assert {one["value"] for one in s.target.query("SELECT value FROM t").to_pylist()} == {2}
    taken = held[1]["who"]  # someone emits what a text has become
    s.block(3, final=1, t=keyed((taken, 3)))
    assert count(s, "t") >= 5
    s.fork(1)
    assert s.target.query("SELECT who, value FROM t ORDER BY who").to_pylist() == held


@pytest.mark.parametrize("name", list(SQL))
def test_sums_by_a_text_that_cannot_be_held_are_exact_after_a_fork(
    name: str, tmp_path: Path, stream: Callable[[Any], Stream]
) -> None:
    sums = aggregate("sums", source="t", keys=["who"], add={"total": "value"})
    s = stream(MAKERS[name](tmp_path)(aggregates=[sums]))
    for block in (1, 2, 3):
        rows = pa.table({"block_number": [block] * 3, "who": ["a\0", "a\ufffd", "a\0"],
                         "value": [1, 10, 2]})  # fmt: skip
        s.block(block, final=1, t=rows)
    s.fork(2)
    found = s.target.query("SELECT total FROM sums").to_pylist()
    assert sorted(int(one["total"]) for one in found) == [6, 20]


def test_changes_with_the_character_zero_are_applied_and_undone(
    stream: Callable[[Any], Stream],
) -> None:
    schema = TableSchema("t", ("who",), {"who": "text", "note": "text"})
    s = stream(history_target(postgres_places.database(), tables=[schema]))
    for block, note in ((1, "x\0"), (2, "y\0"), (3, "z")):
        made = Changes(block).upsert("t", {"who": "a\0"}, note=note)
        s.block(block, final=1, changes=made.toArrow())
    s.fork(2)
    assert s.target.query("SELECT note FROM t").to_pylist() == [{"note": "y\ufffd"}]


def test_postgres_refuses_names_that_it_would_cut_before_it_creates_anything(
    stream: Callable[[Any], Stream],
) -> None:
    dsn = postgres_places.database()
    long = "n" * 64
    with pytest.raises(PostgresNameError, match="E2116"):
        postgres_target(dsn, tables=[table("t", key=[long])])
    s = stream(postgres_target(dsn))
    with pytest.raises(PostgresNameError, match=rf"E2116.*{long}"):
        s.block(1, t=pa.table({"block_number": [1], long: ["x"]}))
    found = "SELECT count(*) AS n FROM pg_tables WHERE tablename = 't'"
    assert s.target.query(found)["n"].to_pylist() == [0]


def test_postgres_refuses_rows_that_no_page_holds(stream: Callable[[Any], Stream]) -> None:
    dsn = postgres_places.database()
    s = stream(postgres_target(dsn))
    wide = {f"c{at}": ["x" * 100] for at in range(500)}
    with pytest.raises(PostgresSizeError, match=r"E2117.*columns=501"):
        s.block(1, t=pa.table({"block_number": [1], **wide}))


def test_postgres_shortens_texts_for_indexes_that_it_finds(
    stream: Callable[[Any], Stream],
) -> None:
    dsn = postgres_places.database()

    def prepare(tx: Any) -> None:
        tx.execute("CREATE TABLE t (block_number bigint, note text UNIQUE, other text)")
        tx.execute("CREATE INDEX ON t (other)")

    s = stream(postgres_target(dsn, tables=[table("t", append_only=True)], on_start=prepare,
                               on_data=lambda tx, data: tx.insert("t", data["t"])))  # fmt: skip
    notes = [noise(9_000), noise(9_000) + "2"]
    s.block(1, t=pa.table({"block_number": [1, 1], "note": notes, "other": notes}))
    found = s.target.query("SELECT note, other FROM t").to_pylist()
    assert len({one["note"] for one in found}) == 2
    assert len({one["other"] for one in found}) == 1


def test_postgres_codes_what_a_table_of_the_users_cannot_take(
    stream: Callable[[Any], Stream],
) -> None:
    """An index of the user's own that values are too long for."""
    dsn = postgres_places.database()

    def prepare(tx: Any) -> None:
        tx.execute("CREATE TABLE t (block_number bigint, note text)")
        tx.execute("CREATE INDEX ON t (lower(note))")

    s = stream(postgres_target(dsn, tables=["t"], on_start=prepare))
    with pytest.raises(PostgresSizeError, match="E2117"):
        s.block(1, t=pa.table({"block_number": [1], "note": [noise(9_000)]}))


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        ("DateTime", pa.array([-315_619_200, 4_417_977_600, 7]).cast(pa.timestamp("s")),
         ["1970-01-01 00:00:00", "2106-02-07 06:28:15", "1970-01-01 00:00:07"]),
        ("DateTime64(1)", pa.array([1_500, 1_550, -(2**55)]).cast(pa.timestamp("ms")),
         ["1970-01-01 00:00:01.5", "1970-01-01 00:00:01.5", "1900-01-01 00:00:00.0"]),
        ("Date32", pa.array([-40_000, 200_000, 0], pa.int32()).cast(pa.date32()),
         ["1900-01-01", "2299-12-31", "1970-01-01"]),
        ("Decimal(10, 2)", pa.array(["1.239", "-99999999999", "x"]), ["1.23", "-99999999.99", "0"]),
        ("FixedString(2)", pa.array(["0xabcd", "xy", "0xab"]), ["ABCD", "7879", "0000"]),
        ("UUID", pa.array([str(UUID(int=5)), "u", "x" * 36]),
         [str(UUID(int=5)), str(UUID(int=0)), str(UUID(int=0))]),
        ("UUID", pa.array([str(UUID(int=5)), None, None]),
         [str(UUID(int=5)), str(UUID(int=0)), str(UUID(int=0))]),
        ("UInt8", pa.array([None, "1", None]), ["0", "1", "0"]),
        ("FixedString(2)", pa.array(["0xabcd", None, "xy"]), ["ABCD", "0000", "7879"]),
        ("Array(FixedString(2))", pa.array([["0xabcd", "xy", None], ["0xab"], None]),
         ["['ABCD','7879','0000']", "['0000']", "[]"]),
        ("Array(Array(Nullable(FixedString(1))))", pa.array([[["0xab"], ["0x", "z"]], [], None]),
         ["[['AB'],[NULL,'7A']]", "[]", "[]"]),
        ("Bool", pa.array(["T", "2", None]), ["true", "false", "false"]),
        ("Nullable(Bool)", pa.array(["off", " true", ""]), ["false", None, None]),
        ("IPv4", pa.array(["1.2.3.4", "01.2.3.4", "256.1.1.1"]), ["1.2.3.4", "0.0.0.0", "0.0.0.0"]),
        ("IPv6", pa.array(["1.2.3.4", "1:2:3:4:5:6:7::", "00001::"]),
         ["::ffff:1.2.3.4", "1:2:3:4:5:6:7:0", "::"]),
        ("Nullable(IPv6)", pa.array(["fe80::1%e", "::1", "x"]), [None, "::1", None]),
        ("Enum8('a' = 1, 'it\\'s' = 2)", pa.array(["it's", "x", None]), ["it's", "a", "a"]),
        ("Array(Enum8('a b' = 1, 'c' = 2))", pa.array([["c", "d"], [], ["a b"]]),
         ["['c','a b']", "[]", "['a b']"]),
        ("JSON", pa.array(['{"a": 1}', "[1]", '{"a": 1, "a": 2}']), ['{"a":1}', "{}", "{}"]),
        ("JSON", pa.array(['{"a.b": 1, "a": {"b": 2}}', '{"a": 1e400}', None]), ["{}"] * 3),
        ("JSON", pa.array(['{"a": "\\ud800"}', '{"a": NaN}', "[" * 10**6]), ["{}"] * 3),
        ("Nullable(UInt8)", pa.array(["256", "-1", "x"]), ["255", "0", None]),
        ("UInt256", pa.array(["-0", "-1", "7"]), ["0", "0", "7"]),
        ("Array(UInt256)", pa.array([["-0", None], None, ["7"]]), ["[0,0]", "[]", "[7]"]),
        ("Array(UInt16)", pa.array([["x", "-1"], [], ["70000"]]), ["[0,0]", "[]", "[65535]"]),
        ("Array(Array(UInt8))", pa.array([[[300], None], [], None]), ["[[255],[]]", "[]", "[]"]),
    ],
)  # fmt: skip
def test_clickhouse_stores_the_nearest_value_that_a_table_of_the_users_can_hold(
    stream: Callable[[Any], Stream], kind: str, given: pa.Array, stored: list[str | None]
) -> None:
    url = clickhouse_places.database()
    s = stream(clickhouse_target(url, tables=[clickhouse_table("t", order_by=["at"])]))
    s.target.query("SELECT 1")
    sql = f"CREATE TABLE t (block_number Int64, at Int64, x {kind}) ENGINE MergeTree ORDER BY at"
    ClickHouseClient(url).run(sql)
    s.block(1, t=pa.table({"block_number": [1] * 3, "at": [0, 1, 2], "x": given}))
    shown = "hex(x)" if kind.startswith("Fixed") else "toString(x)"
    if "FixedString" in kind.removeprefix("Fixed"):
        item = "arrayMap(i -> hex(i), {})"
        shown = item.format("x") if kind.count("Array") == 1 else (
            f"arrayMap(x -> {item.format('x')}, x)"
        )  # fmt: skip
        shown = f"toString({shown})"
    found = s.target.query(f"SELECT {shown} AS x FROM t ORDER BY at")["x"].to_pylist()
    assert [one if one is None or isinstance(one, str) else one.decode() for one in found] == stored
    assert s.target.altered.values >= 1


@pytest.mark.parametrize(
    "values",
    [
        pa.array([["a,b"], ["a", "b"], [], [""], ["a", ""]]),
        pa.array([["a", "b"], ["a,b"]], pa.large_list(pa.string())),
        pa.array([[b"\xff"], [b"\xfe"]]),
        pa.array([[["a"], ["b"]], [["a", "b"]]]),
        pa.array([{"x": "a", "y": "b"}, {"x": "ab", "y": ""}]),
    ],
    ids=lambda one: str(one.type),
)
def test_clickhouse_tells_lists_and_structures_of_an_order_apart(
    stream: Callable[[Any], Stream], values: pa.Array
) -> None:
    ordered = clickhouse_table("t", order_by=["block_number", "x"])
    s = stream(clickhouse_target(clickhouse_places.database(), tables=[ordered]))
    s.block(1, final=1, t=pa.table({"block_number": [1] * len(values), "x": values}))
    assert count(s, "t") == len(values)
    same = pa.concat_arrays([values, values.slice(0, 1)])
    with pytest.raises(ClickHouseRowsError, match="E2014"):
        s.block(2, t=pa.table({"block_number": [2] * len(same), "x": same}))


@pytest.mark.parametrize("kind", ["Date", "DateTime", "DateTime64(3)", "Float64"])
def test_clickhouse_refuses_text_for_what_the_server_would_make_of_it(
    stream: Callable[[Any], Stream], kind: str
) -> None:
    """Before a row is sent, also if the first frame has none."""
    s = stream(
        clickhouse_target(clickhouse_places.database(), tables=[
            clickhouse_table("t", types={"x": kind}, order_by=["block_number"])
        ])
    )  # fmt: skip
    with pytest.raises(ClickHouseTableError, match="column=x"):
        s.block(1, t=pa.table({"block_number": [1], "x": ["0.1"]}).slice(0, 0))


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        ("numeric(10,2)", ["1.5", "-7", "0.125", "x", "99999999.99"],
         ["1.50", "-7.00", "0.12", None, "99999999.99"]),
        ("numeric", ["1.5", "-7", "-0.125", "x", "9" * 80],
         ["1.5", "-7", "-0.125", None, "9" * 80]),
        ("jsonb", ["1." + "1" * 17_000, "1"], ['"1.' + "1" * 17_000 + '"', "1"]),
    ],
)  # fmt: skip
def test_postgres_stores_the_nearest_number_of_a_text(
    stream: Callable[[Any], Stream], kind: str, given: list[str], stored: list[str | None]
) -> None:
    def prepare(tx: Any) -> None:
        tx.execute(f"CREATE TABLE t (block_number bigint, x {kind})")

    s = stream(postgres_target(postgres_places.database(), tables=["t"], on_start=prepare))
    s.block(1, t=pa.table({"block_number": [1] * len(given), "x": given}))
    shown = "trim_scale(x)::text" if kind == "numeric" else "x::text"
    found = s.target.query(f"SELECT {shown} AS x FROM t ORDER BY ctid")["x"].to_pylist()
    assert found == stored


def test_duckdb_takes_decimals_into_wide_integers_and_codes_what_it_cannot(
    tmp_path: Path, stream: Callable[[Any], Stream]
) -> None:
    def prepare(tx: Any) -> None:
        tx.execute("CREATE TABLE t (block_number BIGINT, x BIGNUM, y DECIMAL(38,0)[])")

    s = stream(duckdb_target(tmp_path / "a.duckdb", tables=["t"], on_start=prepare))
    most = 10**38 - 1
    x = pa.array([most, -most, None], pa.decimal128(38, 0))
    s.block(1, final=1, t=pa.table({"block_number": [1] * 3, "x": x}))
    found = s.target.query("SELECT x::VARCHAR AS x FROM t ORDER BY t.x")["x"].to_pylist()
    assert found == [str(-most), str(most), None]
    with pytest.raises(TableSchemaError, match="E2502"):
        s.block(2, t=pa.table({"block_number": [2] * 3, "y": x}))
    tens = pa.array([1000], pa.decimal128(10, -3))
    with pytest.raises(TableSchemaError, match="E2502"):
        s.block(2, u=pa.table({"block_number": [2], "x": tens}))


def test_postgres_reads_far_times_back_as_they_are(stream: Callable[[Any], Stream]) -> None:
    s = stream(postgres_target(postgres_places.database()))
    times = pa.array([2**62, -(2**57), 253_402_300_800_000_000, None]).cast(pa.timestamp("us"))
    days = pa.array([2**30, -2_000_000, 2_932_897, None], pa.int32()).cast(pa.date32())
    zoned = times.cast(pa.timestamp("us", "UTC"))
    s.block(1, t=pa.table({"block_number": [1] * 4, "at": times, "zoned": zoned, "day": days}))
    found = s.target.query("SELECT at, zoned, day FROM t")
    for name, wanted in (("at", times), ("zoned", zoned), ("day", days)):
        assert found[name].combine_chunks().equals(wanted)


def test_a_stream_can_be_told_to_stop(stream: Callable[[Any], Stream]) -> None:
    s = stream(postgres_target(postgres_places.database(), unrepresentable="stop"))
    with pytest.raises(PostgresTableError, match=r"column=note.*block=1"):
        s.block(1, t=pa.table({"block_number": [1], "note": ["a\0"]}))
    s.block(1, t=pa.table({"block_number": [1], "note": ["a"]}))


@pytest.fixture(scope="module")
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=20, finality_depth=5) as server:
        yield server


@pytest.mark.parametrize("policy", ["replace", "skip"])
@pytest.mark.parametrize("name", list(SQL))
def test_verify_compares_with_what_the_policy_makes_of_values(
    name: str, policy: str, portal: PortalServer, tmp_path: Path
) -> None:
    """Amounts in a column of 16 bits."""
    dsn = postgres_places.database() if name == "postgres" else str(tmp_path / "chain.duckdb")
    make: Any = postgres_target if name == "postgres" else duckdb_target
    tables = [table("transfers", types={"value": "smallint"})]
    target = make(dsn, tables=tables, unrepresentable=policy)
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 19))}
    stream = portal_stream(id="s", portal=portal.url, far=10**9, outputs=outputs)
    stream.pipe_to(target, progress=False)
    assert target.altered.values > 0
    found = verify(stream, dsn, target=target)
    assert found.is_equal
    assert found.is_complete
    if policy == "skip":  # the default is another policy
        assert not verify(stream, dsn).is_equal
