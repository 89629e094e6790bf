"""Outputs of modules as tables, compared with what protobuf's own parser reads."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.changes import CHANGES_SCHEMA
from headwater.errors import MessageTypeError, UndecodableOutputError
from headwater.substreams.descriptors import TypeSet
from headwater.substreams.messages import Clock, ModuleOutput
from headwater.substreams.outputs import ChangesDecoder, MessageDecoder, decoder_of
from headwater.substreams.package import Package
from headwater.testing.chain.tree import ChainSim
from headwater.testing.substreams.modules import DB_OUT, TRANSFERS, build_file, changes_file

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OURS = {"block_number", "block_hash", "timestamp", "ordinal", "parent_ordinal"}


def outputs(message: str, values: list[bytes]) -> list[ModuleOutput]:
    return [
        ModuleOutput(Clock(at, f"0x{at}", 1000 + at), f"c{at}", 0, f"t/{message}", value)
        for at, value in enumerate(values)
    ]


def plain(message: Any) -> dict[str, Any]:
    """Return a message as Headwater shows it in one value, read by protobuf's own parser."""
    found: dict[str, Any] = {}
    for one in message.DESCRIPTOR.fields:
        value = getattr(message, one.name)
        name = one.name
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            kind = one.message_type.fields_by_name["value"]
            key_kind = one.message_type.fields_by_name["key"]
            found[name] = {
                scalar(key, key_kind): each_value(held, kind) for key, held in value.items()
            }
        elif one.is_repeated:
            found[name] = [each_value(each, one) for each in value]
        elif one.has_presence and not message.HasField(one.name):
            empty = one.message_type is not None and not one.message_type.fields
            found[name] = False if empty else None
        else:
            found[name] = each_value(value, one)
    return found


def each_value(value: Any, one: FieldDescriptor) -> Any:
    if one.message_type is None:
        return scalar(value, one)
    if one.message_type.full_name == "google.protobuf.Timestamp" and not one.is_repeated:
        return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if one.message_type.full_name == "google.protobuf.StringValue":
        return value.value
    return plain(value) if one.message_type.fields else True


def scalar(value: Any, one: FieldDescriptor) -> Any:
    if one.type in (one.TYPE_UINT64, one.TYPE_FIXED64):
        return Decimal(value)
    if one.type == one.TYPE_ENUM:
        known = one.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


def same(left: Any, right: Any) -> bool:
    """Compare, with maps as lists of entries, and NaN equal to itself."""
    if isinstance(left, dict) and isinstance(right, list):
        entries = {each["key"]: each["value"] for each in right}
        return len(entries) == len(right) and same(left, entries)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[one], right[one]) for one in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right or (left != left and right != right))


EVERYTHING = build_file(
    "all.proto",
    "all",
    {
        "Root": "*rows 1 .Row, one 2 .Inner, deep 3 .Holder",
        "Holder": "*leaves 1 .Leaf",
        "Leaf": "word 1 str",
        "Row": "a 1 double, b 2 float, c 3 i32, d 4 i64, e 5 u32, f 6 u64, g 7 s32, h 8 s64, "
        "i 9 f32, j 10 f64, k 11 sf32, l 12 sf64, m 13 bool, n 14 str, o 15 bytes, "
        "p 16 enum:.Color, ?q 17 i32, ?r 18 str, s 19 .Inner, |t 20 str, |u 21 .Empty, "
        "|v 22 u64, w 23 google.protobuf.Timestamp, x 24 google.protobuf.StringValue, "
        "*y 25 .Leaf, z 200 str",
        "Lists": "*a 1 double, *b 2 float, *c 3 i32, *d 4 s64, *e 5 f32, *f 6 sf64, *g 7 bool, "
        "*h 8 str, *i 9 bytes, *j 10 enum:.Color, *k 11 u64",
        "Inner": "lists 1 .Lists, level 2 i64",
        "Empty": "",
    },
    enums={"Color": ["RED", "GREEN"]},
    imports=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
)
ALL = TypeSet([EVERYTHING])
DECODER = MessageDecoder(ALL, "all.Root")
ROOT = message_factory.GetMessageClass(DECODER.descriptor)

_INT = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 5),
}


def values(one: FieldDescriptor) -> st.SearchStrategy[Any]:
    if one.cpp_type in _INT:
        low, high = _INT[one.cpp_type]
        return st.integers(low, high) | st.sampled_from([0, 1, high])
    match one.cpp_type:
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return st.floats()
        case FieldDescriptor.CPPTYPE_FLOAT:
            return st.floats(width=32)
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case _:
            text = st.text(st.characters(codec="utf-8"), max_size=9) | st.just("x" * 200)
            return text if one.type == one.TYPE_STRING else st.binary(max_size=9)


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor) -> Any:
    made = message_factory.GetMessageClass(descriptor)()
    if descriptor.full_name == "google.protobuf.Timestamp":
        made.seconds = draw(st.integers(-(10**10), 10**10))
        made.nanos = draw(st.integers(0, 999_999_999))
        return made
    for one in descriptor.fields:
        if not draw(st.booleans()):
            continue
        if one.is_repeated:
            size = draw(st.integers(0, 3))
            place = getattr(made, one.name)
            if one.message_type is not None:
                place.extend(draw(messages(one.message_type)) for _ in range(size))
            else:
                place.extend(draw(values(one)) for _ in range(size))
        elif one.message_type is not None:
            getattr(made, one.name).CopyFrom(draw(messages(one.message_type)))
            getattr(made, one.name).SetInParent()
        else:
            setattr(made, one.name, draw(values(one)))
    return made


def rows_of(tables: Mapping[str, pa.Table], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for row in tables[name].to_pylist():
        yield row["block_number"], {key: held for key, held in row.items() if key not in OURS}


def expected(held: list[Any]) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Return the rows of every table, as protobuf's own parser gives them."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {
        "root": [], "rows": [], "rows_y": [], "deep_leaves": []}  # fmt: skip
    for block, message in enumerate(held):
        found["root"].append((block, {"one": plain(message)["one"]}))
        found["deep_leaves"] += [(block, plain(one)) for one in message.deep.leaves]
        for row in message.rows:
            made = plain(row)
            del made["y"]
            found["rows"].append((block, made))
            found["rows_y"] += [(block, plain(one)) for one in row.y]
    return found


def check(held: list[Any], raw: list[bytes] | None = None) -> None:
    given = raw or [one.SerializeToString() for one in held]
    tables = DECODER.decode(outputs("all.Root", given))
    for name, rows in expected(held).items():
        tables[name].validate(full=True)
        assert tables[name].schema == DECODER.schemas[name]
        got = list(rows_of(tables, name))
        assert [block for block, _ in got] == [block for block, _ in rows]
        for (_, left), (_, right) in zip(rows, got, strict=True):
            assert same(left, right), (name, left, right)


@settings(max_examples=60, deadline=None)
@given(st.lists(messages(DECODER.descriptor), max_size=4))
def test_every_type_is_read_as_protobuf_reads_it(held: list[Any]) -> None:
    check(held)


@settings(max_examples=6, deadline=None)
@given(st.lists(messages(DECODER.descriptor), min_size=1, max_size=4))
def test_many_messages_side_by_side_are_read_as_each_alone(held: list[Any]) -> None:
    check(held * 60)


@settings(max_examples=40, deadline=None)
@given(messages(DECODER.descriptor), messages(DECODER.descriptor))
def test_what_is_said_twice_is_read_as_protobuf_reads_it(one: Any, other: Any) -> None:
    """Two messages one after the other are merged: fields twice, oneofs twice, lists in parts."""
    raw = (
        one.SerializeToString() + other.SerializeToString() + b"\xaa\x7d\x01x" + b"\xab\x7d\xac\x7d"
    )
    check([ROOT.FromString(raw)], [raw])


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_a_coded_error(data: bytes) -> None:
    try:
        message = ROOT.FromString(data)
    except Exception:  # noqa: BLE001 - protobuf refuses them, and so must we
        with pytest.raises(UndecodableOutputError, match=r"E4010.*block=0"):
            DECODER.decode(outputs("all.Root", [data]))
        return
    check([message], [data])


def test_lists_of_both_forms_are_read() -> None:
    packed = build_file("p.proto", "p", {"P": "*n 1 i32, *d 2 double"})
    decoder = MessageDecoder(TypeSet([packed]), "p.P")
    made = message_factory.GetMessageClass(decoder.descriptor)
    both = made(n=[1, 300], d=[0.5]).SerializeToString() + b"\x08\x07"
    table = decoder.decode(outputs("p.P", [both, b"\x08\x01\x08\x02", b""]))["p"]
    assert table["n"].to_pylist() == [[1, 300, 7], [1, 2], []]
    assert table["d"].to_pylist() == [[0.5], [], []]


def test_maps_are_lists_of_entries_and_a_key_counts_once() -> None:
    types = TypeSet([changes_file()])
    decoder = MessageDecoder(types, "sf.substreams.sink.database.v1.TableChange")
    made = message_factory.GetMessageClass(decoder.descriptor)
    one = made(table="t")
    one.composite_pk.keys.update({"a": "1", "b": ""})
    raw = one.SerializeToString()
    table = decoder.decode(outputs(decoder.message, [raw]))["table_change"]
    keys = table["composite_pk"].to_pylist()[0]["keys"]
    assert {each["key"]: each["value"] for each in keys} == {"a": "1", "b": ""}
    entry = b"\x0a\x06\x0a\x01a\x12\x01"
    twice = b"\x32\x10" + entry + b"1" + entry + b"2"
    table = decoder.decode(outputs(decoder.message, [twice]))["table_change"]
    assert table["composite_pk"].to_pylist() == [{"keys": [{"key": "a", "value": "2"}]}]


def test_messages_that_contain_themselves_and_groups_are_refused() -> None:
    loop = build_file("l.proto", "l", {"A": "*b 1 .B", "B": "a 1 .A"})
    with pytest.raises(MessageTypeError, match=r"E4009.*l.A > l.B > l.A"):
        _ = decoder_of(TypeSet([loop]), "l.A").schemas
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="g.proto", package="g", syntax="proto2")
    message = file.message_type.add(name="A")
    message.nested_type.add(name="G")
    message.field.add(name="g", number=1, label=1, type=10, type_name=".g.A.G")
    with pytest.raises(MessageTypeError, match=r"E4009.*group"):
        _ = decoder_of(TypeSet([file.SerializeToString()]), "g.A").schemas


def test_fields_that_are_called_like_ours_are_renamed() -> None:
    file = build_file(
        "n.proto", "n", {"N": "*rows 1 .Row", "Row": "timestamp 1 u64, ordinal 2 i32"}
    )
    decoder = MessageDecoder(TypeSet([file]), "n.N")
    assert decoder.schemas["rows"].names[-2:] == ["timestamp_", "ordinal_"]


def test_two_fields_that_would_share_a_table_are_refused() -> None:
    """`a_b`, and `b` within `a`: the rows of the first would be lost."""
    shared = build_file(
        "s.proto", "s", {"S": "*a_b 1 .X, a 2 .A", "A": "*b 1 .Y", "X": "x 1 str", "Y": "x 1 str"}
    )
    with pytest.raises(MessageTypeError, match=r"E4009.*table=a_b.*s\.Y"):
        decoder_of(TypeSet([shared]), "s.S")
    named = build_file(
        "n.proto",
        "n",
        {"Root": "n 1 i32, *root 2 .Row, *root_message 3 .Row", "Row": "x 1 i32"},
    )
    schemas = decoder_of(TypeSet([named]), "n.Root").schemas
    assert list(schemas) == ["root_message_message", "root", "root_message"]


@pytest.mark.parametrize("seconds", [2**63 - 1, -(2**63), 9_300_000_000_000, -9_300_000_000_000])
def test_a_time_that_no_column_holds_is_refused_with_its_block(seconds: int) -> None:
    """Beyond 64 bits of microseconds it became another time."""
    near = ROOT(rows=[{"w": {"seconds": 253_402_300_800, "nanos": 1_000}}]).SerializeToString()
    far = ROOT(rows=[{"w": {"seconds": seconds}}]).SerializeToString()
    table = DECODER.decode(outputs("all.Root", [near]))["rows"]
    assert table["w"].cast(pa.int64()).to_pylist() == [253_402_300_800_000_001]
    with pytest.raises(UndecodableOutputError, match=rf"E4010.*{seconds} seconds.*block=1"):
        DECODER.decode(outputs("all.Root", [near, far]))


def test_blocks_without_output_have_no_rows_and_other_types_are_refused() -> None:
    decoder = MessageDecoder(ALL, "all.Root")
    nothing = ModuleOutput(Clock(1, "0x1"), "c", 0)
    assert all(table.num_rows == 0 for table in decoder.decode([nothing]).values())
    with pytest.raises(UndecodableOutputError, match=r"E4010.*another type.*wanted=all.Root"):
        decoder.decode(outputs("all.Row", [b""]))


def test_the_modules_of_the_simulator_are_decoded_alike_on_every_machine() -> None:
    chain = ChainSim(5)
    for module in (DB_OUT, TRANSFERS):
        package = Package.read(module.package())
        decoder = decoder_of(package.types, package.output_type(package.choose()))
        assert decoder.type_url == module.type_url
        made = [(block, module.make(block)) for block in chain.extend(70)]
        given = [
            ModuleOutput(block.clock, "c", 0, module.type_url if raw else "", raw)
            for block, raw in ((_Block(block), raw) for block, raw in made)
        ]
        tables = decoder.decode(given)
        again = pickle.loads(pickle.dumps(decoder)).decode(given)
        assert {name: table.schema for name, table in tables.items()} == dict(decoder.schemas)
        assert tables == again
        assert all(table.num_rows for table in tables.values())


class _Block:
    def __init__(self, block: Any) -> None:
        self.clock = Clock(block.number, block.hash, block.timestamp)


@pytest.mark.parametrize("package", ["sf.substreams.sink.database.v1", "sf.substreams.database.v1"])
def test_changes_of_both_message_packages_are_read(package: str) -> None:
    types = TypeSet([changes_file(package)])
    decoder = decoder_of(types, f"{package}.DatabaseChanges")
    assert isinstance(decoder, ChangesDecoder)
    assert decoder.operations == {
        0: "set", 1: "set", 2: "add", 3: "max", 4: "min", 5: "set_if_null"}  # fmt: skip
    message = message_factory.GetMessageClass(types.descriptor(f"{package}.DatabaseChanges"))()
    change = message.table_changes.add(table="t", pk="k", operation=4)
    change.fields.add(name="n", value="5", update_op=3)
    tables = decoder.decode(outputs(f"{package}.DatabaseChanges", [message.SerializeToString()]))
    assert tables["changes"].schema == CHANGES_SCHEMA
    assert tables["changes"]["fields"].to_pylist() == [
        [{"name": "n", "value": "5", "operation": "max"}]
    ]
    assert decoder_of(TypeSet([]), f"{package}.DatabaseChanges").schemas == decoder.schemas
