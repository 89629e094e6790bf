"""Annotated messages into tables of real databases, through forks; and what annotations refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.errors import InvalidOptionError, RelationalSchemaError, UndecodableOutputError
from headwater.substreams.descriptors import TypeSet
from headwater.substreams.mapping import SCHEMA_CLASSES, RelationalMapping
from headwater.substreams.messages import Clock, ModuleOutput
from headwater.substreams.package import Package
from headwater.substreams.relational import relational_target
from headwater.targets import PostgresSettings, duckdb_target, postgres_target
from headwater.targets.clickhouse import ClickHouseClient
from headwater.targets.contract import Delivery, prepared
from headwater.testing.chain.tree import ChainSim
from headwater.testing.substreams.modules import (
    ORDERS,
    build_file,
    column_option,
    table_option,
)
from tests.substreams.follower import Follower
from tests.targets import clickhouse_places, postgres_places

PACKAGE = Package.read(ORDERS.package())
MAPPING = RelationalMapping(PACKAGE.types, PACKAGE.output_type("map_orders"))
Rows = list[dict[str, Any]]


def plain(value: Any) -> Any:
    """Return a value in the form in which all databases agree."""
    if isinstance(value, str) and not value.startswith(("{", "[")):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and value.startswith(("{", "[")):
        return plain(json.loads(value))
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, Decimal | int) and not isinstance(value, bool):
        number = str(int(value)) if value == int(value) else str(Decimal(value).normalize())
        return number.encode()
    return value


def ordered(rows: Rows) -> Rows:
    return sorted(({name: plain(one) for name, one in row.items()} for row in rows), key=repr)


@pytest.fixture(params=["duckdb", "postgres", "clickhouse"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Callable[..., Rows]]:
    """An empty database, and how to read a table of it."""
    if request.param == "clickhouse":
        address = clickhouse_places.database()

        def read(table: str, columns: str = "*") -> Rows:
            client = ClickHouseClient(address)
            rows = client.query(f"SELECT {columns} FROM {table}_live").to_pylist()
            client.close()
            return list(rows)

        return address, read
    embedded = request.param == "duckdb"
    address = str(tmp_path / "a.duckdb") if embedded else postgres_places.database()
    make: Any = duckdb_target if embedded else postgres_target

    def select(table: str, columns: str = "*") -> Rows:
        rows: Rows = make(address).query(f"SELECT {columns} FROM {table}").to_pylist()
        return rows

    return address, select


def test_every_table_equals_the_chain_after_forks(
    database: tuple[Any, Callable[..., Rows]],
) -> None:
    address, read = database
    chain = ChainSim(11)
    chain.extend(12)
    chain.finalize(8)
    target: Any = relational_target(address, MAPPING)
    target.bind("orders")
    follower = Follower(chain, ORDERS, MAPPING, target)
    follower.follow()
    for depth, longer in ((1, 2), (3, 4), (4, 4)):
        chain.fork(depth, longer)
        follower.follow()
    target.close()
    chain.extend(2)
    chain.finalize(11)
    chain.fork(2, 3)
    again: Any = relational_target(address, MAPPING)
    again.bind("orders")
    follower = Follower(chain, ORDERS, MAPPING, again)
    follower.follow()
    again.close()
    expected = MAPPING.decode(follower.outputs())
    for name, rows in expected.items():
        assert rows.num_rows
        wanted = ordered(rows.to_pylist())
        got = ordered(read(name))
        for row in got:
            row.pop("_block_timestamp_")
        for row in wanted:
            row.pop("_block_timestamp_")
        for row in (*wanted, *got):
            if isinstance(row.get("place"), dict) and not any(row["place"].values()):
                row["place"] = None  # ClickHouse has no null for a structure
        assert ordered(got) == ordered(wanted), name


NUMBERS = ("total", "whole", "totals", "wholes", "prices")


def test_numbers_of_every_size_and_lists_of_them_are_exact(
    database: tuple[Any, Callable[..., Rows]],
) -> None:
    address, read = database
    wide = {"a.total": ("decimal256", 18), "a.whole": ("uint256", 0),
            "a.totals": ("decimal256", 18), "a.wholes": ("int256", 0),
            "a.prices": ("decimal128", 9)}  # fmt: skip
    fields = "total 1 str, whole 2 str, *totals 3 str, *wholes 4 str, *prices 5 str"
    options = {f"Root.{at[2:]}": column_option(*said) for at, said in wide.items()}
    one = mapping({"Root": fields}, {"Root": table_option("a"), **options})
    digits = "9" * 57 + "." + "123456789012345678"
    largest = str(2**255 - 1)
    held = outputs(
        one, total=digits, whole=str(2**256 - 1), totals=["-" + digits, "", "1.5"],
        wholes=[largest, "-" + largest, ""], prices=["0.000000001", ""],
    )  # fmt: skip
    target: Any = relational_target(address, one)
    target.bind("numbers")
    target.recover()
    block = BlockCursor(1, "0x1")
    state = PipeState(block, block, (block,))
    header, rows = BlockHeader(1, "0x1"), Delivery(one.decode(held))
    target.commit([prepared(target, Batch((header,), Head(block), state, (), rows))], state)
    target.close()
    (row,) = read("a", ", ".join(f"CAST({name} AS TEXT) AS {name}" for name in NUMBERS))
    texts = {name: one.decode() if isinstance(one, bytes) else one for name, one in row.items()}
    found = {name: re.findall(r"NULL|-?[0-9]+(?:\.[0-9]+)?", one) for name, one in texts.items()}
    assert {
        name: [None if one == "NULL" else Decimal(one) for one in several]
        for name, several in found.items()
    } == {
        "total": [Decimal(digits)],
        "whole": [Decimal(2**256 - 1)],
        "totals": [Decimal("-" + digits), None, Decimal("1.5")],
        "wholes": [Decimal(largest), Decimal("-" + largest), None],
        "prices": [Decimal("0.000000001"), None],
    }


def test_postgres_has_the_keys_and_references() -> None:
    address = postgres_places.database()
    target: Any = relational_target(address, MAPPING, settings=PostgresSettings(schema="state"))
    target.bind("orders")
    target.recover()
    target.close()
    with psycopg.connect(address) as connection:
        kinds = connection.execute(
            "SELECT conrelid::regclass::text, contype::text, pg_get_constraintdef(oid) "
            "FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n' "
            "ORDER BY 1, 2"
        ).fetchall()
        unique = connection.execute(
            "SELECT indexdef FROM pg_indexes WHERE tablename = 'customers'"
        ).fetchall()
        types: dict[str, str] = dict(
            connection.execute(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_name = 'orders'"
            ).fetchall()
        )
    deferred = " DEFERRABLE INITIALLY DEFERRED"
    assert kinds == [
        ("customers", "p", "PRIMARY KEY (name)"),
        ("items", "f", "FOREIGN KEY (order_id) REFERENCES orders(order_id)" + deferred),
        ("items", "p", "PRIMARY KEY (line, what)"),
        ("orders", "f", "FOREIGN KEY (customer) REFERENCES customers(name)" + deferred),
        ("orders", "p", "PRIMARY KEY (order_id)"),
        ("parts", "f", "FOREIGN KEY (line, what) REFERENCES items(line, what)" + deferred),
    ]
    assert any("UNIQUE" in text and "(email)" in text for (text,) in unique)
    assert (types["total"], types["price"], types["tags"]) == ("numeric", "numeric", "jsonb")


def test_constraints_can_be_left_out() -> None:
    address = postgres_places.database()
    target: Any = relational_target(
        address, MAPPING, without=["primary_keys", "unique", "foreign_keys"], schema="other"
    )
    target.bind("orders")
    target.recover()
    target.close()
    with psycopg.connect(address) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_constraint WHERE contype IN ('p', 'f', 'u') "
            "AND connamespace = 'other'::regnamespace"
        ).fetchone()
        assert found == (0,)
    with pytest.raises(InvalidOptionError, match="no such constraint"):
        relational_target(address, MAPPING, without=["checks"])  # type: ignore[list-item]


def mapping(messages: dict[str, str], options: dict[str, bytes], **more: Any) -> RelationalMapping:
    file = build_file("m.proto", "m", messages, options=options)
    return RelationalMapping(TypeSet([file]), "m.Root", **more)


@pytest.mark.parametrize(
    ("messages", "options", "complaint"),
    [
        ({"Root": "*a 1 .A", "A": "x 1 str"}, {"A": table_option("a", "b on x")}, "does not stand"),
        (
            {"Root": "*a 1 .A", "A": "x 1 str, *b 2 .B", "B": "y 1 str"},
            {"A": table_option("a"), "B": table_option("b", "a on z")},
            "no such column.*known=.*x",
        ),
        ({"Root": "x 1 str"}, {"Root": table_option("a", "wrong")}, "table on column"),
        (
            {"Root": "x 1 str"},
            {"Root": table_option("a"), "Root.x": column_option(foreign_key="b.x")},
            "table on column",
        ),
        (
            {"Root": "x 1 str"},
            {"Root": table_option("a"), "Root.x": column_option(foreign_key="b on x")},
            "leads nowhere",
        ),
        (
            {"Root": "*x 1 str"},
            {"Root": table_option("a"), "Root.x": column_option(primary_key=True)},
            "cannot be a key",
        ),
        (
            {"Root": "x 1 u64"},
            {"Root": table_option("a"), "Root.x": column_option("int256")},
            "only texts",
        ),
        (
            {"Root": "x 1 str"},
            {"Root": table_option("a"), "Root.x": column_option("decimal128", 39)},
            "scale",
        ),
        (
            {"Root": "x 1 str, y 2 str"},
            {"Root": table_option("a"), "Root.x": column_option(name="y")},
            "one name",
        ),
        (
            {"Root": "*a 1 .A, *b 2 .B", "A": "x 1 str", "B": "y 1 str"},
            {"A": table_option("t"), "B": table_option("t")},
            "different columns",
        ),
        (
            {"Root": "x 1 str"},
            {"Root": table_option(
                "a", clickhouse=SCHEMA_CLASSES["ClickHouse"](order_by_fields=[{"name": "z"}]))},
            "unknown column",
        ),
        ({"Root": "*a 1 .A", "A": ""}, {}, "no table"),
    ],
)  # fmt: skip
def test_annotations_that_contradict_each_other(
    messages: dict[str, str], options: dict[str, bytes], complaint: str
) -> None:
    with pytest.raises(RelationalSchemaError, match=rf"E0053.*{complaint}"):
        _ = mapping(messages, options).tables


def outputs(message: RelationalMapping, **values: Any) -> list[ModuleOutput]:
    from google.protobuf import message_factory

    made = message_factory.GetMessageClass(message.descriptor)(**values)
    return [ModuleOutput(Clock(1, "0x1", 5), "c", 0, message.type_url, made.SerializeToString())]


def test_a_message_at_two_places_fills_one_table_and_messages_without_option_are_walked() -> None:
    one = mapping(
        {"Root": "left 1 .Side, *right 2 .Side", "Side": "*rows 1 .Row, lost 2 str",
         "Row": "x 1 str"},
        {"Row": table_option("rows")},
    )  # fmt: skip
    rows = one.decode(
        outputs(one, left={"rows": [{"x": "a"}]}, right=[{"rows": [{"x": "b"}, {"x": "c"}]}])
    )
    assert rows["rows"]["x"].to_pylist() == ["a", "b", "c"]


def test_without_annotations_every_message_is_a_table_named_after_it() -> None:
    one = mapping({"Root": "n 1 u64, *rows 2 .Row", "Row": "x 1 str"}, {})
    assert [(table.name, table.key) for table in one.tables] == [("Root", ()), ("Row", ())]


def test_two_messages_of_one_name_do_not_share_a_table_unasked() -> None:
    other = build_file("l.proto", "l", {"Log": "x 1 str"})
    file = build_file(
        "m.proto",
        "m",
        {"Root": "*a 1 .Log, *b 2 l.Log, *c 3 .Log", "Log": "x 1 str"},
        imports=["l.proto"],
    )
    one = RelationalMapping(TypeSet([other, file]), "m.Root")
    with pytest.raises(RelationalSchemaError, match=r"E0053.*without annotations.*m.Log, l.Log"):
        _ = one.tables


def test_empty_numbers_are_null_and_others_are_refused() -> None:
    one = mapping(
        {"Root": "a 1 str, b 2 str"},
        {"Root": table_option("t"), "Root.a": column_option("decimal128", 2),
         "Root.b": column_option("uint256")},
    )  # fmt: skip
    assert one.decode(outputs(one))["t"].select(["a", "b"]).to_pylist() == [{"a": None, "b": None}]
    assert one.decode(outputs(one, a="1.5"))["t"]["a"].to_pylist() == [Decimal("1.50")]
    with pytest.raises(UndecodableOutputError, match=r"E4010.*column=a"):
        one.decode(outputs(one, a="1.555"))
    wide = mapping(
        {"Root": "*a 1 str"},
        {"Root": table_option("t"), "Root.a": column_option("decimal256", 2)},
    )
    with pytest.raises(UndecodableOutputError, match=r"E4010.*column=a"):
        wide.decode(outputs(wide, a=["1.5", "1.555"]))


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("hex", "00ff"), ("0xhex", "0x00ff"), ("base64", "AP8="), ("base58", "15Q")],
)
def test_bytes_can_be_text(encoding: Any, text: str) -> None:
    one = mapping({"Root": "a 1 bytes"}, {"Root": table_option("t")}, bytes_encoding=encoding)
    table = one.decode(outputs(one, a=b"\x00\xff"))["t"]
    assert (table["a"].type, table["a"].to_pylist()) == (pa.string(), [text])
    with pytest.raises(InvalidOptionError, match="raw, hex"):
        RelationalMapping(TypeSet([]), "x", "rot13")  # type: ignore[arg-type]
