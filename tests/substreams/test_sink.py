"""Addresses of the SQL sink, its schema statements, and the targets of a module's outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from headwater.changes import Changes, add, max_
from headwater.errors import (
    ClickHouseServerError,
    InsertOnlyError,
    SchemaFileError,
    SinkDsnError,
    UnknownTableError,
)
from headwater.substreams.messages import OutputDecoder
from headwater.substreams.package import Package
from headwater.substreams.sink import sink_target, wide_inserts
from headwater.substreams.sink_database import SinkDsn, run_schema, user_tables
from headwater.targets import history_target
from headwater.targets.clickhouse import ClickHouseClient
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.substreams.modules import (
    DB_OUT,
    SCHEMA_SQL,
    SimModule,
)
from tests.change_model import apply_one_by_one
from tests.substreams.follower import Follower
from tests.targets import clickhouse_places, postgres_places
from tests.targets.change_log.places import Stream as ChangeStream

PACKAGE = Package.read(DB_OUT.package()).resolve()


@pytest.mark.parametrize(
    ("text", "kind", "address", "schema"),
    [
        ("psql://u:p@h:5432/db?sslmode=disable", "postgres",
         "postgresql://u:p@h:5432/db?sslmode=disable", None),
        ("postgres://h/db?schemaName=mine", "postgres", "postgresql://h/db", "mine"),
        ("psql://u:${PASS}@h/db?schema=public", "postgres", "postgresql://u:a%20b%40c@h/db", None),
        ("psql://u:$PASS@h/db", "postgres", "postgresql://u:a%20b%40c@h/db", None),
        ("clickhouse://u:p@h:9000/db", "clickhouse", "http://u:p@h:8123/db", None),
        ("clickhouse://h/db?schemaName=other", "clickhouse", "http://h:8123/other", None),
        ("clickhouse://u:p@h:9440/db", "clickhouse", "https://u:p@h:8443/db", None),
        ("clickhouse://h:1234/db?secure=true", "clickhouse", "https://h:1234/db", None),
        ("clickhouse://u:p@h/db?secure=true", "clickhouse", "https://u:p@h:8443/db", None),
        ("clickhouse://h:9000/db?secure=1", "clickhouse", "https://h:8443/db", None),
        ("clickhouse://h/db?secure=false", "clickhouse", "http://h:8123/db", None),
        ("clickhouse://u:p@[::1]:9000/db", "clickhouse", "http://u:p@[::1]:8123/db", None),
        ("clickhouse://[fe80::2]/db?secure=true", "clickhouse", "https://[fe80::2]:8443/db", None),
        ("psql://u:p@[::1]:5432/db", "postgres", "postgresql://u:p@[::1]:5432/db", None),
        ("data/chain.duckdb", "duckdb", "data/chain.duckdb", None),
        ("duckdb:///tmp/a.duckdb", "duckdb", "/tmp/a.duckdb", None),
    ],
)  # fmt: skip
def test_addresses_of_the_sink(text: str, kind: str, address: str, schema: str | None) -> None:
    found = SinkDsn.parse(text, {"PASS": "a b@c"})
    assert (found.kind, found.address) == (kind, address)
    assert found.schema == schema
    assert "a b@c" not in repr(found)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("psql://h", "no database"),
        ("psql://h:port/db", "cannot be read"),
        ("mysql://h/db", "mysql://"),
        ("psql://u:${GONE}@h/db", "variable=GONE"),
    ],
)
def test_addresses_that_are_none(text: str, complaint: str) -> None:
    with pytest.raises(SinkDsnError, match=rf"E0055.*{complaint}"):
        SinkDsn.parse(text, {})


@pytest.fixture(params=["duckdb", "postgres", "postgres in a schema"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> SinkDsn:
    if request.param == "duckdb":
        return SinkDsn("duckdb", str(tmp_path / "a.duckdb"))
    return SinkDsn(
        "postgres", postgres_places.database(), "mine" if "in" in request.param else None
    )


def read(dsn: SinkDsn, sql: str) -> list[dict[str, Any]]:
    from headwater.targets import duckdb_target, postgres_target

    make: Any = postgres_target if dsn.kind == "postgres" else duckdb_target
    rows: list[dict[str, Any]] = make(dsn.address).query(sql).to_pylist()
    return rows


def test_changes_of_every_kind_equal_the_oracle_after_forks(dsn: SinkDsn) -> None:
    with pytest.raises(UnknownTableError, match=r"E6002.*sink setup"):
        sink_target(dsn, PACKAGE, "db_out")
    assert run_schema(dsn, SCHEMA_SQL) == 3
    chain = ChainSim(21)
    chain.extend(10)
    chain.finalize(6)
    target, decoder = sink_target(dsn, PACKAGE, "db_out")
    follower = _start(chain, DB_OUT, decoder, target)
    follower.follow()
    for depth, longer in ((1, 2), (4, 5)):
        chain.fork(depth, longer)
        follower.follow()
    target.close()
    changes = decoder.decode(follower.outputs())["changes"].to_pylist()
    expected = apply_one_by_one({}, changes)
    place = "mine." if dsn.schema else ""
    for table, key in (("transfer", "id"), ("holder", "address")):
        name = place + table
        wanted = {keys[0][1]: row for (held, keys), row in expected.items() if held == name}
        rows = {row.pop(key): row for row in read(dsn, f"SELECT * FROM {name}")}
        assert rows.keys() == wanted.keys()
        for one, row in rows.items():
            assert {column: str(value) for column, value in row.items()} == wanted[one]


def test_numbers_of_postgresql_are_exact_in_duckdb(tmp_path: Path) -> None:
    dsn = SinkDsn("duckdb", str(tmp_path / "a.duckdb"))
    columns = (
        "a numeric, b NUMERIC(78,0), c decimal(78), d numeric(20, 0), e decimal(38,18), "
        "numeric int, f numeric NOT NULL DEFAULT 0, g text DEFAULT 'numeric'"
    )
    run_schema(dsn, f"CREATE TABLE t (id text PRIMARY KEY, {columns}); -- numeric(78,0)")
    with duckdb.connect(dsn.address) as connection:
        types = {row[0]: row[1] for row in connection.execute("DESCRIBE t").fetchall()}
    assert types == {
        "id": "VARCHAR", "a": "BIGNUM", "b": "BIGNUM", "c": "BIGNUM", "d": "DECIMAL(20,0)",
        "e": "DECIMAL(38,18)", "numeric": "INTEGER", "f": "BIGNUM", "g": "VARCHAR",
    }  # fmt: skip
    for refused in ("CREATE TABLE u (a numeric(78,18))", "CREATE TABLE u (a decimal(77, 1) )"):
        with pytest.raises(SchemaFileError, match=r"E0014.*"):
            run_schema(dsn, refused)
    target = history_target(dsn.address, tables=["t"])
    stream = ChangeStream(target)
    huge = str(2**256 - 1)
    stream.block(1, Changes(block=1).insert("t", "one", a=huge, b=huge), final=0)
    stream.block(2, Changes(block=2).upsert("t", "one", a=add("-1"), b=max_("0")), final=0)
    rows = "SELECT a::VARCHAR AS a, b::VARCHAR AS b FROM t"
    assert stream.rows(rows) == [{"a": str(2**256 - 2), "b": huge}]
    stream.fork(1)
    assert stream.rows(rows) == [{"a": huge, "b": huge}]
    target.close()


def test_a_schema_passes_over_what_is_there_and_creates_the_rest(dsn: SinkDsn) -> None:
    first, second = "CREATE TABLE a (n INT PRIMARY KEY)", "CREATE TABLE b (n INT PRIMARY KEY)"
    run_schema(dsn, first)
    for wrong in ("CREATE TABLE c (n INT); SELECT * FROM nowhere", f"{second}; {first}"):
        with pytest.raises(SchemaFileError, match="E0014"):
            run_schema(dsn, wrong, forgiving="nowhere" in wrong)
    assert run_schema(dsn, f"{first}; {second}", forgiving=True) == 1
    assert [one.name for one in user_tables(dsn, ())] == ["a", "b"]


def test_clickhouse_passes_over_what_is_there() -> None:
    dsn = SinkDsn("clickhouse", clickhouse_places.database())
    make = "CREATE TABLE {} (n UInt8) ENGINE = MergeTree ORDER BY n"
    run_schema(dsn, make.format("a"))
    both = f"{make.format('a')}; {make.format('b')};"
    with pytest.raises(ClickHouseServerError, match="already exists"):
        run_schema(dsn, both)
    assert run_schema(dsn, both, forgiving=True) == 1
    with pytest.raises(ClickHouseServerError, match="number=60"):
        run_schema(dsn, "SELECT * FROM nowhere", forgiving=True)


def _start(chain: ChainSim, module: SimModule, decoder: OutputDecoder, target: Any) -> Follower:
    from headwater.substreams.mapping import RelationalMapping
    from tests.substreams.test_takeover import SIDE

    assert not isinstance(decoder, RelationalMapping)
    target.bind("6aca30692dfa835efe09fbf51b0a1735ea3b3155")
    target.capabilities.side_tables.open_side_tables([SIDE])
    return Follower(chain, module, decoder, target)


def _inserts_of(block: SimBlock) -> bytes:
    from google.protobuf import message_factory

    made = message_factory.GetMessageClass(
        PACKAGE.types.descriptor(PACKAGE.output_type("db_out"))
    )()
    for at in range(block.number % 3):
        change = made.table_changes.add(table="transfer", pk=f"{block.hash}-{at}", operation=1)
        change.fields.add(name="value", value=str(block.number))
    return bytes(made.SerializeToString())


def test_inserts_go_to_clickhouse_and_a_fork_takes_them_back() -> None:
    address = clickhouse_places.database()
    dsn = SinkDsn("clickhouse", address)
    run_schema(
        dsn,
        "CREATE TABLE transfer (id String, value UInt256, note Nullable(String)) "
        "ENGINE = MergeTree ORDER BY id; CREATE TABLE other (a UInt8) ENGINE = Memory; "
        "CREATE TABLE beside (a UInt8, _block_number_ UInt64) ENGINE = MergeTree ORDER BY a;",
    )
    module = SimModule("db_out", DB_OUT.output_type, _inserts_of)
    chain = ChainSim(4)
    chain.extend(9)
    chain.finalize(4)
    target, decoder = sink_target(dsn, PACKAGE, "db_out")
    follower = _start(chain, module, decoder, target)
    follower.follow()
    client = ClickHouseClient(address)
    client.run("INSERT INTO beside VALUES (1, 5000)")  # another program's
    chain.fork(3, 4)
    follower.follow()
    target.close()
    changes = decoder.decode(follower.outputs())["changes"].to_pylist()
    rows = client.query("SELECT id, toString(value) AS value FROM transfer ORDER BY id").to_pylist()
    assert client.rows("SELECT count() AS n FROM beside")[0]["n"] == 1
    client.close()
    wanted = sorted((one["pk"][0]["value"], one["fields"][0]["value"]) for one in changes)
    assert [tuple(map(_decoded, row.values())) for row in rows] == wanted


def _decoded(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.sink_defect(9)
def test_two_inserts_of_a_key_are_two_rows_however_they_are_committed() -> None:
    twice = Changes(block=7).insert("t", "k", n=1).insert("t", "k", n=2).toArrow()
    found = wide_inserts(twice, {"t": ("a",)})["t"]
    assert found.select(["a", "n"]).to_pylist() == [{"a": "k", "n": "1"}, {"a": "k", "n": "2"}]


def test_what_is_no_insert_is_refused_for_clickhouse() -> None:
    keys = {"t": ("a",), "u": ("a", "b")}
    with pytest.raises(InsertOnlyError, match=r"E6015.*operation=update, block=7"):
        wide_inserts(Changes(block=7).update("t", "k", n=1).toArrow(), keys)
    with pytest.raises(InsertOnlyError, match=r"E6015.*one key column"):
        wide_inserts(Changes(block=7).insert("u", "k", n=1).toArrow(), keys)
    with pytest.raises(UnknownTableError, match=r"E6002.*known=t, u"):
        wide_inserts(Changes(block=7).insert("v", "k", n=1).toArrow(), keys)
