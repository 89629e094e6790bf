"""Messages of any type as Arrow columns, by their descriptors, without a Python object per row.

`MessagePlan` says which columns a message type has, of which types, and which repeated messages
become tables of their own. `read_columns` reads many messages at once. Forms that the
wire allows but that are rare (a field twice, lists in both forms, groups) are put in plain form by
protobuf's own parser first.

Runs on the driver and on executors; the same bytes give the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from headwater.decode.columns import protobuf as wire
from headwater.decode.columns.protobuf import Found, Ints, Messages
from headwater.errors import MessageTypeError, UndecodableOutputError

UNSIGNED = pa.decimal128(20, 0)
MOMENT = pa.timestamp("us", tz="UTC")
_T = FieldDescriptor
_ARROW: dict[int, pa.DataType] = {
    _T.TYPE_DOUBLE: pa.float64(),
    _T.TYPE_FLOAT: pa.float32(),
    _T.TYPE_INT64: pa.int64(),
    _T.TYPE_SINT64: pa.int64(),
    _T.TYPE_SFIXED64: pa.int64(),
    _T.TYPE_UINT64: UNSIGNED,
    _T.TYPE_FIXED64: UNSIGNED,
    _T.TYPE_INT32: pa.int32(),
    _T.TYPE_SINT32: pa.int32(),
    _T.TYPE_SFIXED32: pa.int32(),
    _T.TYPE_UINT32: pa.int64(),
    _T.TYPE_FIXED32: pa.int64(),
    _T.TYPE_BOOL: pa.bool_(),
    _T.TYPE_STRING: pa.string(),
    _T.TYPE_BYTES: pa.binary(),
    _T.TYPE_ENUM: pa.string(),
}
_WIRES = {
    **dict.fromkeys((_T.TYPE_DOUBLE, _T.TYPE_FIXED64, _T.TYPE_SFIXED64), wire.FIXED64),
    **dict.fromkeys((_T.TYPE_FLOAT, _T.TYPE_FIXED32, _T.TYPE_SFIXED32), wire.FIXED32),
    **dict.fromkeys((_T.TYPE_STRING, _T.TYPE_BYTES, _T.TYPE_MESSAGE), wire.BYTES),
}
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
TIMESTAMP = "google.protobuf.Timestamp"
FARTHEST_S = 2**63 // 10**6 - 3  # a second this far from 1970 is a number of microseconds, always


class UnusualMessage(Exception):  # noqa: N818 - never leaves the decoders, which rewrite it
    """A message is not in its plain form."""


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """The column of a field: `many` a list, `nullable` null where it is absent.

    An embedded message without fields becomes a boolean: whether it is there.

    `inner` is the plan of an embedded message, of the entries of a map, and of what a wrapper
    wraps. `names` are those of an enum's values by number. `table`: rows of a table of their own.
    """

    name: str
    number: int
    kind: int
    type: pa.DataType
    many: bool = False
    nullable: bool = False
    inner: MessagePlan | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    is_map: bool = False
    is_wrapper: bool = False
    table: str | None = None

    @property
    def arrow(self) -> pa.Field:
        """The column in Arrow."""
        return pa.field(self.name, self.type, self.nullable)


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """The columns of a message type; fields of one of `oneofs` exclude each other."""

    type: str
    columns: tuple[ColumnPlan, ...]
    oneofs: tuple[tuple[int, ...], ...] = ()

    @property
    def shown(self) -> list[ColumnPlan]:
        """The columns of a row; others are tables, or hold nothing but tables."""
        return [
            column for column in self.columns if column.table is None and not _is_hollow(column)
        ]

    @property
    def struct(self) -> pa.DataType:
        """The message as one value."""
        return pa.struct([column.arrow for column in self.shown])

    def tables(self) -> Iterator[ColumnPlan]:
        """Yield the fields whose messages are rows of tables, also within embedded messages."""
        for column in self.columns:
            if column.table is not None:
                yield column
            elif column.inner is not None and not column.many:
                yield from column.inner.tables()


def _is_hollow(column: ColumnPlan) -> bool:
    inner = column.inner
    return inner is not None and not column.many and column.type == pa.struct([])


Split = Callable[[FieldDescriptor, tuple[str, ...]], str | None]
"""Names the table of a message's rows, given the names of the fields that lead to it; or None."""


def as_tables(field_: FieldDescriptor, path: tuple[str, ...]) -> str | None:
    """Make every repeated message a table, named by its path."""
    return "_".join(path) if field_.is_repeated else None


def as_lists(field_: FieldDescriptor, path: tuple[str, ...]) -> str | None:
    """Make no table."""
    return None


def plan_message(
    descriptor: Descriptor,
    split: Split,
    path: tuple[str, ...] = (),
    above: tuple[str, ...] = (),
) -> MessagePlan:
    """Return the columns of a message type.

    Raises:
        MessageTypeError: it contains itself, or holds a group.
    """
    name = descriptor.full_name
    if name in above:
        raise MessageTypeError(
            "a message contains itself, so its columns have no end",
            type=above[0],
            path=" > ".join((*above, name)),
        )
    columns = tuple(
        _plan_field(field_, split, (*path, field_.name), (*above, name))
        for field_ in descriptor.fields
    )
    oneofs = tuple(
        tuple(field_.number for field_ in oneof.fields)
        for oneof in descriptor.oneofs
        if len(oneof.fields) > 1
    )
    return MessagePlan(name, columns, oneofs)


def _plan_field(
    field_: FieldDescriptor, split: Split, path: tuple[str, ...], above: tuple[str, ...]
) -> ColumnPlan:
    in_map = bool(field_.containing_type.GetOptions().map_entry)
    many, present = field_.is_repeated, field_.has_presence and not in_map
    if field_.type == _T.TYPE_GROUP:
        raise MessageTypeError("a field is a group", type=above[-1], field=field_.name)
    if field_.type != _T.TYPE_MESSAGE:
        names = _names_of(field_.enum_type) if field_.type == _T.TYPE_ENUM else {}
        kind = _ARROW[field_.type]
        if many:
            kind = pa.list_(pa.field("item", kind, False))
        return ColumnPlan(field_.name, field_.number, field_.type, kind, many, present, names=names)
    message = field_.message_type
    assert message is not None, "a field of a message type has one"
    if message.full_name == TIMESTAMP and not many:
        return ColumnPlan(field_.name, field_.number, field_.type, MOMENT, nullable=True)
    if message.full_name in _WRAPPERS and not many:
        inner = plan_message(message, as_lists, path, above)
        kind = inner.columns[0].type
        return ColumnPlan(
            field_.name,
            field_.number,
            field_.type,
            kind,
            nullable=True,
            inner=inner,
            is_wrapper=True,
        )
    is_map = bool(message.GetOptions().map_entry)
    table = None if is_map else split(field_, path)
    inner = plan_message(message, as_lists if many and table is None else split, path, above)
    kind = inner.struct if len(inner.struct) or any(inner.tables()) else pa.bool_()
    if many:
        kind = pa.list_(pa.field("item", kind, False))
    return ColumnPlan(
        field_.name,
        field_.number,
        field_.type,
        kind,
        many,
        not many,
        inner,
        is_map=is_map,
        table=table,
    )


def _names_of(enum: EnumDescriptor) -> dict[int, str]:
    """Return names by number; of two for one number the first."""
    return {value.number: value.name for value in reversed(enum.values)}


@dataclass(frozen=True, slots=True)
class Row:
    """The columns of many messages, and their repeated messages that become tables."""

    columns: dict[str, pa.Array]
    tables: dict[str, tuple[Messages, Ints, MessagePlan]]


def read_columns(messages: Messages, plan: MessagePlan) -> Row:
    """Read messages of one type. Rows of tables come with the index of the message they are in.

    Raises:
        MalformedMessage: bytes are no message.
        UnusualMessage: a message is not in its plain form.
    """
    fields = wire.scan(messages, [column.number for column in plan.columns])
    _refuse_two_of_one(fields, plan, len(messages))
    columns: dict[str, pa.Array] = {}
    tables: dict[str, tuple[Messages, Ints, MessagePlan]] = {}
    for column in plan.columns:
        part = fields[column.number]
        if column.table is not None:
            assert column.inner is not None, "a table has columns"
            _expect(part, wire.BYTES)
            if not column.many and len(part.last()) < len(part):
                raise UnusualMessage  # two of them are merged
            tables[column.table] = (part.within(messages), part.rows, column.inner)
        elif column.kind != _T.TYPE_MESSAGE:
            columns[column.name] = _scalars(messages, part, column)
        elif column.many:
            columns[column.name] = _list_of_messages(messages, part, column)
        else:
            value, inner = _embedded(messages, part, column)
            tables.update(inner)
            if not _is_hollow(column):
                columns[column.name] = value
    return Row(columns, tables)


def _refuse_two_of_one(fields: wire.Fields, plan: MessagePlan, rows: int) -> None:
    """Refuse messages that hold two members of a oneof: the last would count."""
    for numbers in plan.oneofs:
        parts = [fields[number] for number in numbers if len(fields[number])]
        if len(parts) > 1:
            counts = np.bincount(
                np.concatenate([part.last().rows for part in parts]), minlength=rows
            )
            if (counts > 1).any():
                raise UnusualMessage


def _expect(entries: Found, kind: int) -> None:
    if not entries.only(kind):
        raise UnusualMessage


def _scalars(messages: Messages, entries: Found, column: ColumnPlan) -> pa.Array:
    rows = len(messages)
    natural = _WIRES.get(column.kind, wire.VARINT)
    if not column.many:
        _expect(entries, natural)
        last = entries.last()
        values = _values(messages, last, column)
        return wire.spread(values, last.rows, rows, _absent(column))
    if natural == wire.BYTES or entries.only(natural):
        _expect(entries, natural)
        values, counts = _values(messages, entries, column), entries.counts(rows)
    else:
        _expect(entries, wire.BYTES)
        values, each = _packed(messages, entries, column, natural)
        counts = np.bincount(entries.rows, weights=each, minlength=rows).astype(np.int64)
    return pa.ListArray.from_arrays(wire.offsets_of(counts), values, type=column.type)


def _absent(column: ColumnPlan) -> Any:
    if column.nullable:
        return None
    if column.kind == _T.TYPE_ENUM:
        return column.names.get(0, "0")
    return {pa.string(): "", pa.binary(): b"", pa.bool_(): False}.get(column.type, 0)


def _values(messages: Messages, entries: Found, column: ColumnPlan) -> pa.Array:
    if column.kind == _T.TYPE_STRING:
        return wire.texts(messages, entries)
    if column.kind == _T.TYPE_BYTES:
        return wire.blobs(messages, entries)
    natural = _WIRES.get(column.kind, wire.VARINT)
    if natural == wire.VARINT:
        return _numbers(entries.values, column)
    return _numbers(
        wire.fixed(messages, entries.starts, 8 if natural == wire.FIXED64 else 4), column
    )


def _packed(
    messages: Messages, entries: Found, column: ColumnPlan, natural: int
) -> tuple[pa.Array, Ints]:
    if natural == wire.VARINT:
        values, counts = wire.packed_varints(messages, entries)
        return _numbers(values, column), counts
    width = 8 if natural == wire.FIXED64 else 4
    lengths = entries.ends - entries.starts
    if (lengths % width).any():
        raise wire.MalformedMessage("a packed list ends within a number", int(entries.starts[0]))
    counts = lengths // width
    base = np.repeat(entries.starts - (np.cumsum(counts) - counts) * width, counts)
    starts = base + np.arange(int(counts.sum())) * width
    return _numbers(wire.fixed(messages, starts, width), column), counts


def _numbers(raw: Any, column: ColumnPlan) -> pa.Array:
    """Return unsigned numbers from the wire as the values that they stand for."""
    raw = np.ascontiguousarray(raw)
    match column.kind:
        case _T.TYPE_BOOL:
            return pa.array(raw != 0)
        case _T.TYPE_DOUBLE | _T.TYPE_FLOAT:
            return pa.array(raw.view("<f8" if raw.dtype.itemsize == 8 else "<f4"))
        case _T.TYPE_UINT64 | _T.TYPE_FIXED64:
            words = np.zeros((len(raw), 2), np.uint64)
            words[:, 0] = raw
            return pa.Array.from_buffers(UNSIGNED, len(raw), [None, pa.py_buffer(words)])
        case _T.TYPE_UINT32 | _T.TYPE_FIXED32:
            return pa.array(raw.astype(np.uint32).astype(np.int64))
        case _T.TYPE_SINT64 | _T.TYPE_SINT32:
            word = raw.astype(np.uint64 if column.kind == _T.TYPE_SINT64 else np.uint32)
            one = word.dtype.type(1)
            signed = (word >> one) ^ (~(word & one) + one)
            return pa.array(signed.view(np.int64 if word.itemsize == 8 else np.int32))
        case _T.TYPE_INT32 | _T.TYPE_SFIXED32:
            return pa.array(raw.astype(np.uint32).view(np.int32))
        case _T.TYPE_ENUM:
            return _enum_names(raw.astype(np.uint32).view(np.int32), column.names)
        case _:
            return pa.array(raw.view(np.int64))


def _enum_names(codes: Any, names: Mapping[int, str]) -> pa.Array:
    """Return the names of values; the number where the type knows none, as JSON has it."""
    distinct, which = np.unique(codes, return_inverse=True)
    texts = pa.array([names.get(code, str(code)) for code in distinct.tolist()], pa.string())
    return texts.take(pa.array(which.astype(np.int64)))


def _one_each(messages: Messages, entries: Found) -> Messages:
    """Return the embedded message of each message; an empty one where it is absent."""
    _expect(entries, wire.BYTES)
    if len(entries.last()) < len(entries):
        raise UnusualMessage  # two of them are merged
    rows = len(messages)
    starts, ends = (
        wire.scattered(bounds, entries.rows, rows) for bounds in (entries.starts, entries.ends)
    )
    return Messages(messages.data, starts, ends)


def _embedded(
    messages: Messages, entries: Found, column: ColumnPlan
) -> tuple[pa.Array, dict[str, tuple[Messages, Ints, MessagePlan]]]:
    each = _one_each(messages, entries)
    absent = np.ones(len(messages), np.bool_)
    absent[entries.rows] = False
    if column.inner is None:
        return _moments(each, absent), {}
    row = read_columns(each, column.inner)
    if column.is_wrapper:
        (value,) = row.columns.values()
        null = pa.scalar(None, value.type)
        return pa.compute.if_else(pa.array(absent), null, value), {}
    if column.type == pa.bool_():
        return pa.array(~absent), {}
    if not column.inner.shown:
        return pa.nulls(len(messages)), row.tables
    structs = pa.StructArray.from_arrays(
        list(row.columns.values()), fields=list(column.type), mask=pa.array(absent)
    )
    return structs, row.tables


def _moments(messages: Messages, absent: Any) -> pa.Array:
    """Return times in microseconds.

    Raises:
        MalformedMessage: one is beyond the year 294,000, on either side.
    """
    fields = wire.scan(messages, (1, 2))
    parts = []
    for number in (1, 2):
        _expect(fields[number], wire.VARINT)
        last = fields[number].last()
        parts.append(wire.scattered(last.values, last.rows, len(messages)))
    seconds, nanos = parts[0].view(np.int64), parts[1].astype(np.uint32).view(np.int32)
    beyond = np.flatnonzero((seconds > FARTHEST_S) | (seconds < -FARTHEST_S))
    if len(beyond):
        raise wire.MalformedMessage(
            f"a Timestamp of {seconds[beyond[0]]} seconds is beyond what a column holds",
            int(messages.starts[beyond[0]]),
        )
    return pa.array(seconds * 1_000_000 + nanos // 1000, mask=absent).cast(MOMENT)


def _list_of_messages(messages: Messages, entries: Found, column: ColumnPlan) -> pa.Array:
    _expect(entries, wire.BYTES)
    assert column.inner is not None, "a list of messages has columns"
    inside = entries.within(messages)
    row = read_columns(inside, column.inner)
    item = column.type.value_type
    if column.is_map:
        _refuse_equal_keys(entries.rows, row.columns["key"])
    if item == pa.bool_():
        values = pa.array(np.ones(len(inside), np.bool_))
    else:
        values = pa.StructArray.from_arrays(list(row.columns.values()), fields=list(item))
    return pa.ListArray.from_arrays(
        wire.offsets_of(entries.counts(len(messages))), values, type=column.type
    )


def _refuse_equal_keys(rows: Ints, keys: pa.Array) -> None:
    """Refuse a map that holds a key twice: the last would count."""
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    pairs = rows * (int(codes.max(initial=0)) + 1) + codes
    if len(np.unique(pairs)) < len(pairs):
        raise UnusualMessage


# --- values as an annotation wants them ----------------------------------------------------------


def as_number(values: pa.Array, conversion: str, column: str) -> pa.Array:
    """Return texts, or lists of them, that are numbers: empty ones as null.

    They are decimals where Arrow and Spark hold them as such, and text otherwise; that fractions
    have no more digits than asked for is checked in both cases.

    Raises:
        UndecodableOutputError: a text is no decimal of the size.
    """
    if pa.types.is_list(values.type):
        items = as_number(values.flatten(), conversion, column)
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        return pa.ListArray.from_arrays(wire.offsets_of(np.asarray(lengths)), items)
    if values.type != pa.string():
        return values
    values = pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)
    kind = decimal_of(conversion)
    if kind is None:
        return values
    try:
        exact = values.cast(kind)
    except (pa.ArrowInvalid, ValueError) as error:
        raise UndecodableOutputError(
            "a text is no number of this size", column=column, type=conversion, reason=error
        ) from None
    return exact if kind.bit_width == 128 else values


def decimal_of(conversion: str) -> pa.DataType | None:
    """Return the type that a conversion such as `decimal128(9)` names; None if it is none."""
    name, _, scale = conversion.removesuffix(")").partition("(")
    match name:
        case "decimal128":
            return pa.decimal128(38, int(scale))
        case "decimal256":
            return pa.decimal256(76, int(scale))
        case _:
            return None
