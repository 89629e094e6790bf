"""Modules for a simulated endpoint, and packages for tests, made without a compiler.

Three modules, one of each kind: `DB_OUT` puts out DatabaseChanges with every operation, `ORDERS`
messages with `schema` annotations, `TRANSFERS` plain messages with every type of field. What they
put out follows from the hash of the block, so that orphaned blocks say something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from google.protobuf import descriptor_pb2, message_factory

from headwater.substreams.descriptors import TypeSet, describe
from headwater.substreams.mapping import SCHEMA_CLASSES
from headwater.substreams.package import PACKAGE_CLASSES
from headwater.testing.chain.tree import SimBlock

_PLACES = {"source": "type", "params": "value", "foundational_store": "identifier"}
BLOCK = "sf.test.Block"  # what the modules of a test read
_SERVICE = "sf.substreams.sink.sql.v1"  # older clients know no other
CHANGES_FILE = "sf/substreams/sink/database/v1/database.proto"
SCHEMA_SQL = """
CREATE TABLE transfer (id VARCHAR PRIMARY KEY, "from" VARCHAR, "to" VARCHAR, value NUMERIC(38, 0));
CREATE TABLE holder (address VARCHAR PRIMARY KEY, balance NUMERIC(38, 0), largest NUMERIC(38, 0),
    smallest NUMERIC(38, 0), first_block BIGINT, last_block BIGINT);
CREATE TABLE note (page BIGINT, line BIGINT, body VARCHAR, PRIMARY KEY (page, line));
"""


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    """A module of a package: what it reads (`inputs` as (kind, value)), and what it puts out."""

    name: str
    output_type: str
    inputs: Sequence[tuple[str, str]] = (("source", BLOCK),)
    kind: str = "map"
    initial_block: int = 0
    entrypoint: str = ""
    block_filter: tuple[str, str | None] | None = None


def build_package(
    modules: Sequence[ModuleSpec],
    files: Iterable[bytes] = (),
    *,
    sink_module: str = "",
    schema: str = "",
    engine: int = 1,
    network: str = "",
    networks: Mapping[str, tuple[Mapping[str, int], Mapping[str, str]]] | None = None,
    binary: bytes = b"",
    binary_type: str = "wasm/rust-v1",
) -> bytes:
    """Return the bytes of a package. `networks`: initial blocks and parameters by network."""
    package = PACKAGE_CLASSES["Package"](version=1, network=network, sink_module=sink_module)
    package.proto_files.extend(files)
    package.package_meta.add(name="test", version="v0.1.0")
    package.modules.binaries.add(type=binary_type, content=binary)
    for spec in modules:
        package.module_meta.add()  # real clients refuse a package without
        module = package.modules.modules.add(
            name=spec.name,
            initial_block=spec.initial_block,
            binary_entrypoint=spec.entrypoint or spec.name,
        )
        module.output.type = f"proto:{spec.output_type}"
        kind = getattr(module, f"kind_{spec.kind}")
        kind.SetInParent()
        if spec.kind == "map":
            kind.output_type = f"proto:{spec.output_type}"
        for what, value in spec.inputs:
            place = getattr(module.inputs.add(), what)
            setattr(place, _PLACES.get(what, "module_name"), value)
            place.SetInParent()
        if spec.block_filter is not None:
            module.block_filter.module, query = spec.block_filter
            if query is None:
                module.block_filter.query_from_params.SetInParent()
            else:
                module.block_filter.query_string = query
    for name, (blocks, params) in (networks or {}).items():
        entry = package.networks.add(key=name)
        for key, block in blocks.items():
            entry.value.initial_blocks.add(key=key, value=block)
        for key, value in params.items():
            entry.value.params.add(key=key, value=value)
        entry.value.SetInParent()
    if schema:
        package.proto_files.append(_service_file())
        package.sink_config.type_url = f"{_SERVICE}.Service"
        package.sink_config.value = PACKAGE_CLASSES["Service"](
            schema=schema, engine=engine
        ).SerializeToString()
    return bytes(package.SerializeToString())


def build_file(
    name: str,
    package: str,
    messages: Mapping[str, str],
    *,
    enums: Mapping[str, Sequence[str]] | None = None,
    imports: Sequence[str] = (),
    options: Mapping[str, bytes] | None = None,
    syntax: str = "proto3",
) -> bytes:
    """Return a file of types. Messages are written as `describe` reads them; types of the same
    package begin with a dot. `options` are serialized options, by the name of a message, or that
    of a message and that of its field with a dot between.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=name, package=package, syntax=syntax, dependency=imports
    )
    for enum, values in (enums or {}).items():
        enum_type = file.enum_type.add(name=enum)
        for number, value in enumerate(values):
            enum_type.value.add(name=value, number=number)
    for message, fields in messages.items():
        message_type = file.message_type.add(name=message)
        fields = fields.replace(" .", f" {package}.").replace("enum:.", f"enum:{package}.")
        describe(message_type, fields)
        serialized = options or {}
        if message in serialized:
            message_type.options.MergeFromString(serialized[message])
        for field_ in message_type.field:
            if f"{message}.{field_.name}" in serialized:
                field_.options.MergeFromString(serialized[f"{message}.{field_.name}"])
    return bytes(file.SerializeToString())


@cache
def _service_file() -> bytes:
    """Return the types of what a package tells a SQL sink: real clients look for them in it."""
    return build_file(
        f"{_SERVICE.replace('.', '/')}/services.proto",
        _SERVICE,
        {"Service": "schema 1 str, engine 7 enum:.Engine"},
        enums={"Engine": ["unset", "postgres", "clickhouse"]},
    )


def changes_file(package: str = "sf.substreams.sink.database.v1") -> bytes:
    """Return the types of DatabaseChanges, in the new package or in the old one."""
    file = build_file(
        f"{package.replace('.', '/')}/database.proto",
        package,
        {
            "DatabaseChanges": "*table_changes 1 .TableChange",
            "TableChange": "table 1 str, |pk 2 str, |composite_pk 6 .CompositePrimaryKey, "
            "ordinal 3 u64, operation 4 enum:.Operation, *fields 5 .Field",
            "CompositePrimaryKey": "*keys 1 .CompositePrimaryKey.KeysEntry",
            "Field": "name 1 str, value 2 str, update_op 4 enum:.UpdateOp",
        },
        enums={
            "Operation": [
                f"OPERATION_{operation}"
                for operation in ("UNSPECIFIED", "CREATE", "UPDATE", "DELETE", "UPSERT")
            ],
            "UpdateOp": [
                f"UPDATE_OP_{step}"
                for step in ("UNSPECIFIED", "SET", "ADD", "MAX", "MIN", "SET_IF_NULL")
            ],
        },
    )
    whole = descriptor_pb2.FileDescriptorProto.FromString(file)
    entry = whole.message_type[2].nested_type.add(name="KeysEntry")
    describe(entry, "key 1 str, value 2 str")
    entry.options.map_entry = True
    return bytes(whole.SerializeToString())


@dataclass(frozen=True)
class SimModule:
    """A module whose output follows from a block; `make` returns b"" where there is none."""

    name: str
    output_type: str
    make: Callable[[SimBlock], bytes]
    files: tuple[bytes, ...] = field(repr=False, default=())
    schema: str = ""

    @property
    def type_url(self) -> str:
        """The type of the output, as an endpoint says it."""
        return f"type.googleapis.com/{self.output_type}"

    def package(self, **options: str) -> bytes:
        """Return a package whose one module this is."""
        spec = ModuleSpec(self.name, self.output_type)
        return build_package(
            [spec],
            self.files,
            sink_module=self.name,
            schema=self.schema,
            **options,  # type: ignore[arg-type]
        )


@cache
def _class(files: tuple[bytes, ...], message: str) -> Any:
    return message_factory.GetMessageClass(TypeSet(files).descriptor(message))


# --- DatabaseChanges ------------------------------------------------------------------------------

_CHANGES = "sf.substreams.sink.database.v1.DatabaseChanges"
_CHANGES_FILES = (changes_file(),)
_CREATE, _UPDATE, _DELETE, _UPSERT = 1, 2, 3, 4
_SET, _ADD, _MAX, _MIN, _SET_IF_NULL = 1, 2, 3, 4, 5


def _changes_of(block: SimBlock) -> bytes:
    """Insert transfers, add to holders, and write and erase notes. Each seventh block has none."""
    random = Random(block.hash)
    if random.randrange(7) == 0:
        return b""
    changes = _class(_CHANGES_FILES, _CHANGES)()

    def add(table: str, key: Any, operation: int, *fields: tuple[str, Any, int]) -> None:
        change = changes.table_changes.add(
            table=table, operation=operation, ordinal=len(changes.table_changes)
        )
        if isinstance(key, dict):
            change.composite_pk.keys.update(key)
        else:
            change.pk = key
        for name, value, step in fields:
            change.fields.add(name=name, value=str(value), update_op=step)

    for at in range(random.randrange(1, 4)):
        parties = [f"0x{random.randrange(12):040x}" for _ in range(2)]
        value = random.randrange(10**24)
        add("transfer", f"{block.hash[:18]}-{at}", _CREATE,
            ("from", parties[0], _SET), ("to", parties[1], _SET), ("value", value, 0))  # fmt: skip
        for sign, party in zip((-1, 1), parties, strict=True):
            add("holder", party, _UPSERT, ("balance", sign * value, _ADD),
                ("largest", value, _MAX), ("smallest", value, _MIN),
                ("first_block", block.number, _SET_IF_NULL),
                ("last_block", block.number, _SET))  # fmt: skip
    page, line = str(random.randrange(3)), str(random.randrange(3))
    match random.randrange(3):
        case 0:
            add("note", {"page": page, "line": line}, _DELETE)
        case 1:
            add("note", {"page": page, "line": line}, _UPSERT, ("body", block.hash, _SET))
            add("note", {"line": line, "page": page}, _UPDATE, ("body", f"{page}/{line}", _SET))
        case _:
            add("note", {"page": page, "line": line}, _UPSERT, ("body", "", _SET))
    return bytes(changes.SerializeToString())


DB_OUT = SimModule("db_out", _CHANGES, _changes_of, _CHANGES_FILES, SCHEMA_SQL)
"""Puts out DatabaseChanges for the tables of `SCHEMA_SQL`."""


# --- plain messages -------------------------------------------------------------------------------

_PLAIN = "test.transfers.v1.Transfers"
_PLAIN_FILES = (
    build_file(
        "test/transfers.proto",
        "test.transfers.v1",
        {
            "Transfers": "*transfers 1 .Transfer, count 2 u64",
            "Transfer": "id 1 str, sender 2 bytes, value 3 u64, change 4 s64, at 5 "
            "google.protobuf.Timestamp, kind 6 enum:.Kind, ?memo 7 str, "
            "party 8 .Party, *marks 9 u32, *hops 10 .Hop, |note 11 str, |code 12 i32, "
            "rate 13 double, checked 14 bool",
            "Party": "name 1 str, level 2 f32",
            "Hop": "place 1 str, cost 2 i64",
        },
        enums={"Kind": ["KIND_UNSPECIFIED", "KIND_SENT", "KIND_BURNT"]},
        imports=["google/protobuf/timestamp.proto"],
    ),
)


def _transfers_of(block: SimBlock) -> bytes:
    random = Random(block.hash)
    if random.randrange(6) == 0:
        return b""
    message = _class(_PLAIN_FILES, _PLAIN)(count=random.randrange(5))
    for at in range(message.count):
        transfer = message.transfers.add(
            id=f"{block.hash[:18]}-{at}", sender=random.randbytes(20), value=random.getrandbits(64),
            change=random.getrandbits(63) - 2**62, kind=random.randrange(3),
            marks=[random.getrandbits(32) for _ in range(random.randrange(4))],
            rate=random.random(), checked=random.random() < 0.5,
        )  # fmt: skip
        transfer.at.seconds, transfer.at.nanos = block.timestamp, 1000 * at
        if random.random() < 0.5:
            transfer.memo = "x" * random.randrange(3)
        if random.random() < 0.7:
            party = transfer.party
            party.name, party.level = "é" * random.randrange(3), random.getrandbits(32)
        for _ in range(random.randrange(3)):
            transfer.hops.add(place=f"p{random.randrange(9)}", cost=random.randrange(100))
        if random.random() < 0.5:
            transfer.note = "n"
        else:
            transfer.code = -random.randrange(3)
    return bytes(message.SerializeToString())


TRANSFERS = SimModule("map_transfers", _PLAIN, _transfers_of, _PLAIN_FILES)
"""Puts out messages without annotations: a table `transfers`, a table `transfers_hops`, and one of
the message itself, which has a count."""


# --- annotated messages ---------------------------------------------------------------------------

_ORDERS = "test.orders.v1.Batch"


def table_option(name: str, child_of: str = "", clickhouse: Any = None) -> bytes:
    """Return the options of a message that becomes a table."""
    options = SCHEMA_CLASSES["MessageOptions"]()
    options.table.name = name
    if child_of:
        options.table.child_of = child_of
    if clickhouse is not None:
        options.table.clickhouse_table_options.CopyFrom(clickhouse)
    return bytes(options.SerializeToString())


def column_option(convert_to: str = "", scale: int = 0, **annotation: Any) -> bytes:
    """Return the options of a field: name, foreign_key, unique, primary_key, inline, convert_to."""
    options = SCHEMA_CLASSES["FieldOptions"]()
    for name, value in annotation.items():
        setattr(options.field, name, value)
    if convert_to:
        place = getattr(options.field.convert_to, convert_to)
        place.SetInParent()
        if scale:
            place.scale = scale
    return bytes(options.SerializeToString())


def _order_options() -> Any:
    options = SCHEMA_CLASSES["ClickHouse"]()
    options.order_by_fields.add(name="customer")
    options.partition_fields.add(name="_block_timestamp_", function=1)
    options.index_fields.add(name="by_total", field_name="total", type=0, granularity=4)
    return options


_ORDERS_FILES = (
    build_file(
        "test/orders.proto",
        "test.orders.v1",
        {
            "Batch": "*customers 1 .Customer, *orders 2 .Order",
            "Customer": "name 1 str, email 2 str",
            "Order": "id 1 str, customer 2 str, total 3 str, price 4 str, *items 5 .Item, "
            "place 6 .Place, *tags 7 .Tag, |card 8 str, |cash 9 u64, state 10 enum:.State, "
            "proof 11 bytes",
            "Item": "line 1 u32, what 2 str, amount 3 u64, *parts 4 .Part",
            "Part": "code 1 str",
            "Place": "city 1 str, zip 2 str",
            "Tag": "key 1 str, value 2 str",
        },
        enums={"State": ["STATE_OPEN", "STATE_PAID"]},
        imports=["sf/substreams/sink/sql/schema/v1/schema.proto"],
        options={
            "Customer": table_option("customers"),
            "Customer.name": column_option(primary_key=True),
            "Customer.email": column_option(unique=True),
            "Order": table_option("orders", clickhouse=_order_options()),
            "Order.id": column_option(primary_key=True, name="order_id"),
            "Order.customer": column_option(foreign_key="customers on name"),
            "Order.total": column_option("uint256"),
            "Order.price": column_option("decimal128", 4),
            "Order.tags": column_option(inline=True),
            "Item": table_option("items", "orders on order_id"),
            "Item.line": column_option(primary_key=True),
            "Item.what": column_option(primary_key=True),
            "Part": table_option("parts", "items on line, what"),
        },
    ),
)


def _orders_of(block: SimBlock) -> bytes:
    random = Random(block.hash)
    if random.randrange(6) == 0:
        return b""
    batch = _class(_ORDERS_FILES, _ORDERS)()
    mark = block.hash[2:18]
    for at in range(random.randrange(1, 3)):
        batch.customers.add(name=f"{mark}-{at}", email=f"{mark}{at}@{'x' * 300}")
    for at in range(random.randrange(3)):
        order = batch.orders.add(
            id=f"o{mark}-{at}", customer=random.choice(batch.customers).name,
            total=str(random.getrandbits(256)), price=f"{random.randrange(10**9)}.{at:04}",
            state=random.randrange(2), proof=random.randbytes(4),
        )  # fmt: skip
        if random.random() < 0.5:
            order.place.city = "é" * random.randrange(3)
        if random.random() < 0.5:
            order.card = "4111"
        else:
            order.cash = random.getrandbits(64)
        for _ in range(random.randrange(3)):
            order.tags.add(key="k", value=str(random.randrange(9)))
        for line in range(random.randrange(3)):
            item = order.items.add(line=line, what=f"{mark}w{at}", amount=random.getrandbits(64))
            for code in range(random.randrange(3)):
                item.parts.add(code=f"c{code}")
    return bytes(batch.SerializeToString())


ORDERS = SimModule("map_orders", _ORDERS, _orders_of, _ORDERS_FILES)
"""Puts out annotated messages: customers, orders that refer to them, items and parts of orders."""
